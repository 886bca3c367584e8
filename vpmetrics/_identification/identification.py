"""Ranks and local information of every input, from one pass over its scores.

Their jackknife replicates come from the same pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._identification.references import (
    IdentificationTrials,
    ScoreRows,
    form_condition_trials,
    score_inputs,
)
from vpmetrics._scores.calibration import fit_logistic_slopes
from vpmetrics._scores.group_sums import SumsWithoutGroups
from vpmetrics._scores.scorers import Scoring
from vpmetrics._util.dtypes import at_least_float32, result_dtype, widen
from vpmetrics._utterances.conditions import Condition
from vpmetrics._utterances.utterances import EvaluationData, count_values

if TYPE_CHECKING:
    from vpmetrics._scores.jackknife import JackknifeGroups

_MOST_SCORES = 1 << 19  # that slopes are fitted on
# up to this number of speakers, each is a fold; with more there are ten folds
_MOST_FOLDS = 256
_FOLDS = 10
_PERMUTATIONS = 4  # of speakers, for chance levels
_MASKED_SCORES = 1 << 20  # that are compared at once: their masks stay in a cache


class Identification(NamedTuple):
    """Ranks and local information of inputs, and their chance levels with speakers permuted.

    Bits and slopes are None where they were not asked for.
    """

    histogram: Tensor  # (N,), inputs per rank
    bits: Tensor | None  # (P,), local information of each trial
    linked: Tensor  # (P,), whether its true speaker strictly beats all others
    trials: Tensor  # (P,), row of the input
    speakers: Tensor  # (P,), true speaker
    rank_bits: Tensor  # (P,), what the rank of each trial discloses by the histogram of all
    slopes: Tensor | None  # (B,), of all inputs, trials or not
    chance_histograms: Tensor | None = None  # (K, N)
    chance_bits: Tensor | None = None  # (), mean local information
    replicates: IdentificationReplicates | None = None


def identify_condition(
    data: EvaluationData,
    condition: Condition,
    scoring: Scoring,
    *,
    has_bits: bool = True,
    distractors: Tensor | None = None,
    **options: Any,
) -> list[Identification]:
    """Return :func:`identify` of each partition with two references, or else of the first one."""
    trials_by_partition = [
        form_condition_trials(partition_data, condition, distractors)
        for partition_data in data.by_group()
    ]
    # A partition of one speaker has no ranks; its NaN must not reach the values of all partitions.
    trials_with_ranks = [trials for trials in trials_by_partition if trials.num_references > 1]
    if not trials_with_ranks:
        trials_with_ranks = trials_by_partition[:1]
    return [identify(trials, scoring, has_bits=has_bits, **options) for trials in trials_with_ranks]


def identify(
    trials: IdentificationTrials,
    scoring: Scoring,
    slope: float | Tensor | None = None,
    *,
    has_bits: bool = True,
    has_chance: bool = False,
    bandwidth: float | None = None,
    groups: JackknifeGroups | None = None,
) -> Identification:
    """Return ranks and local information.

    Bits, and the histogram with ``bandwidth``, carry a gradient. With ``groups`` also their
    replicates.
    """
    num_references = trials.num_references
    columns = trials.column[None]
    if has_chance and num_references > 1:
        columns = _rotate_columns(trials)
    bits_columns = columns[:2]
    sums = trials.references.sums
    slopes = _resolve_slopes(trials, scoring, slope, bits_columns) if has_bits else None
    ranks = sums.new_zeros(len(columns), 3, len(trials.inputs))
    bits_of_nothing = 0 if num_references > 1 else torch.nan
    bits = sums.new_full(bits_columns.shape, bits_of_nothing)
    counter = None if groups is None else _ReplicateCounter(trials, groups)
    for block in score_inputs(trials, scoring):
        matches = block.scores.gather(1, columns[:, block.rows].T).T.unsqueeze(2)  # (K, b, 1)
        ranks[:, :, block.rows] = count_above_tied_nan(block, matches.detach())
        if counter is not None:
            counter.add_ranks(block)
        if slopes is None or num_references < 2:
            continue
        centred = centre_rows(block.scores, block.rounding)
        for permutation, match in enumerate(matches[: len(bits)]):
            slope_of_input = slopes[permutation, block.rows].to(match.dtype).unsqueeze(1)
            # Divide the slope by the deviation, not every score: fewer operations.
            weight = slope_of_input / centred.deviation
            bits_of_input = local_bits(centred.scores, match - centred.mean, weight)
            bits[permutation, block.rows] = widen(bits_of_input)
            if counter is not None and permutation == 0:
                counter.add_bits(block, centred, slope_of_input)
    ranks, bits = trials.processes.all_reduce(ranks, bits)
    histograms = count_ranks(trials, ranks)
    used = trials.usable.nonzero().squeeze(1)
    num_above, num_tied = ranks[0, :2, used].long()
    num_tied = num_tied.clamp(min=1)  # a score ties with itself, also if it is NaN
    histogram = histograms[0]
    if bandwidth is not None:
        histogram = _histogram_of_soft_ranks(trials, scoring, bandwidth)
    return Identification(
        histogram=histogram,
        bits=bits[0, used].to(result_dtype(trials.inputs)) if has_bits else None,
        linked=(num_above == 0) & (num_tied == 1),
        trials=used,
        speakers=trials.references.speakers[trials.column[used]],
        rank_bits=bits_of_ranks(histograms[0], num_above, num_tied),
        slopes=None if slopes is None else slopes[0],
        chance_histograms=histograms[1:] if len(columns) > 1 else None,
        chance_bits=bits[1, used].detach().mean() if has_bits and len(bits) > 1 else None,
        replicates=None if counter is None else counter.replicates(),
    )


def _resolve_slopes(
    trials: IdentificationTrials,
    scoring: Scoring,
    slope: float | Tensor | None,
    true_columns: Tensor,
) -> Tensor:
    """Return the slope of each input and column ``(K, B)``: the given one, or cross-fitted."""
    if slope is None:
        with torch.no_grad():
            return _cross_fit_slopes(trials, scoring, true_columns)
    device = trials.references.sums.device
    return torch.as_tensor(slope, device=device).expand(true_columns.shape)


def _rotate_columns(trials: IdentificationTrials) -> Tensor:
    """Return the column of each input's speaker, and then those of permuted speakers, ``(K, B)``.

    For the chance level a speaker is replaced by the next ones with trials.
    """
    order = order_references(trials)
    position = order.argsort()[trials.column]  # of the own speaker in this order
    num_shifts = 1 + min(_PERMUTATIONS, trials.num_references - 1)
    shifts = torch.arange(num_shifts, device=order.device)
    return order[(position + shifts[:, None]) % trials.num_references]


def order_references(trials: IdentificationTrials) -> Tensor:
    """Return the columns ``(N,)``, those with trials first."""
    count = trials.num_references
    column = torch.where(trials.usable, trials.column, count)
    has_trials = count_values(column, count + 1)[:-1] > 0
    return (~has_trials).to(torch.uint8).argsort(stable=True)


def local_bits(z: Tensor, match: Tensor, slope: Tensor) -> Tensor:
    """Return local information in bits of each row, ``(P,)``."""
    logits = slope * z
    top = logits.detach().amax(dim=1, keepdim=True)
    # The mean of exponentials, not their sum, so that equal scores give exactly 0.
    mean = (logits - top).exp().mean(dim=1, keepdim=True)
    return ((slope * match - top - mean.log()) / math.log(2)).squeeze(1)


class CentredScores(NamedTuple):
    """Scores ``(b, N)`` of inputs less the mean of each row.

    Mean and deviation are ``(b, 1)``; a deviation that is rounding is infinite.
    """

    scores: Tensor
    mean: Tensor
    deviation: Tensor


def standardize_scores(scores: Tensor) -> Tensor:
    """Return scores ``(P, N)`` with mean 0 and population standard deviation 1 in each row.

    Equal ones stay at 0.
    """
    wide = widen(scores)
    unit = torch.finfo(at_least_float32(scores).dtype).eps
    rounding = wide.detach().abs().sum(dim=1, keepdim=True) / max(1, scores.shape[1]) * unit
    centred = centre_rows(wide.clone(), rounding)
    return centred.scores / centred.deviation


def centre_rows(scores: Tensor, rounding: Tensor) -> CentredScores:
    """Return scores less the mean of each row; they are overwritten if no gradient is needed."""
    mean = scores.mean(dim=1, keepdim=True)
    if scores.requires_grad:
        centred = scores - mean
    else:
        centred = scores.sub_(mean)
    norm = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
    deviation = norm / math.sqrt(max(1, centred.shape[1]))
    return CentredScores(centred, mean, deviation.masked_fill(~(deviation > rounding), torch.inf))


def _cross_fit_slopes(
    trials: IdentificationTrials, scoring: Scoring, true_columns: Tensor
) -> Tensor:
    """Return the slope of each input, fitted on other speakers.

    True columns ``(K, B)`` give slopes of the same shape.
    """
    count = len(trials.inputs)
    num_references = trials.num_references
    if num_references < 2 or count == 0:
        return trials.references.anchor.new_full(true_columns.shape, torch.nan)
    order = order_references(trials)
    position = order.argsort()[trials.column]  # of the own speaker in this order
    stride = min(-(-count * num_references // _MOST_SCORES), num_references)
    # The references used start elsewhere for every speaker, so that all of them take part.
    steps = stride * torch.arange(num_references // stride, device=order.device)
    chosen = order[(position * 7919 % stride).unsqueeze(1) + steps]  # (B, n)
    # Speakers with trials come first in this order, so that every fold has as many of them.
    if num_references <= _MOST_FOLDS:
        num_folds = num_references
    else:
        num_folds = _FOLDS
    dtype = at_least_float32(trials.inputs[:0]).dtype
    z = torch.zeros(chosen.shape, dtype=dtype, device=order.device)
    matches = z.new_zeros(count, len(true_columns))
    for block in score_inputs(trials, scoring):
        centred = centre_rows(block.scores, block.rounding)
        scores_of_chosen = centred.scores.gather(1, chosen[block.rows])
        scores_of_match = centred.scores.gather(1, true_columns[:, block.rows].T)
        z[block.rows] = (scores_of_chosen / centred.deviation).to(dtype)
        matches[block.rows] = (scores_of_match / centred.deviation).to(dtype)
    z, matches = trials.processes.all_reduce(z, matches)
    fold = torch.where(trials.usable, position % num_folds, num_folds)
    slopes: list[Tensor] = []
    for column, match in zip(true_columns, matches.T, strict=True):
        is_match = chosen == column[:, None]
        slope_of_fold = fit_logistic_slopes(z, is_match, match[:, None], fold, num_folds)
        slopes.append(slope_of_fold[position % num_folds])
    return torch.stack(slopes)


def _histogram_of_soft_ranks(
    trials: IdentificationTrials, scoring: Scoring, bandwidth: float
) -> Tensor:
    """Return the histogram of soft ranks, sums of sigmoids.

    An input between two ranks is shared by them.
    """
    references = trials.num_references
    histogram = trials.references.sums.new_zeros(references)
    for block in score_inputs(trials, scoring, is_distributed=False):
        scores = widen(block.scores)
        match = widen(block.match)
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
    is_defined = trials.finite & ~histogram.isnan().any()
    return torch.where(is_defined, histogram, torch.nan).to(result_dtype(trials.inputs))


def count_above_tied_nan(block: ScoreRows, matches: Tensor) -> Tensor:
    """Return how many references score above each input, and how many tie with it.

    The third row of ``(K, 3, b)`` tells whether a score is NaN. There is one own speaker of each
    input, or several, with scores ``(K, b, 1)``.
    """
    # The largest of a row shows a NaN in a fraction of the time it takes to check each score.
    has_nan = block.scores.detach().amax(dim=1).isnan()
    columns_at_once = max(1, _MASKED_SCORES // max(1, block.scores.numel()))
    counts: list[Tensor] = []
    for match in matches.split(columns_at_once):
        # Masks of the scores' own type: comparing and summing them is many times as fast as with
        # booleans.
        mask = block.scores.new_empty(len(match), *block.scores.shape)
        num_at_least = torch.ge(block.scores, match - block.rounding, out=mask).sum(dim=2)
        num_above = torch.gt(block.scores, match + block.rounding, out=mask).sum(dim=2)
        num_tied = num_at_least - num_above
        has_nan_of_match = has_nan.to(num_above.dtype).expand_as(num_above)
        counts.append(torch.stack([num_above, num_tied, has_nan_of_match], dim=1))
    return widen(torch.cat(counts))


def count_ranks(trials: IdentificationTrials, ranks: Tensor) -> Tensor:
    """Return the number of inputs per rank, ``(K, N)``.

    It comes from :func:`count_above_tied_nan` of all inputs, ``(K, 3, B)``.

    The mass of an input is spread over the ranks it is tied for: a step up before them and a step
    down after, in integers, so that the order of additions changes nothing.
    """
    num_above, num_tied = ranks[:, :2].long().unbind(1)
    num_tied = num_tied.clamp(min=1)
    # The mass of all inputs stays within 63 bits.
    unit = 1 << (62 - len(trials.inputs).bit_length())
    mass = torch.where(trials.usable, unit // num_tied, 0)
    steps = mass.new_zeros(len(ranks), max(trials.num_references, 1) + 1)
    steps = steps.scatter_add(1, num_above, mass)
    steps = steps.scatter_add(1, num_above + num_tied, -mass)
    steps = steps[:, : trials.num_references]
    # A comparison with NaN is False and would be a rank.
    is_undefined = ~trials.finite | (ranks[:, 2] > 0).any(dim=1, keepdim=True)
    histograms = torch.where(is_undefined, torch.nan, widen(steps.cumsum(dim=1)) / unit)
    return histograms.to(result_dtype(trials.inputs))


def bits_of_ranks(histogram: Tensor, above: Tensor, tied: Tensor) -> Tensor:
    r"""Return the bits that each input's rank discloses, :math:`\log_2 (N \gamma_j)`.

    An input with ties has the mean over the ranks it is tied for.
    """
    counts = widen(histogram)
    ranks = len(histogram)
    if ranks < 2:
        return counts.new_full((len(above),), torch.nan)
    shares = ranks * counts / counts.sum()
    bits = torch.where(shares == 0, 0, shares.log2())  # of a rank that no input has
    total = pad(bits.cumsum(0), (1, 0))
    return torch.where(tied == 1, bits[above], (total[above + tied] - total[above]) / tied)


def chance_mean_d(histogram: Tensor, rank_model: str, num_inputs: int) -> Tensor:
    r"""Return the expected MeanD in bits of independent inputs whose ranks are uniform among ``N``.

    .. math::
        N \, \mathrm{E}\left[\tfrac{X}{n} \log_2 \tfrac{N X}{n}\right], \quad X \sim
        \mathrm{Bin}(n, 1/N)

    which is close to :math:`(N - 1) / (2 n \ln 2)` with many inputs per rank. Inputs of one speaker
    are not independent, so this is a lower bound of the chance level.
    """
    ranks = len(histogram)
    shown = widen(histogram.detach())
    if ranks < 2 or num_inputs == 0:
        return shown.new_full((), torch.nan)
    if rank_model == "empirical":
        chance = _expected_mean_d(num_inputs, ranks)
    else:  # half a nat per free parameter of the fit and input
        chance = min(ranks - 1, 2) / (2 * math.log(2) * num_inputs)
    return shown.new_full((), chance).masked_fill(shown.isnan().any(), torch.nan)


@cache
def _expected_mean_d(num_inputs: int, ranks: int) -> float:
    mean = num_inputs / ranks
    # Beyond twelve standard deviations the probability is 0 but for rounding.
    reach = 12 * mean**0.5 + 30
    expected = 0.0
    for count in range(max(1, int(mean - reach)), int(min(num_inputs, mean + reach)) + 1):
        log_combinations = (
            math.lgamma(num_inputs + 1)
            - math.lgamma(count + 1)
            - math.lgamma(num_inputs - count + 1)
        )
        log_share = (
            log_combinations
            - count * math.log(ranks)
            + (num_inputs - count) * math.log1p(-1 / ranks)
        )
        bits = math.log2(ranks * count / num_inputs)
        expected += ranks * math.exp(log_share) * count / num_inputs * bits
    return expected


class IdentificationReplicates(NamedTuple):
    """Rank histograms and sums of local information.

    First those of all speakers, then those without each jackknife group.
    """

    histograms: Tensor  # (1 + G, N), the last ranks empty where references are left out
    references: Tensor  # (1 + G,), how many are left
    # (1 + G, N), histograms without inputs of the group, but with its references
    fewer_inputs: Tensor
    # (5, 1 + G): the number of inputs, the sum of their bits above 0 and of those below, the number
    # of inputs with bits above 0, and the number of linked inputs
    sums: Tensor


# rows of IdentificationReplicates.sums
_BITS = slice(0, 4)
_LINKED = 4


class _ReplicateCounter:
    """Ranks and local information without each jackknife group, counted block by block.

    Replicate 0 leaves out no speaker, and replicate ``1 + g`` leaves out group g: its inputs, and
    its references, which lifts the ranks of other inputs. The last replicate, of the speakers in no
    group, is unused.

    An input that is tied for n ranks adds 1 / n to each of them. So that this takes two additions
    whatever n is, *rank steps* are added up: 1 / n at the first of these ranks, and -1 / n after
    the last. The histogram of ranks is their cumulative sum.
    """

    def __init__(self, trials: IdentificationTrials, groups: JackknifeGroups) -> None:
        self._trials = trials
        self._num_replicates = groups.num_groups + 2
        self._group_of_reference = groups.find_groups(trials.references.speakers)
        self._replicate_without_reference = 1 + self._group_of_reference  # (N,)
        self._replicate = torch.arange(
            self._num_replicates, device=self._replicate_without_reference.device
        )
        self._num_lost_references = widen(
            count_values(self._replicate_without_reference, self._num_replicates)
        )
        num_slots = trials.num_references + 1
        self._rank_steps = self._num_lost_references.new_zeros(self._num_replicates, num_slots)
        self._rank_steps_without_inputs = SumsWithoutGroups(
            groups.num_groups, num_slots, self._rank_steps.dtype, self._replicate.device
        )
        # The rows of IdentificationReplicates.sums.
        self._sums = self._num_lost_references.new_zeros(5, self._num_replicates)

    def _sum_over_lost_references(self, values: Tensor) -> Tensor:
        """Sum values ``(b, N)`` over the references each replicate leaves out, ``(b, G + 2)``."""
        sums = values.new_zeros(len(values), self._num_replicates)
        return sums.index_add_(1, self._replicate_without_reference, values)

    def _keeps_input(self, block: ScoreRows) -> Tensor:
        """Return 1 where a replicate keeps an input of the block, else 0, ``(b, G + 2)``."""
        own_column = self._trials.column[block.rows]
        replicate_without_input = self._replicate_without_reference[own_column]
        is_usable = self._trials.usable[block.rows, None]
        return widen(is_usable & (self._replicate != replicate_without_input[:, None]))

    @torch.no_grad()
    def add_ranks(self, block: ScoreRows) -> None:
        """Add the ranks of the inputs of a block, in every replicate.

        Ranks count from 0: the number of references that score higher than the input's own one.
        """
        is_above = block.scores > block.match + block.rounding  # (b, N)
        is_tied = (block.scores >= block.match - block.rounding) & ~is_above
        num_above = is_above.sum(1, keepdim=True)  # (b, 1)
        num_tied = is_tied.sum(1, keepdim=True).clamp(min=1)  # with the own reference
        # In each replicate, (b, G + 2). Where it leaves out the own reference, these numbers mean
        # nothing, and keeps_input is 0.
        num_above_left = num_above - self._sum_over_lost_references(is_above.long())
        num_tied_left = num_tied - self._sum_over_lost_references(is_tied.long())
        num_tied_left = num_tied_left.clamp(min=1)
        keeps_input = self._keeps_input(block)

        self._add_rank_steps(num_above_left, num_tied_left, keeps_input)
        self._add_rank_steps_without_inputs(block, num_above, num_tied)
        # Linked: the own reference comes first, and alone.
        is_linked = (num_above_left == 0) & (num_tied_left == 1)
        self._sums[_LINKED] += (keeps_input * is_linked).sum(0)

    def _add_rank_steps(self, num_above: Tensor, num_tied: Tensor, keeps_input: Tensor) -> None:
        """Add inputs with their ranks in every replicate; all arguments ``(b, G + 2)``."""
        share = (keeps_input / num_tied).flatten()
        flat_steps = self._rank_steps.view(-1)
        num_slots = self._rank_steps.shape[1]
        first_slot = self._replicate * num_slots + num_above
        flat_steps.index_add_(0, first_slot.flatten(), share)
        flat_steps.index_add_(0, (first_slot + num_tied).flatten(), -share)

    def _add_rank_steps_without_inputs(
        self, block: ScoreRows, num_above: Tensor, num_tied: Tensor
    ) -> None:
        """Add inputs with their ranks among all references, ``(b, 1)`` each.

        Without a group, only its inputs are then missing, not its references.
        """
        own_group = self._group_of_reference[self._trials.column[block.rows]][:, None]
        share = widen(self._trials.usable[block.rows])[:, None] / num_tied
        self._rank_steps_without_inputs.add(num_above, own_group, values=share)
        self._rank_steps_without_inputs.add(num_above + num_tied, own_group, values=-share)

    @torch.no_grad()
    def add_bits(self, block: ScoreRows, centred: CentredScores, slope: Tensor) -> None:
        """Add the local information of some inputs, for the slope of each, ``(b, 1)``."""
        scaled_slope = slope / centred.deviation
        logits = scaled_slope * centred.scores
        top = logits.amax(dim=1, keepdim=True)
        weights = (logits - top).exp()
        match_logit = widen(scaled_slope * (block.match - centred.mean) - top)
        weights_left = widen(weights.sum(1, keepdim=True)) - widen(
            self._sum_over_lost_references(weights)
        )
        num_left = self._trials.num_references - self._num_lost_references
        # Rounding may leave less than the weight of the input's own reference.
        mean_weight = torch.maximum(weights_left, match_logit.exp()) / num_left
        keeps_input = self._keeps_input(block)
        bits = keeps_input * (match_logit - mean_weight.log()) / math.log(2)
        is_positive = bits > 16 * torch.finfo(at_least_float32(block.scores).dtype).eps
        positive_bits = torch.where(is_positive, bits, 0)
        self._sums[_BITS] += torch.stack(
            [keeps_input, positive_bits, bits - positive_bits, widen(is_positive)]
        ).sum(1)

    def replicates(self) -> IdentificationReplicates:
        """Return the replicates of all blocks of all processes."""
        processes = self._trials.processes
        rank_steps, sums = processes.all_reduce(self._rank_steps, self._sums)
        self._rank_steps_without_inputs.add_up_over(processes)
        steps_without_inputs = self._rank_steps_without_inputs.of_all_and_without_groups()
        # Shares of ties may leave rounding below 0.
        return IdentificationReplicates(
            histograms=rank_steps.cumsum(1)[:-1, :-1].clamp(min=0),
            references=self._trials.num_references - self._num_lost_references[:-1],
            fewer_inputs=steps_without_inputs.cumsum(1)[:, :-1].clamp(min=0),
            sums=sums[:, :-1],
        )


def replicate_ranks(
    trials: IdentificationTrials, scoring: Scoring, groups: JackknifeGroups
) -> IdentificationReplicates:
    """Return the replicates of ranks, without local information."""
    counter = _ReplicateCounter(trials, groups)
    for block in score_inputs(trials, scoring):
        counter.add_ranks(block)
    return counter.replicates()


def add_padded_histograms(histograms: Sequence[Tensor]) -> Tensor:
    """Return inputs per rank, added over groups; short histograms are padded with zeros."""
    most_ranks = max(map(len, histograms))
    padded = [pad(histogram, (0, most_ranks - len(histogram))) for histogram in histograms]
    return torch.stack(padded).sum(0)


def mean_over_groups(values: Sequence[dict[str, Tensor]], inputs: Tensor) -> dict[str, Tensor]:
    """Return the mean over the inputs ``(g,)`` or ``(g, R)`` of partitions; the largest max_d."""
    if len(values) == 1:
        return values[0]
    means = {}
    for key in values[0]:
        column = torch.stack([values_of_group[key] for values_of_group in values])
        if key == "max_d":
            largest = torch.where(inputs > 0, column, -torch.inf).amax(0)
            means[key] = torch.where(inputs.sum(0) > 0, largest, torch.nan)
        else:
            means[key] = torch.where(inputs > 0, column * inputs, 0).sum(0) / inputs.sum(0)
    return means
