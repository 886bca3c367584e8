"""Arrays from files of embeddings, one reader per format; the suffix of a file tells its format."""

from __future__ import annotations

import itertools
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np
import polars as pl
import torch
from kaldiio.matio import read_kaldi, read_token
from safetensors.torch import load as load_safetensors
from torch import Tensor

from vpmetrics._util.inputs import (
    Array,
    InputError,
    check_unpacked_size,
    describe_error,
    format_suffix,
    open_unpacked,
    quote,
    record_file,
    shorten,
)
from vpmetrics.readers.trial_files import read_map, read_parquet

_UTTERANCE_KEYS = (
    "utterances",
    "utterance",
    "utts",
    "utt",
    "utterance_ids",
    "utterance_id",
    "utt_ids",
    "utt_id",
    "ids",
    "id",
)
VECTOR_FILE = "speaker_vectors.pt"  # in a folder of the VoicePrivacy challenges from 2024 on
_NUMBERED_COLUMN = re.compile(r"(.*?)[\s_.\-\[]*\d+\]?")
_KALDI_VECTORS = b"\0BFV", b"\0BDV", b"\0BFM", b"\0BDM", b"\0BCM"


NamedVector = tuple[str, Array, str]  # the utterance, its vector, and the place that an error names


@dataclass(frozen=True)
class StoredArray:
    """An array that is still in its file; ``load`` reads it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    load: Callable[[], Array]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)


class Arrays(NamedTuple):
    """The arrays of a file by name, a single one under no name, and the names of their rows."""

    by_name: dict[str, Array | StoredArray]
    utterances: list[str] | None = None

    def load(self, name: str) -> Array:
        """Return an array by its name; one that is still in the file is read."""
        values = self.by_name[name]
        return values.load() if isinstance(values, StoredArray) else values


def read_arrays(path: str, file_format: str | None = None) -> Arrays:
    """Read all arrays of a file, or of a folder with one file per utterance.

    ``file_format``: a key of ``READERS``, where the file name does not end in it.
    """
    file_format = file_format or format_suffix(path)
    if Path(path).is_dir():
        file_format = "folder"
        arrays = _read_folder_of_vectors(Path(path))
    elif file_format not in READERS:
        raise InputError(
            f"expected a file of embeddings (.{', .'.join(READERS)}); --format tells another's",
            path,
        )
    else:
        arrays = _read_file(path, file_format)
    descriptions: list[str] = []
    for name, values in arrays.by_name.items():
        shape = " x ".join(str(length) for length in values.shape)
        descriptions.append(f"{name} {shape}".strip())
    named = "" if arrays.utterances is None else ", named rows"
    record_file(path, f"{file_format}: {', '.join(descriptions[:8])}{named}")
    return arrays


def _read_file(path: str, file_format: str) -> Arrays:
    try:
        with open_unpacked(path) as file:
            return READERS[file_format](file, path)
    except (InputError, ModuleNotFoundError):
        raise
    # whatever libraries raise for a damaged file
    except (Exception, pl.exceptions.PanicException) as error:
        raise InputError(
            f"is not a readable .{file_format} file ({describe_error(error)})", path
        ) from None


def _read_folder_of_vectors(folder: Path) -> Arrays:
    """Read the vectors of a challenge's folder, or one file per utterance, named by its stem."""
    if (folder / VECTOR_FILE).is_file():
        return read_arrays(str(folder / VECTOR_FILE))
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".npy", ".pt", ".pth"))
    if not files:
        expected = "recordings (.wav, .flac, .ogg, .mp3), or one .npy or .pt file per utterance"
        raise InputError(f"expected {expected}, but got neither", folder)
    has_unique_stems = len({path.stem for path in files}) == len(files)
    vectors: list[NamedVector] = []
    for path in files:
        arrays = _read_file(str(path), path.suffix[1:])
        if set(arrays.by_name) != {""}:
            raise InputError("expected one vector, but got several arrays", path)
        name = path.stem
        if not has_unique_stems:
            name = path.relative_to(folder).with_suffix("").as_posix()
        vectors.append((name, arrays.load("").squeeze(), str(path)))
    return _stack_vectors(vectors, str(folder))


def _stack_vectors(vectors: Iterable[NamedVector], path: str) -> Arrays:
    """Return vectors of one length as the rows of one array; raise for any other."""
    names: list[str] = []
    rows: list[Array] = []
    for name, vector, where in vectors:
        names.append(name)
        rows.append(vector)
        if vector.ndim != 1 or vector.shape != rows[0].shape:
            got = f"shapes {rows[0].shape} of {quote(names[0])} and {vector.shape} of {quote(name)}"
            raise InputError(
                f"expected one vector per utterance, all of one length, but got {got}", where
            )
    if not rows:
        raise InputError("expected vectors, but got an empty file", path)
    return Arrays({"": np.stack(rows)}, names)


def _collect_arrays(content: Mapping[Any, Any], path: str) -> Arrays:
    """Return the arrays of a file by name; vectors named by utterance become rows of one array."""
    arrays: dict[str, Array | StoredArray] = {}
    vectors: list[NamedVector] = []
    for name, values in content.items():
        array = _as_array(values, f"{path}:{name}" if name else path)
        if array is not None:
            arrays[str(name)] = array
            vectors.append((str(name), array.reshape(-1), path))
    if _are_named_vectors(arrays):
        return _stack_vectors(vectors, path)
    names_key = _find_utterance_key(arrays)
    if names_key is None:
        return Arrays(arrays)
    return Arrays(arrays, Arrays(arrays).load(names_key).astype(str).tolist())


def _are_named_vectors(arrays: Mapping[str, Any]) -> bool:
    """Return whether all arrays are vectors of numbers with the name of an utterance.

    Their shape is ``(D,)`` or ``(1, D)``.
    """
    if not arrays or "" in arrays:
        return False
    for values in arrays.values():
        shape = values.shape or ()
        is_vector = len(shape) == 1 or shape[:1] == (1,)
        if not is_vector or values.dtype.kind != "f" or math.prod(shape) < 2:
            return False
    return True


def _find_utterance_key(arrays: Mapping[str, Any]) -> str | None:
    """Return the name of the array that holds the names of rows; None if there is none."""
    by_lower_name = {name.lower(): name for name in arrays}
    for name in _UTTERANCE_KEYS:
        key = by_lower_name.get(name)
        if key is not None and arrays[key].ndim == 1 and arrays[key].dtype.kind in "USO":
            return key
    return None


def _as_array(values: Any, where: str) -> Array | None:
    """Convert what a library has read to an array; return None for anything else, as a text."""
    if isinstance(values, (list, tuple)):
        if not values:
            return None
        if not all(isinstance(value, Tensor) for value in values):
            return np.asarray(values)
        values = _stack_tensors(values, where)
    if isinstance(values, Tensor):
        return _as_array_of_tensor(values, where)
    return np.asarray(values) if isinstance(values, np.ndarray) else None


def _stack_tensors(tensors: Sequence[Tensor], where: str) -> Tensor:
    """Return tensors of one shape as one; raise for several shapes."""
    if any(tensor.shape != tensors[0].shape for tensor in tensors):
        container = type(tensors).__name__
        raise InputError(
            f"holds a {container} of tensors of several shapes; save a dictionary of tensors", where
        )
    return torch.stack(tuple(tensors))


def _as_array_of_tensor(tensor: Tensor, where: str) -> Array:
    """Convert a dense tensor to an array; raise for any other."""
    if tensor.is_quantized:
        got = "a quantised tensor; save its .dequantize()"
        raise InputError(f"expected a dense tensor of numbers, but got {got}", where)
    if tensor.layout != torch.strided:
        got = "a sparse tensor; save its .to_dense()"
        raise InputError(f"expected a dense tensor of numbers, but got {got}", where)
    # a view may repeat one number
    check_unpacked_size(tensor.numel() * tensor.element_size(), where)
    tensor = tensor.detach().cpu()
    # NumPy has neither bfloat16 nor floats of 8 bits.
    numpy_types = (torch.float16, torch.float32, torch.float64)
    if tensor.is_floating_point() and tensor.dtype not in numpy_types:
        tensor = tensor.float()
    return np.asarray(tensor.numpy())


def _read_npy(file: BinaryIO, path: str) -> Arrays:
    check_array_header(file, _size_of(file), path)
    file.seek(0)
    return _collect_arrays({"": np.load(file, allow_pickle=False)}, path)


def _read_npz(file: BinaryIO, path: str) -> Arrays:
    with zipfile.ZipFile(file) as archive:
        _check_archive(archive, path)
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            with archive.open(entry) as member:
                check_array_header(member, entry.file_size, f"{path}:{name}")
    file.seek(0)
    content = np.load(file, allow_pickle=False)
    return _collect_arrays({name: content[name] for name in content.files}, path)


def _check_archive(archive: zipfile.ZipFile, path: str) -> None:
    """Raise for an archive, as of NumPy or PyTorch, that asks for too much memory."""
    check_unpacked_size(sum(entry.file_size for entry in archive.infolist()), path)


def _size_of(file: BinaryIO) -> int:
    size = file.seek(0, 2)
    file.seek(0)
    return size


def check_array_header(
    file: IO[bytes], size: int, where: str
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order of Fortran or not, and type of an array of NumPy.

    The file is left where its numbers begin. Raise for an array with objects, or with more numbers
    than ``size``, its length in bytes, allows.
    """
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, is_fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, is_fortran_order, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject:
        advice = "save numbers or text, as np.array(names, dtype=str)"
        raise InputError(f"holds Python objects, which are not read; {advice}", where)
    if math.prod(shape) * dtype.itemsize > size:
        raise InputError(f"is cut off: it has {size:,} bytes for an array of shape {shape}", where)
    return shape, is_fortran_order, dtype


def _read_torch(file: BinaryIO, path: str) -> Arrays:
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            _check_archive(archive, path)
    file.seek(0)
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError:  # PyTorch's own message advises to load the file without protection
        got = "other objects than tensors, numbers and texts"
        raise InputError(f"holds {got}; save tensors, or use .npz", path) from None
    is_list_of_tensors = False
    if isinstance(content, list):
        is_list_of_tensors = all(isinstance(value, Tensor) for value in content)
    if isinstance(content, (list, tuple)) and not is_list_of_tensors:
        got = f"a {type(content).__name__} of {len(content)}"
        expected = (
            "a tensor or a dictionary, as {'original': ..., 'protected': ..., 'speakers': ...}"
        )
        raise InputError(f"expected {expected}, but got {got}", path)
    if not isinstance(content, Mapping):
        content = {"": content}
    arrays = _collect_arrays(content, path)
    is_one_array = set(arrays.by_name) == {""} and arrays.utterances is None
    index = Path(path).with_name("id2idx")
    if is_one_array and arrays.by_name[""].ndim == 2 and index.is_file():
        return _name_challenge_rows(arrays, index)
    return arrays


def _name_challenge_rows(arrays: Arrays, index: Path) -> Arrays:
    """Return a matrix of a challenge with the names of its rows, and their speakers if listed.

    Rows have any order: two lists in the same folder, ``id2idx`` and ``idx2spk``, tell of them.
    """
    row_of = read_map(index, "utterance row")
    rows = [str(row) for row in range(len(arrays.load("")))]
    if sorted(row_of.values()) != sorted(rows):
        got = "some rows twice and others not at all"
        if len(row_of) != len(rows):
            got = f"{len(row_of)} lines"
        raise InputError(f"expected every row of {len(rows)} once, but got {got}", index)
    utterance_of = {row: utterance for utterance, row in row_of.items()}
    speaker_list = index.with_name("idx2spk")
    if speaker_list.is_file():
        speaker_of = read_map(speaker_list, "row speaker")
    else:
        speaker_of = {}
    if set(speaker_of) >= set(rows):
        arrays.by_name["speakers"] = np.array([speaker_of[row] for row in rows])
    return Arrays(arrays.by_name, [utterance_of[row] for row in rows])


def _read_hdf5(file: BinaryIO, path: str) -> Arrays:
    """Return all vectors of a file where utterances name them, else its sets.

    Sets are read where they are needed.
    """
    import h5py

    datasets: dict[str, Any] = {}

    def keep_dataset(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            datasets[name] = item

    with h5py.File(file, "r") as archive:
        archive.visititems(keep_dataset)
        for name, dataset in datasets.items():
            if dataset.is_virtual or dataset.external:
                raise InputError(
                    "is stored in other files, which are not read; copy it into this one",
                    f"{path}:{name}",
                )
        if _are_named_vectors(datasets):
            check_unpacked_size(sum(dataset.nbytes for dataset in datasets.values()), path)
            return _collect_arrays({name: dataset[...] for name, dataset in datasets.items()}, path)
        by_name: dict[str, Array | StoredArray] = {}
        for name, dataset in datasets.items():
            if dataset.shape is not None:  # of a set without a space for values
                load = partial(_load_hdf5_dataset, path, name)
                by_name[name] = StoredArray(dataset.shape, dataset.dtype, load)
    names_key = _find_utterance_key(by_name)
    if names_key is None:
        return Arrays(by_name)
    return Arrays(by_name, _load_hdf5_dataset(path, names_key).astype(str).tolist())


def _load_hdf5_dataset(path: str, name: str) -> Array:
    """Read one set of a file."""
    import h5py

    where = f"{path}:{name}"
    try:
        with open_unpacked(path) as file, h5py.File(file, "r") as archive:
            dataset = archive[name]
            check_unpacked_size(dataset.nbytes, path)
            if h5py.check_string_dtype(dataset.dtype):
                return np.asarray(dataset.asstr()[...].astype(str))
            return np.asarray(dataset[...])
    except InputError:
        raise
    except Exception as error:  # whatever HDF5 raises for a damaged file
        raise InputError(f"cannot be read ({describe_error(error)})", where) from None


def _read_delimited(file: BinaryIO, path: str, separator: str = ",") -> Arrays:
    frame = pl.read_csv(file.read(), separator=separator, infer_schema=False)
    for name in frame.columns:
        if re.fullmatch(r"[-+\d.]+(e[-+]?\d+)?", name):
            got = quote(name)
            raise InputError(f"expected a first line of column names, but got {got}", path, 1)
    for name in frame.columns:
        if not _NUMBERED_COLUMN.fullmatch(name):
            continue
        numbers = frame[name].cast(pl.Float64, strict=False)
        is_missing = numbers.is_null()
        if is_missing.any():
            row = int(is_missing.arg_max() or 0)
            got = quote(frame[name][row])
            raise InputError(f"expected a number as {name}, but got {got}", path, row + 2)
        frame = frame.with_columns(numbers)
    return _collect_columns(frame, path)


def _collect_columns(frame: pl.DataFrame, path: str) -> Arrays:
    """Return a table by name: columns of lists are matrices, and numbered columns are one, too.

    Numbered columns are ``x0``, ``x1`` and so on.
    """
    columns_of_matrix: dict[str, list[str]] = {}
    arrays: dict[str, Any] = {}
    for name, column in frame.to_dict().items():
        numbered = _NUMBERED_COLUMN.fullmatch(name)
        if isinstance(column.dtype, (pl.List, pl.Array)):
            arrays[name] = _stack_lists(column, name, path)
        elif numbered and column.dtype.is_numeric():
            columns_of_matrix.setdefault(numbered[1], []).append(name)
        else:
            if column.dtype.is_numeric():
                texts_or_numbers = column
            else:
                texts_or_numbers = column.cast(pl.String)
            # Missing values stay None: a label that is needed is checked later.
            dtype = object if column.has_nulls() else None
            arrays[name] = np.array(texts_or_numbers.to_list(), dtype=dtype)
    for name, columns in columns_of_matrix.items():
        key = "" if len(columns_of_matrix) == 1 else name
        arrays[key] = frame.select(columns).to_numpy()
    if not arrays:
        raise InputError("expected columns of numbers, but got an empty table", path)
    return _collect_arrays(arrays, path)


def _stack_lists(column: pl.Series, name: str, path: str) -> Array:
    """Return a column of lists of one length as a matrix; raise for other lengths."""
    if isinstance(column.dtype, pl.List):
        lists = column
    else:
        lists = column.arr.to_list()
    lengths = lists.list.len()
    if lengths.n_unique() > 1 or lengths.has_nulls():
        got = sorted(set(lengths.to_list()), key=str)[:3]
        raise InputError(
            f"expected lists of one length in column {quote(name)}, but got {got}", path
        )
    return np.asarray(lists.explode().to_numpy().reshape(len(lists), -1))


def _read_archived_vectors(file: BinaryIO, path: str) -> Iterator[NamedVector]:
    is_binary = re.match(rb"[^\s\0]+ \0B", file.read(4096)) is not None
    file.seek(0)
    if is_binary:
        return _read_binary_vectors(file, path)
    return _read_text_vectors(file, path)


def _read_binary_vectors(file: BinaryIO, path: str) -> Iterator[NamedVector]:
    for vector_number in itertools.count(1):
        try:
            name = (read_token(file) or "").strip()
        except UnicodeDecodeError:
            raise InputError(
                f"expected the name of vector {vector_number}, but got other bytes", path
            ) from None
        if not name:
            return
        where = f"{path}: vector {vector_number}, {shorten(name)}"
        yield name, _read_kaldi_vector(file, where), where


def _read_text_vectors(file: BinaryIO, path: str) -> Iterator[NamedVector]:
    # kaldiio takes all numbers of a vector for integers where the first has no point.
    for line_number, line in enumerate(file, 1):
        words = line.decode(errors="replace").replace("[", " ").replace("]", " ").split()
        if not words:
            continue
        name = words[0]
        fields = words[1:]
        values = pl.Series(fields, dtype=pl.String).cast(pl.Float64, strict=False)
        if not fields or values.has_nulls():
            if fields:
                got = quote(fields[values.is_null().arg_max() or 0])
            else:
                got = "no numbers"
            raise InputError(f"expected `utterance [ 0.1 ... ]`, but got {got}", path, line_number)
        yield name, values.to_numpy().astype(np.float32), f"{path}:{line_number}"


def _read_listed_vectors(file: BinaryIO, path: str) -> Iterator[NamedVector]:
    """Read what lines ``utterance archive:offset`` point to.

    Archives may have moved together with the list.
    """
    current_path = None
    archive = file
    with ExitStack() as stack:
        for line_number, line in enumerate(file.read().decode(errors="replace").splitlines(), 1):
            name, _, archive_and_offset = line.strip().partition(" ")
            if not name:
                continue
            if "|" in archive_and_offset:  # Kaldi would run it
                got = f"the command {quote(archive_and_offset)}"
                raise InputError(
                    f"expected `utterance archive:offset`, but got {got}", path, line_number
                )
            archive_path, offset = _split_offset(archive_and_offset)
            if archive_path != current_path:
                stack.close()
                archive = stack.enter_context(_open_archive(archive_path, path, line_number))
                current_path = archive_path
            archive.seek(offset)
            where = f"{path}:{line_number}: {archive_path}:{offset}"
            yield name, _read_kaldi_vector(archive, where), where


def _split_offset(place: str) -> tuple[str, int]:
    """Return the archive and the offset of ``archive:offset``; 0 where none is given."""
    if not re.search(r":\d+$", place):
        return place, 0
    archive_path, _, offset = place.strip().rpartition(":")
    return archive_path, int(offset)


def _open_archive(archive_path: str, list_path: str, line: int) -> BinaryIO:
    """Open an archive where a list says it is, or in the folder of the list."""
    folder = Path(list_path).parent
    for candidate in (Path(archive_path), folder / archive_path, folder / Path(archive_path).name):
        if candidate.is_file():
            return open_unpacked(candidate)
    raise InputError(f"no such archive: {shorten(archive_path)}", list_path, line)


def _read_kaldi_vector(file: BinaryIO, where: str) -> Array:
    # Without this check, kaldiio would also unpickle objects and open sound files.
    flag = file.read(4)
    if flag not in _KALDI_VECTORS:
        raise InputError(f"expected a vector of numbers, but got {flag!r}", where)
    file.seek(-4, 1)
    try:
        values = np.asarray(read_kaldi(file))
    except Exception as error:  # whatever kaldiio raises for a damaged archive
        raise InputError(
            f"expected a vector, but it is damaged ({describe_error(error)})", where
        ) from None
    if values.ndim != 1 and 1 not in values.shape:
        raise InputError(
            f"expected one vector per utterance, but got a matrix of shape {values.shape}", where
        )
    return values.reshape(-1)


READERS: dict[str, Callable[[BinaryIO, str], Arrays]] = {
    "npz": _read_npz,
    "npy": _read_npy,
    "pt": _read_torch,
    "pth": _read_torch,
    "safetensors": lambda file, path: _collect_arrays(load_safetensors(file.read()), path),
    "parquet": lambda file, path: _collect_columns(read_parquet(file.read(), path), path),
    "csv": _read_delimited,
    "tsv": partial(_read_delimited, separator="\t"),
    "ark": lambda file, path: _stack_vectors(_read_archived_vectors(file, path), path),
    "scp": lambda file, path: _stack_vectors(_read_listed_vectors(file, path), path),
    "h5": _read_hdf5,
    "hdf5": _read_hdf5,
}
