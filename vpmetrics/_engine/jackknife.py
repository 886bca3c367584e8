"""The leave-one-speaker-out jackknife: replicates of every number, and confidence intervals from them.

Trials share speakers, so single trials say nothing about uncertainty. Speakers are left out instead, one after the
other, with all trials they take part in. Every trial is counted in its cell of the score axis, once in all and once for
each of its speakers; the trials without a speaker are the difference of two histograms, and one batched PAV calibrates
all of them. Targets are all counted. Non-targets of large sets are thinned, since every speaker still meets thousands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from vpmetrics._engine.condition_scores import ConditionScores
from vpmetrics._engine.measures import SCORE_MEASURES, linkability_edges, minimum_cross_entropy, prior_entropy
from vpmetrics._engine.pair_blocks import PairBlocks
from vpmetrics._engine.precision import widen
from vpmetrics._engine.registry import scalar, scalar_key
from vpmetrics._engine.scalar import CI_SUFFIXES, Scalar
from vpmetrics._engine.score_counts import Counted, CountedTrials, ScoreCounts, Steps
from vpmetrics._engine.similarity import SimilaritySummary
from vpmetrics._engine.utterances import EvaluationData, count_values, mean_keys

MOST_GROUPS = 250  # a standard error from so many replicates is known to 4 %
FEWEST_SPEAKERS = 3  # with trials of both kinds
_CELLS = 1 << 10  # of the score axis, each with about the same share of the trials
_FINE_BINS = 1 << 16  # through which a score finds its cell
_MOST_PAIRS = 1 << 23  # non-target pairs that are counted


class JackknifeGroups(NamedTuple):
    """Speakers that are left out together: one at a time or, where there are many, several.

    ``labels`` ``(L,)``, ascending; ``group_of_label`` ``(L,)``, and ``number`` for those that are never left out;
    ``size``: speakers in each group.
    """

    labels: Tensor
    group_of_label: Tensor
    number: int
    size: int

    @property
    def ratio(self) -> float:
        """Speakers kept over speakers left out."""
        return (len(self.labels) - self.size) / max(self.size, 1)

    def matches(self, other: JackknifeGroups) -> bool:
        """Whether both leave out the same speakers, by their place among all."""
        return torch.equal(self.group_of_label, other.group_of_label)

    def of(self, labels: Tensor) -> Tensor:
        """Return the group of each of some speakers."""
        return self.group_of_label[torch.searchsorted(self.labels, labels.contiguous())]


def group_speakers(data: EvaluationData) -> JackknifeGroups:
    """Return groups that depend on embeddings alone; a speaker in two groups of the data is left out once."""
    labels, place = data.speakers.unique(return_inverse=True)
    order = torch.arange(len(labels), device=labels.device)
    if len(labels) > MOST_GROUPS:
        side = data.original if len(data.original) else data.protected
        order = mean_keys(side, place[side.speaker_index], len(labels)).argsort(stable=True).argsort()
    return _deal(labels, order)


def group_labels(labels: Tensor) -> JackknifeGroups:
    """Return groups by labels alone, so that the same speakers are left out of every system."""
    order = torch.arange(len(labels), device=labels.device)
    if len(labels) > MOST_GROUPS:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).to(labels.device)
    return _deal(labels, order)


def _deal(labels: Tensor, order: Tensor) -> JackknifeGroups:
    number = min(len(labels), MOST_GROUPS)
    size = len(labels) // max(number, 1)
    return JackknifeGroups(labels, torch.where(order < number * size, order % max(number, 1), number), number, size)


class ReplicateCounts(NamedTuple):
    """Trials per cell of the score axis, ``(1 + G, C)``: of all speakers, then without each group.

    ``values`` ``(C,)``: a score of each cell. ``edges`` of the linkability measure. ``similarity_weights`` ``(2, 2,
    C)``: by how much the mean similarity of speakers with themselves and with others, and that of its logarithm, grow
    with the calibrated value of a trial in each cell.
    """

    values: Tensor
    targets: Tensor
    nontargets: Tensor
    linkability_edges: Tensor
    groups: JackknifeGroups
    has_enough: bool
    similarity_weights: Tensor | None = None
    costs: Callable[[], Tensor] | None = None

    @property
    def counted(self) -> CountedTrials:
        """What score measures are functions of."""
        edges = self.values.new_empty(0)
        ascending = Steps(edges, self.targets, self.nontargets)
        descending = Steps(edges, self.targets.flip(-1), self.nontargets.flip(-1))
        counts = torch.stack([self.nontargets, self.targets])
        return CountedTrials(
            Counted(self.values, counts, self.costs), ScoreCounts(ascending, descending), self.linkability_edges
        )

    def jackknife(self, keys: Iterable[str] = tuple(SCORE_MEASURES)) -> Jackknife:
        """Return the jackknife of the score measures that have an interval."""
        measures = {key: SCORE_MEASURES[key] for key in keys if key in SCORE_MEASURES}
        replicates = {key: measure(self.counted) for key, measure in measures.items() if measure.has_interval}
        return jackknife_of(replicates, self.groups, self.has_enough)


class ScoreCells:
    """Cells of the score axis: between steps of PAV, with about as many trials each, and cut at bins of linkability."""

    def __init__(self, scores: ConditionScores, most: int = _CELLS) -> None:
        steps = scores.counts.ascending
        share = steps.targets / (2 * steps.targets.sum()) + steps.nontargets / (2 * steps.nontargets.sum())
        number = ((share.cumsum(0) - share) * most).nan_to_num().round(decimals=6).floor()
        edges = widen(steps.edges)[number[1:] > number[:-1]]
        self.linkability_edges = linkability_edges(scores.trials)
        links = widen(self.linkability_edges)
        self.edges = torch.cat([edges, links[links.isfinite()]]).unique()
        low, high = (self.edges[0], self.edges[-1]) if len(self.edges) else self.edges.new_tensor([0.0, 1.0])
        self.low, self.scale = low, (_FINE_BINS - 4) / (high - low).clamp(min=torch.finfo(low.dtype).tiny)
        if len(steps.edges) <= most // 2:
            # Where there is room, targets lie apart from the non-targets above them, as the negated scores need it.
            self.edges = torch.cat([self.edges, widen(steps.edges) + 2 / self.scale]).unique()
        self.trials = scores.trials
        # A step begins at a target, so a fine bin that holds an edge lies above it.
        self.cell_of_bin = torch.searchsorted(
            self.edges, low + torch.arange(_FINE_BINS, device=low.device) / self.scale
        )
        lowest, highest = scores.trials.span()
        ends = (
            (lowest, highest)
            if len(self.edges) == 0
            else (torch.minimum(lowest, self.edges[0]), torch.maximum(highest, self.edges[-1]))
        )
        bounds = torch.cat([widen(ends[0])[None], self.edges, widen(ends[1])[None]])
        self.values = (bounds[1:] + bounds[:-1]) / 2

    def costs(self) -> Tensor:
        """Return mean costs in nats of non-targets and targets of each cell as log-likelihood ratios, ``(2, C)``."""
        return self.trials.mean_costs(self.edges)

    @property
    def number(self) -> int:
        """How many cells there are."""
        return len(self.edges) + 1

    def of(self, scores: Tensor) -> Tensor:
        """Return the cell of every score, in their shape."""
        x = (scores - self.low.to(scores.dtype)).mul_(self.scale.to(scores.dtype)).add_(1).nan_to_num_()
        bins = x.clamp_(0, _FINE_BINS - 1).to(torch.int32)
        return self.cell_of_bin.index_select(0, bins.flatten()).view(x.shape)


def count_replicates(
    pairs: PairBlocks,
    scores: ConditionScores,
    groups: JackknifeGroups,
    speakers: Tensor,
    summary: SimilaritySummary | None = None,
    matrix: Tensor | None = None,
    similarity: str = "geometric",
) -> ReplicateCounts | None:
    """Return the counts of all speakers and without each group; None where there is no calibration.

    ``speakers`` ``(S,)``: the labels that ``speaker_index`` refers to. With ``summary`` also similarity weights.
    """
    if bool(scores.counts.ascending.targets.isnan().any()):
        return None
    cells, group, dtype = ScoreCells(scores), groups.of(speakers), torch.float64
    slopes = None if summary is None else similarity_slopes(summary, matrix, similarity)
    size = cells.number
    table = torch.zeros(2, (groups.number + 2) * size, dtype=torch.int64, device=speakers.device)
    own_weights, other_weights, num_pairs = (
        widen(cells.edges).new_zeros(shape) for shape in ((2, size), (2, size), ())
    )
    target_cells, target_speakers = find_target_cells(pairs, cells)
    for slot in (target_cells, target_cells + size * (1 + group[target_speakers])):
        table[0].index_add_(0, slot, torch.ones_like(slot))
    thinned = pairs.thin(_MOST_PAIRS)
    rows, columns = thinned.enrolment.speaker_index, thinned.test.speaker_index
    row_share, column_share = (1 / count_values(index, len(speakers)).to(dtype) for index in (rows, columns))
    one = table.new_ones(())
    for block in thinned:
        cell, a, b = cells.of(block.scores), rows[block.rows], columns[block.columns]
        is_left_out = None
        if block.is_target is not None and block.is_trial is not None:
            is_left_out = block.is_target | ~block.is_trial
        if slopes is not None:
            each = row_share[a][:, None] * column_share[b]
            each = each if is_left_out is None else each.masked_fill(is_left_out, 0)
            of_pairs = slopes[1] if slopes[1].shape[-1] == 1 else slopes[1][:, a][:, :, b]
            other_weights.index_add_(1, cell.flatten(), (each * of_pairs).flatten(1))
            num_pairs += each.sum()
        first, second = (1 + group[a])[:, None], (1 + group[b])[None]
        nowhere = table.shape[1] - 1  # in the last row, of speakers that are never left out
        # A trial of two speakers of one group is one trial of the group.
        both = torch.where(first == second, nowhere, cell + size * second)
        for slot in (cell, cell + size * first, both):
            slot = slot if is_left_out is None else slot.masked_fill(is_left_out, nowhere)
            table[1].index_add_(0, slot.flatten(), one.expand(slot.numel()))
    # Every rank has counted all targets, and its share of the non-targets.
    counted, other_weights, num_pairs = thinned.processes.all_reduce(table[1], other_weights, num_pairs)
    targets, nontargets = (widen(counts.view(-1, size)[:-1]) for counts in (table[0], counted))
    nontargets = nontargets * (scores.counts.ascending.nontargets.sum() / nontargets[0].sum())
    targets, nontargets = (torch.cat([counts[:1], counts[:1] - counts[1:]]) for counts in (targets, nontargets))
    weights = None
    if slopes is not None:
        number = count_values(target_speakers, len(speakers))
        own_weights.index_add_(1, target_cells, (slopes[0] / ((number > 0).sum() * number))[:, target_speakers])
        weights = torch.stack(
            [
                torch.where(targets[0] > 0, own_weights / targets[0], 0),
                torch.where(nontargets[0] > 0, other_weights / (num_pairs * nontargets[0]), 0),
            ]
        )
    has_enough = len(group[target_speakers].unique()) >= FEWEST_SPEAKERS
    return ReplicateCounts(
        cells.values, targets, nontargets, cells.linkability_edges, groups, has_enough, weights, cells.costs
    )


def find_target_cells(pairs: PairBlocks, cells: ScoreCells) -> tuple[Tensor, Tensor]:
    """Return the cell and the speaker of every target trial of all ranks."""
    found = [(pairs.enrolment.speaker_index[:0],) * 2]
    whole = pairs.on_all_ranks()
    for group in whole.row_groups():
        for block in whole.blocks(group, targets_only=True):
            if block.is_target is None or block.is_trial is None:
                continue
            kept = block.is_target & block.is_trial
            speaker = pairs.enrolment.speaker_index[block.rows].repeat_interleave(kept.sum(1))
            found.append((cells.of(block.scores[kept]), speaker))
    first, second = (torch.cat(column) for column in zip(*found, strict=True))
    return first, second


def count_trial_replicates(
    scores: ConditionScores,
    preds: Tensor,
    is_target: Tensor,
    speakers: Tensor,
    groups: JackknifeGroups,
    weights_of_trials: Tensor | None = None,
) -> ReplicateCounts | None:
    """Return the same of given trials ``(P,)``, whose speakers have places ``(2, P)`` in ``groups.labels``.

    ``weights_of_trials`` ``(2, P)``: by how much similarities grow with the calibrated value of each trial.
    """
    if bool(scores.counts.ascending.targets.isnan().any()):
        return None
    cells = ScoreCells(scores)
    cell, group = torch.searchsorted(cells.edges, widen(preds), right=True), groups.group_of_label[speakers]
    size, counts = cells.number, []
    for kind in (is_target, ~is_target):
        kept, (first, second) = cell[kind], group[:, kind]
        second = torch.where(first == second, groups.number, second)
        length = (groups.number + 1) * size
        gone = sum(torch.bincount(kept + size * each, minlength=length) for each in (first, second))
        total = widen(torch.bincount(kept, minlength=size))[None]
        counts.append(torch.cat([total, total - torch.as_tensor(gone).view(-1, size)[:-1]]))
    weights = None
    if weights_of_trials is not None:
        sums = [widen(cells.edges).new_zeros(2, size).index_add(1, cell[kind], weights_of_trials[:, kind])
                for kind in (is_target, ~is_target)]  # fmt: skip
        weights = torch.stack([torch.where(n[0] > 0, each / n[0], 0) for each, n in zip(sums, counts, strict=True)])
    has_enough = len(group[0, is_target].unique()) >= FEWEST_SPEAKERS
    return ReplicateCounts(
        cells.values, counts[0], counts[1], cells.linkability_edges, groups, has_enough, weights, cells.costs
    )


def similarity_slopes(summary: SimilaritySummary, matrix: Tensor | None, similarity: str) -> tuple[Tensor, Tensor]:
    """Return how similarities and their logarithms grow with what they average: ``(2, S)`` and ``(2, S, S)``.

    Without a matrix all pairs of two speakers have the mean similarity, ``(2, 1, 1)``.
    """
    own = summary.within_speaker.nan_to_num(0)
    others = summary.between_speakers.nanmean().view(1, 1) if matrix is None else matrix
    others = others.nan_to_num(0)
    if similarity == "geometric":
        return torch.stack([own, torch.ones_like(own)]), torch.stack([others, torch.ones_like(others)])
    return torch.stack([own * (1 - own), 1 - own]), torch.stack([others * (1 - others), 1 - others])


def replicate_dominance(
    counts: ReplicateCounts,
    summary: SimilaritySummary,
    group_of_speaker: Tensor,
    is_one_sided: bool,
    similarity: str,
) -> dict[str, Tensor]:
    """Return diagonal dominance of all speakers and then without each group, ``(1 + G,)``.

    Similarities of the speakers that stay are corrected, to first order, for the calibration without the group: in
    every cell the change of the calibrated value changes them in proportion to the trials there.
    """
    assert counts.similarity_weights is not None
    orders = 2 if is_one_sided else 1
    calibrated = Steps(counts.values[:0], counts.targets, counts.nontargets).llr_of_orders(orders)
    calibrated = logsigmoid(calibrated) if similarity == "geometric" else calibrated
    change = calibrated - calibrated[:1]
    own = summary.within_speaker
    is_known = ~own.isnan()
    columns = (own, own.log2(), torch.ones_like(own))
    number = counts.groups.number
    within, log_within, speakers = (
        _leave_out(torch.where(is_known, each, 0), group_of_speaker, number) for each in columns
    )
    halves = [_leave_out(each, group_of_speaker, number) - each.sum() / 2 for each in summary.pair_sums]
    pairs, between, log_between = halves
    gaps = within / speakers - between / pairs, log_within / speakers - log_between / pairs
    own_left = counts.targets * (speakers[0] / speakers)[:, None]
    others_left = counts.nontargets * (pairs[0] / pairs)[:, None]
    of_own, of_others = counts.similarity_weights
    moved = [
        (change * (own_left * of_own[k] - others_left * of_others[k])).sum(1) / unit
        for k, unit in enumerate((1, math.log(2)))
    ]
    return {"d_diag": (gaps[0] + moved[0]).abs(), "d_diag_log": gaps[1] + moved[1]}


def _leave_out(values: Tensor, group: Tensor, number: int) -> Tensor:
    """Return the sum of values, then without those of each group, ``(1 + G,)``."""
    of_group = values.new_zeros(number + 1).index_add(0, group, values)[:-1]
    return values.sum() - pad(of_group, (1, 0))


class Jackknife(NamedTuple):
    """What leaving speakers out changes.

    ``changes``: by how much each number differs without each group, ``(G,)``. ``bias``: by how much it is too large
    since it was fitted to what it is measured on.
    """

    changes: dict[str, Tensor]
    bias: dict[str, Tensor]
    groups: JackknifeGroups

    def with_condition(self, name: str) -> Jackknife:
        """Return the same with the keys of a condition."""
        changes, bias = ({scalar_key(name, key): value for key, value in part.items()} for part in self[:2])
        return Jackknife(changes, bias, self.groups)

    def interval(self, scalar: Scalar, value: Tensor, confidence: float) -> tuple[Tensor, Tensor]:
        """Return both ends of the confidence interval of a number; NaN where its replicates are unknown."""
        if scalar.key not in self.changes:
            return torch.full_like(value, torch.nan), torch.full_like(value, torch.nan)
        bias = self.bias.get(scalar.key, torch.zeros_like(value))
        replicates = widen(value) + self.changes[scalar.key]
        bounds = scalar.range_among(len(self.groups.labels))
        return jackknife_interval(value, replicates, confidence, *bounds, self.groups.ratio, bias)


def jackknife_of(replicates: Mapping[str, Tensor], groups: JackknifeGroups, has_enough: bool = True) -> Jackknife:
    """Return the jackknife of numbers known of all speakers and then without each group, ``(1 + G,)``."""
    changes = {key: each[1:] - each[0] for key, each in replicates.items()}
    if not has_enough:
        changes = {key: torch.full_like(each, torch.nan) for key, each in changes.items()}
    corrected = [key for key in changes if key in SCORE_MEASURES and SCORE_MEASURES[key].is_bias_corrected]
    return Jackknife(changes, {key: groups.ratio * changes[key].mean() for key in corrected}, groups)


def join_jackknives(parts: Sequence[Jackknife]) -> Jackknife:
    """Return the jackknife of the numbers of several jackknives."""
    changes = {key: change for part in parts for key, change in part.changes.items()}
    bias = {key: value for part in parts for key, value in part.bias.items()}
    return Jackknife(changes, bias, parts[0].groups)


def add_intervals(values: Mapping[str, Tensor], jackknife: Jackknife | None, confidence: float) -> dict[str, Tensor]:
    """Return values, each that has a confidence interval followed by its ends; NaN where these are undefined."""
    result = {}
    for key, value in values.items():
        result[key] = value
        entry = scalar(key)
        if not entry.has_interval:
            continue
        ends = (torch.full_like(value, torch.nan),) * 2
        if jackknife is not None:
            ends = jackknife.interval(entry, value, confidence)
        result |= {f"{key}{suffix}": end for suffix, end in zip(CI_SUFFIXES, ends, strict=True)}
    return result


def profile_interval(
    counts: ReplicateCounts, profile: Tensor, prior_log_odds: Tensor, confidence: float
) -> tuple[Tensor, Tensor]:
    """Return both ends of the interval of the minimum cross-entropy ``(P,)`` at each prior."""
    steps, ratio, ends = counts.counted.counts.ascending, counts.groups.ratio, []
    highest = prior_entropy(prior_log_odds).tolist()
    for value, odds, most in zip(profile, prior_log_odds, highest, strict=True):  # some hundred points of a figure
        replicates = minimum_cross_entropy(steps, odds[None])[:, 0]
        replicates = value + replicates[1:] - replicates[0]
        ends.append(torch.stack(jackknife_interval(value, replicates, confidence, 0.0, most, ratio)))
    low, high = torch.stack(ends, dim=1)
    return low, high


def jackknife_interval(
    value: Tensor,
    replicates: Tensor,
    confidence: float,
    lowest: float = -math.inf,
    highest: float = math.inf,
    ratio: float | None = None,
    bias: Tensor | float | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Return both ends of a jackknife confidence interval.

    With :math:`\theta` the value of all speakers and :math:`\theta_{(g)}` that without group g,

    .. math::
        \hat\theta = \theta - b, \quad b = r (\overline{\theta_{(\cdot)}} - \theta), \quad
        \sigma^2 = \frac{r}{G} \sum_g (\theta_{(g)} - \overline{\theta_{(\cdot)}})^2, \quad
        \hat\theta \pm t_{G - 1} \sigma

    where :math:`r` is speakers kept over speakers left out. The ends stay within the range of the number, and the
    interval always holds :math:`\theta`. Where no replicate differs from a value at one end of its range, the interval
    is a Clopper-Pearson bound.

    Args:
        value: The number, ``()``.
        replicates: The number without each group, ``(G,)``.
        confidence: Confidence level.
        lowest: Lower end of the range.
        highest: Upper end of the range.
        ratio: Speakers kept over speakers left out; ``G - 1`` when left out.
        bias: What to subtract from the value; :math:`b` when left out.

    Returns:
        Both ends, ``()``; NaN where a replicate is undefined, or for fewer than two.
    """
    if len(replicates) < 2:
        return torch.full_like(value, torch.nan), torch.full_like(value, torch.nan)
    wide = widen(value.detach())
    centre, deviation = _center_and_error(wide, widen(replicates.detach()), ratio, bias)
    reach = students_t_quantile(confidence, len(replicates) - 1) * deviation
    low, high = torch.minimum(centre - reach, wide), torch.maximum(centre + reach, wide)
    bound = clopper_pearson_reach(wide, reach, len(replicates), confidence, lowest, highest)
    low, high = torch.minimum(low, wide - bound), torch.maximum(high, wide + bound)
    return low.clamp(lowest, highest).to(value.dtype), high.clamp(lowest, highest).to(value.dtype)


def clopper_pearson_reach(
    value: Tensor, reach: Tensor, speakers: int, confidence: float, lowest: float, highest: float
) -> Tensor:
    """Return the reach of a Clopper-Pearson bound for a value at one end of its range that no replicate moves; else 0.

    Speakers of whom none is among these could be a share p of all with a chance of (1 - p) to the number of speakers.

    Example:
        >>> round(float(clopper_pearson_reach(torch.ones(()), torch.zeros(()), 20, 0.95, 0.0, 1.0)), 2)
        0.14
    """
    width = highest - max(lowest, 0.0)
    if not math.isfinite(width):
        return torch.zeros_like(value)
    tolerance = width * 1e-6
    is_at_end = (value <= lowest + tolerance) | (value >= highest - tolerance)
    is_still = (is_at_end & (reach <= tolerance)).to(value.dtype)
    return is_still * (width * (1.0 - math.pow(1 - confidence, 1 / speakers)))


def _center_and_error(
    value: Tensor, replicates: Tensor, ratio: float | None, bias: Tensor | float | None
) -> tuple[Tensor, Tensor]:
    """Return the value without its bias, and its standard error."""
    kept, mean = len(replicates) - 1 if ratio is None else ratio, replicates.mean()
    centre = value - (kept * (mean - value) if bias is None else bias)
    return centre, (kept * (replicates - mean).square().mean()).sqrt()


@lru_cache
def students_t_quantile(confidence: float, freedom: int) -> float:
    """Return the value within which a Student's t variable lies, in size, with this probability (Hill, 1970).

    Example:
        >>> round(students_t_quantile(0.95, 19), 3), round(students_t_quantile(0.95, 1), 2)
        (2.093, 12.71)
    """
    tail = 1 - confidence
    if freedom == 1:
        return 1 / math.tan(tail * math.pi / 2)
    if freedom == 2:
        return math.sqrt(2 / (tail * (2 - tail)) - 2)
    a = 1 / (freedom - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * freedom
    y = (d * tail) ** (2 / freedom)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(tail / 2)
        y = x * x
        if freedom < 5:
            c += 0.3 * (freedom - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = ((1 / (((freedom + 6) / (freedom * y) - 0.089 * d - 0.822) * (freedom + 2) * 3) + 0.5 / (freedom + 4)) * y
             - 1) * (freedom + 1) / (freedom + 2) + 1 / y  # fmt: skip
    return math.sqrt(freedom * y)


def students_t_probability(t: float, freedom: int) -> float:
    """Return the probability of a Student's t variable of at most ``t`` in size (Abramowitz and Stegun, 26.7.3-4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, total, first = math.cos(angle), 0.0, freedom % 2
    term = cosine if first else 1.0
    for k in range(first, freedom - 1, 2):
        total += term
        term *= cosine**2 * (k + 1) / (k + 2)
    series = math.sin(angle) * total
    return 2 / math.pi * (angle + series) if first else series


class Difference(NamedTuple):
    """By how much a number of one system exceeds that of another, with its interval and the probability to be below."""

    value: Tensor
    low: Tensor
    high: Tensor
    probability_below: Tensor

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes 0."""
        return bool((self.low > 0) | (self.high < 0))


def compare_jackknives(
    key: str, values: tuple[Tensor, Tensor], jackknives: tuple[Jackknife, Jackknife], confidence: float
) -> Difference:
    """Return the difference of two systems on the same speakers, with the same ones left out of both.

    What is hard about a speaker is hard in both systems, and cancels in their difference.
    """
    first, second = jackknives
    if not first.groups.matches(second.groups):
        raise ValueError("Expected two systems on the same speakers, but got different ones.")
    value = widen(values[0]) - widen(values[1])
    replicates = value + first.changes[key] - second.changes[key]
    bias = first.bias.get(key, torch.zeros_like(value)) - second.bias.get(key, torch.zeros_like(value))
    ratio = first.groups.ratio
    ends = jackknife_interval(value, replicates, confidence, ratio=ratio, bias=bias)
    return Difference(value, *ends, _probability_below(value, replicates, ratio, bias))


def _probability_below(value: Tensor, replicates: Tensor, ratio: float, bias: Tensor) -> Tensor:
    """Return the probability that a number is below 0; 1/2 where no replicate differs from 0."""
    if len(replicates) < 2:
        return torch.full_like(value, torch.nan)
    centre, deviation = _center_and_error(widen(value.detach()), widen(replicates.detach()), ratio, bias)
    if not bool(deviation > 0):
        return torch.where(centre.isnan() | deviation.isnan(), torch.nan, 0.5 - centre.sign() / 2)
    t = float(-centre / deviation)
    return torch.full_like(centre, 0.5 + math.copysign(students_t_probability(abs(t), len(replicates) - 1), t) / 2)
