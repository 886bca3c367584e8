"""Arrays from files: NumPy's, PyTorch's, Safetensors', Parquet, Kaldi's, and tables of text; told apart by content."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor

from vpmetrics.app import kaldi
from vpmetrics.app.arrays import load_npy, load_npz
from vpmetrics.app.columns import Array
from vpmetrics.app.errors import InputError, reason_of
from vpmetrics.app.files import STANDARD_INPUT, opened, saw, start_of
from vpmetrics.app.frames import read_parquet, read_table
from vpmetrics.app.pairs import read_pairs

_UTTERANCES = (
    "utterances",
    "utterance",
    "utts",
    "utt",
    "utt_ids",
    "utt_id",
    "utterance_ids",
    "utterance_id",
    "ids",
    "id",
)
_INDEX, _SPEAKERS = "id2idx", "idx2spk"  # beside the challenge's speaker_vectors.pt, whose rows are in no order


class Arrays(NamedTuple):
    """The arrays of a file by name, under no name where it holds a single one, and the names of their rows."""

    by_name: dict[str, Array]
    utterances: list[str] | None = None


Reader = Callable[[BinaryIO, str], Arrays]


def read_arrays(path: str) -> Arrays:
    """All arrays of a file."""
    with _seekable(path) as file:
        kind, reader = _kind_of(file.read(4096))
        file.seek(0)
        try:
            arrays = reader(file, path)
        except (InputError, OSError, EOFError):
            raise
        except Exception as error:  # what libraries raise for a damaged file is up to them
            raise InputError(f"looks like {kind}, but is damaged ({reason_of(error)})", path) from None
    shapes = ", ".join(f"{name} {_shape(values)}".strip() for name, values in arrays.by_name.items())
    saw(path, f"{kind}, {shapes}{', named rows' if arrays.utterances is not None else ''}")
    return arrays


def _shape(values: Array) -> str:
    return " x ".join(map(str, values.shape)) or "a number"


@contextmanager
def _seekable(path: str) -> Iterator[BinaryIO]:
    with opened(path) as (file, packed, _):
        yield io.BytesIO(file.read()) if packed or path == STANDARD_INPUT else file


def is_text(path: str) -> bool:
    """Whether a file is a text, by its first bytes."""
    return b"\0" not in start_of(path).removeprefix(b"\xff\xfe") and _kind_of(start_of(path))[1] in _TEXT_READERS


def _kind_of(start: bytes) -> tuple[str, Reader]:
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 30:
        return "a file of Safetensors", _read_safetensors
    for pattern, kind, reader in _KINDS:
        if pattern.match(start):
            return kind, reader
    return "a table of text", _read_text_table


def _named(arrays: Mapping[str, Any]) -> Arrays:
    """Arrays as NumPy's; an array of names tells the rows of the others apart."""
    by_name = {str(name): _as_array(values) for name, values in arrays.items() if _is_array(values)}
    for name in _UTTERANCES:
        key = next((key for key in by_name if key.lower() == name), None)
        if key is not None and by_name[key].ndim == 1 and by_name[key].dtype.kind in "US":
            return Arrays(by_name, by_name[key].astype(str).tolist())
    return Arrays(by_name)


def _is_array(values: object) -> bool:
    return isinstance(values, (Tensor, np.ndarray)) or (isinstance(values, (list, tuple)) and len(values) > 0)


def _as_array(values: Any) -> Array:
    if isinstance(values, (list, tuple)) and isinstance(values[0], Tensor):
        values = torch.stack(tuple(values))  # vectors in a list, as 2022's challenge has them
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        # NumPy has no bfloat16.
        return np.asarray(values.float().numpy() if values.dtype == torch.bfloat16 else values.numpy())
    return np.asarray(values)


def _read_npy(file: BinaryIO, path: str) -> Arrays:
    return _named({"": load_npy(file, path)})


def _read_zip(file: BinaryIO, path: str) -> Arrays:
    """PyTorch's files and several arrays of NumPy are both zip archives."""
    inside = zipfile.ZipFile(file).namelist()
    file.seek(0)
    if any(name.endswith("data.pkl") for name in inside):
        return _read_torch(file, path)
    return _named(load_npz(file, path))


def _read_torch(file: BinaryIO, path: str) -> Arrays:
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError:  # what PyTorch advises here is to run whatever the file holds
        message = "holds other objects than tensors, numbers and texts; save tensors, or use .npz"
        raise InputError(message, path) from None
    arrays = _named(loaded if isinstance(loaded, Mapping) else {"": loaded})
    index = Path(path).with_name(_INDEX)
    is_matrix = set(arrays.by_name) == {""} and arrays.by_name[""].ndim == 2
    return _by_index(arrays.by_name[""], index) if is_matrix and index.is_file() else arrays


def _by_index(vectors: Array, index: Path) -> Arrays:
    """Rows named by a file of lines ``utterance row``, and their speakers by one of lines ``row speaker``."""
    names, rows = _columns(index, ("utterance", "row"))
    if sorted(rows) != sorted(map(str, range(len(vectors)))):
        got = f"{len(rows)} lines" if len(rows) != len(vectors) else "some rows twice and others not at all"
        raise InputError(f"expected every row of {len(vectors)} once, but got {got}", index)
    by_row = dict(zip(map(int, rows), names, strict=True))
    arrays = {"": vectors}
    if (index.with_name(_SPEAKERS)).is_file():
        at, speakers = _columns(index.with_name(_SPEAKERS), ("row", "speaker"))
        of_row = dict(zip(at, speakers, strict=True))
        if set(of_row) >= set(rows):
            arrays["speakers"] = np.array([of_row[str(row)] for row in range(len(vectors))])
    return Arrays(arrays, [by_row[row] for row in range(len(vectors))])


def _columns(path: Path, headings: tuple[str, str]) -> tuple[list[str], list[str]]:
    columns = read_pairs(path, headings)
    if len(columns) != 2:
        raise InputError(f"expected lines `{' '.join(headings)}`, but got one column", path)
    return columns[0], columns[1]


def _read_safetensors(file: BinaryIO, path: str) -> Arrays:  # noqa: ARG001
    return _named(load_safetensors(file.read()))


def _read_parquet(file: BinaryIO, path: str) -> Arrays:
    return _named(read_parquet(file, path))


def _read_text_table(file: BinaryIO, path: str) -> Arrays:
    return _named(read_table(file, path))


def _of_kaldi(read: Callable[[BinaryIO, str], kaldi.Vectors]) -> Reader:
    def reader(file: BinaryIO, path: str) -> Arrays:
        values, utterances = read(file, path)
        return Arrays({"": values}, utterances)

    return reader


_read_kaldi_binary, _read_kaldi_text, _read_kaldi_table = map(
    _of_kaldi, (kaldi.read_binary, kaldi.read_text, kaldi.read_table)
)
_TEXT_READERS = _read_text_table, _read_kaldi_text, _read_kaldi_table
_KINDS: tuple[tuple[re.Pattern[bytes], str, Reader], ...] = (
    (re.compile(rb"PK\x03\x04"), "a zip archive of arrays", _read_zip),
    (re.compile(rb"\x93NUMPY"), "an array of NumPy", _read_npy),
    (re.compile(rb"\x80[\x02-\x05]"), "a file of PyTorch", _read_torch),
    (re.compile(rb"PAR1"), "a Parquet file", _read_parquet),
    (kaldi.BINARY, "a binary archive of Kaldi", _read_kaldi_binary),
    (kaldi.TEXT, "a text archive of Kaldi", _read_kaldi_text),
    (kaldi.TABLE, "a table of Kaldi archives", _read_kaldi_table),
)
