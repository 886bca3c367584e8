"""Embeddings of several encoders of the same speech, stored side by side in one tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vpmetrics._util.arrays import as_floating_tensor
from vpmetrics._util.validation import check_floating
from vpmetrics._utterances.texts import decode_texts, encode_texts

Embeddings = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True)
class Encoder:
    """A speaker encoder or feature: its name, empty where there is only one, and the width of its
    embeddings.
    """

    name: str
    width: int


def as_squeezed_tensor(name: str, value: Any, device: torch.device | None = None) -> Any:
    """Return a list or a NumPy array as a tensor, and ``(B, 1, D)`` as ``(B, D)``; anything else as
    it is.
    """
    value = as_floating_tensor(name, value, device)
    is_squeezable = isinstance(value, Tensor) and value.dim() == 3 and value.shape[1] == 1
    return value.squeeze(1) if is_squeezable else value


def join_encoders(
    original: Any, protected: Any, known: Sequence[Encoder] = (), device: torch.device | None = None
) -> tuple[Any, Any, tuple[Encoder, ...]]:
    """Return both sides as tensors, those of a dictionary side by side, and the encoders of the
    columns.

    Args:
        original: Embeddings ``(B, D)``, a dictionary of them by encoder, or None.
        protected: The same of the protected side.
        known: Encoders of earlier batches, whose order is kept.
        device: Where lists and arrays are put.

    Returns:
        Both sides and the encoders. A side that is neither a tensor nor can be made one is returned
        as it is, without encoders, for the checks that follow.
    """
    sides = {"original": original, "protected": protected}
    given = {name: side for name, side in sides.items() if side is not None}
    tables = {name: side for name, side in given.items() if isinstance(side, Mapping)}
    if tables and len(tables) < len(given):
        raise TypeError(
            "Expected `original` and `protected` to be both tensors or both dictionaries."
        )
    joined, encoders = (
        _join_tables(tables, known, device) if tables else _join_tensors(given, known, device)
    )
    return joined.get("original"), joined.get("protected"), encoders


def _join_tensors(
    sides: Mapping[str, Any], known: Sequence[Encoder], device: torch.device | None
) -> tuple[dict[str, Any], tuple[Encoder, ...]]:
    """Return the sides as tensors; without encoders where they have no common width."""
    tensors = {name: as_squeezed_tensor(name, side, device) for name, side in sides.items()}
    is_table = all(isinstance(side, Tensor) and side.dim() == 2 for side in tensors.values())
    widths = {side.shape[1] for side in tensors.values()} if is_table else set()
    if len(widths) != 1:
        return tensors, ()
    if known and not _is_unnamed(known):
        names = ", ".join(repr(encoder.name) for encoder in known)
        raise TypeError(
            f"Expected dictionaries with {names}, as in earlier batches, but got tensors."
        )
    return tensors, (Encoder("", widths.pop()),)


def _join_tables(
    tables: Mapping[str, Mapping[str, Any]], known: Sequence[Encoder], device: torch.device | None
) -> tuple[dict[str, Any], tuple[Encoder, ...]]:
    """Return for each side the embeddings of all encoders side by side; raise for other encoders
    than known ones.
    """
    names = _find_names(tables, known)
    joined = {}
    encoders = tuple(known)
    for side_name, table in tables.items():
        parts = [_check_part(f"{side_name}[{name!r}]", table[name], device) for name in names]
        if len({len(part) for part in parts}) > 1:
            counts = ", ".join(
                f"{len(part)} of {name!r}" for name, part in zip(names, parts, strict=True)
            )
            raise ValueError(
                f"Expected `{side_name}` to have as many rows of each encoder, but got {counts}."
            )
        given = tuple(Encoder(name, part.shape[1]) for name, part in zip(names, parts, strict=True))
        encoders = encoders or given
        if given != encoders:
            raise ValueError(
                f"Expected `{side_name}` to have embeddings of {_describe_widths(encoders)}, as"
                f" those given before, but got {_describe_widths(given)}."
            )
        joined[side_name] = torch.cat(parts, dim=1)
    return joined, encoders


def encode_encoders(encoders: Sequence[Encoder], device: torch.device) -> Tensor:
    """Return names and widths as bytes, ``(n,)``."""
    table = [[encoder.name, encoder.width] for encoder in encoders]
    return encode_texts([json.dumps(table)], device)


def decode_encoders(encoded: Tensor) -> tuple[Encoder, ...]:
    """Return the encoders that all batches and processes agree on; raise where they differ."""
    texts = dict.fromkeys(decode_texts(encoded))
    layouts = [tuple(Encoder(name, width) for name, width in json.loads(text)) for text in texts]
    if len(layouts) > 1:
        described = " and ".join(_describe_widths(layout) for layout in layouts)
        raise ValueError(
            "Expected the same encoders, in the same order, of all embeddings, but got"
            f" {described}."
        )
    return layouts[0] if layouts else ()


def _find_names(tables: Mapping[str, Mapping[str, Any]], known: Sequence[Encoder]) -> list[str]:
    """Return the names of the encoders in the order of the first batch; raise unless all tables
    have these.
    """
    first = next(iter(tables.values()))
    names = [encoder.name for encoder in known] if known else list(first)
    if _is_unnamed(known):
        raise TypeError("Expected tensors, as in earlier batches, but got dictionaries.")
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(
            f"Expected dictionaries from names of encoders to embeddings, but got the keys {names}."
        )
    for side_name, table in tables.items():
        if set(table) != set(names):
            expected = ", ".join(map(repr, names))
            got = ", ".join(map(repr, table)) or "none"
            raise ValueError(
                f"Expected `{side_name}` to have embeddings of {expected}, but got {got}."
            )
    return names


def _check_part(name: str, value: Any, device: torch.device | None) -> Tensor:
    part = as_squeezed_tensor(name, value, device)
    check_floating(name, part)
    if part.dim() != 2 or part.shape[1] == 0:
        raise ValueError(f"Expected `{name}` to have shape (B, D), but got {tuple(part.shape)}.")
    tensor: Tensor = part
    return tensor


def _is_unnamed(encoders: Sequence[Encoder]) -> bool:
    return len(encoders) == 1 and encoders[0].name == ""


def _describe_widths(encoders: Sequence[Encoder]) -> str:
    return ", ".join(f"{encoder.name or 'a tensor'} ({encoder.width} wide)" for encoder in encoders)
