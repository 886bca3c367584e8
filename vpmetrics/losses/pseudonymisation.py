"""The loss that hides who is speaking and keeps voices apart."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from vpmetrics._checks import check_weight
from vpmetrics.losses.base import Batch, EmbeddingLoss
from vpmetrics.losses.disclosure import DisclosureLoss
from vpmetrics.losses.distinctiveness import DistinctivenessLoss


class PseudonymisationLoss(EmbeddingLoss):
    r"""Hide who is speaking and keep protected speakers apart: a voice of their own for everybody, but not their own.

    .. math:: L = w_\mathrm{OP} L_\mathrm{disclosure} + w_\mathrm{PP} L_\mathrm{distinctiveness}

    Give the anonymiser a key, a random vector drawn anew for every session, and call the loss with ``sessions``, two
    per speaker and batch: then protected speech links within a session, and neither across sessions nor to the
    original. Without a key it cannot be hidden who is speaking, neither from who runs the anonymiser on recordings of
    theirs nor from who learns from pairs to undo it; see :class:`DisclosureLoss`.

    The defaults are those that carry over to speakers not trained on and to attackers not trained against, found by
    training small networks on splits of the bundled voices (``tests/bench/anonymisers.py``):

    - *Steadiness.* The one that matters most for a keyed anonymiser. Trained against cosines and centring alone, unseen
      voices give 0.01 bit to these and 0.5 bit to a ridge regression that was fitted on other speakers; with it 0.03,
      no more than a network that never sees the original. Training against such attackers in place of it leaves 0.4,
      and beside it changes nothing that can be measured, so ``attacks`` are off.
    - *Narrow smoothing.* With 0.1 instead of 0.02, unseen speakers disclose several times as much: the gradient fades
      while the anonymiser still adds to the original voice, and the rest that shines through is compensated for the
      speakers trained on only.
    - *Flatness.* Few speakers leave few target cells to learn from; all pairs of speakers are many, and what
      does not depend on any pair does not depend on the own one.
    - *Centring.* Scores are also hidden by a shift common to all voices, and an attacker who subtracts means takes it
      back.

    Args:
        disclosure: Weight of :class:`DisclosureLoss`.
        distinctiveness: Weight of :class:`DistinctivenessLoss`.
        bandwidth: Width of the smoothing in standard deviations of the scores.
        centred: Also defend against an attacker who subtracts means; see :class:`DisclosureLoss`.
        flatness: Weight of what keeps scores from depending on any speaker; see :class:`DisclosureLoss`.
        straight_through: Return exact disclosures with the gradient of smoothed ones.
        attacks: Attackers who learn to undo the anonymiser, ``"batch"`` and ``"past"``; see :class:`DisclosureLoss`.
        steadiness: Weight of what shines through within sessions, where they are given; see :class:`DisclosureLoss`.

    Example:
        >>> import torch
        >>> draw = torch.Generator().manual_seed(0)
        >>> original, speakers = torch.randn(64, 16, generator=draw), torch.arange(64) % 8
        >>> sessions = 2 * speakers + (torch.arange(64) >= 32)
        >>> key = torch.randn(16, 4, generator=draw)[sessions]
        >>> anonymiser = torch.nn.Linear(16 + 4, 16)
        >>> protected = anonymiser(torch.cat([original, key], dim=1))
        >>> PseudonymisationLoss()(original, protected, speakers, sessions).backward()
        >>> anonymiser.weight.grad.isfinite().all()
        tensor(True)
    """

    def __init__(
        self,
        disclosure: float = 1.0,
        distinctiveness: float = 1.0,
        bandwidth: float = 0.02,
        centred: bool = True,
        flatness: float = 0.2,
        straight_through: bool = False,
        attacks: Sequence[str] = (),
        steadiness: float = 0.1,
    ) -> None:
        super().__init__()
        check_weight("disclosure", disclosure)
        check_weight("distinctiveness", distinctiveness)
        self.weights = disclosure, distinctiveness
        self.disclosure = DisclosureLoss(bandwidth, centred, flatness, straight_through, attacks, steadiness)
        self.distinctiveness = DistinctivenessLoss(bandwidth, straight_through)

    def measure(self, batch: Batch) -> Tensor:
        """The value for a batch that was checked."""
        disclosed, indistinct = self.disclosure.measure(batch), self.distinctiveness.measure(batch)
        return self.weights[0] * disclosed + self.weights[1] * indistinct

    def extra_repr(self) -> str:
        """The weights, for ``print``."""
        return "weights: {} (disclosure), {} (distinctiveness)".format(*self.weights)
