"""What the user can put right."""

from __future__ import annotations

from pathlib import Path


class InputError(Exception):
    """Something about the files or options given; its text says where, what was expected and what came."""

    def __init__(self, message: str, path: Path | str | None = None, line: int | None = None) -> None:
        where = "" if path is None else f"{path}:{line}: " if line else f"{path}: "
        super().__init__(printable(where + message))


def printable(text: str) -> str:
    """Text with control characters spelt out: a name in a file must not move the cursor of a terminal."""
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in text)


def reason_of(error: BaseException) -> str:
    """What an error of the system or of another library says, in one line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0]
