"""Input files: errors that the user can correct, the files read, and a limit of unpacked sizes."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vpmetrics._util.scalar import printable

Array = np.ndarray[Any, Any]

# What a packed file may ask for: a million embeddings of 512 numbers. Its own size is always
# allowed.
_UNPACKED_BYTES = 1 << 31

read_files: dict[str, str] = {}  # the files that this run has read, and a description of each


class InputError(Exception):
    """Something is wrong with a file or an option.

    The text says where, what was expected and what came.
    """

    def __init__(
        self, message: str, path: Path | str | None = None, line: int | None = None
    ) -> None:
        if path is None:
            where = ""
        else:
            where = shorten(str(path), 200) + (f":{line}: " if line else ": ")
        super().__init__(printable(shorten(where + message, 1000)))


def shorten(text: str, width: int = 60) -> str:
    """Return a text of at most ``width`` characters: of a long one, its start and its end."""
    if len(text) <= width:
        return text
    return f"{text[: width // 2]}…{text[len(text) - (width - 1) // 2 :]}"


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
    """Return the suffix of the format in lower case, without the point and without ``.gz``."""
    return Path(Path(path).name.lower().removesuffix(".gz")).suffix.removeprefix(".")


def open_unpacked(path: str | Path) -> BinaryIO:
    """Open a file for reading; one whose name ends in ``.gz`` is unpacked in memory."""
    try:
        file = Path(path)
        if file.suffix.lower() != ".gz":
            return file.open("rb")
        with gzip.open(file) as packed:
            content = packed.read(_UNPACKED_BYTES + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"cannot be read ({describe_error(error)})", path) from None
    check_unpacked_size(len(content), path)
    return io.BytesIO(content)


def check_unpacked_size(num_bytes: int, path: str | Path) -> None:
    """Raise if a file asks for more memory than any file of embeddings needs.

    The check comes before the memory is allocated.
    """
    own_size = Path(path).stat().st_size if Path(path).is_file() else 0
    limit = max(_UNPACKED_BYTES, own_size)
    if num_bytes > limit:
        got = f"{num_bytes / (1 << 20):,.0f} MiB"
        raise InputError(
            f"expected at most {limit >> 20:,} MiB once unpacked, but got {got}; split it", path
        )
