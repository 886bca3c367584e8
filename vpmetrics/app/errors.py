"""What the user can put right."""

from __future__ import annotations

from pathlib import Path


class InputError(Exception):
    """Something about the files or options given; its text says where, what was expected and what came."""

    def __init__(self, message: str, path: Path | str | None = None, line: int | None = None) -> None:
        where = "" if path is None else f"{path}:{line}: " if line else f"{path}: "
        super().__init__(where + message)
