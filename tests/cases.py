"""One row per metric: how it is made, what it is fed, and two other ways to its value.

The contract suite runs over every row, so a metric joins it by adding one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import reference
import torch

import vpmetrics as vp
from vpmetrics import functional as F

Batch = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """``function`` and ``reference`` take all batches joined, as tensors and as float64 arrays."""

    name: str
    metric: Callable[..., vp.PrivacyMetric]
    function: Callable[..., Any]
    reference: Callable[..., Any]
    batches: Callable[..., list[Batch]]
    undefined: tuple[Batch, ...] = ()

    def __str__(self) -> str:
        return self.name


def join(batches: list[Batch]) -> Batch:
    """All rows of all batches as one batch."""
    return {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}


def scores(seed: int = 0, dtype: torch.dtype = torch.float64, sizes: tuple[int, ...] = (60, 50, 90, 71)) -> list[Batch]:
    """Trials with overlapping classes and ties; every batch has both classes."""
    draw = torch.Generator().manual_seed(seed)
    batches = []
    for size in sizes:
        target = (torch.rand(size, generator=draw) < 0.3).long()
        target[0], target[1] = 0, 1
        # On a grid of eighths, which bfloat16 holds exactly and which makes ties.
        preds = (torch.randn(size, generator=draw) * 1.5 + 2 * target).mul(8).round().div(8).clamp(-7, 7)
        batches.append({"preds": preds.to(dtype), "target": target})
    return batches


def _trials(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda preds, target: function(np.asarray(preds), np.asarray(target))


_TWO_OF_ONE_KIND = tuple(
    {"preds": torch.tensor([0.5, 1.0]), "target": torch.tensor([label, label])} for label in (0, 1)
)


def _score_case(name: str, metric: Any, function: Any, second: Any) -> Case:
    return Case(name, metric, function, _trials(second), scores, _TWO_OF_ONE_KIND)


SCORE_CASES = [
    _score_case("ZebraDisclosure", vp.ZebraDisclosure, F.zebra_disclosure, reference.zebra.zebra_disclosure),
    _score_case("MinCllr", vp.MinCllr, F.min_cllr, reference.verification.min_cllr),
    _score_case("EqualErrorRate", vp.EqualErrorRate, F.equal_error_rate, reference.verification.equal_error_rate),
    _score_case("Linkability", vp.Linkability, F.linkability, reference.verification.linkability),
    _score_case("Cllr", vp.Cllr, F.cllr, reference.verification.cllr),
]
CASES = [*SCORE_CASES]
