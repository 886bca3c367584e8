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
    """Scalars of ranks and local information over all groups, all inputs, and the jackknife."""

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
    of_groups = identify_condition(
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
    if groups is None:
        jackknife = None
    else:
        jackknife = jackknife_scalars(of_groups, groups, rank_model)
    scalars = rank_scalars(of_groups, rank_model)
    pooled = pool_identifications(of_groups)
    if has_bits and pooled.bits is not None:
        scalars |= summarise_information(pooled.bits, pooled.linked)
        if is_exact:
            chance = pooled.chance_bits
            if chance is None:
                chance = torch.full_like(scalars["alid"], torch.nan)
            scalars["alid_chance"] = chance
    return IdentificationNumbers(scalars, pooled, jackknife)


def rank_scalars(of_groups: Sequence[Identification], rank_model: str) -> dict[str, Tensor]:
    """Return what the ranks of all groups disclose, and their chance level."""
    values: list[dict[str, Tensor]] = []
    for found in of_groups:
        histograms = found.histogram[None]
        if found.chance_histograms is not None:
            histograms = torch.cat([histograms, found.chance_histograms])
        disclosures = rank_disclosure(histograms, rank_model, validate_args=False)
        chance = chance_mean_d(found.histogram, rank_model, len(found.trials))
        if found.chance_histograms is not None:
            # Inputs of one speaker err together, so the closed form is a lower bound.
            chance = torch.maximum(chance, widen(disclosures["mean_d"][1:].mean()))
        own = {key: disclosure[0] for key, disclosure in disclosures.items()}
        values.append(own | {"mean_d_chance": chance})
    num_inputs = torch.stack([found.histogram.detach().sum() for found in of_groups])
    return mean_over_groups(values, num_inputs)


def pool_identifications(of_groups: Sequence[Identification]) -> Identification:
    """Return the inputs of all groups as one result."""
    if len(of_groups) == 1:
        return of_groups[0]
    combine: dict[str, Callable[[Any], Tensor]] = {
        **dict.fromkeys(("bits", "linked", "trials", "speakers", "rank_bits"), torch.cat),
        "histogram": add_padded_histograms,
        "chance_bits": lambda bits: torch.stack(bits).mean(),
    }
    pooled: dict[str, Any] = {"chance_histograms": None, "replicates": None}
    for name, function in combine.items():
        columns = [getattr(found, name) for found in of_groups]
        columns = [column for column in columns if column is not None]
        pooled[name] = None
        if columns:
            pooled[name] = function(columns)
    return of_groups[0]._replace(**pooled)


def jackknife_scalars(
    of_groups: Sequence[Identification],
    groups: JackknifeGroups,
    rank_model: str,
) -> Jackknife:
    """Return the jackknife of ranks and local information, pooled over groups of the data.

    It leaves out ``groups``.
    """
    replicates = [found.replicates for found in of_groups if found.replicates is not None]
    # A group of the data that keeps one speaker has no other to confuse them with, and drops out.
    has_others = torch.stack([without.references > 1 for without in replicates])
    inputs = torch.stack([without.histograms.sum(1) for without in replicates]) * has_others
    sums = torch.stack([without.sums for without in replicates]) * has_others[:, None]
    disclosures: list[dict[str, Tensor]] = []
    for without in replicates:
        ranks = _rank_replicates(without.histograms, without.references, rank_model)
        disclosures.append(ranks)
    values = mean_over_groups(disclosures, inputs)
    count, positive_sum, negative_sum, positive, linked = sums.sum(0)
    values |= {
        "alid": (positive_sum + negative_sum) / count,
        "pdr": positive / count,
        "ndr": 1 - positive / count,
        "link_rate": linked / inputs.sum(0),
    }
    num_speakers = sum(len(found.speakers.unique()) for found in of_groups)
    jackknife = make_jackknife(values, groups, num_speakers)
    # With fewer references there is less to disclose: the bias shows where inputs are left out.
    with_fewer_inputs: list[dict[str, Tensor]] = []
    for without in replicates:
        disclosure = rank_disclosure(without.fewer_inputs, rank_model)
        with_fewer_inputs.append({"mean_d": disclosure["mean_d"]})
    weights = torch.stack([without.fewer_inputs.sum(1) for without in replicates])
    mean_d = mean_over_groups(with_fewer_inputs, weights)["mean_d"]
    bias = {"mean_d": groups.kept_over_dropped * (mean_d[1:] - mean_d[0]).mean()}
    # Enrolled speakers without tests widen the gallery.
    largest = max(len(found.histogram) for found in of_groups)
    gallery: dict[str, int] = {}
    if largest > len(groups.labels):
        gallery = {key: largest for key in values if scalar(key).is_limited_by_speakers}
    return jackknife._replace(bias=bias, gallery=gallery)


def _rank_replicates(histograms: Tensor, references: Tensor, rank_model: str) -> dict[str, Tensor]:
    """Return rank disclosure of each histogram among as many references as it has."""
    values: dict[str, Tensor] = {}
    for key in ("max_d", "mean_d", "id_rate"):
        values[key] = histograms.new_full((len(histograms),), torch.nan)
    for num_references in references.unique().long().tolist():
        rows = (references == num_references).nonzero().flatten()
        if num_references > 1:
            disclosure = rank_disclosure(histograms[rows, :num_references], rank_model)
            for key, column in values.items():
                values[key] = column.index_copy(0, rows, disclosure[key].to(column.dtype))
    return values
