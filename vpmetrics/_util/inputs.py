"""Input files: errors that the user can correct, unpacking up to a bound, and the list of files read."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vpmetrics._util.scalar import printable

Array = np.ndarray[Any, Any]

# What a file may hold once unpacked, so that a few bytes cannot fill the memory.
_UNPACKED_BYTES, _UNPACKED_RATIO = 1 << 26, 100

read_files: dict[str, str] = {}  # the files that this run has read, and a description of each


class InputError(Exception):
    """Something is wrong with a file or an option; the text says where, what was expected and what came."""

    def __init__(self, message: str, path: Path | str | None = None, line: int | None = None) -> None:
        where = "" if path is None else shorten(str(path), 200) + (f":{line}: " if line else ": ")
        super().__init__(printable(shorten(where + message, 1000)))


def shorten(text: str, width: int = 60) -> str:
    """Return a text of at most ``width`` characters: of a long one, its start and its end."""
    return text if len(text) <= width else f"{text[: width // 2]}…{text[len(text) - (width - 1) // 2 :]}"


def quote(value: object) -> str:
    """Return a value as it is shown in messages."""
    return shorten(repr(value))


def describe_error(error: BaseException) -> str:
    """Return the first line of what an error of the system or of another library says."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return shorten(str(text).splitlines()[0], 200)


def record_file(path: str | Path, description: str) -> None:
    """Add a file to the inputs of this run, with a description of its content."""
    read_files[printable(str(path))] = description


def format_suffix(path: str | Path) -> str:
    """Return the suffix that tells the format, in lower case, without the point and without ``.gz``."""
    return Path(Path(path).name.lower().removesuffix(".gz")).suffix.removeprefix(".")


def open_unpacked(path: str | Path) -> BinaryIO:
    """Open a file for reading; one whose name ends in ``.gz`` is unpacked in memory."""
    try:
        file = Path(path)
        if file.suffix.lower() != ".gz":
            return file.open("rb")
        limit = _UNPACKED_BYTES + _UNPACKED_RATIO * file.stat().st_size
        with gzip.open(file) as packed:
            content = packed.read(limit + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"cannot be read ({describe_error(error)})", path) from None
    if len(content) > limit:
        raise InputError(f"expected at most {limit >> 20:,} MiB once unpacked, but it holds more; unpack it", path)
    return io.BytesIO(content)


def check_unpacked_size(file: BinaryIO, path: str | Path) -> None:
    """Raise for a zip archive, as of NumPy or PyTorch, that would fill the memory."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        limit = _UNPACKED_BYTES + _UNPACKED_RATIO * file.seek(0, io.SEEK_END)
        if unpacked > limit:
            got = f"{unpacked >> 20:,} MiB"
            raise InputError(f"expected at most {limit >> 20:,} MiB once unpacked, but got {got}", path)
    file.seek(0)
