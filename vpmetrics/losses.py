"""What an anonymiser is trained with: disclosure as a loss, from a batch of embeddings.

All of them are called with ``original (B, D)``, ``protected (B, D)`` (row i is the anonymised version of row i) and
``speakers (B,)``, as the embedding metrics are, and need batches in which speakers have several utterances: 16
speakers of 8 utterances are enough. Embeddings are scored by cosine, in float32 or wider whatever autocast says.
A batch without target or without non-target trials gives a zero with a graph.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vpmetrics._checks import check_embeddings, check_floating, check_positive, check_weight
from vpmetrics._precision import at_least_float32
from vpmetrics._scores.counting import count_by_score
from vpmetrics._scores.measures import expected_disclosure
from vpmetrics._scores.smooth import soft_counts
from vpmetrics._scores.steps import Steps

__all__ = ["DisclosureLoss", "DistinctivenessLoss", "PseudonymisationLoss"]

FULL_DISCLOSURE = 1 / (2 * math.log(2))
"""D_ECE in bits of scores that tell every target from every non-target."""
_WIDE = 0.5  # bandwidth with a gradient even where all targets lie far above all non-targets
_PULL = 0.1  # its share: enough to leave that place, where nothing else pulls, and too little to matter elsewhere
_SHORTEST = 1e-6  # length below which an embedding has no direction; also bounds its gradient


class DisclosureLoss(nn.Module):
    r"""How much protected speech discloses about who spoke the original: D_ECE of OP, in both directions.

    .. math:: L = D_\mathrm{ECE}(s) + D_\mathrm{ECE}(-s) \qquad \text{[+ the same for centred embeddings]}
        \quad + \lambda\, \eta^2

    with scores :math:`s_{kl} = \cos(o_k, p_l)` of all ordered pairs :math:`k \neq l`. D_ECE is that of the smoothed
    PAV, so it has a gradient. PAV looks one way: where own voices score *below* others, it finds nothing, although an
    attacker only has to turn the sign. Minimised alone, D_ECE(s) is driven into that blind spot; the sum is not.

    Args:
        bandwidth: Width of the smoothing in standard deviations of the scores.
        centred: Also defend against an attacker who first subtracts the mean of each side, as speaker recognisers do.
        flatness: Weight :math:`\lambda` of the share :math:`\eta^2` of the variance of the scores that lies between
            pairs of speakers. Where it is low, scores say little about any speaker, so little about unseen ones.
        straight_through: Return the exact D_ECE (as a metric would report) with the gradient of the smoothed one.

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
    ) -> None:
        super().__init__()
        check_positive("bandwidth", bandwidth)
        check_weight("flatness", flatness)
        self.bandwidth, self.centred, self.flatness = bandwidth, centred, flatness
        self.straight_through = straight_through

    def forward(self, original: Tensor, protected: Tensor, speakers: Tensor) -> Tensor:
        """The loss of a batch, a scalar.

        Args:
            original: Floating embeddings of shape ``(B, D)``.
            protected: Those of the anonymised versions, row by row.
            speakers: Integer speaker of each row, ``(B,)``.
        """
        _check(original, protected, speakers)
        if len(speakers) < 2:
            return _zero(original, protected)
        with torch.autocast(protected.device.type, enabled=False):
            scores = _cosines(original, protected)
            attacks = [scores, _cosines(*map(_centre, (original, protected)))] if self.centred else [scores]
            preds = torch.stack([_off_diagonal(attack) for attack in attacks])
            trials = _trials(preds, _off_diagonal(speakers[:, None] == speakers))
            widths = (_WIDE, _PULL), (self.bandwidth, 1 - _PULL)
            loss = _disclosure(trials, widths, True, self.straight_through).sum().to(scores.dtype)
            if self.flatness > 0:
                share = _share_between_speakers(scores, speakers)
                loss = loss + self.flatness * torch.where(trials.defined, share, 0)
        return loss

    def extra_repr(self) -> str:
        """The settings, for ``print``."""
        names = ("bandwidth", "centred", "flatness", "straight_through")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


class DistinctivenessLoss(nn.Module):
    r"""How much protected speech lacks to tell protected speakers apart: the D_ECE of PP below its maximum.

    .. math:: L = \frac{1}{2 \ln 2} - D_\mathrm{ECE}(s), \qquad s_{kl} = \cos(p_k, p_l),\ k < l

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

    def forward(self, original: Tensor, protected: Tensor, speakers: Tensor) -> Tensor:
        """The loss of a batch, a scalar.

        Args:
            original: Not looked at; every loss here is called alike.
            protected: Floating embeddings of shape ``(B, D)``.
            speakers: Integer speaker of each row, ``(B,)``.
        """
        _check(original, protected, speakers)
        if len(speakers) < 2:
            return _zero(original, protected)
        with torch.autocast(protected.device.type, enabled=False):
            scores = _cosines(protected, protected)
            row, column = torch.triu_indices(len(scores), len(scores), offset=1, device=scores.device)
            trials = _trials(scores[row, column], speakers[row] == speakers[column])
            disclosure = _disclosure(trials, ((self.bandwidth, 1.0),), False, self.straight_through)[0]
        return torch.where(trials.defined, FULL_DISCLOSURE - disclosure, 0).to(scores.dtype)

    def extra_repr(self) -> str:
        """The settings, for ``print``."""
        return f"bandwidth={self.bandwidth}, straight_through={self.straight_through}"


class PseudonymisationLoss(nn.Module):
    r"""Hide who is speaking and keep protected speakers apart: a voice of their own for everybody, but not their own.

    .. math:: L = w_\mathrm{OP} L_\mathrm{disclosure} + w_\mathrm{PP} L_\mathrm{distinctiveness}

    The defaults are those that carry over to speakers not trained on, found by training a small residual network on
    splits of the bundled voices (``tests/bench/anonymisers.py``):

    - *Narrow smoothing.* With 0.1 instead of 0.02, unseen speakers disclose several times as much: the gradient fades
      while the anonymiser still adds to the original voice, and the rest that shines through is compensated for the
      speakers trained on only.
    - *Flatness.* Few speakers leave few target cells to learn from; all pairs of speakers are many, and what
      does not depend on any pair does not depend on the own one.
    - *Centring.* Scores are also hidden by a shift common to all voices, and an attacker who subtracts means takes it
      back: losses without centring leave that open, even for speakers trained on. With it these stay hidden; unseen
      ones are uncovered in part even so. No loss on the scores of one attacker makes an anonymiser safe from another:
      measure with the attacker you fear.

    Args:
        disclosure: Weight of :class:`DisclosureLoss`.
        distinctiveness: Weight of :class:`DistinctivenessLoss`.
        bandwidth: Width of the smoothing in standard deviations of the scores.
        centred: Also defend against an attacker who subtracts means; see :class:`DisclosureLoss`.
        flatness: Weight of what keeps scores from depending on any speaker; see :class:`DisclosureLoss`.
        straight_through: Return exact disclosures with the gradient of smoothed ones.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> original, speakers = torch.randn(64, 16, generator=draw), torch.arange(64) % 8
        >>> anonymiser = torch.nn.Linear(16, 16)
        >>> PseudonymisationLoss()(original, anonymiser(original), speakers).backward()
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
    ) -> None:
        super().__init__()
        check_weight("disclosure", disclosure)
        check_weight("distinctiveness", distinctiveness)
        self.weights = disclosure, distinctiveness
        self.disclosure = DisclosureLoss(bandwidth, centred, flatness, straight_through)
        self.distinctiveness = DistinctivenessLoss(bandwidth, straight_through)

    def forward(self, original: Tensor, protected: Tensor, speakers: Tensor) -> Tensor:
        """The loss of a batch, a scalar.

        Args:
            original: Floating embeddings of shape ``(B, D)``.
            protected: Those of the anonymised versions, row by row.
            speakers: Integer speaker of each row, ``(B,)``.
        """
        batch = original, protected, speakers
        disclosed: Tensor = self.disclosure(*batch)
        indistinct: Tensor = self.distinctiveness(*batch)
        return self.weights[0] * disclosed + self.weights[1] * indistinct

    def extra_repr(self) -> str:
        """The weights, for ``print``."""
        return "weights: {} (disclosure), {} (distinctiveness)".format(*self.weights)


class _Trials(NamedTuple):
    """Scores ``(..., P)``, labels ``(P,)``, and whether both kinds are among them (on the device)."""

    preds: Tensor
    target: Tensor
    defined: Tensor


def _trials(preds: Tensor, same_speaker: Tensor) -> _Trials:
    return _Trials(preds, same_speaker.long(), same_speaker.any() & ~same_speaker.all())


def _disclosure(trials: _Trials, bandwidths: tuple[tuple[float, float], ...], two_sided: bool, exactly: bool) -> Tensor:
    """D_ECE of every row, ``(1, ...)``, or also of its negative, ``(2, ...)``; 0 with a graph if undefined.

    ``bandwidths``: pairs of a width of the smoothing and its share in the value.
    """
    soft = torch.stack([share * _soft(trials, width, two_sided) for width, share in bandwidths]).sum(0)
    if exactly and bool(trials.defined):
        soft = soft + (_exact(trials)[: len(soft)] - soft).detach()
    return torch.where(trials.defined, soft, 0)


def _soft(trials: _Trials, bandwidth: float, two_sided: bool) -> Tensor:
    preds, target, defined = trials
    grid, *counts = soft_counts(preds, target.expand_as(preds), bandwidth)
    # Where a class is missing its counts are made up: a logarithm of zero would reach the gradient through `where`.
    counts = [torch.where(defined, count, 1) for count in counts]
    sides = [torch.stack([count, count.flip(-1)][: 1 + two_sided]) for count in counts]
    return expected_disclosure(Steps(grid[..., 1:], *sides))


def _exact(trials: _Trials) -> Tensor:
    rows = trials.preds.detach().reshape(-1, trials.preds.shape[-1])
    counts = [count_by_score(row, trials.target, validate_args=False) for row in rows]
    values = [torch.stack([expected_disclosure(steps) for steps in both]) for both in counts]
    return torch.stack(values, dim=-1).view(2, *trials.preds.shape[:-1])


def _check(original: Tensor, protected: Tensor, speakers: Tensor) -> None:
    check_floating("original", original)
    check_floating("protected", protected)
    check_embeddings(original, protected, speakers)


def _cosines(first: Tensor, second: Tensor) -> Tensor:
    first, second = (_directions(side) for side in (first, second))
    wide = torch.promote_types(first.dtype, second.dtype)
    return first.to(wide) @ second.to(wide).T


def _centre(embeddings: Tensor) -> Tensor:
    directions = _directions(embeddings)
    return directions - directions.mean(dim=0)


def _directions(embeddings: Tensor) -> Tensor:
    """Rows of length 1; a long one is shortened first, so that its square does not overflow."""
    rows = at_least_float32(embeddings)
    return normalize(rows / rows.detach().abs().amax(dim=1, keepdim=True).clamp(min=1), dim=1, eps=_SHORTEST)


def _off_diagonal(square: Tensor) -> Tensor:
    """All but the diagonal in a row: after the first element, it is the last of every ``B + 1``."""
    return square.flatten()[1:].view(len(square) - 1, len(square) + 1)[:, :-1].flatten()


def _share_between_speakers(scores: Tensor, speakers: Tensor) -> Tensor:
    """Correlation ratio: variance of the means of all pairs of speakers, over the variance of the scores."""
    same = (speakers[:, None] == speakers).to(scores.dtype)
    average = same / same.sum(dim=1)
    return (average @ scores @ average.T).var() / (scores.var() + torch.finfo(scores.dtype).eps ** 2)


def _zero(*graphs: Tensor) -> Tensor:
    """Zero that leads back to the inputs, whatever they hold."""
    return torch.stack([at_least_float32(graph[:0]).sum() for graph in graphs]).sum()
