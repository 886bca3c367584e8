"""Files opened by name, or standard input as ``-``; packed by gzip or not."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from vpmetrics.app.errors import InputError, reason_of
from vpmetrics.app.progress import phase

STANDARD_INPUT = "-"
GZIP = b"\x1f\x8b"

_PIECE = 1 << 25  # bytes of text looked at together: what is held at a time, however long the file


_seen: dict[str, str] = {}


def saw(path: str | Path, what: str) -> None:
    """Remember what a file turned out to be, so that a wrong guess is seen."""
    _seen[str(path)] = what


def forget_seen() -> None:
    """Start anew, for another command."""
    _seen.clear()


def files_seen() -> dict[str, str]:
    """The files read so far, and what each turned out to be."""
    return dict(_seen)


class Opened(NamedTuple):
    """A file to read from: unpacked where it was packed, and how many of its bytes have been read."""

    file: BinaryIO
    packed: bool
    position: Callable[[], int]


def exists(path: str | Path) -> bool:
    """Whether something can be read by this name."""
    return str(path) == STANDARD_INPUT or Path(path).exists()


@contextmanager
def opened(path: str | Path) -> Iterator[Opened]:
    """A file to read; what goes wrong while it is open names it."""
    try:
        with ExitStack() as stack:
            piped = str(path) == STANDARD_INPUT
            raw: io.RawIOBase = _Counted(sys.stdin.buffer) if piped else stack.enter_context(io.FileIO(path))
            file = io.BufferedReader(raw, 1 << 16)
            packed = file.peek(2)[:2] == GZIP
            unpacked = cast(BinaryIO, stack.enter_context(gzip.open(file)) if packed else file)
            yield Opened(unpacked, packed, raw.tell)
    except (OSError, EOFError, zlib.error) as error:  # the latter two from packed files that are damaged
        raise InputError(f"cannot be read ({reason_of(error)})", path) from None


class _Counted(io.RawIOBase):
    """A pipe cannot tell how far it has been read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._read = file, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        block = self._file.read(len(buffer))
        buffer[: len(block)] = block
        self._read += len(block)
        return len(block)

    def tell(self) -> int:
        return self._read


def start_of(path: str | Path, size: int = 4096) -> bytes:
    """The first bytes of a file, unpacked; standard input keeps them for whoever reads it."""
    if str(path) == STANDARD_INPUT:
        start = cast(io.BufferedReader, sys.stdin.buffer).peek(size)[:size]
        return zlib.decompressobj(wbits=31).decompress(start, size) if start[:2] == GZIP else start
    with opened(path) as source:
        return source.file.read(size)


def read_pieces(path: str | Path, file: BinaryIO | None = None) -> Iterator[bytes]:
    """A text in pieces that end where a line ends, without the mark that some editors put first.

    Args:
        path: Where it is.
        file: The same, where it is open already.
    """
    if file is not None:
        yield from _cut(file, lambda: None)
        return
    with opened(path) as source, phase(f"reading {path}", _size(path)) as advance:
        yield from _cut(source.file, lambda: advance(source.position()))


def _cut(file: BinaryIO, after_each: Callable[[], None]) -> Iterator[bytes]:
    rest, first = b"", True
    while block := file.read(_PIECE):
        after_each()
        if first:
            block, first = block.removeprefix(b"\xef\xbb\xbf"), False
        cut = block.rfind(b"\n") + 1
        if cut:
            yield rest + block[:cut]
            rest = b""
        rest += block[cut:]
    if rest:
        yield rest


def _size(path: str | Path) -> int | None:
    return None if str(path) == STANDARD_INPUT else Path(path).stat().st_size
