"""By how much scores that share bins may have changed what is said of them."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from vpmetrics._precision import widen
from vpmetrics._scores.measures import (
    disclosure_of_counts,
    eer_of_steps,
    min_cllr_of_steps,
    min_dcf_of_steps,
    raw_eer_of_steps,
)
from vpmetrics._scores.steps import ScoreCounts, Steps
from vpmetrics._trials.scores import ConditionScores


def error_bounds(scores: ConditionScores) -> dict[str, Tensor]:
    """A certified bound for what follows from the order of scores, and for Cllr; 0 where every score is kept.

    The truth lies between every bin's targets all above its non-targets and all below them.
    """
    lower = _of_order(scores.counts)
    if scores.separated is None or scores.width is None:
        return {key: torch.zeros_like(value) for key, value in lower.items()} | {"cllr": torch.zeros_like(lower["eer"])}
    apart = scores.separated()
    best, worst = _of_order(apart), _of_order(ScoreCounts(_turned(apart.descending), _turned(apart.ascending)))
    bounds = {key: torch.maximum((best[key] - value).abs(), (worst[key] - value).abs()) for key, value in lower.items()}
    return bounds | {"cllr": _of_cllr(scores.trials.table()[1], scores.width)}


def _turned(steps: Steps) -> Steps:
    """The steps of the negated scores."""
    return replace(
        steps, edges=-steps.edges.flip(0), targets=steps.targets.flip(0), nontargets=steps.nontargets.flip(0)
    )


def _of_order(counts: ScoreCounts) -> dict[str, Tensor]:
    steps = counts.ascending
    disclosed = disclosure_of_counts(counts, steps.targets.dtype)
    return {
        **{key: disclosed[key] for key in ("d_ece", "d_ece_reversed", "l_w")},
        "min_cllr": min_cllr_of_steps(steps),
        "eer": eer_of_steps(steps),
        "raw_eer": raw_eer_of_steps(steps),
        "min_dcf": min_dcf_of_steps(steps, p_target=0.01, c_miss=1.0, c_fa=1.0),
    }


def _of_cllr(counts: Tensor, width: Tensor) -> Tensor:
    """A score lies at most half a bin from its middle, and its cost changes by no more than that."""
    counts = widen(counts)
    moved = torch.where(counts > 0, counts * width / 2, 0).sum(-1) / counts.sum(-1)
    return moved.sum() / (2 * math.log(2))
