"""How sure the numbers of a report are: each of them without one speaker after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import widen
from vpmetrics._scalars import ENDS, key_of, scalar
from vpmetrics._scores.intervals import interval_of, probability_below
from vpmetrics._scores.measures import edges_of_linkability, entropy_of_prior
from vpmetrics._scores.without import FITTED
from vpmetrics._trials.conditions import Condition
from vpmetrics._trials.left_out import (
    Blocks,
    Counts,
    count_without,
    dominance_without,
    scores_without,
    slopes_of,
    slopes_of_grid,
)
from vpmetrics._trials.left_out_ranks import LeftOutRanks
from vpmetrics._trials.matrices import Likeness, likeness_of_condition
from vpmetrics._trials.pairs import TrialGrid
from vpmetrics._trials.scored import ScoredTrials
from vpmetrics._trials.scorers import Scorer
from vpmetrics._trials.scores import ConditionScores, score_condition
from vpmetrics._trials.utterances import Sides
from vpmetrics.functional.rank import rank_disclosure
from vpmetrics.functional.similarity import normalised_relatives


class LeftOut(NamedTuple):
    """What leaving speakers out changes.

    ``changes``: by how much each number differs without each block of speakers, ``(G,)``. ``bias``: by how much it is
    too large for having been fitted to what it is measured on. ``blocks``: who is left out together.
    """

    changes: dict[str, Tensor]
    bias: dict[str, Tensor]
    blocks: Blocks

    @property
    def ratio(self) -> float:
        """Speakers kept over speakers left out."""
        return self.blocks.ratio

    def under(self, condition: str) -> LeftOut:
        """The same, with the names that numbers of a condition have."""
        changes, bias = ({key_of(condition, key): x for key, x in each.items()} for each in self[:2])
        return LeftOut(changes, bias, self.blocks)

    def interval(self, key: str, value: Tensor, confidence: float) -> tuple[Tensor, Tensor]:
        """Both ends for a number, by its name."""
        lowest, highest = scalar(key).range_among(len(self.blocks.names))
        bias = self.bias.get(key, torch.zeros_like(value))
        return interval_of(value, widen(value) + self.changes[key], confidence, lowest, highest, self.ratio, bias)


class Profiles(NamedTuple):
    """What profiles over the prior need to show how sure they are."""

    counts: Counts
    ratio: float
    confidence: float

    def ends(self, profile: Tensor, prior_log_odds: Tensor) -> tuple[Tensor, Tensor]:
        """Both ends of the least cross-entropy, ``(P,)``, at each prior."""
        low, high = [], []
        most = entropy_of_prior(prior_log_odds).tolist()  # of what is not known, not even calibrated scores add any
        for value, odds, highest in zip(profile, prior_log_odds, most, strict=True):  # some hundred points of a figure
            without = self.counts.least_cross_entropy(odds)
            replicates = value + without[1:] - without[0]
            bias = self.ratio * (replicates.mean() - value)
            ends = interval_of(value, replicates, self.confidence, 0.0, highest, self.ratio, bias)
            low.append(ends[0])
            high.append(ends[1])
        return torch.stack(low), torch.stack(high)


def counts_of_blocks(
    grid: TrialGrid,
    scores: ConditionScores,
    likeness: Likeness | None,
    matrix: Tensor | None,
    similarity: str,
    blocks: Blocks,
) -> Counts | None:
    """Trials per cell of the score axis with and without each block of speakers; None where nothing is known."""
    steps = scores.counts.ascending
    if bool(steps.targets.isnan().any()):
        return None
    slopes = None if likeness is None else slopes_of_grid(grid, likeness, matrix, similarity)
    return count_without(grid, steps, _links(scores), blocks, slopes)


def counts_of_scored(
    trials: ScoredTrials,
    scores: ConditionScores,
    likeness: Likeness | None,
    matrix: Tensor | None,
    similarity: str,
    blocks: Blocks,
) -> Counts | None:
    """The same of trials that come with their scores."""
    steps = scores.counts.ascending
    if bool(steps.targets.isnan().any()):
        return None
    known = None if likeness is None or matrix is None else slopes_of(likeness.own, matrix, similarity).others
    return trials.count_without(steps, _links(scores), blocks, known)


def _links(scores: ConditionScores) -> Tensor:
    links = edges_of_linkability(scores.trials)
    return links[links.isfinite()]


def left_out_of_scores(
    voices: Tensor,
    scores: ConditionScores,
    counts: Counts | None,
    likeness: Likeness | None,
    similarity: str,
    blocks: Blocks,
) -> LeftOut:
    """What leaving speakers out changes in the numbers of scores, and in those of similarities if these are known.

    ``voices``: those of ``likeness``, ascending.
    """
    if counts is None:
        return LeftOut({}, {}, blocks)
    seen, times = scores.trials.table()
    values = scores_without(counts, seen[(times > 0).any(0)], _links(scores))
    if likeness is not None:
        values |= dominance_without(counts, likeness, blocks.of(voices), blocks, scores.within, similarity)
    return left_out_of_values(values, blocks)


def left_out_of_similarity(
    sides: Sides, condition: Condition, scorer: Scorer, similarity: str, blocks: Blocks
) -> tuple[Tensor, LeftOut]:
    """Diagonal dominance in a condition, and what leaving speakers out changes in it."""
    grid = TrialGrid(*sides.pair(condition), sides.voices, scorer, condition)
    scores = score_condition(grid)
    likeness, matrix, _ = likeness_of_condition(grid, scores, similarity)
    counts = counts_of_blocks(grid, scores, likeness, matrix, similarity, blocks)
    return likeness.dominance, left_out_of_scores(
        grid.voices.sort().values, scores, counts, likeness, similarity, blocks
    )


def left_out_of_ranks(groups: Sequence[LeftOutRanks], model: str, blocks: Blocks) -> LeftOut:
    """What leaving speakers out changes in the numbers of identification, over all groups."""
    inputs = torch.stack([each.histograms.sum(1) for each in groups])
    parts = [_of_references(each.histograms, each.references, model) for each in groups]
    values = {key: _over_groups(torch.stack([part[key] for part in parts]), inputs, key) for key in parts[0]}
    count, above_sum, below_sum, above, linked = torch.stack([each.sums for each in groups]).sum(0)
    values |= {
        "alid": (above_sum + below_sum) / count,
        "pdr": above / count,
        "ndr": 1 - above / count,
        "link_rate": linked / inputs.sum(0),
    }
    left_out = left_out_of_values(values, blocks)
    # With fewer references there is less to disclose, so the bias shows where inputs alone are gone.
    fewer = [rank_disclosure(each.fewer_inputs, model)["mean_d"] for each in groups]
    mean_d = _over_groups(torch.stack(fewer), torch.stack([each.fewer_inputs.sum(1) for each in groups]), "mean_d")
    bias = {"mean_d": blocks.ratio * (mean_d[1:] - mean_d[0]).mean()}
    return left_out._replace(bias=bias)


def _of_references(histograms: Tensor, references: Tensor, model: str) -> dict[str, Tensor]:
    """Rank disclosure of each histogram among as many references as it has; there are few numbers of them."""
    values = {key: histograms.new_full((len(histograms),), torch.nan) for key in ("max_d", "mean_d", "id_rate")}
    for number in references.unique().long().tolist():
        rows = (references == number).nonzero().flatten()
        if number > 1:
            found = rank_disclosure(histograms[rows, :number], model)
            values = {key: each.index_copy(0, rows, found[key].to(each.dtype)) for key, each in values.items()}
    return values


def _over_groups(values: Tensor, inputs: Tensor, key: str) -> Tensor:
    """The mean over the inputs of all groups, or the largest."""
    return values.amax(0) if key == "max_d" else (values * inputs).sum(0) / inputs.sum(0)


def left_out_of_values(values: Mapping[str, Tensor], blocks: Blocks) -> LeftOut:
    """What leaving speakers out changes in numbers that are known of all, then without each block, ``(1 + G,)``."""
    changes = {key: each[1:] - each[0] for key, each in values.items()}
    bias = {key: blocks.ratio * changes[key].mean() for key in FITTED & set(changes)}
    return LeftOut(changes, bias, blocks)


def joined(parts: Sequence[LeftOut]) -> LeftOut:
    """The changes of numbers of several kinds."""
    changes = {key: change for part in parts for key, change in part.changes.items()}
    bias = {key: value for part in parts for key, value in part.bias.items()}
    return LeftOut(changes, bias, parts[0].blocks)


def left_out_of_system(scalars: Mapping[str, Tensor], conditions: Mapping[str, LeftOut | None]) -> LeftOut | None:
    """What leaving speakers out changes in all numbers of a system, by name, and in those that compare conditions."""
    known = {name: each for name, each in conditions.items() if each is not None}
    if not known:
        return None
    changes, bias, blocks = joined([each.under(name) for name, each in known.items()])
    without = {key: widen(scalars[key]) + change for key, change in changes.items() if key in scalars}
    if {"oo_d_diag", "op_d_diag"} <= set(without):
        changes["deid"] = 1 - without["op_d_diag"] / without["oo_d_diag"] - scalars["deid"]
    if {"oo_d_diag", "pp_d_diag"} <= set(without):
        changes["gvd"] = 10 * (without["pp_d_diag"] / without["oo_d_diag"]).log10() - scalars["gvd"]
    if "d_ece_op_oo" in scalars and set(without) >= {f"{name}_d_ece" for name in ("oo", "op", "pp")}:
        changes |= {key: value - scalars[key] for key, value in normalised_relatives(without).items()}
    return LeftOut(changes, bias, blocks)


def with_ends(scalars: Mapping[str, Tensor], left_out: LeftOut | None, confidence: float) -> dict[str, Tensor]:
    """Scalars, each that has an interval followed by its ends; NaN where these are not known."""
    found = {}
    for key, value in scalars.items():
        found[key] = value
        if not scalar(key).has_interval:
            continue
        unknown = torch.full_like(value, torch.nan)
        ends = unknown, unknown
        if left_out is not None and key in left_out.changes:
            ends = left_out.interval(key, value, confidence)
        found |= {f"{key}{name}": end for name, end in zip(ENDS, ends, strict=True)}
    return found


class Difference(NamedTuple):
    """By how much a number of one system exceeds that of another, with both ends, and how likely it is the smaller."""

    value: Tensor
    low: Tensor
    high: Tensor
    smaller: Tensor

    @property
    def told_apart(self) -> bool:
        """Whether these speakers tell the two systems apart."""
        return bool((self.low > 0) | (self.high < 0))


def difference_of(
    key: str, values: tuple[Tensor, Tensor], left_out: tuple[LeftOut, LeftOut], confidence: float
) -> Difference:
    """Compare two systems on the same speakers, leaving the same ones out of both.

    What is hard about a speaker is so for both systems, and goes out of their difference.
    """
    first, second = left_out
    if not first.blocks.same_as(second.blocks):
        raise ValueError("Expected two systems on the same speakers, but other numbers of them were left out.")
    value = widen(values[0]) - widen(values[1])
    replicates = value + first.changes[key] - second.changes[key]
    bias = first.bias.get(key, torch.zeros_like(value)) - second.bias.get(key, torch.zeros_like(value))
    ends = interval_of(value, replicates, confidence, ratio=first.ratio, bias=bias)
    return Difference(value, *ends, probability_below(value, replicates, 0.0, first.ratio, bias))
