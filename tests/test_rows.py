"""Rows laid out for a grid of trials: sorted and prepared in pieces, with one copy."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from vpmetrics._trials.rows import lay_out
from vpmetrics._trials.scorers import prepared, resolve_scoring
from vpmetrics._trials.utterances import Side, row_keys


@pytest.mark.parametrize("scoring", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_laid_out_in_pieces_as_all_at_once(scoring, dtype):
    draw, scorer = torch.Generator().manual_seed(0), resolve_scoring(scoring)
    vectors = torch.randn(2500, 5, generator=draw)
    names = torch.randint(0, 40, (2500,), generator=draw)
    side = Side(vectors, names, torch.arange(2500), names, sessions=names % 3)
    by_value = row_keys(vectors).argsort()
    order, centre = by_value[names[by_value].argsort(stable=True)], vectors.mean(dim=0)
    laid = lay_out(side, scorer, centre, dtype)
    assert torch.equal(laid.vectors, prepared(vectors[order], scorer, centre, dtype))
    assert all(torch.equal(ours, column[order]) for ours, column in zip(laid[1:4], side[1:4], strict=True))
    assert torch.equal(laid.sessions, side.sessions[order])
    assert laid.groups is None
    # In whatever order they came.
    mixed = torch.randperm(2500, generator=draw)
    assert torch.equal(lay_out(side.take(mixed), scorer, centre, dtype).vectors, laid.vectors)
    # With a graph, too, which leads back to the rows.
    followed = vectors.clone().requires_grad_()
    weights = torch.randn(2500, 5, generator=draw, dtype=dtype)
    (lay_out(side._replace(vectors=followed), scorer, centre, dtype).vectors * weights).sum().backward()
    expected = vectors.clone().requires_grad_()
    (prepared(expected[order], scorer, centre, dtype) * weights).sum().backward()
    assert_close(followed.grad, expected.grad)


class Copies(TorchDispatchMode):
    """How many tensors of so many numbers are made."""

    def __init__(self, size):
        super().__init__()
        self.size, self.made = size, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        fresh = isinstance(result, torch.Tensor) and all(
            result.untyped_storage().data_ptr() != each.untyped_storage().data_ptr()
            for each in args
            if isinstance(each, torch.Tensor)
        )
        self.made += fresh and result.numel() >= self.size
        return result


def test_of_rows_that_are_laid_out_there_is_no_copy_but_one():
    vectors, names = torch.randn(9000, 6, generator=torch.Generator().manual_seed(0)), torch.arange(9000) % 7
    side = Side(vectors, names, names, names)
    assert len(side.by_value) == 9000  # found once, whatever is laid out how often
    with Copies(vectors.numel()) as copies:
        lay_out(side, resolve_scoring("cosine"), vectors.new_zeros(()), torch.float32)
    assert copies.made == 1
    with Copies(vectors.numel()) as copies:  # which finds those there are
        prepared(vectors[names.argsort()], resolve_scoring("cosine"), vectors.new_zeros(()), torch.float32)
    assert copies.made > 1
