"""Ranks and local information of every input, from one pass over its scores, and their jackknife
replicates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
_MOST_FOLDS, _FOLDS = 256, 10
_PERMUTATIONS = 4  # of speakers, for chance levels


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


def identify_condition(
    data: EvaluationData,
    condition: Condition,
    scoring: Scoring,
    *,
    has_bits: bool = True,
    distractors: Tensor | None = None,
    **options: Any,
) -> list[tuple[IdentificationTrials, Identification]]:
    """Return trials and :func:`identify` of each group with two references; of the first where no
    group has two.
    """
    trials = [form_condition_trials(part, condition, distractors) for part in data.by_group()]
    # A group of one speaker has no ranks; its NaN must not reach the values of all groups.
    trials = [each for each in trials if each.num_references > 1] or trials[:1]
    return [(each, identify(each, scoring, has_bits=has_bits, **options)) for each in trials]


def identify(
    trials: IdentificationTrials,
    scoring: Scoring,
    slope: float | Tensor | None = None,
    *,
    has_bits: bool = True,
    has_chance: bool = False,
    bandwidth: float | None = None,
) -> Identification:
    """Return ranks and local information; bits, and the histogram with ``bandwidth``, carry a
    gradient.
    """
    num_references, wide = trials.num_references, trials.references.sums
    # Row 0: the true speakers. Further rows: permuted speakers, for the chance level.
    columns = trials.column[None]
    if has_chance and num_references > 1:
        order = order_references(trials)
        place = order.argsort()[trials.column]
        shifts = torch.arange(1 + min(_PERMUTATIONS, num_references - 1), device=order.device)
        columns = order[(place + shifts[:, None]) % num_references]
    bits_columns = columns[:2]
    ranks = wide.new_zeros(len(columns), 3, len(trials.inputs))
    bits, slopes = wide.new_full(bits_columns.shape, 0 if num_references > 1 else torch.nan), None
    if has_bits and slope is not None:
        slopes = torch.as_tensor(slope, device=wide.device).expand(bits.shape)
    elif has_bits:
        with torch.no_grad():
            slopes = _cross_fit_slopes(trials, scoring, bits_columns)
    for block in score_inputs(trials, scoring):
        matches = block.scores.gather(1, columns[:, block.rows].T).T.unsqueeze(2)
        for number, match in enumerate(matches.detach()):
            ranks[number][:, block.rows] = count_above_tied_nan(block._replace(match=match))
        if slopes is not None and num_references > 1:
            centred, mean, deviation = centre_rows(block.scores, block.rounding)
            for number, match in enumerate(matches[: len(bits)]):
                # Divide the slope by the deviation, not every score: fewer operations.
                weight = slopes[number, block.rows].to(centred.dtype).unsqueeze(1) / deviation
                bits[number, block.rows] = widen(local_bits(centred, match - mean, weight))
    ranks, bits = trials.processes.all_reduce(ranks, bits)
    histograms = count_ranks(trials, ranks)
    used = trials.usable.nonzero().squeeze(1)
    above, tied = ranks[0, :2, used].long()
    tied = tied.clamp(min=1)  # a score ties with itself, also if it is NaN
    return Identification(
        histograms[0]
        if bandwidth is None
        else _histogram_of_soft_ranks(trials, scoring, bandwidth),
        bits[0, used].to(result_dtype(trials.inputs)) if has_bits else None,
        (above == 0) & (tied == 1),
        used,
        trials.references.speakers[trials.column[used]],
        bits_of_ranks(histograms[0], above, tied),
        None if slopes is None else slopes[0],
        histograms[1:] if len(columns) > 1 else None,
        bits[1, used].detach().mean() if has_bits and len(bits) > 1 else None,
    )


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


def standardize_scores(scores: Tensor) -> Tensor:
    """Return scores ``(P, N)`` with mean 0 and population standard deviation 1 in each row; equal
    ones stay at 0.
    """
    wide, unit = widen(scores), torch.finfo(at_least_float32(scores).dtype).eps
    rounding = wide.detach().abs().sum(dim=1, keepdim=True) / max(1, scores.shape[1]) * unit
    centred, _, deviation = centre_rows(wide.clone(), rounding)
    return centred / deviation


def centre_rows(scores: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Centre rows, in place if no gradient is needed; return also mean and deviation, infinite if
    rounding.
    """
    mean = scores.mean(dim=1, keepdim=True)
    centred = scores - mean if scores.requires_grad else scores.sub_(mean)
    deviation = torch.linalg.vector_norm(centred, dim=1, keepdim=True) / math.sqrt(
        max(1, centred.shape[1])
    )
    return centred, mean, torch.where(deviation > rounding, deviation, torch.inf)


def _cross_fit_slopes(
    trials: IdentificationTrials, scoring: Scoring, true_columns: Tensor
) -> Tensor:
    """Return the slope of each input, fitted on other speakers, for true columns ``(K, B)``, in
    their shape.
    """
    count, num_references = len(trials.inputs), trials.num_references
    if num_references < 2 or count == 0:
        return trials.references.anchor.new_full(true_columns.shape, torch.nan)
    order = order_references(trials)
    place = order.argsort()[trials.column]
    stride = min(-(-count * num_references // _MOST_SCORES), num_references)
    # The references used start elsewhere for every speaker, so that all of them take part.
    steps = stride * torch.arange(num_references // stride, device=order.device)
    chosen = order[(place * 7919 % stride).unsqueeze(1) + steps]
    # Speakers with trials come first in this order, so that every fold has as many of them.
    folds = num_references if num_references <= _MOST_FOLDS else _FOLDS
    dtype = at_least_float32(trials.inputs[:0]).dtype
    z, matches = (
        torch.zeros(count, n, dtype=dtype, device=order.device)
        for n in (chosen.shape[1], len(true_columns))
    )
    for block in score_inputs(trials, scoring):
        centred, _, deviation = centre_rows(block.scores, block.rounding)
        z[block.rows] = (centred.gather(1, chosen[block.rows]) / deviation).to(dtype)
        matches[block.rows] = (centred.gather(1, true_columns[:, block.rows].T) / deviation).to(
            dtype
        )
    z, matches = trials.processes.all_reduce(z, matches)
    fold = torch.where(trials.usable, place % folds, folds)
    slopes = [
        fit_logistic_slopes(z, chosen == column[:, None], match[:, None], fold, folds)[
            place % folds
        ]
        for column, match in zip(true_columns, matches.T, strict=True)
    ]
    return torch.stack(slopes)


def _histogram_of_soft_ranks(
    trials: IdentificationTrials, scoring: Scoring, bandwidth: float
) -> Tensor:
    """Return the histogram of soft ranks, sums of sigmoids; an input between two ranks is shared by
    them.
    """
    references = trials.num_references
    histogram = trials.references.sums.new_zeros(references)
    for block in score_inputs(trials, scoring, is_distributed=False):
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
    return torch.where(trials.finite & ~histogram.isnan().any(), histogram, torch.nan).to(
        result_dtype(trials.inputs)
    )


def count_above_tied_nan(block: ScoreRows) -> Tensor:
    """Return numbers of references above each input's own and tied with it, and whether a score is
    NaN, ``(3, b)``.
    """
    # Masks of the scores' own type: comparing and summing them is many times as fast as with
    # booleans.
    mask = torch.empty_like(block.scores)
    at_least = torch.ge(block.scores, block.match - block.rounding, out=mask).sum(dim=1)
    above = torch.gt(block.scores, block.match + block.rounding, out=mask).sum(dim=1)
    # The largest of a row shows a NaN in a fraction of the time it takes to check each score.
    return widen(
        torch.stack(
            [above, at_least - above, block.scores.detach().amax(dim=1).isnan().to(above.dtype)]
        )
    )


def count_ranks(trials: IdentificationTrials, ranks: Tensor) -> Tensor:
    """Return inputs per rank, ``(K, N)``, from :func:`count_above_tied_nan` of all inputs, ``(K, 3,
    B)``.

    The mass of an input is spread over the ranks it is tied for: a step up before them and a step
    down after, in integers, so that the order of additions changes nothing.
    """
    above, tied = ranks[:, :2].long().unbind(1)
    tied = tied.clamp(min=1)
    # the mass of all inputs stays within 63 bits
    unit = 1 << (62 - len(trials.inputs).bit_length())
    mass = torch.where(trials.usable, unit // tied, 0)
    steps = mass.new_zeros(len(ranks), max(trials.num_references, 1) + 1)
    steps = steps.scatter_add(1, above, mass).scatter_add(1, above + tied, -mass)[
        :, : trials.num_references
    ]
    # A comparison with NaN is False and would be a rank.
    is_undefined = ~trials.finite | (ranks[:, 2] > 0).any(dim=1, keepdim=True)
    histograms = torch.where(is_undefined, torch.nan, widen(steps.cumsum(dim=1)) / unit)
    return histograms.to(result_dtype(trials.inputs))


def bits_of_ranks(histogram: Tensor, above: Tensor, tied: Tensor) -> Tensor:
    r"""Return what each input's rank discloses, :math:`\log_2 (N \gamma_j)`, the mean over the
    ranks it is tied for.
    """
    counts, ranks = widen(histogram), len(histogram)
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
    wide, ranks = widen(histogram.detach()), len(histogram)
    if ranks < 2 or num_inputs == 0:
        return wide.new_full((), torch.nan)
    if rank_model != "empirical":  # half a nat per free parameter of the fit and input
        return torch.where(
            wide.isnan().any(), torch.nan, min(ranks - 1, 2) / (2 * math.log(2) * num_inputs)
        )
    mean = num_inputs / ranks
    # Beyond twelve standard deviations the probability is 0 but for rounding.
    counts = torch.arange(
        1,
        int(min(num_inputs, mean + 12 * mean**0.5 + 30)) + 1,
        dtype=wide.dtype,
        device=wide.device,
    )
    binomial = torch.distributions.Binomial(
        num_inputs, wide.new_tensor(1 / ranks), validate_args=False
    )
    share = binomial.log_prob(counts).exp()
    mean_d = ranks * (share * counts / num_inputs * torch.log2(ranks * counts / num_inputs)).sum()
    return torch.where(wide.isnan().any(), torch.nan, mean_d)


class IdentificationReplicates(NamedTuple):
    """Rank histograms and sums of local information of all speakers, then without each jackknife
    group.
    """

    histograms: Tensor  # (1 + G, N), the last ranks empty where references are left out
    references: Tensor  # (1 + G,), how many are left
    # (1 + G, N), histograms without inputs of the group, but with its references
    fewer_inputs: Tensor
    # (5, 1 + G), of 1, of bits above 0, of bits below, of how many are above, and of how many are
    # linked
    sums: Tensor


def jackknife_identification(
    trials: IdentificationTrials,
    scoring: Scoring,
    groups: JackknifeGroups,
    slopes: Tensor | None = None,
) -> IdentificationReplicates:
    """Return replicates without each group, of ranks alone without ``slopes``.

    A group that is left out takes along its inputs and its references, which lifts the ranks of
    other inputs.
    """
    num_references = trials.num_references
    # Row 0 leaves out no speaker; the last one, of the speakers in no group, is unused.
    num_rows = groups.num_groups + 2
    group_of_reference = groups.find_groups(trials.references.speakers)
    row_of_reference = 1 + group_of_reference
    rows = torch.arange(num_rows, device=row_of_reference.device)
    lost_references = widen(count_values(row_of_reference, num_rows))
    rank_steps = lost_references.new_zeros(num_rows, num_references + 1)
    steps_without_inputs = SumsWithoutGroups(
        groups.num_groups, num_references + 1, rank_steps.dtype, rows.device
    )
    sums = lost_references.new_zeros(5, num_rows)

    def sum_lost(values: Tensor) -> Tensor:
        """Sum over the references that are left out in each row: ``(b, N)`` to ``(b, rows)``."""
        return values.new_zeros(len(values), num_rows).index_add_(1, row_of_reference, values)

    for block in score_inputs(trials, scoring):
        column = trials.column[block.rows]
        is_usable = widen(trials.usable[block.rows])[:, None]
        keeps_input = is_usable * (rows != row_of_reference[column][:, None])
        is_above = block.scores > block.match + block.rounding
        is_tied = (block.scores >= block.match - block.rounding) & ~is_above
        above = is_above.sum(1, keepdim=True)
        tied = is_tied.sum(1, keepdim=True).clamp(min=1)
        above_left = above - sum_lost(is_above.long())
        tied_left = (tied - sum_lost(is_tied.long())).clamp(min=1)

        # The mass of an input is spread over the ranks it is tied for: a step up before them and a
        # step down after.
        first_slot = rows * (num_references + 1) + above_left
        mass = (keeps_input / tied_left).flatten()
        rank_steps.view(-1).index_add_(0, first_slot.flatten(), mass)
        rank_steps.view(-1).index_add_(0, (first_slot + tied_left).flatten(), -mass)
        own_group = group_of_reference[column][:, None]
        own_mass = is_usable / tied
        steps_without_inputs.add(above, own_group, values=own_mass)
        steps_without_inputs.add(above + tied, own_group, values=-own_mass)

        sums[4] += (keeps_input * ((above_left == 0) & (tied_left == 1))).sum(0)
        if num_references > 1 and slopes is not None:
            centred, mean, deviation = centre_rows(block.scores, block.rounding)
            slope = slopes[block.rows].to(centred.dtype).unsqueeze(1) / deviation
            logits = slope * centred
            top = logits.amax(dim=1, keepdim=True)
            weights = (logits - top).exp()
            match_logit = widen(slope * (block.match - mean) - top)
            weights_left = widen(weights.sum(1, keepdim=True)) - widen(sum_lost(weights))
            # Rounding may leave less than the weight of the input's own reference.
            mean_weight = torch.maximum(weights_left, match_logit.exp()) / (
                num_references - lost_references
            )
            bits = keeps_input * (match_logit - mean_weight.log()) / math.log(2)
            is_positive = bits > 16 * torch.finfo(at_least_float32(block.scores).dtype).eps
            sums[0] += keeps_input.sum(0)
            sums[1] += torch.where(is_positive, bits, 0).sum(0)
            sums[2] += torch.where(is_positive, 0, bits).sum(0)
            sums[3] += is_positive.sum(0)

    rank_steps, sums = trials.processes.all_reduce(rank_steps, sums)
    steps_without_inputs.add_up_over(trials.processes)
    histograms = rank_steps.cumsum(1)[:-1, :-1]
    fewer_inputs = steps_without_inputs.of_all_and_without_groups().cumsum(1)[:, :-1]
    # Shares of ties may leave rounding below 0.
    return IdentificationReplicates(
        histograms.clamp(min=0),
        num_references - lost_references[:-1],
        fewer_inputs.clamp(min=0),
        sums[:, :-1],
    )


def add_padded_histograms(histograms: Sequence[Tensor]) -> Tensor:
    """Return inputs per rank, added over groups; short histograms are padded with zeros."""
    most = max(map(len, histograms))
    return torch.stack([pad(each, (0, most - len(each))) for each in histograms]).sum(0)


def mean_over_groups(values: Sequence[dict[str, Tensor]], inputs: Tensor) -> dict[str, Tensor]:
    """Return the mean over the inputs ``(g,)`` or ``(g, R)`` of all groups; of ``max_d`` the
    largest.
    """
    if len(values) == 1:
        return values[0]
    stacked = {key: torch.stack([each[key] for each in values]) for key in values[0]}
    mean = {
        key: torch.where(inputs > 0, column * inputs, 0).sum(0) / inputs.sum(0)
        for key, column in stacked.items()
    }
    if "max_d" in mean:
        largest = torch.where(inputs > 0, stacked["max_d"], -torch.inf).amax(0)
        mean["max_d"] = torch.where(inputs.sum(0) > 0, largest, torch.nan)
    return mean
