"""Ranks and local information of every input, from one pass over its scores, and their jackknife replicates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._engine.conditions import Condition
from vpmetrics._engine.precision import at_least_float32, result_dtype, wide_dtype, widen
from vpmetrics._engine.references import (
    IdentificationTrials,
    ScoreRows,
    form_condition_trials,
    score_inputs,
    slices,
)
from vpmetrics._engine.scorers import Scoring
from vpmetrics._engine.slopes import fit_slopes
from vpmetrics._engine.utterances import EvaluationData, count_values, row_keys

_FEW_SCORES = 1 << 19  # kept between passes, and at most so many are used to fit slopes
_MOST_FOLDS = 256  # speakers that have a slope each, fitted on all others; of more, ten folds
_FOLDS = 10
_PERMUTATIONS = 4  # of speakers, for chance levels


class Identification(NamedTuple):
    """What one pass over the scores of inputs against references gives.

    Args:
        histogram: Inputs per rank, ``(N,)``.
        bits: Local information of each trial, ``(P,)``; None where it was not asked for.
        linked: Whether its true speaker strictly beats all others, ``(P,)``.
        trials: Row of the input, ``(P,)``.
        speakers: True speaker, ``(P,)``.
        rank_bits: What its rank discloses by the histogram of all, ``(P,)``.
        slopes: Slope of every input, ``(B,)``; None where bits were not asked for.
        chance_histograms: Histograms with speakers permuted, ``(K, N)``.
        chance_bits: Mean local information with speakers permuted.
    """

    histogram: Tensor
    bits: Tensor | None
    linked: Tensor
    trials: Tensor
    speakers: Tensor
    rank_bits: Tensor
    slopes: Tensor | None
    chance_histograms: Tensor | None = None
    chance_bits: Tensor | None = None


def identify_condition(
    data: EvaluationData,
    condition: Condition,
    scoring: Scoring,
    slope: float | None = None,
    has_bits: bool = True,
    has_chance: bool = False,
) -> list[tuple[IdentificationTrials, Identification]]:
    """Return trials and result of each group that has somebody to be confused with; of one group where none has."""
    results = []
    for part in data.by_group():
        trials = form_condition_trials(part, condition)
        results.append((trials, identify(trials, scoring, slope, has_bits, has_chance)))
    # A lone speaker is never confused, and must not make the values of all other groups NaN.
    return [each for each in results if each[0].num_references > 1] or results[:1]


def identify(
    trials: IdentificationTrials,
    scoring: Scoring,
    slope: float | Tensor | None = None,
    has_bits: bool = True,
    has_chance: bool = False,
) -> Identification:
    """Return ranks and local information. Bits have a gradient, fitted slopes have none."""
    scored = _repeatable_scores(trials, scoring)
    count, num_references = len(trials.inputs), trials.num_references
    wide = trials.references.sums
    permuted = _permuted_columns(trials) if has_chance and num_references > 1 else trials.column.new_empty(0, count)
    slopes = chance_slopes = bits = None
    if has_bits:
        if slope is None:
            with torch.no_grad():
                slopes, *rest = _cross_fit_slopes(trials, scored, [trials.column, *permuted[:1]])
                chance_slopes = rest[0] if rest else None
        else:
            slopes = chance_slopes = torch.as_tensor(slope, device=trials.column.device).expand(count)
        bits = wide.new_full((count,), 0 if num_references > 1 else torch.nan)
    ranks = wide.new_zeros(3, count)
    chance_ranks, chance_bits = wide.new_zeros(len(permuted), 2, count), wide.new_zeros(count)
    for block in scored():
        ranks[:, block.rows] = rank_inputs(block)
        matches = block.scores.detach().gather(1, permuted[:, block.rows].T)
        for number, match in enumerate(matches.T):
            as_target = block._replace(match=match[:, None])
            chance_ranks[number, :, block.rows] = widen(torch.stack(_above_and_tied(as_target)))
        if bits is not None and slopes is not None and num_references > 1:
            centred, match, deviation = center_scores(block)
            # The deviation divides the slope rather than every score.
            weight = slopes[block.rows].to(centred.dtype).unsqueeze(1) / deviation
            bits[block.rows] = widen(local_bits(centred, match, weight))
            if chance_slopes is not None and len(permuted):
                other = centred.detach().gather(1, permuted[0, block.rows, None])
                weight = chance_slopes[block.rows].to(centred.dtype).unsqueeze(1) / deviation
                chance_bits[block.rows] = widen(local_bits(centred.detach(), other, weight))
    ranks, chance_ranks, chance_bits = trials.processes.all_reduce(ranks, chance_ranks, chance_bits)
    if bits is not None and trials.processes.world_size > 1:
        (bits,) = trials.processes.all_reduce(bits)
    histogram = histogram_of_ranks(trials, ranks)
    used = trials.usable.nonzero().squeeze(1)
    above, tied = ranks[:2, used].long()
    tied = tied.clamp(min=1)  # with itself, also where scores are NaN
    dtype = result_dtype(trials.inputs)
    return Identification(
        histogram,
        None if bits is None else bits[used].to(dtype),
        (above == 0) & (tied == 1),
        used,
        trials.references.speakers[trials.column[used]],
        bits_of_ranks(histogram, above, tied),
        slopes,
        torch.stack([histogram_of_ranks(trials, pad(each, (0, 0, 0, 1))) for each in chance_ranks])
        if len(permuted)
        else None,
        chance_bits[used].mean() if len(permuted) and bits is not None else None,
    )


def _repeatable_scores(trials: IdentificationTrials, scoring: Scoring) -> Callable[[], Iterator[ScoreRows]]:
    """Return a function that yields the scores any number of times; few scores are computed once, on all ranks."""
    if len(trials.inputs) * trials.num_references > _FEW_SCORES:
        return lambda: score_inputs(trials, scoring)
    blocks = list(score_inputs(trials, scoring))
    return lambda: (block._replace(scores=block.scores.clone()) for block in blocks)


def _permuted_columns(trials: IdentificationTrials) -> Tensor:
    """Return columns of other speakers for every input, ``(K, B)``.

    All inputs of one speaker get the same other one.
    """
    order = order_speakers(trials)
    place = order.argsort()[trials.column]
    shifts = range(1, 1 + min(_PERMUTATIONS, len(order) - 1))
    return torch.stack([order[(place + shift) % len(order)] for shift in shifts])


def local_bits(z: Tensor, match: Tensor, slope: Tensor) -> Tensor:
    """Return local information in bits of each row, ``(P,)``."""
    logits = slope * z
    top = logits.detach().amax(dim=1, keepdim=True)
    # The mean of exponentials, not their sum, so that equal scores give exactly 0.
    mean = (logits - top).exp().mean(dim=1, keepdim=True)
    return ((slope * match - top - mean.log()) / math.log(2)).squeeze(1)


def standardize(scores: Tensor, rounding: Tensor) -> Tensor:
    """Return scores with mean 0 and population standard deviation 1 in each row; equal scores stay at 0."""
    centred = scores - scores.mean(dim=1, keepdim=True)
    return centred / _deviation(centred, rounding)


def center_scores(block: ScoreRows) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores less their row's mean (in place unless a gradient needs them), those of the match.

    And deviations.
    """
    mean = block.scores.mean(dim=1, keepdim=True)
    centred = block.scores - mean if block.scores.requires_grad else block.scores.sub_(mean)
    return centred, block.match - mean, _deviation(centred, block.rounding)


def _deviation(centred: Tensor, rounding: Tensor) -> Tensor:
    """Return the population standard deviation of each row; infinite where it is rounding."""
    deviation = torch.linalg.vector_norm(centred, dim=1, keepdim=True) / math.sqrt(max(1, centred.shape[1]))
    return torch.where(deviation > rounding, deviation, torch.inf)


def rounding_of_scores(scores: Tensor) -> Tensor:
    """Return by how much equal scores of a row may differ by rounding, ``(P, 1)``."""
    unit = torch.finfo(at_least_float32(scores).dtype).eps
    return widen(scores.detach().abs().sum(dim=1, keepdim=True)) / max(1, scores.shape[1]) * unit


def _cross_fit_slopes(
    trials: IdentificationTrials, scored: Callable[[], Iterator[ScoreRows]], columns_of: Sequence[Tensor]
) -> list[Tensor]:
    """Return the slope of each input, ``(B,)``, fitted on other speakers.

    For each choice of the true speakers' columns.
    """
    count, num_references = len(trials.inputs), trials.num_references
    if num_references < 2 or count == 0:
        return [trials.references.anchor.new_full((count,), torch.nan)] * len(columns_of)
    order = order_speakers(trials)
    place = order.argsort()[trials.column]
    stride = min(-(-count * num_references // _FEW_SCORES), num_references)
    # The references used start elsewhere for every speaker, so that all of them take part.
    columns = stride * torch.arange(num_references // stride, device=order.device)
    chosen = order[(place * 7919 % stride).unsqueeze(1) + columns]
    # Speakers with trials come first in this order, so that every fold has as many of them.
    folds = min(num_references, _MOST_FOLDS) if num_references <= _MOST_FOLDS else _FOLDS
    dtype = at_least_float32(trials.inputs[:0]).dtype
    widths = (chosen.shape[1], len(columns_of))
    z, matches = (torch.zeros(count, width, dtype=dtype, device=order.device) for width in widths)
    targets = torch.stack(list(columns_of), dim=1)
    for block in scored():
        centred, _, deviation = center_scores(block)
        z[block.rows] = (centred.gather(1, chosen[block.rows]) / deviation).to(dtype)
        matches[block.rows] = (centred.gather(1, targets[block.rows]) / deviation).to(dtype)
    z, matches = trials.processes.all_reduce(z, matches)
    fold = place % folds
    usable_fold = torch.where(trials.usable, fold, folds)
    return [
        fit_slopes(z, chosen == column.unsqueeze(1), match.unsqueeze(1), usable_fold, folds)[fold]
        for column, match in zip(columns_of, matches.unbind(1), strict=True)
    ]


def order_speakers(trials: IdentificationTrials) -> Tensor:
    """Return columns of references in an order of their values, ``(N,)``; those without trials come last."""
    count = trials.num_references
    counts = count_values(torch.where(trials.usable, trials.column, count), count + 1)[:-1]
    by_key = row_keys(trials.references.whole()).argsort(stable=True)
    return by_key[(counts[by_key] == 0).to(torch.uint8).argsort(stable=True)]


def rank_condition(
    data: EvaluationData, condition: Condition, scoring: Scoring, bandwidth: float | None = None
) -> list[Tensor]:
    """Return the rank histogram of each group that has somebody to be confused with."""
    histograms = [
        rank_histogram_of(form_condition_trials(part, condition), scoring, bandwidth) for part in data.by_group()
    ]
    return [each for each in histograms if len(each) > 1] or histograms[:1]


def rank_histogram_of(trials: IdentificationTrials, scoring: Scoring, bandwidth: float | None = None) -> Tensor:
    """Return inputs per rank, ``(N,)``; with ``bandwidth`` smoothly, with a gradient."""
    if bandwidth is not None:
        return _smooth_histogram(trials, scoring, bandwidth)
    ranks = trials.references.sums.new_zeros(3, len(trials.inputs))
    for block in score_inputs(trials, scoring):
        ranks[:, block.rows] = rank_inputs(block)
    (ranks,) = trials.processes.all_reduce(ranks)
    return histogram_of_ranks(trials, ranks)


def _smooth_histogram(trials: IdentificationTrials, scoring: Scoring, bandwidth: float) -> Tensor:
    """Return ranks with a gradient: how far each reference is above the own one, on a sigmoid, summed.

    An input between two ranks is shared by them, so the histogram moves with the scores.
    """
    references = trials.num_references
    histogram = trials.references.sums.new_zeros(references)
    for block in score_inputs(trials, scoring, all_ranks=True):
        scores, match = widen(block.scores), widen(block.match)
        width = bandwidth * scores.detach().std(dim=1, correction=0, keepdim=True)
        width = torch.maximum(width, widen(block.rounding))
        width = torch.where(width == 0, 1, width)  # all scores are equal, as for an input of zeros
        # The own reference counts half, as any tie.
        above = ((scores - match) / width).sigmoid().sum(dim=1) - 0.5
        rank = above.clamp(0, max(references - 1, 0))
        # A NaN rank leaves NaN in the histogram, but needs an index.
        lower = rank.detach().nan_to_num().floor().clamp(max=max(references - 2, 0)).long()
        mass = widen(trials.usable[block.rows])
        share = (rank - lower) * mass
        histogram = histogram.index_add(0, lower, mass - share)
        histogram = histogram.index_add(0, (lower + 1).clamp(max=references - 1), share)
    return torch.where(trials.finite & ~histogram.isnan().any(), histogram, torch.nan).to(result_dtype(trials.inputs))


def rank_inputs(block: ScoreRows) -> Tensor:
    """Return references above each input's own, those tied with it, and whether a score is NaN, ``(3, b)``."""
    # The largest of a row shows a NaN in a fraction of the time it takes to check each score.
    return widen(torch.stack([*_above_and_tied(block), block.scores.detach().amax(dim=1).isnan()]))


def _above_and_tied(block: ScoreRows) -> tuple[Tensor, Tensor]:
    # Masks of the scores' own type: comparing and summing them is many times as fast as with booleans.
    mask = torch.empty_like(block.scores)
    at_least = torch.ge(block.scores, block.match - block.rounding, out=mask).sum(dim=1)
    above = torch.gt(block.scores, block.match + block.rounding, out=mask).sum(dim=1)
    return above.long(), (at_least - above).long()


def count_above_and_tied(block: ScoreRows) -> tuple[Tensor, Tensor]:
    """Return for each input the references above its own, and those tied with it, itself included; ``(b,)``."""
    above, tied = _above_and_tied(block)
    return above, tied.clamp(min=1)


def histogram_of_ranks(trials: IdentificationTrials, ranks: Tensor) -> Tensor:
    """Return inputs per rank, ``(N,)``, from :func:`rank_inputs` of all inputs.

    The mass of an input is spread over the ranks it is tied for: a step up before them and a step down after, in
    integers, so that the order of additions changes nothing.
    """
    inputs, references = len(trials.inputs), trials.num_references
    above, tied = ranks[:2].long()
    tied = tied.clamp(min=1)
    unit = 1 << (62 - inputs.bit_length())  # the mass of all inputs stays within 63 bits
    mass = torch.where(trials.usable, unit // tied, 0)
    steps = mass.new_zeros(max(references, 1) + 1)
    steps = steps.index_add(0, above, mass).index_add(0, above + tied, -mass)[: references + 1]
    # A comparison with NaN is False and would be a rank.
    is_undefined = ~trials.finite | ranks[2].any()
    histogram = torch.where(is_undefined, torch.nan, widen(steps[:-1].cumsum(dim=0)) / unit)
    return histogram.to(result_dtype(trials.inputs))


def bits_of_ranks(histogram: Tensor, above: Tensor, tied: Tensor) -> Tensor:
    r"""Return what each input's rank discloses, :math:`\log_2 (N \gamma_j)`, the mean over the ranks it is tied for."""
    counts, ranks = widen(histogram), len(histogram)
    if ranks < 2:
        return torch.full_like(counts[:0].sum(), torch.nan).expand(len(above))
    shares = ranks * counts / counts.sum()
    bits = torch.where(shares == 0, 0, shares.log2())  # of a rank that no input has
    total = pad(bits.cumsum(0), (1, 0))
    return torch.where(tied == 1, bits[above], (total[above + tied] - total[above]) / tied)


def first_among(shares: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the identification rate among so many people, ``(..., sizes)``, from shares of ranks ``(..., M)``.

    The chance of a rank follows from the one before by a factor, so no binomial coefficient is formed.
    """
    people = shares.shape[-1]
    left = people - torch.arange(1, people, dtype=shares.dtype, device=shares.device)
    rates = [shares[..., :0]]
    for some in slices(len(sizes), max(1, 2**22 // people)):
        drawn = torch.tensor(sizes[some], dtype=shares.dtype, device=shares.device).unsqueeze(1) - 1
        chances = torch.log1p(-(drawn / left).clamp(max=1)).cumsum(dim=1).exp()
        rates.append(shares[..., :1] + (chances * shares[..., None, 1:]).sum(dim=-1))
    return torch.cat(rates, dim=-1)


def expected_mean_d(histogram: Tensor, model: str, inputs: int) -> Tensor:
    r"""Return the MeanD to expect, in bits, of so many independent inputs whose ranks are uniform among ``N``.

    .. math:: N \, \mathrm{E}\left[\tfrac{X}{n} \log_2 \tfrac{N X}{n}\right], \quad X \sim \mathrm{Bin}(n, 1/N)

    which is close to :math:`(N - 1) / (2 n \ln 2)` with many inputs per rank. Inputs of one speaker are not
    independent, so this is a lower bound of the chance level.
    """
    wide, ranks = widen(histogram.detach()), len(histogram)
    if ranks < 2 or inputs == 0:
        return wide.new_full((), torch.nan)
    if model != "empirical":  # half a nat per free parameter of the fit and input
        return torch.where(wide.isnan().any(), torch.nan, min(ranks - 1, 2) / (2 * math.log(2) * inputs))
    mean = inputs / ranks
    # Beyond twelve deviations nothing of the distribution is left.
    counts = torch.arange(1, int(min(inputs, mean + 12 * mean**0.5 + 30)) + 1, dtype=wide.dtype, device=wide.device)
    rest = inputs - counts
    ways = math.lgamma(inputs + 1) - torch.lgamma(counts + 1) - torch.lgamma(rest + 1)
    share = torch.exp(ways - counts * math.log(ranks) + rest * math.log1p(-1 / ranks))
    mean_d = ranks * (share * counts / inputs * torch.log2(ranks * counts / inputs)).sum()
    return torch.where(wide.isnan().any(), torch.nan, mean_d)


class IdentificationReplicates(NamedTuple):
    """Rank histograms and sums of local information of all speakers, then without each jackknife group.

    ``histograms`` ``(1 + G, N)``, the last ranks empty where references are left out; ``references`` ``(1 + G,)``, how
    many are left; ``fewer_inputs`` ``(1 + G, N)``: inputs of the group left out, its references kept. ``sums``
    ``(5, 1 + G)``: of 1, of bits above 0, of bits below, of how many are above, and of how many are linked.
    """

    histograms: Tensor
    references: Tensor
    fewer_inputs: Tensor
    sums: Tensor


def jackknife_identification(
    trials: IdentificationTrials, scoring: Scoring, group_of_reference: Tensor, num_groups: int, slopes: Tensor | None
) -> IdentificationReplicates:
    """Return replicates without the inputs and references of each group; ``group_of_reference`` ``(N,)``.

    References of group ``num_groups`` are never left out. Without ``slopes`` only ranks are replicated.
    """
    references = trials.num_references
    column = 1 + group_of_reference  # column 0 leaves nobody out, the last one those never left out
    size = num_groups + 2
    empty = torch.zeros(size, device=column.device, dtype=wide_dtype(column.device))
    sizes = empty.index_add(0, column, torch.ones_like(column, dtype=empty.dtype))
    histograms, own_steps = empty.new_zeros(2, size * (references + 1))
    sums, numbers = empty.new_zeros(5, size), torch.arange(size, device=column.device)

    def sum_by_group(values: Tensor) -> Tensor:
        return values.new_zeros(len(values), size).index_add_(1, column, values)

    def add_ranks(steps: Tensor, row: Tensor, first: Tensor, ties: Tensor, mass: Tensor) -> None:
        start, each = row * (references + 1) + first, (mass / ties).flatten()
        steps.index_add_(0, start.flatten(), each)
        steps.index_add_(0, (start + ties).flatten(), -each)

    for block in score_inputs(trials, scoring):
        own = column[trials.column[block.rows]]
        is_usable = widen(trials.usable[block.rows])[:, None]
        keeps = is_usable * (numbers != own[:, None])
        is_above = block.scores > block.match + block.rounding
        is_tied = (block.scores >= block.match - block.rounding) & ~is_above
        above, tied = is_above.sum(1), is_tied.sum(1).clamp(min=1)
        first = above[:, None] - sum_by_group(is_above.long())
        ties = (tied[:, None] - sum_by_group(is_tied.long())).clamp(min=1)
        add_ranks(histograms, numbers, first, ties, keeps)
        add_ranks(own_steps, own[:, None], above[:, None], tied[:, None], is_usable)
        sums[4] += (keeps * ((first == 0) & (ties == 1))).sum(0)
        if references > 1 and slopes is not None:
            centred, match, deviation = center_scores(block)
            slope = slopes[block.rows].to(centred.dtype).unsqueeze(1) / deviation
            logits = slope * centred
            top = logits.amax(dim=1, keepdim=True)
            weights, match = (logits - top).exp(), slope * match - top
            left = widen(weights.sum(1, keepdim=True)) - widen(sum_by_group(weights))
            left = torch.maximum(left, widen(match.exp())) / (references - sizes)
            bits = (widen(match) - left.log()) / math.log(2)
            is_positive = bits > 16 * torch.finfo(at_least_float32(block.scores).dtype).eps
            bits = keeps * bits
            sums[0] += keeps.sum(0)
            sums[1] += torch.where(is_positive, bits, 0).sum(0)
            sums[2] += torch.where(is_positive, 0, bits).sum(0)
            sums[3] += (is_positive & (keeps > 0)).sum(0)
    histograms, own_steps, sums = trials.processes.all_reduce(histograms, own_steps, sums)
    histograms, of_groups = (each.view(-1, references + 1).cumsum(1)[:-1, :-1] for each in (histograms, own_steps))
    fewer = histograms[:1] - pad(of_groups[1:], (0, 0, 1, 0))
    # Shares of ties may leave rounding below 0.
    return IdentificationReplicates(histograms.clamp(min=0), references - sizes[:-1], fewer.clamp(min=0), sums[:, :-1])


def pool_histograms(histograms: Sequence[Tensor]) -> Tensor:
    """Return inputs per rank in all groups."""
    most = max(map(len, histograms))
    return torch.stack([pad(each, (0, most - len(each))) for each in histograms]).sum(0)


def mean_over_groups(values: Sequence[dict[str, Tensor]], inputs: Tensor) -> dict[str, Tensor]:
    """Return the mean over the inputs ``(g,)`` or ``(g, R)`` of all groups; of ``max_d`` the largest."""
    if len(values) == 1:
        return values[0]
    stacked = {key: torch.stack([each[key] for each in values]) for key in values[0]}
    mean = {key: torch.where(inputs > 0, column * inputs, 0).sum(0) / inputs.sum(0) for key, column in stacked.items()}
    return {key: stacked[key].amax(0) if key == "max_d" else value for key, value in mean.items()}
