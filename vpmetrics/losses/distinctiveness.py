"""The loss that keeps protected speakers apart."""

from __future__ import annotations

import torch
from torch import Tensor

from vpmetrics._checks import check_positive
from vpmetrics.losses.base import Batch, EmbeddingLoss
from vpmetrics.losses.pairs import FULL_DISCLOSURE, above_diagonal, cosines, equal, one_sided_disclosure, trials


class DistinctivenessLoss(EmbeddingLoss):
    r"""How much protected speech lacks to tell protected speakers apart: the D_ECE of PP below its maximum.

    .. math:: L = \frac{1}{2 \ln 2} - D_\mathrm{ECE}(s), \qquad s_{kl} = \cos(p_k, p_l),\ k < l

    With ``sessions``, of PP *within* sessions: a speaker need not sound in one session as in another.

    Args:
        bandwidth: Width of the smoothing in standard deviations of the scores.
        straight_through: Return the exact D_ECE (as a metric would report) with the gradient of the smoothed one.

    Example:
        >>> protected = torch.eye(4)[torch.arange(16) % 4]
        >>> DistinctivenessLoss()(protected, protected, speakers=torch.arange(16) % 4).item() < 0.001
        True
    """

    def __init__(self, bandwidth: float = 0.02, straight_through: bool = False) -> None:
        super().__init__()
        check_positive("bandwidth", bandwidth)
        self.bandwidth, self.straight_through = bandwidth, straight_through

    def measure(self, batch: Batch) -> Tensor:
        """The value for a batch that was checked; the original is not looked at, for every loss is called alike."""
        scores, same = cosines(batch.protected, batch.protected), equal(batch.speakers)
        within = torch.ones_like(same) if batch.sessions is None else ~same | equal(batch.sessions)
        pairs = trials(*map(above_diagonal, (scores[None], same, within)))
        told_apart = one_sided_disclosure(pairs, self.bandwidth, self.straight_through)[0]
        return torch.where(pairs.defined[0], FULL_DISCLOSURE - told_apart, 0).to(scores.dtype)

    def extra_repr(self) -> str:
        """The settings, for ``print``."""
        return f"bandwidth={self.bandwidth}, straight_through={self.straight_through}"
