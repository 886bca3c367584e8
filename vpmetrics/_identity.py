"""Who is identified among whom: ranks and local information, group by group and together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._intervals import LeftOut, left_out_of_ranks
from vpmetrics._precision import widen
from vpmetrics._trials import shares
from vpmetrics._trials.conditions import Condition
from vpmetrics._trials.identification import Identification, identify_trials
from vpmetrics._trials.left_out import Blocks
from vpmetrics._trials.left_out_ranks import LeftOutRanks, identify_without
from vpmetrics._trials.passed_references import identify_passed
from vpmetrics._trials.ranks import histogram_of_trials, mean_by_chance
from vpmetrics._trials.references import trials_of_sides
from vpmetrics._trials.scorers import Scoring
from vpmetrics._trials.utterances import Sides
from vpmetrics.functional.local import summarise_information
from vpmetrics.functional.rank import rank_disclosure


class Identified(NamedTuple):
    """What is known of each group that has somebody to be confused with, and of it without blocks of speakers."""

    parts: list[Identification]
    without: list[LeftOutRanks]

    def together(self) -> Identification:
        """All groups as one."""
        if len(self.parts) == 1:
            return self.parts[0]
        histogram = pooled([part.histogram for part in self.parts])
        return Identification(histogram, *(torch.cat(column) for column in list(zip(*self.parts, strict=True))[1:]))

    def of_ranks(self, model: str) -> dict[str, Tensor]:
        """What the ranks disclose."""
        return disclosure_of_groups([part.histogram for part in self.parts], model)

    def of_chance(self, model: str) -> Tensor:
        """The MeanD that as many inputs would show if they disclosed nothing."""
        histograms = [part.histogram for part in self.parts]
        inputs = [shares.number_of_all(len(part.trials)) for part in self.parts]
        expected = [expected_by_chance(each, model, number) for each, number in zip(histograms, inputs, strict=True)]
        return _over_groups([{"mean_d": each} for each in expected], histograms)["mean_d"]

    def of_information(self) -> dict[str, Tensor]:
        """What scores disclose, trial by trial."""
        found = self.together()
        return summarise_information(found.bits, found.linked)

    def left_out(self, model: str, blocks: Blocks) -> LeftOut:
        """What leaving speakers out changes."""
        return left_out_of_ranks(self.without, model, blocks)


def identify_sides(
    sides: Sides,
    condition: Condition,
    scoring: Scoring,
    slope: float | None,
    bandwidth: float | None = None,
    blocks: Blocks | None = None,
    informed: bool = True,
) -> Identified:
    """One walk for each group; with ``blocks`` of speakers to leave out, one more.

    Where processes keep their rows apart, of the inputs of this one; these have bits only where ``informed``.
    """
    parts, without = [], []
    for part in _groups_of(sides):
        if shares.apart():
            parts.append(identify_passed(part, condition, scoring, slope, informed))
            continue
        trials = trials_of_sides(part, condition)
        found = identify_trials(trials, scoring, slope)
        if blocks is not None:
            without.append(identify_without(trials, found, scoring, blocks))
        if bandwidth is not None:
            found = found._replace(histogram=histogram_of_trials(trials, scoring, bandwidth))
        parts.append(found)
    several = _with_others([part.histogram for part in parts])
    return Identified([parts[at] for at in several], [without[at] for at in several if without])


def histograms_of_sides(
    sides: Sides, condition: Condition, scoring: Scoring, bandwidth: float | None = None
) -> list[Tensor]:
    """The rank histogram of each group."""
    found = [histogram_of_trials(trials_of_sides(part, condition), scoring, bandwidth) for part in _groups_of(sides)]
    return [found[at] for at in _with_others(found)]


def disclosure_of_groups(histograms: Sequence[Tensor], model: str) -> dict[str, Tensor]:
    """What the ranks of all groups disclose: each has references of its own."""
    return _over_groups([rank_disclosure(each, model, validate_args=False) for each in histograms], histograms)


def pooled(histograms: Sequence[Tensor]) -> Tensor:
    """Inputs per rank in all groups."""
    most = max(map(len, histograms))
    return torch.stack([pad(each, (0, most - len(each))) for each in histograms]).sum(0)


def expected_by_chance(histogram: Tensor, model: str, inputs: int) -> Tensor:
    """The MeanD to expect, in bits, of as many inputs whose ranks are uniform."""
    if model == "empirical":
        return mean_by_chance(histogram, inputs)
    # Half a nat per free number of the fit and input.
    counted, free = widen(histogram.detach()).sum(), min(len(histogram) - 1, 2)
    return (free if free > 0 else math.nan) / (2 * math.log(2) * torch.where(counted > 0, counted, math.nan))


def _groups_of(sides: Sides) -> list[Sides]:
    groups = sides.groups()
    return [sides] if len(groups) < 2 else [sides.of_group(group) for group in groups]


def _with_others(histograms: Sequence[Tensor]) -> list[int]:
    """Groups of several references: a lone speaker is never confused, and must not make NaN of all other groups."""
    return [at for at, histogram in enumerate(histograms) if len(histogram) > 1] or [0]


def _over_groups(values: Sequence[dict[str, Tensor]], histograms: Sequence[Tensor]) -> dict[str, Tensor]:
    """The mean over the inputs of all groups, or the largest."""
    if len(values) == 1:
        return values[0]
    inputs = torch.stack([histogram.sum() for histogram in histograms])
    stacked = {key: torch.stack([each[key] for each in values]) for key in values[0]}
    mean = {key: torch.where(inputs > 0, column * inputs, 0).sum() / inputs.sum() for key, column in stacked.items()}
    return {key: stacked[key].amax() if key == "max_d" else value for key, value in mean.items()}
