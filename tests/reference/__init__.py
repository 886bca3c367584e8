"""Every definition once more, in plain NumPy float64.

Slow, obvious, and written from the papers, not from the code.
"""

from . import (  # noqa: F401
    attacks,
    conversations,
    isotonic,
    local,
    order,
    population,
    rank,
    resampling,
    similarity,
    speakers,
    strongest,
    verification,
    zebra,
)
