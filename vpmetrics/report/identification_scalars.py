"""Scalars of ranks and local information over all groups of a condition, with their jackknife."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vpmetrics._identification.identification import (
    Identification,
    add_padded_histograms,
    chance_mean_d,
    identify_condition,
    mean_over_groups,
)
from vpmetrics._scores.jackknife import Jackknife, JackknifeGroups, make_jackknife
from vpmetrics._scores.registry import scalar
from vpmetrics._scores.scorers import Scoring
from vpmetrics._util.dtypes import widen
from vpmetrics._utterances.conditions import Condition
from vpmetrics._utterances.utterances import EvaluationData
from vpmetrics.functional.local import summarise_information
from vpmetrics.functional.rank import rank_disclosure


class IdentificationNumbers(NamedTuple):
    """Scalars of ranks and local information over all groups, inputs of all groups as one result,
    and the jackknife.
    """

    scalars: dict[str, Tensor]
    pooled: Identification
    jackknife: Jackknife | None


def identify_all_groups(
    data: EvaluationData,
    condition: Condition,
    scoring: Scoring,
    slope: float | None,
    rank_model: str,
    bandwidth: float | None,
    groups: JackknifeGroups | None,
    has_bits: bool,
    distractors: Tensor | None = None,
) -> IdentificationNumbers:
    """Return what ranks disclose and, with ``has_bits``, local information.

    ``distractors`` ``(G, D)``: further references, of speakers whom no input is of.
    """
    is_exact = bandwidth is None
    parts = identify_condition(
        data,
        condition,
        scoring,
        slope=slope,
        has_bits=has_bits,
        has_chance=is_exact,
        bandwidth=bandwidth,
        distractors=distractors,
        groups=groups,
    )
    jackknife = None if groups is None else jackknife_scalars(parts, groups, rank_model)
    scalars = rank_scalars(parts, rank_model)
    pooled = pool_identifications(parts)
    if has_bits and pooled.bits is not None:
        scalars |= summarise_information(pooled.bits, pooled.linked)
        if is_exact:
            chance = pooled.chance_bits
            scalars["alid_chance"] = (
                torch.full_like(scalars["alid"], torch.nan) if chance is None else chance
            )
    return IdentificationNumbers(scalars, pooled, jackknife)


def rank_scalars(parts: Sequence[Identification], rank_model: str) -> dict[str, Tensor]:
    """Return what the ranks of all groups disclose, and their chance level."""
    values: list[dict[str, Tensor]] = []
    for part in parts:
        histograms = part.histogram[None]
        if part.chance_histograms is not None:
            histograms = torch.cat([histograms, part.chance_histograms])
        disclosures = rank_disclosure(histograms, rank_model, validate_args=False)
        chance = chance_mean_d(part.histogram, rank_model, len(part.trials))
        if part.chance_histograms is not None:
            # Inputs of one speaker err together, so the closed form is a lower bound.
            chance = torch.maximum(chance, widen(disclosures["mean_d"][1:].mean()))
        own = {key: disclosure[0] for key, disclosure in disclosures.items()}
        values.append(own | {"mean_d_chance": chance})
    return mean_over_groups(values, torch.stack([part.histogram.detach().sum() for part in parts]))


def pool_identifications(parts: Sequence[Identification]) -> Identification:
    """Return the inputs of all groups as one result."""
    if len(parts) == 1:
        return parts[0]
    combine: dict[str, Callable[[Any], Tensor]] = {
        **dict.fromkeys(("bits", "linked", "trials", "speakers", "rank_bits"), torch.cat),
        "histogram": add_padded_histograms,
        "chance_bits": lambda each: torch.stack(each).mean(),
    }
    pooled: dict[str, Any] = {"chance_histograms": None, "replicates": None}
    for name, function in combine.items():
        known = [column for part in parts if (column := getattr(part, name)) is not None]
        pooled[name] = function(known) if known else None
    return parts[0]._replace(**pooled)


def jackknife_scalars(
    parts: Sequence[Identification],
    groups: JackknifeGroups,
    rank_model: str,
) -> Jackknife:
    """Return the jackknife of ranks and local information, pooled over groups of the data; it
    leaves out ``groups``.
    """
    replicates = [part.replicates for part in parts if part.replicates is not None]
    # A group of the data that keeps one speaker has no other to confuse them with, and drops out.
    has_others = torch.stack([each.references > 1 for each in replicates])
    inputs = torch.stack([each.histograms.sum(1) for each in replicates]) * has_others
    sums = torch.stack([each.sums for each in replicates]) * has_others[:, None]
    disclosures = [
        _rank_replicates(each.histograms, each.references, rank_model) for each in replicates
    ]
    values = mean_over_groups(disclosures, inputs)
    count, positive_sum, negative_sum, positive, linked = sums.sum(0)
    values |= {
        "alid": (positive_sum + negative_sum) / count,
        "pdr": positive / count,
        "ndr": 1 - positive / count,
        "link_rate": linked / inputs.sum(0),
    }
    jackknife = make_jackknife(values, groups, sum(len(part.speakers.unique()) for part in parts))
    # With fewer references there is less to disclose, so the bias shows where inputs alone are left
    # out.
    fewer = [rank_disclosure(each.fewer_inputs, rank_model)["mean_d"] for each in replicates]
    weights = torch.stack([each.fewer_inputs.sum(1) for each in replicates])
    mean_d = mean_over_groups([{"mean_d": each} for each in fewer], weights)["mean_d"]
    bias = {"mean_d": groups.kept_over_dropped * (mean_d[1:] - mean_d[0]).mean()}
    # Enrolled speakers without tests widen the gallery.
    largest = max(len(part.histogram) for part in parts)
    gallery: dict[str, int] = {}
    if largest > len(groups.labels):
        gallery = {key: largest for key in values if scalar(key).is_limited_by_speakers}
    return jackknife._replace(bias=bias, gallery=gallery)


def _rank_replicates(histograms: Tensor, references: Tensor, rank_model: str) -> dict[str, Tensor]:
    """Return rank disclosure of each histogram among as many references as it has."""
    values = {
        key: histograms.new_full((len(histograms),), torch.nan)
        for key in ("max_d", "mean_d", "id_rate")
    }
    for number in references.unique().long().tolist():
        rows = (references == number).nonzero().flatten()
        if number > 1:
            disclosure = rank_disclosure(histograms[rows, :number], rank_model)
            values = {
                key: each.index_copy(0, rows, disclosure[key].to(each.dtype))
                for key, each in values.items()
            }
    return values
