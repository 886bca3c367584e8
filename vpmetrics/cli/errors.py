"""Errors that the user can correct."""

from __future__ import annotations

from pathlib import Path

_LONGEST_MESSAGE = 1000


class InputError(Exception):
    """Something is wrong with a file or an option; the text says where, what was expected and what came."""

    def __init__(self, message: str, path: Path | str | None = None, line: int | None = None) -> None:
        where = (
            "" if path is None else f"{shorten(str(path), 200)}:{line}: " if line else f"{shorten(str(path), 200)}: "
        )
        super().__init__(printable(shorten(where + message, _LONGEST_MESSAGE)))


def shorten(text: str, width: int = 60) -> str:
    """Return a text of at most ``width`` characters: of a long one, its start and its end."""
    half = (width - 1) // 2
    return text if len(text) <= width else f"{text[:half]}…{text[-half:]}"


def quote(value: object) -> str:
    """Return a value as it is shown in messages."""
    return shorten(repr(value))


def printable(text: str) -> str:
    """Return a text with control characters spelt out: a name in a file must not move the cursor of a terminal."""
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in text)


def reason_of(error: BaseException) -> str:
    """Return the first line of what an error of the system or of another library says."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return shorten(str(text).splitlines()[0], 200)
