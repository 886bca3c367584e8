"""Utterances as rows, and the two sides, original and protected, that trials are formed from."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics.utilities.prints import rank_zero_warn

from vpmetrics._checks import check_embedding_values, check_embeddings
from vpmetrics._precision import at_least_float32, widen

CONDITIONS = ("OO", "OP", "PP")  # original or protected: the side of the references, and that of the probes

# What a row holds, as bits of one small number.
_ORIGINAL, _PROTECTED, _UTTERANCE, _CHOOSES, _REFERENCE = 1, 2, 4, 8, 16


class Rows(NamedTuple):
    """Utterances as they are kept: five tensors of as many rows, whatever was left out."""

    original: Tensor
    protected: Tensor
    speakers: Tensor
    utterances: Tensor
    row_holds: Tensor


class Side(NamedTuple):
    """Embeddings of one side, original or protected, with what is known of each row.

    ``vectors`` ``(N, D)``; ``speakers`` ``(N,)``; ``utterances`` ``(N,)``, the same number for the same recording on
    both sides; ``is_reference`` ``(N,)`` or None where nobody chose references.
    """

    vectors: Tensor
    speakers: Tensor
    utterances: Tensor
    is_reference: Tensor | None


class Sides(NamedTuple):
    """The two sides trials are formed from."""

    original: Side
    protected: Side

    def pair(self, condition: str) -> tuple[Side, Side]:
        """Reference and probe side of a condition, by its two letters."""
        by_letter = {"O": self.original, "P": self.protected}
        return by_letter[condition[0]], by_letter[condition[1]]


def pack(
    original: Tensor | None = None,
    protected: Tensor | None = None,
    speakers: Tensor | None = None,
    is_reference: Tensor | None = None,
    utterances: Tensor | None = None,
    *,
    width: int | None = None,
    values: bool = False,
) -> Rows:
    """Checked arguments as rows, with their graph; a side that was left out is zeros marked as absent.

    ``width`` is that of rows before; with ``values``, what is in the embeddings is checked, too.
    """
    check_embeddings(original, protected, speakers, is_reference, utterances, width)
    if values:
        check_embedding_values(original, protected)
    given = next(side for side in (original, protected) if side is not None)
    sides = [at_least_float32(given).detach().new_zeros(given.shape) if s is None else s for s in (original, protected)]
    wide = torch.promote_types(torch.promote_types(sides[0].dtype, sides[1].dtype), torch.float32)
    left, right = (side.to(wide) for side in sides)
    names = given.new_empty(0, dtype=torch.int64) if speakers is None else speakers.to(torch.int64)
    holds = (original is not None) * _ORIGINAL | (protected is not None) * _PROTECTED
    holds |= (utterances is not None) * _UTTERANCE | (is_reference is not None) * _CHOOSES
    row_holds = torch.full_like(names, holds, dtype=torch.uint8)
    if is_reference is not None:
        row_holds = row_holds + is_reference.to(torch.uint8) * _REFERENCE
    ids = torch.zeros_like(names) if utterances is None else utterances.to(torch.int64)
    return Rows(left, right, names, ids, row_holds)


def sides_of(rows: Rows) -> Sides:
    """The two sides of kept rows, every utterance once on each."""
    count = len(rows.speakers)
    numbered = (rows.row_holds & _UTTERANCE) != 0
    # An utterance without a number is one of its own.
    own = torch.arange(count, 2 * count, device=rows.speakers.device)
    ids = torch.where(numbered, torch.unique(rows.utterances, return_inverse=True)[1], own)
    is_reference = (rows.row_holds & _REFERENCE) != 0 if bool((rows.row_holds & _CHOOSES).any()) else None
    sides = []
    for vectors, bit in ((rows.original, _ORIGINAL), (rows.protected, _PROTECTED)):
        kept = _first_of_each(ids, (rows.row_holds & bit) != 0)
        chosen = None if is_reference is None else is_reference[kept]
        sides.append(Side(vectors[kept], rows.speakers[kept], ids[kept], chosen))
    # Protected recordings may well come out alike; only where there is nothing else to look at are they looked at.
    _warn_of_copies(*(("original", sides[0]) if len(sides[0].speakers) else ("protected", sides[1])))
    return Sides(*sides)


def _first_of_each(ids: Tensor, present: Tensor) -> Tensor:
    """Positions of the first present row of every number, ascending."""
    positions = present.nonzero().flatten()
    order = ids[positions].argsort(stable=True)
    ordered = ids[positions][order]
    fresh = torch.ones_like(ordered, dtype=torch.bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    return positions[order[fresh]].sort().values


def row_keys(vectors: Tensor) -> Tensor:
    """A number per row that equal rows share and different rows hardly ever do."""
    wide = widen(vectors.detach())
    return (wide * torch.cos(torch.arange(wide.shape[1], device=wide.device, dtype=wide.dtype))).sum(1)


def _warn_of_copies(name: str, side: Side) -> None:
    """Two recordings never have the same embedding; a sampler that fills up its last batch makes such rows."""
    order = row_keys(side.vectors).argsort()
    vectors, speakers = side.vectors.detach()[order], side.speakers[order]
    copies = int(((vectors[1:] == vectors[:-1]).all(1) & (speakers[1:] == speakers[:-1])).sum())
    if 0 < copies < len(vectors) - 1:
        rank_zero_warn(
            f"{copies} of {len(vectors)} {name} embeddings equal another one of their speaker. If a sampler repeated "
            "utterances, pass `utterances=` so that each counts once.",
            UserWarning,
        )
