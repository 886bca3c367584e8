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
    """A speaker encoder or feature: its name, empty if it is the only one, and its width."""

    name: str
    width: int


def as_squeezed_tensor(name: str, value: Any, device: torch.device | None = None) -> Any:
    """Return lists and NumPy arrays as tensors, and ``(B, 1, D)`` as ``(B, D)``."""
    value = as_floating_tensor(name, value, device)
    if isinstance(value, Tensor) and value.dim() == 3 and value.shape[1] == 1:
        return value.squeeze(1)
    return value


def join_encoders(
    original: Any, protected: Any, known: Sequence[Encoder] = (), device: torch.device | None = None
) -> tuple[Any, Any, tuple[Encoder, ...]]:
    """Return both sides as tensors, and the encoders of their columns.

    Args:
        original: Embeddings ``(B, D)``, a dictionary of them by encoder, or None.
        protected: The same of the protected side.
        known: Encoders of earlier batches, whose order is kept.
        device: Where lists and arrays are put.

    Returns:
        Both sides and the encoders. A side that is neither a tensor nor can be made one is returned
        as it is, without encoders, for the checks that follow.
    """
    sides: dict[str, Any] = {}
    if original is not None:
        sides["original"] = original
    if protected is not None:
        sides["protected"] = protected
    is_dictionary = [isinstance(side, Mapping) for side in sides.values()]
    if not any(is_dictionary):
        joined, encoders = _join_tensors(sides, known, device)
    elif all(is_dictionary):
        joined, encoders = _join_tables(sides, known, device)
    else:
        raise TypeError(
            "Expected `original` and `protected` to be both tensors or both dictionaries."
        )
    return joined.get("original"), joined.get("protected"), encoders


def _join_tensors(
    sides: Mapping[str, Any], known: Sequence[Encoder], device: torch.device | None
) -> tuple[dict[str, Any], tuple[Encoder, ...]]:
    """Return the sides as tensors; without encoders where they have no common width."""
    tensors = {name: as_squeezed_tensor(name, side, device) for name, side in sides.items()}
    widths: set[int] = set()
    for side in tensors.values():
        if not isinstance(side, Tensor) or side.dim() != 2:
            return tensors, ()
        widths.add(side.shape[1])
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
    """Return each side with the embeddings of all encoders side by side, and the encoders.

    ``tables``: by side, embeddings ``(B, D)`` by the name of the encoder. Raises where the names or
    widths are not those of the ``known`` encoders or, in a first batch, of the first side.
    """
    names = _find_names(tables, known)
    joined = {}
    encoders = tuple(known)
    for side_name, table in tables.items():
        embeddings: list[Tensor] = []
        for name in names:
            embeddings.append(_check_embeddings(f"{side_name}[{name!r}]", table[name], device))
        _check_row_counts(side_name, names, embeddings)
        widths = [rows.shape[1] for rows in embeddings]
        encoders_of_side = tuple(map(Encoder, names, widths))
        if not encoders:
            encoders = encoders_of_side
        if encoders_of_side != encoders:
            raise ValueError(
                f"Expected `{side_name}` to have embeddings of {_describe_widths(encoders)}, as"
                f" those given before, but got {_describe_widths(encoders_of_side)}."
            )
        joined[side_name] = torch.cat(embeddings, dim=1)
    return joined, encoders


def _check_row_counts(side_name: str, names: Sequence[str], embeddings: Sequence[Tensor]) -> None:
    """Raise unless all encoders embed as many rows."""
    if len({len(rows) for rows in embeddings}) > 1:
        counts: list[str] = []
        for name, rows in zip(names, embeddings, strict=True):
            counts.append(f"{len(rows)} of {name!r}")
        raise ValueError(
            f"Expected `{side_name}` to have as many rows of each encoder, but got"
            f" {', '.join(counts)}."
        )


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
    """Return the encoders' names in the order of the first batch; raise unless all tables agree."""
    if known:
        names = [encoder.name for encoder in known]
    else:
        names = list(next(iter(tables.values())))
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


def _check_embeddings(name: str, value: Any, device: torch.device | None) -> Tensor:
    embeddings: Tensor = as_squeezed_tensor(name, value, device)
    check_floating(name, embeddings)
    if embeddings.dim() != 2 or embeddings.shape[1] == 0:
        shape = tuple(embeddings.shape)
        raise ValueError(f"Expected `{name}` to have shape (B, D), but got {shape}.")
    return embeddings


def _is_unnamed(encoders: Sequence[Encoder]) -> bool:
    return len(encoders) == 1 and encoders[0].name == ""


def _describe_widths(encoders: Sequence[Encoder]) -> str:
    return ", ".join(f"{encoder.name or 'a tensor'} ({encoder.width} wide)" for encoder in encoders)
