"""Scores of some features as inner products of mapped rows, or as matrices, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vpmetrics.attacks.folds import CellRows, Sample

ENTRIES_AT_ONCE = 1 << 24  # scores of all attacks held at a time


@dataclass(frozen=True, eq=False)
class FeatureBlock:
    """Scores of some features, as inner products of rows or as matrices.

    Rows are ``(A, C, R, d)``, matrices ``(A, C, R, R')``.

    ``features`` ``(A,)``: their numbers. ``enrolment`` and ``test`` are None where ``matrix`` is
    given.
    """

    features: Sequence[int]
    enrolment: Tensor | None = None
    test: Tensor | None = None
    matrix: Tensor | None = None
    is_cosine: bool = True

    def take_columns(self, rows: Sample | None, columns: Sample | None) -> FeatureBlock:
        """Return the block with a sample of enrolment rows and of test rows of each cell."""
        if self.matrix is not None:
            matrix = self.matrix
            if rows is not None:
                matrix = _take_rows(matrix, rows.columns)
            if columns is not None:
                matrix = _take_rows(matrix.mT, columns.columns).mT
            return replace(self, matrix=matrix)
        assert self.enrolment is not None
        assert self.test is not None
        if rows is None:
            enrolment = self.enrolment
        else:
            enrolment = _take_rows(self.enrolment, rows.columns)
        if columns is None:
            test = self.test
        else:
            test = _take_rows(self.test, columns.columns)
        return replace(self, enrolment=enrolment, test=test)

    def shift_numbers(self, first: int) -> FeatureBlock:
        """Return the block with features numbered from ``first`` on."""
        return replace(self, features=[first + feature for feature in self.features])

    def score(self, rows: slice = slice(None), columns: slice = slice(None)) -> Tensor:
        """Return scores ``(A, C, a, b)`` of some enrolment and test rows."""
        if self.matrix is not None:
            return self.matrix[:, :, rows, columns]
        assert self.enrolment is not None
        assert self.test is not None
        return self.enrolment[:, :, rows] @ self.test[:, :, columns].mT

    def select_cell(self, cell: int) -> tuple[Tensor, Tensor]:
        """Return enrolment and test rows ``(A, R, d)`` of one cell.

        Their inner products are the scores.
        """
        if self.matrix is None:
            assert self.enrolment is not None
            assert self.test is not None
            return self.enrolment[:, cell], self.test[:, cell]
        matrix = self.matrix[:, cell]
        one_hot = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        return matrix, one_hot.expand(len(matrix), -1, -1)


def merge_blocks(blocks: Sequence[FeatureBlock]) -> list[FeatureBlock]:
    """Return blocks with rows of the same width joined, so that one product scores them all."""
    merged: list[FeatureBlock] = []
    blocks_of_shape: dict[Any, list[FeatureBlock]] = {}
    for block in blocks:
        if block.matrix is not None:
            merged.append(block)
        else:
            assert block.enrolment is not None
            shape = (block.enrolment.shape[-1], block.is_cosine)
            blocks_of_shape.setdefault(shape, []).append(block)
    for (_, is_cosine), joined in blocks_of_shape.items():
        features: list[int] = []
        for block in joined:
            features.extend(block.features)
        is_same = all(block.enrolment is block.test for block in joined)
        enrolment_rows = [block.enrolment for block in joined if block.enrolment is not None]
        test_rows = [block.test for block in joined if block.test is not None]
        joined.clear()  # a side is copied while the other is no longer held twice
        del block
        enrolment = torch.cat(enrolment_rows)
        enrolment_rows.clear()
        test = enrolment
        if not is_same:
            test = torch.cat(test_rows)
        merged.append(FeatureBlock(features, enrolment, test, is_cosine=is_cosine))
    return merged


def gather_scores(blocks: Sequence[FeatureBlock], num_features: int) -> Tensor:
    """Return the scores of all features in the order of their numbers, ``(C, A, R, R')``.

    The axes are C cells, A features, and the enrolment and test rows of a cell. The blocks hold
    each of the ``num_features`` features once.
    """
    scores_of_blocks: list[Tensor] = []
    feature_numbers: list[int] = []
    for block in blocks:
        scores_of_blocks.append(block.score())  # (features of the block, C, R, R')
        feature_numbers.extend(block.features)
    assert len(feature_numbers) == num_features
    dtypes = [scores.dtype for scores in scores_of_blocks]
    widest_dtype = max(dtypes, key=lambda dtype: dtype.itemsize)
    scores_of_features = torch.cat([scores.to(widest_dtype) for scores in scores_of_blocks])
    order = torch.tensor(feature_numbers, device=scores_of_features.device).argsort()
    return scores_of_features[order].transpose(0, 1)


def cut_into_blocks(
    enrolment: CellRows, test: CellRows, num_features: int, is_same_rows: bool
) -> Iterator[tuple[slice, slice]]:
    """Yield slices of enrolment and test rows.

    The scores of all features of a slice fit into memory.
    """
    num_cells, num_rows = enrolment.code.shape
    num_columns = test.code.shape[1]
    entries = ENTRIES_AT_ONCE
    # many pairs: memory counts more than the number of products
    if enrolment.embeddings.dtype == torch.float32:
        entries //= 4
    most = max(1, entries // max(1, num_features * num_cells))
    if 32 * num_columns <= most:
        columns_at_once = num_columns
    else:
        columns_at_once = max(64, int(most**0.5))
    rows_at_once = max(1, most // columns_at_once)
    for first_row in range(0, num_rows, rows_at_once):
        for first_column in range(0, num_columns, columns_at_once):
            if not is_same_rows or first_column + columns_at_once > first_row:
                rows = slice(first_row, first_row + rows_at_once)
                columns = slice(first_column, first_column + columns_at_once)
                yield rows, columns


def weigh_blocks(
    blocks: Sequence[FeatureBlock], scale: Tensor, offset: Tensor, rows: slice, columns: slice
) -> Tensor:
    """Return weighted sums ``(c, Q, a, b)`` of the scores of all features.

    ``scale`` ``(c, Q, A)``.
    """
    fused: Tensor | None = None
    for block in blocks:
        scores = block.score(rows, columns).transpose(0, 1)  # (c, A, a, b)
        weights = scale[..., list(block.features)].to(scores)
        weighted = (weights @ scores.flatten(2)).unflatten(2, scores.shape[2:])
        fused = weighted if fused is None else fused + weighted
    assert fused is not None
    return fused + offset[..., None, None].to(fused)


def _take_rows(rows: Tensor, columns: Tensor) -> Tensor:
    """Return some rows of each cell, ``(A, C, r, d)``.

    They are taken from rows ``(A, C, R, d)`` at places ``(C, r)``.
    """
    return rows[:, torch.arange(len(columns), device=columns.device)[:, None], columns]
