"""The losses that keep protected speakers distinct, and that hide them at the same time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vpmetrics._engine.scalar import FULL_DISCLOSURE
from vpmetrics._engine.validation import check_positive, check_weight
from vpmetrics.losses.disclosure import DisclosureLoss
from vpmetrics.losses.embedding_loss import (
    Batch,
    EmbeddingLoss,
    cosines,
    make_trials,
    match_labels,
    surrogate_disclosure,
    take_above_diagonal,
)


class DistinctivenessLoss(EmbeddingLoss):
    r"""Compute how far protected speech is from full distinctiveness: the maximal D_ECE minus that of PP.

    .. math:: L = \frac{1}{2 \ln 2} - D_\mathrm{ECE}(s), \qquad s_{kl} = \cos(p_k, p_l),\ k < l

    With ``sessions``, target trials are those *within* a session: a speaker may change voice from session to session.

    Args:
        bandwidth: Width of the smoothing in standard deviations of the scores.
        straight_through: Return exact D_ECE, as a metric would, with the gradient of smoothed D_ECE.

    Example:
        >>> protected = torch.eye(4)[torch.arange(16) % 4]
        >>> DistinctivenessLoss()(protected, protected, speakers=torch.arange(16) % 4).item() < 0.001
        True
    """

    def __init__(self, bandwidth: float = 0.02, straight_through: bool = False) -> None:
        super().__init__()
        check_positive("bandwidth", bandwidth)
        self.bandwidth, self.straight_through = bandwidth, straight_through

    def compute_loss(self, batch: Batch) -> Tensor:
        """Return the loss of a validated batch; the original is not used."""
        scores, is_same = cosines(batch.protected, batch.protected), match_labels(batch.speakers)
        is_within = torch.ones_like(is_same) if batch.sessions is None else ~is_same | match_labels(batch.sessions)
        trials = make_trials(*map(take_above_diagonal, (scores[None], is_same, is_within)))
        disclosed = surrogate_disclosure(trials, self.bandwidth, self.straight_through, directions=1)[0, 0]
        return torch.where(trials.is_defined[0], FULL_DISCLOSURE - disclosed, 0).to(scores.dtype)

    def extra_repr(self) -> str:
        """Return the settings, for ``print``."""
        return f"bandwidth={self.bandwidth}, straight_through={self.straight_through}"


class PseudonymisationLoss(EmbeddingLoss):
    r"""Compute a loss that hides speakers and keeps them distinct: every speaker gets another voice.

    .. math:: L = w_\mathrm{OP} L_\mathrm{disclosure} + w_\mathrm{PP} L_\mathrm{distinctiveness}

    Give the anonymiser a key, a random vector drawn for every session, and call the loss with ``sessions``, two per
    speaker and batch. Then protected speech links within a session, but neither across sessions nor to the original.
    Without a key no loss can hide speakers: an attacker runs the anonymiser on recordings of known speakers, or learns
    from pairs to undo it. Keys need about as many dimensions as embeddings: directions that no key fills keep the
    utterance.

    The defaults carry over to speakers and attackers not trained on (``tests/bench/test_bench_training.py``; the losses
    compared: ``tests/bench/anonymisers.py``):

    - *Session invariance* matters most for a keyed anonymiser. Trained against cosines and centring alone, unseen
      voices give 0.01 bit to these and 0.5 bit to a ridge regression fitted on other speakers. Training against such
      attackers instead leaves 0.4, and in addition changes nothing measurable, so ``attacks`` are off.
    - *Narrow smoothing.* With 0.1 in place of 0.02, unseen speakers disclose several times as much: the gradient
      vanishes while the output still depends on the original voice.
    - *Flatness.* Few speakers make few target trials to learn from. Pairs of speakers are many, and scores that do not
      depend on the pair do not depend on the true speaker.
    - *Centring.* A shift common to all voices hides scores too, and an attacker who subtracts means undoes it.

    Args:
        disclosure: Weight of :class:`DisclosureLoss`.
        distinctiveness: Weight of :class:`DistinctivenessLoss`.
        bandwidth: Width of the smoothing in standard deviations of the scores.
        centred: Also defend against an attacker who subtracts means; see :class:`DisclosureLoss`.
        flatness: Weight of the dependence of scores on speakers; see :class:`DisclosureLoss`.
        straight_through: Return exact D_ECE with the gradient of smoothed D_ECE.
        attacks: Trained attackers, ``"batch"`` and ``"past"``; see :class:`DisclosureLoss`.
        session_invariance: Weight of the variance within sessions, where they are given; see :class:`DisclosureLoss`.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> original, speakers = torch.randn(64, 16, generator=generator), torch.arange(64) % 8
        >>> sessions = 2 * speakers + (torch.arange(64) >= 32)
        >>> key = torch.randn(16, 16, generator=generator)[sessions]
        >>> anonymiser = torch.nn.Linear(16 + 16, 16)
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
        session_invariance: float = 1.0,
    ) -> None:
        super().__init__()
        check_weight("disclosure", disclosure)
        check_weight("distinctiveness", distinctiveness)
        self.weights = disclosure, distinctiveness
        self.disclosure = DisclosureLoss(bandwidth, centred, flatness, straight_through, attacks, session_invariance)
        self.distinctiveness = DistinctivenessLoss(bandwidth, straight_through)

    def compute_loss(self, batch: Batch) -> Tensor:
        """Return the loss of a validated batch."""
        disclosed, indistinct = self.disclosure.compute_loss(batch), self.distinctiveness.compute_loss(batch)
        return self.weights[0] * disclosed + self.weights[1] * indistinct

    def extra_repr(self) -> str:
        """Return the weights, for ``print``."""
        return "weights: {} (disclosure), {} (distinctiveness)".format(*self.weights)
