"""Ranks of the true speaker among all references."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._precision import result_dtype, widen
from vpmetrics._trials import shares
from vpmetrics._trials.references import Tile, Trials, slices, walk, walk_shared
from vpmetrics._trials.scorers import Scoring


def histogram_of_trials(trials: Trials, scoring: Scoring, bandwidth: float | None = None) -> Tensor:
    """The rank histogram of trials that are formed already."""
    if bandwidth is not None:
        return _smooth_histogram(trials, scoring, bandwidth)
    ranks = no_ranks(trials)
    for tile in walk_shared(trials, scoring):
        ranks[:, tile.rows] = rank_inputs(tile)
    return histogram_of_ranks(trials, shares.total(ranks))


def _smooth_histogram(trials: Trials, scoring: Scoring, bandwidth: float) -> Tensor:
    """Ranks with a gradient: how far each reference is above the own one, on a sigmoid, summed.

    An input between two ranks is shared by them, so the histogram moves with the scores.
    """
    references = len(trials.references.speakers)
    histogram = trials.references.sums.new_zeros(references)
    for tile in walk(trials, scoring):
        scores, match = widen(tile.scores), widen(tile.match)
        width = bandwidth * scores.detach().std(dim=1, correction=0, keepdim=True)
        width = torch.maximum(width, widen(tile.rounding))
        width = torch.where(width == 0, 1, width)  # nothing to tell apart, as where the input is zero
        # The own reference is half above itself, as any two that are tied.
        above = ((scores - match) / width).sigmoid().sum(dim=1) - 0.5
        rank = above.clamp(0, max(references - 1, 0))
        # A rank that is NaN leaves NaN in the histogram, but has to stand somewhere.
        lower = rank.detach().nan_to_num().floor().clamp(max=max(references - 2, 0)).long()
        mass = widen(trials.usable[tile.rows])
        share = (rank - lower) * mass
        histogram = histogram.index_add(0, lower, mass - share)
        histogram = histogram.index_add(0, (lower + 1).clamp(max=references - 1), share)
    return torch.where(trials.finite & ~histogram.isnan().any(), histogram, torch.nan).to(result_dtype(trials.inputs))


def no_ranks(trials: Trials) -> Tensor:
    """Where ranks of inputs ``(3, B)`` are gathered, as :func:`rank_inputs` has them, in the type of sums."""
    return trials.references.sums.new_zeros(3, len(trials.inputs))


def rank_inputs(tile: Tile) -> Tensor:
    """References above each input's own, those tied with it, and whether a score is NaN, ``(3, b)``: they add up."""
    # The highest of a row tells whether one is NaN, in a fraction of the time that it takes to look at each.
    return widen(torch.stack([*_above_and_tied(tile), tile.scores.detach().amax(dim=1).isnan()]))


def histogram_of_ranks(trials: Trials, ranks: Tensor) -> Tensor:
    """Inputs per rank, ``(N,)``, by the ranks ``(3, B)`` of all inputs.

    Each one's mass is spread over the ranks it is tied for, as a step up before them and one down after: in whole
    numbers, so that no order of additions shows in the sum.
    """
    inputs = len(trials.inputs)
    steps = steps_of_ranks(ranks, trials.usable, len(trials.references.speakers), inputs)
    return counts_of_steps(steps, inputs, ~trials.finite | ranks[2].any()).to(result_dtype(trials.inputs))


def steps_of_ranks(ranks: Tensor, usable: Tensor, references: int, inputs: int) -> Tensor:
    """Steps ``(N + 1,)`` of the histogram of so many inputs, or of those of them that have ranks here."""
    above, tied = ranks[:2].long()
    tied = tied.clamp(min=1)
    mass = torch.where(usable, _mass(inputs) // tied, 0)
    steps = mass.new_zeros(max(references, 1) + 1)  # room for inputs that nobody can be told for
    return steps.index_add(0, above, mass).index_add(0, above + tied, -mass)[: references + 1]


def counts_of_steps(steps: Tensor, inputs: int, undefined: Tensor) -> Tensor:
    """The histogram ``(N,)``; NaN where some score is: a comparison with NaN is False, and would be a rank."""
    return torch.where(undefined, torch.nan, widen(steps[:-1].cumsum(dim=0)) / _mass(inputs))


def _mass(inputs: int) -> int:
    """That of one input; that of all stays within 63 bits."""
    return 1 << (62 - inputs.bit_length())


def ranks_of(tile: Tile) -> tuple[Tensor, Tensor]:
    """For each input of a tile, the references above its own, and those tied with it, itself included; ``(b,)``."""
    above, tied = _above_and_tied(tile)
    return above, tied.clamp(min=1)


def _above_and_tied(tile: Tile) -> tuple[Tensor, Tensor]:
    # Masks of the scores' own type: comparing and summing them runs many times as fast as with booleans.
    mask = torch.empty_like(tile.scores)
    at_least = torch.ge(tile.scores, tile.match - tile.rounding, out=mask).sum(dim=1)
    above = torch.gt(tile.scores, tile.match + tile.rounding, out=mask).sum(dim=1)
    return above.long(), (at_least - above).long()


def bits_of_ranks(histogram: Tensor, above: Tensor, tied: Tensor) -> Tensor:
    r"""What each input's rank discloses, :math:`\log_2 (N \gamma_j)`, on average over the ranks it is tied for.

    The mean over all inputs is MeanD, but for rounding. NaN for fewer than two references.
    """
    counts, ranks = widen(histogram), len(histogram)
    if ranks < 2:
        return torch.full_like(counts[:0].sum(), torch.nan).expand(len(above))
    shares = ranks * counts / counts.sum()
    bits = torch.where(shares == 0, 0, shares.log2())  # of a rank that no input has
    total = pad(bits.cumsum(0), (1, 0))
    return torch.where(tied == 1, bits[above], (total[above + tied] - total[above]) / tied)


def first_among(shares: Tensor, sizes: Sequence[int]) -> Tensor:
    """The rate for every size up to the number of references, ``(..., N)``, of shares of ranks ``(..., M)``.

    A rank's chance follows from the one before by a factor, so that no binomial coefficient is ever formed.
    """
    people = shares.shape[-1]
    left = people - torch.arange(1, people, dtype=shares.dtype, device=shares.device)
    rates = [shares[..., :0]]
    for some in slices(len(sizes), max(1, 2**22 // people)):
        drawn = torch.tensor(sizes[some], dtype=shares.dtype, device=shares.device).unsqueeze(1) - 1
        chances = torch.log1p(-(drawn / left).clamp(max=1)).cumsum(dim=1).exp()
        rates.append(shares[..., :1] + (chances * shares[..., None, 1:]).sum(dim=-1))
    return torch.cat(rates, dim=-1)


def mean_by_chance(histogram: Tensor, inputs: int) -> Tensor:
    r"""The empirical MeanD to expect, in bits, of so many inputs whose ranks are uniform among ``N``.

    .. math:: N \, \mathrm{E}\left[\tfrac{X}{n} \log_2 \tfrac{N X}{n}\right], \quad X \sim \mathrm{Bin}(n, 1/N)

    which is close to :math:`(N - 1) / (2 n \ln 2)` where there are many inputs for each rank.
    """
    wide, ranks = widen(histogram.detach()), len(histogram)
    if ranks < 2 or inputs == 0:
        return wide.new_full((), torch.nan)
    mean = inputs / ranks
    # Beyond twelve deviations nothing is left of the distribution.
    counts = torch.arange(1, int(min(inputs, mean + 12 * mean**0.5 + 30)) + 1, dtype=wide.dtype, device=wide.device)
    rest = inputs - counts
    ways = math.lgamma(inputs + 1) - torch.lgamma(counts + 1) - torch.lgamma(rest + 1)
    share = torch.exp(ways - counts * math.log(ranks) + rest * math.log1p(-1 / ranks))
    mean_d = ranks * (share * counts / inputs * torch.log2(ranks * counts / inputs)).sum()
    return torch.where(wide.isnan().any(), torch.nan, mean_d)
