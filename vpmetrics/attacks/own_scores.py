"""Scores of attacks with methods of their own, ``enrol`` and ``score``: one cell after another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vpmetrics.attacks.folds import CellRows
from vpmetrics.attacks.moments import divide_by_norm


def score_cell(
    attack: Any,
    rows: Tensor,
    columns: Tensor,
    enrolment: CellRows,
    test: CellRows,
    cell: int,
    is_halved: bool,
) -> Tensor:
    """Return the scores ``(A, B)`` of one cell by the methods of an attack.

    They have mean 0 and deviation 1.

    With a method ``enrol``, a test is compared with the speaker as enrolled from the other half of
    the recordings.
    """
    if not hasattr(attack, "enrol"):
        return standardise_matrix(_score(attack, rows, columns))
    codes = enrolment.code[cell, : len(rows)]
    if not is_halved:
        return standardise_matrix(_score(attack, attack.enrol(rows, codes).detach(), columns))
    half_of_row, half_of_column = _assign_halves(enrolment, test, cell, len(rows), len(columns))
    scores = rows.new_full((len(rows), len(columns)), torch.nan)
    for half in (0, 1):
        is_enrolled = half_of_row == half
        if not bool(is_enrolled.any()):
            continue
        models = attack.enrol(rows[is_enrolled], codes[is_enrolled]).detach()
        model_of_row = torch.searchsorted(codes[is_enrolled].contiguous(), codes).clamp(
            max=len(models) - 1
        )
        has_model = codes[is_enrolled][model_of_row] == codes
        found = _score(attack, models[model_of_row], columns[half_of_column != half])
        scores[:, half_of_column != half] = found.to(scores).masked_fill(
            ~has_model[:, None], torch.nan
        )
    return standardise_matrix(scores)


def _score(attack: Any, rows: Tensor, columns: Tensor) -> Tensor:
    if not hasattr(attack, "score"):
        return divide_by_norm(rows) @ divide_by_norm(columns).mT
    scores: Tensor = attack.score(rows, columns).detach()
    return scores


def _assign_halves(
    enrolment: CellRows, test: CellRows, cell: int, num_rows: int, num_columns: int
) -> tuple[Tensor, Tensor]:
    """Return the half, 0 or 1, that the recording of each row belongs to.

    Every other one of its speaker.
    """
    ids = torch.cat([enrolment.ids[cell, :num_rows], test.ids[cell, :num_columns]])
    codes = torch.cat([enrolment.code[cell, :num_rows], test.code[cell, :num_columns]])
    names, recording = ids.unique(return_inverse=True)
    position = torch.arange(len(ids), device=ids.device)
    first_position = torch.full_like(names, len(ids)).scatter_reduce(0, recording, position, "amin")
    order = first_position.argsort()
    order = order[codes[first_position][order].argsort(stable=True)]
    turn = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))
    half = (turn % 2)[recording]
    return half[:num_rows], half[num_rows:]


def standardise_matrix(scores: Tensor) -> Tensor:
    """Return scores with mean 0 and deviation 1.

    All 0 where some are infinite or all equal, missing ones 0.
    """
    scores = scores.double() if scores.device.type != "mps" else scores
    is_known = ~scores.isnan()
    num_known = is_known.sum().clamp(min=1)
    mean = scores.nan_to_num(0).sum() / num_known
    centred = torch.where(is_known, scores - mean, 0)
    deviation = (centred.square().sum() / num_known).sqrt()
    is_usable = deviation.isfinite() & (deviation > 1e-6 * mean.abs())
    return torch.where(is_usable, centred / torch.where(is_usable, deviation, 1), 0)
