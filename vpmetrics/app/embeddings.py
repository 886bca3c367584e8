"""Embeddings from files: NumPy's, PyTorch's, and Kaldi's text archives."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vpmetrics.app.columns import Array, read_pairs, refuse_binary
from vpmetrics.app.errors import InputError

_ALIASES = {
    "original": ("original", "emb_original", "emb_o", "orig", "o", "unprotected", "clean", "x"),
    "protected": ("protected", "emb_protected", "emb_p", "anonymised", "anonymized", "anon", "pseudonymised", "p", "y"),
    "speakers": ("speakers", "speaker", "speaker_ids", "speaker_id", "spk", "spkid", "spk_id", "labels", "label"),
}


class Embeddings(NamedTuple):
    """What the embedding metrics are called with, the names of the speakers by number, and what was left out."""

    original: Tensor
    protected: Tensor
    speakers: Tensor
    speaker_names: tuple[str, ...]
    utterances: Tensor | None = None
    notes: tuple[str, ...] = ()


class Column(NamedTuple):
    """Values of utterances, with their names where the file gives them, and where they come from."""

    values: Array
    utterances: list[str] | None
    source: str
    alias: str | None = None  # the name it was found by, where nobody had given one


class Sources(NamedTuple):
    """Where the embeddings of one system are: a file of several arrays, and files or names of arrays in it."""

    container: str | None = None
    original: str | None = None
    protected: str | None = None
    speakers: str | None = None
    utterances: str | None = None


def read_embeddings(sources: Sources) -> Embeddings:
    """Both sides and their speakers, row by row or, where files name their utterances, by name."""
    arrays = None if sources.container is None else _read_file(Path(sources.container))
    if arrays is not None and set(arrays) == {""}:
        raise InputError(
            "expected several arrays, but got one; give it by --original or --protected", sources.container
        )
    columns = {role: _column(getattr(sources, role), role, sources.container, arrays) for role in _ALIASES}
    utterances = None
    if sources.utterances is not None:
        utterances = _column(sources.utterances, "utterances", sources.container, arrays)
    named = [column for column in columns.values() if column.utterances is not None]
    sides = [columns["original"], columns["protected"]]
    notes: tuple[str, ...] = ()
    taken = _say_guessed(sources.container, columns)
    if any(side.utterances is not None for side in sides):
        columns, notes = _align(columns)
    elif named:  # utt2spk beside bare arrays: its lines are their rows
        columns["speakers"] = named[0]._replace(utterances=None)
    return _pack(columns, utterances, (*taken, *notes))


def _say_guessed(container: str | None, columns: Mapping[str, Column]) -> tuple[str, ...]:
    """Which array became what, where a name had to be guessed."""
    guessed = {role: column for role, column in columns.items() if column.alias is not None}
    if all(column.alias == role for role, column in guessed.items()):
        return ()
    says = ", ".join(f"{column.alias if container else column.source} as {role}" for role, column in guessed.items())
    return (f"{container}: taken {says}" if container else f"taken {says}",)


def _column(source: str | None, role: str, container: str | None, arrays: Mapping[str, Column] | None) -> Column:
    if source is not None:
        path, _, name = (source, "", "") if Path(source).exists() else source.rpartition(":")
        if path and Path(path).exists():
            return _pick(_read_file(Path(path), text=role in ("speakers", "utterances")), name or None, role, path)
        if arrays is None:
            raise InputError(f"no such file for --{role}", source)
    if arrays is None or container is None:
        raise InputError(f"Expected --{role} FILE[:ARRAY] or a file that holds all arrays, but got neither.")
    return _pick(arrays, source, role, container)


def _pick(arrays: Mapping[str, Column], name: str | None, role: str, path: str) -> Column:
    if set(arrays) == {""} and name is None:
        return arrays[""]
    by_lower = {key.lower(): key for key in arrays}
    for wanted in _ALIASES.get(role, (role,)) if name is None else (name.lower(),):
        if wanted in by_lower:
            return arrays[by_lower[wanted]]._replace(alias=by_lower[wanted] if name is None else None)
    found = ", ".join(f"{key} {column.values.shape}" for key, column in arrays.items())
    wanted = f"an array {role!r} (--{role} NAME calls it otherwise)" if name is None else f"an array {name!r}"
    raise InputError(f"expected {wanted}, but got {found or 'none'}", path)


def _read_file(path: Path, text: bool = False) -> dict[str, Column]:
    """The arrays of a file by name; under no name where it holds a single one."""
    try:
        if path.suffix in (".npz", ".npy"):
            loaded = np.load(path, allow_pickle=False)
            return _columns_of({"": loaded} if isinstance(loaded, np.ndarray) else dict(loaded), path)
        if path.suffix in (".pt", ".pth"):
            loaded = _load_tensors(path)
            return _columns_of(loaded if isinstance(loaded, Mapping) else {"": loaded}, path)
        return {"": _read_labels(path) if text else _read_ark(path)}
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", path) from None
    except Exception as error:  # what NumPy and PyTorch raise for a damaged file is up to them
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"expected a file of arrays as {path.suffix} holds them, but {reason}", path) from None


def _load_tensors(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "numpy" in str(error):
            raise InputError("holds NumPy objects; save tensors, or use .npz", path) from None
        raise


def _columns_of(arrays: Mapping[str, Any], path: Path) -> dict[str, Column]:
    return {
        str(name): Column(_as_array(values), None, f"{path}:{name}" if name else str(path))
        for name, values in arrays.items()
        if isinstance(values, (Tensor, np.ndarray, list, tuple))
    }


def _as_array(values: Any) -> Array:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        # NumPy has no bfloat16.
        return np.asarray(values.float().numpy() if values.dtype == torch.bfloat16 else values.numpy())
    return np.asarray(values)


def _read_labels(path: Path) -> Column:
    """Speakers as text: lines ``utterance speaker``, or a speaker a line."""
    columns = [[field.decode(errors="replace") for field in column] for column in read_pairs(path)]
    return Column(np.array(columns[-1]), columns[0] if len(columns) == 2 else None, str(path))


def _read_ark(path: Path) -> Column:
    """A Kaldi text archive of vectors: lines ``utterance [ 0.1 ... ]``."""
    content = path.read_bytes()
    refuse_binary(content, path)
    names: list[str] = []
    vectors: list[Array] = []
    for number, line in enumerate(content.splitlines(), 1):
        name, _, rest = line.strip().partition(b" ")
        if not name:
            continue
        fields = rest.replace(b"[", b" ").replace(b"]", b" ").split()
        if not fields or (vectors and len(fields) != len(vectors[0])):
            expected = f"{len(vectors[0])} numbers as in the lines before" if vectors else "`utterance [ 0.1 ... ]`"
            raise InputError(f"expected {expected}, but got {len(fields)} numbers", path, number)
        try:
            vectors.append(np.array(fields, dtype=np.float64).astype(np.float32))
        except ValueError as error:
            raise InputError(f"expected `utterance [ 0.1 ... ]`, but {error}", path, number) from None
        names.append(name.decode(errors="replace"))
    if not names:
        raise InputError("expected lines `utterance [ 0.1 ... ]`, but got an empty file", path)
    return Column(np.stack(vectors), names, str(path))


def _align(columns: dict[str, Column]) -> tuple[dict[str, Column], tuple[str, ...]]:
    """The utterances that all files name, in the order of the originals."""
    rows = {}
    for role, column in columns.items():
        if column.utterances is None:
            raise InputError("expected it to name its utterances, as the other files do", column.source)
        rows[role] = {utterance: row for row, utterance in enumerate(column.utterances)}
        if len(rows[role]) < len(column.utterances):
            raise InputError(
                f"expected every utterance once, but {len(column.utterances) - len(rows[role])} occur again",
                column.source,
            )
    kept = [name for name in rows["original"] if name in rows["protected"] and name in rows["speakers"]]
    if not kept:
        sources = ", ".join(column.source for column in columns.values())
        raise InputError(f"Expected utterances of the same name in {sources}, but they share none.")
    notes = tuple(
        f"{column.source}: {len(rows[role]) - len(kept):,} of {len(rows[role]):,} utterances left out, the other "
        "files do not name them"
        for role, column in columns.items()
        if len(rows[role]) > len(kept) and role != "speakers"
    )
    aligned = {
        role: column._replace(values=column.values[[rows[role][name] for name in kept]])
        for role, column in columns.items()
    }
    return aligned, notes


def _pack(columns: Mapping[str, Column], utterances: Column | None, notes: tuple[str, ...]) -> Embeddings:
    sides = []
    for role in ("original", "protected"):
        column = columns[role]
        if column.values.ndim != 2 or column.values.dtype.kind not in "fiu":
            got = f"{column.values.dtype} of shape {column.values.shape}"
            raise InputError(f"expected {role} embeddings, numbers of shape (N, D), but got {got}", column.source)
        wide = np.float64 if column.values.dtype == np.float64 else np.float32
        sides.append(torch.from_numpy(np.ascontiguousarray(column.values, dtype=wide)))
        shape = columns["original"].values.shape
        if column.values.shape != shape:
            got = f"{column.values.shape}"
            raise InputError(
                f"expected shape {shape}, that of {columns['original'].source}, but got {got}", column.source
            )
    speakers, names = _number(columns["speakers"], len(sides[0]))
    numbers = None if utterances is None else _number(utterances, len(sides[0]))[0]
    return Embeddings(sides[0], sides[1], speakers, names, numbers, notes)


def _number(column: Column, rows: int) -> tuple[Tensor, tuple[str, ...]]:
    """Whole numbers for labels of any kind, ascending, and the labels as text."""
    if column.values.shape != (rows,):
        raise InputError(
            f"expected {rows} labels, one per embedding, but got shape {column.values.shape}", column.source
        )
    if column.values.dtype.kind not in "iuUSb":
        raise InputError(f"expected whole numbers or names, but got {column.values.dtype}", column.source)
    names, numbers = np.unique(column.values, return_inverse=True)
    texts: Sequence[Any] = names.tolist()
    return torch.from_numpy(numbers.astype(np.int64)), tuple(
        text.decode(errors="replace") if isinstance(text, bytes) else str(text) for text in texts
    )
