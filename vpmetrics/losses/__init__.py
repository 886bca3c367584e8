"""What an anonymiser is trained with: disclosure as a loss, from a batch of embeddings.

All of them are called with ``original (B, D)``, ``protected (B, D)`` (row i is the anonymised version of row i),
``speakers (B,)`` and, where an anonymiser has a key, ``sessions (B,)``, as the embedding metrics are. They need batches
in which speakers have several utterances: 16 speakers of 8 utterances are enough, which
:class:`vpmetrics.data.SpeakerBatchSampler` draws. Embeddings are scored by cosine, in float32 or wider whatever
autocast says. A batch without target or without non-target trials gives a zero with a graph. ``torch.compile`` makes
one graph of each, which takes a third of the time, and says no warnings.
"""

from vpmetrics.losses.disclosure import DisclosureLoss
from vpmetrics.losses.distinctiveness import DistinctivenessLoss
from vpmetrics.losses.pseudonymisation import PseudonymisationLoss

__all__ = ["DisclosureLoss", "DistinctivenessLoss", "PseudonymisationLoss"]
