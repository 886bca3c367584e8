"""The loss that hides who spoke the original."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vpmetrics._checks import check_choice, check_positive, check_weight
from vpmetrics.losses.attackers import Covariances, Past, View, attack_by_halves, attack_by_past, shine_through
from vpmetrics.losses.base import Batch, EmbeddingLoss
from vpmetrics.losses.pairs import above_diagonal, centre, cosines, disclosure, equal, off_diagonal, trials

ATTACKS = ("batch", "past")
_STEADY = 1e-3  # share of the variance within sessions that counts as none


class DisclosureLoss(EmbeddingLoss):
    r"""How much protected speech discloses about who spoke the original: D_ECE of OP, in both directions.

    .. math:: L = \sum_a \left[ D_\mathrm{ECE}(s_a) + D_\mathrm{ECE}(-s_a) \right]
        \quad \text{[+ the same across sessions]} \quad + \lambda\, \eta^2 + \mu \ln(1 + t / \epsilon)

    with scores :math:`s_{kl} = \cos(o_k, p_l)` of all ordered pairs :math:`k \neq l`, and those of every further
    attacker :math:`a`. D_ECE is that of the smoothed PAV, so it has a gradient. PAV looks one way: where own voices
    score *below* others, it finds nothing, although an attacker only has to turn the sign. Minimised alone, D_ECE(s)
    is driven into that blind spot; the sum is not.

    With ``sessions``, protected speech of a speaker must not link *across* sessions either: pairs of one speaker in two
    sessions against pairs of two speakers. What no loss can do: an anonymiser without a secret that changes does to the
    attacker's recordings what it does to everybody's, so whoever can run it links every speaker, whatever OP says.

    The value hardly depends on the size of a batch from 32 rows on. Calibration fits noise where trials are few: speech
    that says nothing has a loss of 0.14 with 8 rows, 0.03 with 16, 0.015 with 32 and less than 0.005 from 64 on.
    Gradients are bounded, at about 10 for embeddings of length 1, also where all protected embeddings are alike.

    Args:
        bandwidth: Width of the smoothing in standard deviations of the scores.
        centred: Also defend against an attacker who first subtracts the mean of each side, as speaker recognisers do.
        flatness: Weight :math:`\lambda` of the share :math:`\eta^2` of the variance of the scores that lies between
            pairs of speakers. Where it is low, scores say little about any speaker, so little about unseen ones.
        straight_through: Return the exact D_ECE (as a metric would report) with the gradient of the smoothed one.
        attacks: Also defend against attackers who learn to map protected speech back to original speech, by ridge
            regression on pairs of both: ``"batch"``, fitted on half of the speakers of a batch and used on the others;
            ``"past"``, fitted on some 20 past batches. The module keeps moments of these, whose size is that of a few
            matrices ``(D, D)``, in training mode and of batches with a gradient; the attack begins with the eleventh.
        steadiness: Weight :math:`\mu` of what shines through of the utterance within sessions: the share :math:`t` of
            the variance there, averaged over whitened directions, with :math:`\epsilon` = 0.001. Nothing else teaches
            a keyed anonymiser as well to leave nothing of the original in directions of low variance, where a linear
            attacker looks. It looks at past batches like the attack of that name, and needs ``sessions``.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> original = torch.randn(64, 16, generator=draw)
        >>> protected = torch.randn(64, 16, generator=draw, requires_grad=True)
        >>> loss = DisclosureLoss()(original, protected, speakers=torch.arange(64) % 8)
        >>> loss.backward()
        >>> loss.item() < 0.05
        True
    """

    def __init__(
        self,
        bandwidth: float = 0.02,
        centred: bool = False,
        flatness: float = 0.0,
        straight_through: bool = False,
        attacks: Sequence[str] = (),
        steadiness: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive("bandwidth", bandwidth)
        check_weight("flatness", flatness)
        check_weight("steadiness", steadiness)
        if isinstance(attacks, str):
            raise TypeError(f"Expected `attacks` to be a sequence of names, but got {attacks!r}.")
        for attack in attacks:
            check_choice("attacks", attack, ATTACKS)
        self.bandwidth, self.centred, self.flatness = bandwidth, centred, flatness
        self.straight_through, self.attacks, self.steadiness = straight_through, tuple(attacks), steadiness
        self.past = Past() if "past" in self.attacks or steadiness > 0 else None

    def measure(self, batch: Batch) -> Tensor:
        """The value for a batch that was checked."""
        original, protected, speakers, sessions = batch
        past = None if self.past is None else self.past.covariances(protected)
        same, views = equal(speakers), self._views(original, protected, speakers, past)
        scores = torch.stack([cosines(view.original, view.protected) for view in views])
        counted = torch.stack([torch.ones_like(same) if view.counted is None else view.counted for view in views])
        loss = self._disclosure(*map(off_diagonal, (scores, same, counted)))
        if self.flatness > 0:
            defined = (same.sum() > len(same)) & ~same.all()
            loss = loss + self.flatness * torch.where(defined, _share_between_speakers(scores[0], same), 0)
        if sessions is not None:
            linked, across = cosines(protected, protected)[None], ~same | ~equal(sessions)
            loss = loss + self._disclosure(*map(above_diagonal, (linked, same, across)))
            if self.steadiness > 0 and past is not None:
                share = shine_through(past, protected, speakers, sessions)
                loss = loss + self.steadiness * (share / _STEADY).log1p()
        if self.past is not None:
            self.past.observe(original, protected)
        return loss.to(scores.dtype)

    def extra_repr(self) -> str:
        """The settings, for ``print``."""
        names = ("bandwidth", "centred", "flatness", "straight_through", "attacks", "steadiness")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)

    def _views(self, original: Tensor, protected: Tensor, speakers: Tensor, past: Covariances | None) -> list[View]:
        """What each attacker compares."""
        views = [View(original, protected)]
        if self.centred:
            views.append(View(centre(original), centre(protected)))
        if "batch" in self.attacks:
            views.append(attack_by_halves(original, protected, speakers))
        if "past" in self.attacks and past is not None:
            views.append(attack_by_past(past, original, protected))
        return views

    def _disclosure(self, scores: Tensor, same: Tensor, counted: Tensor) -> Tensor:
        """D_ECE of both directions, added over attackers."""
        return disclosure(trials(scores, same, counted), self.bandwidth, self.straight_through).sum()


def _share_between_speakers(scores: Tensor, same: Tensor) -> Tensor:
    """Correlation ratio: variance of the means of all pairs of speakers, over the variance of the scores."""
    average = same.to(scores.dtype)
    average = average / average.sum(dim=1)
    return (average @ scores @ average.T).var() / (scores.var() + torch.finfo(scores.dtype).eps ** 2)
