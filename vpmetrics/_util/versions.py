"""The versions that a bug report should name."""

from __future__ import annotations

import platform
from importlib import metadata

_LIBRARIES = (
    "vpmetrics",
    "torch",
    "torchmetrics",
    "numpy",
    "pytorch-lightning",
    "lightning",
    "matplotlib",
    "jinja2",
    "polars",
    "rich",
    "soundfile",
    "resemblyzer",
    "speechbrain",
    "transformers",
)


def show_versions() -> None:
    """Print the versions of Python, the system and the libraries that matter, for a bug report.

    Example:
        >>> show_versions()
        python ...
        vpmetrics ...
    """
    from vpmetrics import __version__

    lines = {"python": platform.python_version(), "system": platform.platform()}
    installed = {
        str(found.metadata["Name"]).lower(): found.version for found in metadata.distributions()
    }
    for library in _LIBRARIES:
        lines[library] = installed.get(library, "not installed")
    lines["vpmetrics"] = __version__
    width = max(map(len, lines))
    for name, version in lines.items():
        print(f"{name:<{width}} {version}")
