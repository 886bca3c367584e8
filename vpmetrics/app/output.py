"""Files written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from vpmetrics.app.errors import InputError, reason_of


def check_folder(folder: Path) -> None:
    """Refuse a folder that nothing can be written into, before hours are spent on what should go there."""
    if folder.exists() and not folder.is_dir():
        raise InputError("expected a folder, but got a file", folder)
    _check_writable(folder, folder)


def check_file(path: Path) -> None:
    """The same of a file."""
    if path.is_dir():
        raise InputError("expected a file, but got a folder", path)
    _check_writable(path.parent, path)


def _check_writable(folder: Path, wanted: Path) -> None:
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"cannot be written ({there} is {'read-only' if there.is_dir() else 'a file'})", wanted)


def write_all(contents: Mapping[Path, bytes], outdated: Iterable[Path] = ()) -> None:
    """Write files, or leave all as they were: a full disk must not cost what an earlier run has left.

    Args:
        contents: What to write where; folders are made.
        outdated: What an earlier run may have left and this one has not written.
    """
    written: dict[Path, Path] = {}
    path = None
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():  # a device or a pipe, which nothing can be moved over
                path.write_bytes(content)
                continue
            written[path] = path.with_name(f".{path.name}.{os.getpid()}")
            written[path].write_bytes(content)
        for path, part in written.items():
            part.replace(path.resolve())
        for path in set(outdated) - set(contents):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot be written ({reason_of(error)})", path) from None
    finally:
        for part in written.values():
            part.unlink(missing_ok=True)
