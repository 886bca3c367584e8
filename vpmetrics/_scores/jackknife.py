"""The leave-one-speaker-out jackknife: replicates of every number, and confidence intervals.

Trials share speakers, so they are not independent. Speakers are left out instead, one after the
other, with all their trials. Every trial is counted in its cell of the score axis, once in all and
once for each of its speakers; the trials without a speaker are the difference of two histograms,
and one batched PAV calibrates all of them. Targets are all counted. Non-targets of large sets are
thinned, since every speaker still has thousands.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from vpmetrics._scores.condition_scores import ConditionScores
from vpmetrics._scores.group_sums import SumsWithoutGroups
from vpmetrics._scores.measures import (
    SCORE_MEASURES,
    linkability_edges,
    minimum_cross_entropy,
    prior_entropy,
)
from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._scores.registry import scalar
from vpmetrics._scores.score_counts import (
    CountedScores,
    ScoresAndSteps,
    Steps,
    mean_costs_between,
    steps_of_both_signs,
)
from vpmetrics._scores.speaker_similarity import SimilaritySummary
from vpmetrics._util.dtypes import widen
from vpmetrics._util.scalar import CI_SUFFIXES
from vpmetrics._util.validation import suppress_warnings, warn_undefined
from vpmetrics._utterances.utterances import EvaluationData, count_values

MOST_GROUPS = 250  # replicates from which a standard error is known to 4 %
FEWEST_SPEAKERS = 3  # with target and non-target trials
_CELLS = 1 << 10  # of the score axis, each with about the same share of the trials
_FINE_BINS = 1 << 16  # of the table from score to cell
_MOST_PAIRS = 1 << 23  # non-target pairs that are counted
# Of the range of a saturating number, up to which it counts as being at its end. Of 30 voices under
# noise of one deviation, at .003 bit from the end, 83 of 100 intervals hold the value of many
# voices without this, 100 with it and with twice as much.
_NEARLY_FULL = 1e-3
# Times the reach of the number itself that the lower end of a saturating number is away at most.
# On the same voices 1 holds 90 of 100, 1.5 holds 98 and twice as much 100; without a limit one
# speaker who differs from all others gives an interval of the whole range.
_MOST_STRETCHED = 1.5


class JackknifeGroups(NamedTuple):
    """Groups of speakers that are left out together: one speaker each, or several of many.

    ``labels`` ``(L,)``, ascending; ``group_of_label`` ``(L,)``, ``num_groups`` for those never left
    out; ``size``: speakers in each group.
    """

    labels: Tensor
    group_of_label: Tensor
    num_groups: int
    size: int

    @property
    def kept_over_dropped(self) -> float:
        """Number of speakers kept, divided by number of speakers left out."""
        return (len(self.labels) - self.size) / max(self.size, 1)

    def matches(self, other: JackknifeGroups) -> bool:
        """Return whether both leave out the same speakers.

        Labels may differ, the order of speakers may not.
        """
        return torch.equal(self.group_of_label, other.group_of_label)

    def find_groups(self, labels: Tensor) -> Tensor:
        """Return the group of each speaker label.

        ``num_groups`` for a speaker who is never left out.
        """
        if len(self.labels) == 0:
            return torch.full_like(labels, self.num_groups)
        index = torch.searchsorted(self.labels, labels.contiguous())
        index = index.clamp(max=len(self.labels) - 1)
        is_found = self.labels[index] == labels
        return torch.where(is_found, self.group_of_label[index], self.num_groups)


def group_speakers(data: EvaluationData) -> JackknifeGroups:
    """Assign speakers to jackknife groups, whatever their labels are.

    A speaker in two partitions of the data is left out once.
    """
    labels, label_of_speaker = data.speakers.unique(return_inverse=True)
    if len(labels) <= MOST_GROUPS:
        return split_labels_into_groups(labels)
    # In the order of the speakers, not of their labels.
    num_speakers = len(label_of_speaker)
    speaker = torch.arange(num_speakers, device=labels.device)
    first_speaker = torch.full_like(labels, num_speakers)
    first_speaker = first_speaker.scatter_reduce(0, label_of_speaker, speaker, "amin")
    return split_labels_into_groups(labels, first_speaker.argsort().argsort())


def split_labels_into_groups(labels: Tensor, order: Tensor | None = None) -> JackknifeGroups:
    """Assign speakers to jackknife groups in a given order of their ascending labels.

    Without an order it is drawn by their number alone: the same groups for every system.
    """
    num_groups = min(len(labels), MOST_GROUPS)
    size = len(labels) // max(num_groups, 1)
    if order is None and num_groups < len(labels):
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(len(labels), generator=generator).to(labels.device)
    elif order is None:
        order = torch.arange(len(labels), device=labels.device)
    group = order % max(num_groups, 1)
    group_of_label = torch.where(order < num_groups * size, group, num_groups)
    return JackknifeGroups(labels, group_of_label, num_groups, size)


class CountingCells:
    """Cells of the score axis with about equally many trials, in which replicates are counted.

    Their edges are those of PAV steps and of linkability bins.
    """

    def __init__(self, scores: ConditionScores, max_cells: int = _CELLS) -> None:
        steps = scores.counts.ascending
        self.trials = scores.trials
        with suppress_warnings():
            self.linkability_edges = linkability_edges(scores.trials)
        links = widen(self.linkability_edges)
        edges = torch.cat([_lay_even_edges(steps, max_cells), links[links.isfinite()]]).unique()
        low, high = edges.new_tensor([0.0, 1.0])
        if len(edges):
            low = edges[0]
            high = edges[-1]
        smallest = torch.finfo(low.dtype).tiny
        self.low = low
        self.scale = (_FINE_BINS - 4) / (high - low).clamp(min=smallest)
        if len(steps.edges) <= max_cells // 2:
            # Separate few targets from the non-targets just above: PAV of the negated scores needs
            # that edge.
            edges = torch.cat([edges, widen(steps.edges) + 2 / self.scale]).unique()
        self.edges = edges
        # A step begins at a target, so a fine bin that contains an edge belongs to the cell above
        # that edge.
        fine_bins = torch.arange(_FINE_BINS, device=low.device)
        self.cell_of_bin = torch.searchsorted(edges, low + fine_bins / self.scale)
        reached = torch.cat([widen(torch.stack(scores.trials.span_or_nan())), edges])
        bounds = torch.cat([reached.amin()[None], edges, reached.amax()[None]])
        self.values = (bounds[1:] + bounds[:-1]) / 2
        self.num_cells = len(edges) + 1

    def find_cells(self, scores: Tensor) -> Tensor:
        """Return the cell index of every score, in the shape of ``scores``."""
        position = (scores - self.low.to(scores.dtype)).mul_(self.scale.to(scores.dtype))
        bins = position.add_(1).nan_to_num_().clamp_(0, _FINE_BINS - 1).to(torch.int32)
        return self.cell_of_bin.index_select(0, bins.flatten()).view(scores.shape)


def _lay_even_edges(steps: Steps, max_cells: int) -> Tensor:
    """Return the edges of steps that hold about equally many trials.

    Both classes have the same weight.
    """
    share_of_targets = steps.targets / (2 * steps.targets.sum())
    share = share_of_targets + steps.nontargets / (2 * steps.nontargets.sum())
    passed = (share.cumsum(0) - share) * max_cells
    cell_of_step = passed.nan_to_num().round(decimals=6).floor()
    return widen(steps.edges)[cell_of_step[1:] > cell_of_step[:-1]]


@dataclass(frozen=True, eq=False)
class ReplicateCellCounts:
    """Trials per cell of the score axis, ``(1 + G, C)``: of all speakers, then without each group.

    ``similarity_weights`` ``(2, 2, C)``: derivatives of the mean similarity and of the mean of its
    logarithm, within and between speakers, with respect to the calibrated value of each cell.
    """

    cells: CountingCells
    targets: Tensor
    nontargets: Tensor
    groups: JackknifeGroups
    similarity_weights: Tensor | None = None

    @cached_property
    def min_speakers_per_class(self) -> int:
        """The smaller of the numbers of groups with target and with non-target trials."""
        counts = torch.stack([self.targets, self.nontargets])
        has_trials = (counts[:, 1:] != counts[:, :1]).any(2)  # (2, G)
        return int(has_trials.sum(1).amin())

    @cached_property
    def measure_input(self) -> ScoresAndSteps:
        """The trials, as score measures take them."""
        cells = self.cells
        counts = torch.stack([self.nontargets, self.targets])
        costs = partial(mean_costs_between, cells.trials, cells.edges, cells.values)
        trials = CountedScores(cells.values, counts, costs)
        return ScoresAndSteps(
            trials, steps_of_both_signs(self.targets, self.nontargets), cells.linkability_edges
        )

    def make_jackknife(self, keys: Iterable[str] = tuple(SCORE_MEASURES)) -> Jackknife:
        """Return the jackknife of the score measures that have an interval."""
        replicates: dict[str, Tensor] = {}
        with suppress_warnings():
            for key in keys:
                if key in SCORE_MEASURES and SCORE_MEASURES[key].has_interval:
                    replicates[key] = SCORE_MEASURES[key](self.measure_input)
        return make_jackknife(replicates, self.groups, self.min_speakers_per_class)


def count_replicates(
    pairs: PairBlocks,
    scores: ConditionScores,
    groups: JackknifeGroups,
    speakers: Tensor,
    summary: SimilaritySummary | None = None,
    matrix: Tensor | None = None,
    similarity: str = "geometric",
) -> ReplicateCellCounts:
    """Return the counts of all speakers and without each group, for defined scores.

    ``speakers`` ``(S,)``: the labels that ``speaker_index`` refers to. With ``summary`` also
    similarity weights.
    """
    cells = CountingCells(scores)
    group_of_speaker = groups.find_groups(speakers)
    thinned = pairs.thin(_MOST_PAIRS)
    weights = None
    if summary is not None:
        weights = _SimilarityWeights(
            pairs, thinned, cells, differentiate_similarity_by_llr(summary, matrix, similarity)
        )

    targets = SumsWithoutGroups(groups.num_groups, cells.num_cells, torch.int64, speakers.device)
    for target_scores, speaker_index in pairs.target_scores():
        cell = cells.find_cells(target_scores)
        targets.add(cell, group_of_speaker[speaker_index])
        if weights is not None:
            weights.add_targets(cell, speaker_index)

    nontargets = SumsWithoutGroups(groups.num_groups, cells.num_cells, torch.int64, speakers.device)
    for block in thinned:
        cell = cells.find_cells(block.scores)
        row_speaker = thinned.enrolment.speaker_index[block.rows]
        column_speaker = thinned.test.speaker_index[block.columns]
        is_excluded = None
        if block.is_target is not None and block.is_trial is not None:
            is_excluded = block.is_target | ~block.is_trial
        row_group = group_of_speaker[row_speaker][:, None]
        column_group = group_of_speaker[column_speaker][None]
        nontargets.add(cell, row_group, column_group, is_excluded=is_excluded)
        if weights is not None:
            weights.add_nontargets(cell, row_speaker, column_speaker, is_excluded)
    # Every rank has counted all targets, and its share of the non-targets.
    nontargets.add_up_over(thinned.processes)

    target_counts = widen(targets.of_all_and_without_groups())
    nontarget_counts = widen(nontargets.of_all_and_without_groups())
    # As many as before they were thinned.
    num_nontargets = scores.counts.ascending.nontargets.sum()
    nontarget_counts = nontarget_counts * (num_nontargets / nontarget_counts[0].sum())
    if weights is None:
        similarity_weights = None
    else:
        similarity_weights = weights.within_and_between()
    return ReplicateCellCounts(cells, target_counts, nontarget_counts, groups, similarity_weights)


class _SimilarityWeights:
    """Derivatives of mean similarities with respect to the calibrated value of each cell.

    A pair of speakers, or a speaker, weighs the same however many trials it has.

    Args:
        pairs: All pairs, of which the targets count.
        thinned: The pairs of which the non-targets count.
        cells: Cells of the score axis.
        slopes: What :func:`differentiate_similarity_by_llr` returns.
    """

    def __init__(
        self,
        pairs: PairBlocks,
        thinned: PairBlocks,
        cells: CountingCells,
        slopes: tuple[Tensor, Tensor],
    ) -> None:
        within_slope, self._between_slope = slopes
        num_targets = pairs.count_targets()
        num_speakers = (num_targets > 0).sum()
        self._weight_of_speaker = within_slope / (num_speakers * num_targets)
        rows = count_values(thinned.enrolment.speaker_index, pairs.num_speakers)
        columns = count_values(thinned.test.speaker_index, pairs.num_speakers)
        self._row_share = 1 / widen(rows)
        self._column_share = 1 / widen(columns)
        self._within = self._row_share.new_zeros(2, cells.num_cells)
        self._between = torch.zeros_like(self._within)
        self._num_pairs = self._row_share.new_zeros(())
        self._processes = thinned.processes

    def add_targets(self, cell: Tensor, speaker_index: Tensor) -> None:
        """Add target trials ``(P,)``."""
        self._within.index_add_(1, cell, self._weight_of_speaker[:, speaker_index])

    def add_nontargets(
        self, cell: Tensor, row_speaker: Tensor, column_speaker: Tensor, is_excluded: Tensor | None
    ) -> None:
        """Add the non-target trials of a block ``(A, B)``."""
        share = self._row_share[row_speaker][:, None] * self._column_share[column_speaker]
        if is_excluded is not None:
            share = share.masked_fill(is_excluded, 0)
        slope = self._between_slope
        if slope.shape[-1] > 1:
            slope = slope[:, row_speaker][:, :, column_speaker]
        self._between.index_add_(1, cell.flatten(), (share * slope).flatten(1))
        self._num_pairs = self._num_pairs + share.sum()

    def within_and_between(self) -> Tensor:
        """Return the derivatives within and between speakers of all processes, ``(2, 2, C)``."""
        between, num_pairs = self._processes.all_reduce(self._between, self._num_pairs)
        return torch.stack([self._within, between / num_pairs])


def count_trial_replicates(
    scores: ConditionScores,
    preds: Tensor,
    is_target: Tensor,
    speaker_places: Tensor,
    groups: JackknifeGroups,
    similarity_slopes: Tensor | None = None,
) -> ReplicateCellCounts:
    """Return what :func:`count_replicates` returns, for given trials ``(P,)``.

    ``speaker_places`` ``(2, P)``: indices into ``groups.labels``, of both sides.
    ``similarity_slopes`` ``(2, P)``: derivatives of the mean similarities by the calibrated value
    of each trial.
    """
    cells = CountingCells(scores)
    cell = torch.searchsorted(cells.edges, widen(preds), right=True)
    first_group, second_group = groups.group_of_label[speaker_places]
    counts: list[Tensor] = []
    weights: list[Tensor] = []
    for is_of_class in (is_target, ~is_target):
        sums = SumsWithoutGroups(groups.num_groups, cells.num_cells, torch.int64, preds.device)
        sums.add(cell[is_of_class], first_group[is_of_class], second_group[is_of_class])
        counts.append(widen(sums.of_all_and_without_groups()))
        if similarity_slopes is not None:
            empty = counts[0].new_zeros(2, cells.num_cells)
            weights.append(empty.index_add(1, cell[is_of_class], similarity_slopes[:, is_of_class]))
    targets, nontargets = counts
    similarity_weights = torch.stack(weights) if weights else None
    return ReplicateCellCounts(cells, targets, nontargets, groups, similarity_weights)


def differentiate_similarity_by_llr(
    summary: SimilaritySummary, matrix: Tensor | None, similarity: str
) -> tuple[Tensor, Tensor]:
    r"""Return derivatives of similarities and of their logarithms, by the mean they come from.

    A similarity is :math:`v = e^m` (``"geometric"``) or :math:`v = \sigma(m)` (``"sigmoid"``), with
    m the mean of the calibrated values of its trials. So the derivatives by m are

    .. math::
        \frac{dv}{dm} = v, \quad \frac{d \ln v}{dm} = 1 \qquad \text{or} \qquad
        \frac{dv}{dm} = v (1 - v), \quad \frac{d \ln v}{dm} = 1 - v

    Returns:
        The two derivatives within speakers, ``(2, S)``, and between speakers, ``(2, S, S)``.
        Without a matrix, the mean similarity stands for every pair of two speakers, ``(2, 1, 1)``.
    """
    if matrix is None:
        between = summary.between_speakers.nanmean().view(1, 1)
    else:
        between = matrix
    within_slopes = _differentiate_by_mean(summary.within_speaker, similarity)
    return within_slopes, _differentiate_by_mean(between, similarity)


def _differentiate_by_mean(values: Tensor, similarity: str) -> Tensor:
    """Return the derivatives of similarities and of their logarithms, ``(2, ...)``."""
    # A similarity without trials is NaN. Its derivative is multiplied by zero trials, which would
    # be NaN again, so it has any number.
    values = values.nan_to_num(0)
    if similarity == "geometric":
        return torch.stack([values, torch.ones_like(values)])
    return torch.stack([values * (1 - values), 1 - values])


def replicate_diagonal_dominance(
    counts: ReplicateCellCounts,
    summary: SimilaritySummary,
    group_of_speaker: Tensor,
    has_unordered_pairs: bool,
    similarity: str,
) -> dict[str, Tensor]:
    """Return diagonal dominance of all speakers and then without each group, ``(1 + G,)``.

    Without a group the calibration changes, and with it the similarities of all other speakers.
    That is computed to first order: every cell adds the change of its calibrated value, weighted by
    the trials that are left in it.
    """
    assert counts.similarity_weights is not None
    ascending = counts.measure_input.counts.ascending
    calibrated = ascending.laplace_llr(2 if has_unordered_pairs else 1)  # (1 + G, C)
    if similarity == "geometric":
        calibrated = logsigmoid(calibrated)
    change = calibrated - calibrated[:1]

    own = summary.within_speaker
    within_sums = torch.stack([own, own.log2(), torch.ones_like(own)]).masked_fill(own.isnan(), 0)
    by_speaker = torch.cat([within_sums, summary.pair_sums])  # (6, S)
    sums_of_speakers = SumsWithoutGroups(
        counts.groups.num_groups, 6, by_speaker.dtype, by_speaker.device
    )
    slot = torch.arange(6, device=by_speaker.device)[:, None].expand_as(by_speaker)
    sums_of_speakers.add(slot, group_of_speaker, values=by_speaker)
    sums = sums_of_speakers.of_all_and_without_groups().T  # (6, 1 + G)
    within, log_within, num_speakers = sums[:3]
    # A pair counts for both of its speakers.
    num_pairs, between, log_between = sums[3:] - by_speaker[3:].sum(1, keepdim=True) / 2
    gap = within / num_speakers - between / num_pairs
    log_gap = log_within / num_speakers - log_between / num_pairs

    within_weights, between_weights = counts.similarity_weights
    weight_within = _weigh_remaining_trials(counts.targets, within_weights, num_speakers)
    weight_between = _weigh_remaining_trials(counts.nontargets, between_weights, num_pairs)
    moved, log_moved = (change * (weight_within - weight_between)).sum(-1)
    return {"d_diag": (gap + moved).abs(), "d_diag_log": log_gap + log_moved / math.log(2)}


def _weigh_remaining_trials(trials: Tensor, weights: Tensor, num_units: Tensor) -> Tensor:
    """Return the weights ``(2, C)`` of the trials that are left in each cell, ``(2, 1 + G, C)``.

    ``trials`` ``(1 + G, C)``; ``num_units`` ``(1 + G,)``: speakers, or pairs of them, that are left
    and share the weight of all.
    """
    per_trial = torch.where(trials[0] > 0, weights / trials[0], 0)
    return per_trial[:, None] * trials * (num_units[0] / num_units)[:, None]


class Jackknife(NamedTuple):
    """Changes of numbers when speakers are left out.

    ``changes``: by how much each number differs without each group, ``(G,)``. ``bias``: by how much
    it is too large since it was fitted to the data it is measured on. ``gallery``: the number of
    references of keys whose range it limits, where it is not that of the speakers.
    """

    changes: dict[str, Tensor]
    bias: dict[str, Tensor]
    groups: JackknifeGroups
    gallery: Mapping[str, int] = {}


def check_enough_speakers(number: int) -> bool:
    """Return whether ``number`` speakers with trials of each kind suffice for intervals.

    Warn if not.
    """
    if number < FEWEST_SPEAKERS:
        warn_undefined(
            f"Intervals need {FEWEST_SPEAKERS} speakers with target trials, and as many with"
            " non-target trials."
        )
    return number >= FEWEST_SPEAKERS


def make_jackknife(
    replicates: Mapping[str, Tensor], groups: JackknifeGroups, num_speakers: int | None = None
) -> Jackknife:
    """Return the jackknife of numbers ``(1 + G,)``: of all speakers, then without each group.

    ``num_speakers``: the smaller number, with target or with non-target trials; None where all have
    both.
    """
    changes = {key: values[1:] - values[0] for key, values in replicates.items()}
    if num_speakers is None:
        num_speakers = len(groups.labels)
    if changes and not check_enough_speakers(num_speakers):
        changes = {key: torch.full_like(change, torch.nan) for key, change in changes.items()}
    bias: dict[str, Tensor] = {}
    for key, change in changes.items():
        if key in SCORE_MEASURES and SCORE_MEASURES[key].is_bias_corrected:
            bias[key] = groups.kept_over_dropped * change.mean()
    return Jackknife(changes, bias, groups)


def join_jackknives(parts: Sequence[Jackknife]) -> Jackknife:
    """Return the jackknife of the numbers of several jackknives."""
    changes: dict[str, Tensor] = {}
    bias: dict[str, Tensor] = {}
    gallery: dict[str, int] = {}
    for jackknife in parts:
        changes |= jackknife.changes
        bias |= jackknife.bias
        gallery |= jackknife.gallery
    return Jackknife(changes, bias, parts[0].groups, gallery)


def add_intervals(
    values: Mapping[str, Tensor], jackknife: Jackknife | None, confidence: float
) -> dict[str, Tensor]:
    """Return values, and both ends of each that has an interval.

    NaN without a jackknife, or where undefined.
    """
    known_keys: list[str] = []
    if jackknife is not None:
        known_keys = [
            key for key in values if key in jackknife.changes and scalar(key).has_interval
        ]
    if jackknife is not None and known_keys:
        ends = _intervals_of_keys(values, jackknife, known_keys, confidence)
    else:
        ends = {}
    result: dict[str, Tensor] = {}
    for key, value in values.items():
        result[key] = value
        if scalar(key).has_interval:
            unknown = torch.full_like(value, torch.nan)
            low, high = ends.get(key, (unknown, unknown))
            result[f"{key}{CI_SUFFIXES[0]}"] = low
            result[f"{key}{CI_SUFFIXES[1]}"] = high
    return result


def _intervals_of_keys(
    values: Mapping[str, Tensor], jackknife: Jackknife, keys: Sequence[str], confidence: float
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return both ends of each key, all at once; warn where an interval is lost."""
    num_speakers = len(jackknife.groups.labels)
    value = torch.stack([widen(values[key].detach()) for key in keys])
    changes = torch.stack([widen(jackknife.changes[key]) for key in keys])
    range_of_key: list[tuple[float, float]] = []
    for key in keys:
        gallery_size = jackknife.gallery.get(key, num_speakers)
        range_of_key.append(scalar(key).range_among(gallery_size))
    ranges = value.new_tensor(range_of_key)  # (keys, 2)
    no_bias = value.new_zeros(())
    bias = torch.stack([widen(jackknife.bias.get(key, no_bias)) for key in keys])
    is_saturating = torch.tensor([scalar(key).is_saturating for key in keys], device=value.device)
    lows, highs = jackknife_interval(
        value,
        replicates=value[:, None] + changes,
        confidence=confidence,
        lowest=ranges[:, 0],
        highest=ranges[:, 1],
        kept_over_dropped=jackknife.groups.kept_over_dropped,
        bias=bias,
        is_saturating=is_saturating,
    )
    # Where trials are few some numbers are undefined, as documented.
    needs_few_trials = [not scalar(key).needs_many_trials for key in keys]
    is_unexpected = torch.tensor(needs_few_trials, device=value.device)
    reason = "A number is undefined or infinite without one of the speakers, so it has no interval."
    warn_undefined(reason, (lows.isnan() & ~value.isnan() & is_unexpected).any())
    intervals: dict[str, tuple[Tensor, Tensor]] = {}
    for key, low, high in zip(keys, lows.unbind(), highs.unbind(), strict=True):
        dtype = values[key].dtype
        intervals[key] = (low.to(dtype), high.to(dtype))
    return intervals


def profile_interval(
    counts: ReplicateCellCounts, profile: Tensor, prior_log_odds: Tensor, confidence: float
) -> tuple[Tensor, Tensor]:
    """Return both ends of the interval of the minimum cross-entropy ``(P,)`` at each prior."""
    steps = counts.measure_input.counts.ascending
    # One prior at a time, since every one of some hundred needs all cells of all replicates.
    columns = [minimum_cross_entropy(steps, odds[None]) for odds in prior_log_odds]
    replicates = torch.cat(columns, dim=1).T
    replicates = profile[:, None] + replicates[:, 1:] - replicates[:, :1]
    highest = prior_entropy(prior_log_odds)
    return jackknife_interval(
        profile,
        replicates,
        confidence,
        lowest=0.0,
        highest=highest,
        kept_over_dropped=counts.groups.kept_over_dropped,
    )


def jackknife_interval(
    value: Tensor,
    replicates: Tensor,
    confidence: float,
    lowest: Tensor | float = -math.inf,
    highest: Tensor | float = math.inf,
    kept_over_dropped: float | None = None,
    bias: Tensor | float | None = None,
    is_saturating: Tensor | bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Return both ends of a jackknife confidence interval.

    With :math:`\theta` the value of all speakers and :math:`\theta_{(g)}` that without group g,

    .. math::
        \hat\theta = \theta - b, \quad b = r (\overline{\theta_{(\cdot)}} - \theta), \quad
        \sigma^2 = \frac{r}{G} \sum_g (\theta_{(g)} - \overline{\theta_{(\cdot)}})^2, \quad
        \hat\theta \pm t_{G - 1} \sigma

    where :math:`r` is speakers kept over speakers left out. The ends stay within the range of the
    number, and the interval always holds :math:`\theta`. Where no replicate differs from a value at
    one end of its range, the interval is a Clopper-Pearson bound.

    A number close to the upper end :math:`h` of its range misses it because of few speakers, and a
    sample may hold none of these. Where ``is_saturating``, the interval is that of the logarithm of
    what is missing, with :math:`m = h - \hat\theta`:

    .. math::
        h - m e^{\pm t_{G - 1} \sigma / m}

    The lower end is at most 1.5 times as far away as that of the number itself.
    Within a thousandth of the end its lower end is the Clopper-Pearson bound as well.

    Args:
        value: The numbers, ``(...)``.
        replicates: The numbers without each group, ``(..., G)``; ends are NaN where one is
            undefined, or for fewer than 3.
        confidence: Confidence level.
        lowest: Lower end of the range of each number.
        highest: Upper end of the range of each number.
        kept_over_dropped: Speakers kept over speakers left out, :math:`r`; ``G - 1`` when left out.
        bias: What to subtract from the value; :math:`b` when left out.
        is_saturating: Which numbers often come close to the upper end of their range.
    """
    estimate, standard_error = _jackknife_estimate(value, replicates, kept_over_dropped, bias)
    wide = widen(value.detach())
    lowest_end = torch.as_tensor(lowest, dtype=wide.dtype, device=wide.device)
    highest_end = torch.as_tensor(highest, dtype=wide.dtype, device=wide.device)
    num_groups = replicates.shape[-1]
    reach = students_t_quantile(confidence, max(num_groups - 1, 1)) * standard_error
    low = estimate - reach
    high = estimate + reach

    # Of a saturating number, the interval of the logarithm of what is missing.
    missing = highest_end - estimate
    is_logarithmic = torch.as_tensor(is_saturating, device=wide.device) & missing.isfinite()
    is_logarithmic = is_logarithmic & (missing > 0)
    factor = torch.exp(reach / torch.where(is_logarithmic, missing, 1))
    farthest_low = estimate - _MOST_STRETCHED * reach
    logarithmic_low = torch.maximum(highest_end - missing * factor, farthest_low)
    low = torch.where(is_logarithmic, logarithmic_low, low)
    high = torch.where(is_logarithmic, highest_end - missing / factor, high)

    # The Clopper-Pearson bound, where no replicate differs from a value at one end of its range.
    bound = clopper_pearson_or_0(wide, reach, num_groups, confidence, lowest, highest)
    low = torch.minimum(low, wide - bound)
    high = torch.maximum(high, wide + bound)

    # A sample of voices at the end of the range may hold none that are below it.
    width = highest_end - lowest_end.clamp(min=0)
    is_nearly_full = is_logarithmic & (highest_end - wide <= _NEARLY_FULL * width)
    bound_of_absent = width * share_of_absent_speakers(num_groups, confidence)
    low = torch.where(is_nearly_full, torch.minimum(low, wide - bound_of_absent), low)

    low = low.clamp(lowest_end, highest_end).to(value.dtype)
    high = high.clamp(lowest_end, highest_end).to(value.dtype)
    return low, high


def _jackknife_estimate(
    value: Tensor, replicates: Tensor, kept_over_dropped: float | None, bias: Tensor | float | None
) -> tuple[Tensor, Tensor]:
    """Return the values without their bias, and their standard errors.

    NaN for fewer than three replicates.
    """
    value = widen(value.detach())
    replicates = widen(replicates.detach())
    num_groups = replicates.shape[-1]
    if num_groups < FEWEST_SPEAKERS:
        return torch.full_like(value, torch.nan), torch.full_like(value, torch.nan)
    if kept_over_dropped is None:
        kept_over_dropped = num_groups - 1
    mean = replicates.mean(-1)
    if bias is None:
        bias = kept_over_dropped * (mean - value)
    variance = kept_over_dropped * (replicates - mean[..., None]).square().mean(-1)
    return value - bias, variance.sqrt()


def clopper_pearson_or_0(
    value: Tensor,
    jackknife_reach: Tensor,
    speakers: int,
    confidence: float,
    lowest: Tensor | float,
    highest: Tensor | float,
) -> Tensor:
    """Return the reach of a Clopper-Pearson bound at one end of a value's range.

    It is 0 for a value that some replicate moves.

    A share p of all speakers is absent among n speakers with the probability (1 - p) to the n-th
    power.

    Example:
        >>> round(
        ...     float(clopper_pearson_or_0(torch.ones(()), torch.zeros(()), 20, 0.95, 0.0, 1.0)), 2
        ... )
        0.14
    """
    if speakers == 0:
        return torch.zeros_like(value)
    low = torch.as_tensor(lowest, dtype=value.dtype, device=value.device)
    high = torch.as_tensor(highest, dtype=value.dtype, device=value.device)
    width = high - low.clamp(min=0)
    tolerance = width * 1e-6
    is_at_end = (value <= low + tolerance) | (value >= high - tolerance)
    is_still = is_at_end & (jackknife_reach <= tolerance) & width.isfinite()
    share = share_of_absent_speakers(speakers, confidence)
    return torch.where(is_still, width * share, 0)


def share_of_absent_speakers(speakers: int, confidence: float) -> float:
    """Return the share of all speakers that may be of a kind of which a sample has none."""
    return 1.0 - math.pow(1 - confidence, 1 / speakers)


@cache
def students_t_quantile(confidence: float, freedom: int) -> float:
    """Return the bound that a Student's t variable stays within with probability ``confidence``.

    That is, between the negative bound and the bound.

    Example:
        >>> round(students_t_quantile(0.95, 19), 3), round(students_t_quantile(0.95, 1), 2)
        (2.093, 12.71)
    """
    # A binary search among so many angles, whose tangent is t over the root of the freedom.
    num_angles = 1 << 40

    def t_at(angle_step: int) -> float:
        return math.sqrt(freedom) * math.tan(math.pi / 2 * angle_step / num_angles)

    def probability_at(angle_step: int) -> float:
        return students_t_probability_within(t_at(angle_step), freedom)

    return t_at(bisect_left(range(num_angles), confidence, key=probability_at))


def students_t_probability_within(bound: float, freedom: int) -> float:
    r"""Return the probability that a Student's t variable lies between ``-bound`` and ``bound``.

    .. math::
        \theta + \sin\theta \, (\cos\theta + \tfrac23 \cos^3\theta + \tfrac{2 \cdot 4}{3 \cdot 5}
        \cos^5\theta + \ldots), \quad \text{times } 2 / \pi, \quad \nu \text{ odd} \\
        \sin\theta \, (1 + \tfrac12 \cos^2\theta + \tfrac{1 \cdot 3}{2 \cdot 4} \cos^4\theta +
        \ldots), \quad \nu \text{ even}

    with :math:`\nu` degrees of freedom and :math:`\theta = \arctan(t / \sqrt\nu)`; the last power
    is :math:`\nu - 2`. Abramowitz and Stegun, 26.7.3-4.

    Args:
        bound: t, at least 0.
        freedom: The degrees of freedom, at least 1.
    """
    angle = math.atan(bound / math.sqrt(freedom))
    cosine = math.cos(angle)
    is_odd = freedom % 2 == 1
    if is_odd:
        first_power = 1
        term = cosine
    else:
        first_power = 0
        term = 1.0
    total = 0.0
    for power in range(first_power, freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    series = math.sin(angle) * total
    if is_odd:
        return 2 / math.pi * (angle + series)
    return series


class Difference(NamedTuple):
    """By how much a number of one system exceeds that of another, with its interval.

    ``probability_below``: the probability that the difference is below 0.
    """

    value: Tensor
    low: Tensor
    high: Tensor
    probability_below: Tensor

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes 0."""
        return bool((self.low > 0) | (self.high < 0))


def paired_difference(
    key: str,
    values: tuple[Tensor, Tensor],
    jackknives: tuple[Jackknife, Jackknife],
    confidence: float,
) -> Difference:
    """Return the difference of two systems on the same speakers.

    The same speakers are left out of both, so that a speaker who is hard in both systems cancels.
    """
    jackknife, subtracted_jackknife = jackknives
    groups = jackknife.groups
    if not groups.matches(subtracted_jackknife.groups):
        raise ValueError("Expected two systems on the same speakers, but got different ones.")
    value = widen(values[0]) - widen(values[1])
    ratio = groups.kept_over_dropped
    replicates = value + jackknife.changes[key] - subtracted_jackknife.changes[key]
    bias = torch.as_tensor(jackknife.bias.get(key, 0.0))
    bias = bias - subtracted_jackknife.bias.get(key, 0.0)
    low, high = jackknife_interval(
        value, replicates, confidence, kept_over_dropped=ratio, bias=bias
    )
    probability_below = _probability_below_0(value, replicates, ratio, bias)
    return Difference(value, low, high, probability_below)


def _probability_below_0(
    value: Tensor, replicates: Tensor, kept_over_dropped: float, bias: Tensor
) -> Tensor:
    """Return the probability that a number is below 0; 1/2 where no replicate differs from 0."""
    estimate, error = _jackknife_estimate(value, replicates, kept_over_dropped, bias)
    if not bool(error > 0):
        return torch.where(estimate.isnan() | error.isnan(), torch.nan, 0.5 - estimate.sign() / 2)
    t = float(-estimate / error)
    return torch.full_like(
        estimate,
        0.5 + math.copysign(students_t_probability_within(abs(t), len(replicates) - 1), t) / 2,
    )
