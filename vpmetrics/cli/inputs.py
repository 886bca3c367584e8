"""Input files: opened, unpacked up to a bound, and listed for the results."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vpmetrics.cli.errors import InputError, printable, reason_of

Array = np.ndarray[Any, Any]

# What a file may hold once unpacked, so that a few bytes cannot fill the memory.
_UNPACKED_BYTES, _UNPACKED_RATIO = 1 << 26, 100

_files: dict[str, str] = {}


def record_file(path: str | Path, description: str) -> None:
    """List a file among the inputs of this run, with what is in it."""
    _files[printable(str(path))] = description


def forget_files() -> None:
    """Start the list of another run."""
    _files.clear()


def recorded_files() -> dict[str, str]:
    """Return the files read so far, with what is in each."""
    return dict(_files)


def suffix_of(path: str | Path) -> str:
    """Return the suffix that tells the format, in lower case, without the point and without ``.gz``."""
    name = Path(path).name.lower().removesuffix(".gz")
    return Path(name).suffix.removeprefix(".")


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a file, unpacked where its name ends in ``.gz``."""
    try:
        file = Path(path)
        if file.suffix.lower() != ".gz":
            return file.read_bytes()
        limit = _unpacked_limit(file.stat().st_size)
        with gzip.open(file) as packed:
            content = packed.read(limit + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"cannot be read ({reason_of(error)})", path) from None
    if len(content) > limit:
        raise InputError(f"expected at most {limit >> 20:,} MiB once unpacked, but it holds more; unpack it", path)
    return content


def open_binary(path: str | Path) -> BinaryIO:
    """Open a file for reading; one that is packed is unpacked in memory."""
    if Path(path).suffix.lower() == ".gz":
        return io.BytesIO(read_bytes(path))
    try:
        return Path(path).open("rb")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({reason_of(error)})", path) from None


def check_unpacked_size(file: BinaryIO, path: str | Path) -> None:
    """Raise for a zip archive, as of NumPy or PyTorch, that would fill the memory."""
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    limit = _unpacked_limit(file.seek(0, io.SEEK_END))
    if unpacked > limit:
        got = f"{unpacked >> 20:,} MiB"
        raise InputError(f"expected at most {limit >> 20:,} MiB once unpacked, but got {got}", path)


def _unpacked_limit(size: int) -> int:
    return _UNPACKED_BYTES + _UNPACKED_RATIO * size
