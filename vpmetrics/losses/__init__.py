"""Losses that train an anonymiser, from a batch of embeddings.

Each is called with ``original (B, D)``, ``protected (B, D)`` (row i is the anonymised version of
row i), ``speakers (B,)`` and, where the anonymiser has a key, ``sessions (B,)``. Speakers need
several utterances per batch: 16 speakers of 8 utterances are enough, which
:class:`vpmetrics.data.SpeakerBatchSampler` draws. Embeddings are scored by cosine, in float32 or
wider also under autocast. A batch without target or without non-target trials gives 0 with a graph.
``torch.compile`` makes one graph of each loss; warnings are not given then.

The length of an embedding changes no value, and the gradient of a row is orthogonal to the row, so
a gain cannot lower a loss. The weights of an anonymiser may still grow, since a step along a
tangent lengthens a vector: where the length matters, normalise the output or use weight decay.
"""

from vpmetrics.losses.disclosure import DisclosureLoss, DistinctivenessLoss, PseudonymisationLoss

__all__ = ["DisclosureLoss", "DistinctivenessLoss", "PseudonymisationLoss"]
