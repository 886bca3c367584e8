"""Files written whole or not at all, and only where nothing of anybody else's is lost."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from vpmetrics.cli.errors import InputError, reason_of

RESULTS = "results.json"


def check_folder(folder: Path, ignored: Collection[str] = ()) -> None:
    """Raise for a folder that results cannot go into: of somebody else, or not writable.

    Args:
        folder: A new or empty folder, or one of a former run, which its ``results.json`` tells.
        ignored: Names that may stand in it, too.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError("expected a folder, but got a file", folder)
        foreign = sorted({path.name for path in folder.iterdir()} - set(ignored)) if folder.exists() else []
        if foreign and written_files(folder / RESULTS) is None:
            expected = f"a new folder, or one of a former run with its {RESULTS}"
            raise InputError(f"expected {expected}, but got one that holds {foreign[0]!r}; choose another name", folder)
        _check_writable(folder, folder)
    except OSError as error:
        raise InputError(f"cannot be written ({reason_of(error)})", str(folder)[:200]) from None


def check_file(path: Path) -> None:
    """Raise for a file that results cannot go into: one that holds anything but results, or is not writable."""
    try:
        if path.is_dir():
            raise InputError("expected a file, but got a folder", path)
        if path.is_file() and path.stat().st_size and written_files(path) is None:
            raise InputError("holds no results of vpmetrics and would be lost; choose another name", path)
        _check_writable(path.parent, path)
    except OSError as error:
        raise InputError(f"cannot be written ({reason_of(error)})", str(path)[:200]) from None


def written_files(results: Path) -> set[str] | None:
    """Return the names of files that a former run wrote beside its results; None where these are not results."""
    try:
        content = json.loads(results.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not {"vpmetrics", "systems"} <= content.keys():
        return None
    names = content.get("files", [])
    return {name for name in names if isinstance(name, str) and Path(name).name == name} | {results.name}


def outdated_files(folder: Path, names: Collection[str]) -> list[Path]:
    """Return what a former run wrote into a folder and this one does not; raise for a file of somebody else's."""
    former = written_files(folder / RESULTS) or set()
    foreign = [name for name in names if name not in former and (folder / name).exists()]
    if foreign:
        raise InputError("is of no former run and would be lost; choose another folder", folder / foreign[0])
    return [folder / name for name in sorted(former - set(names)) if (folder / name).is_file()]


def write_all(contents: Mapping[Path, bytes], outdated: Iterable[Path] = ()) -> None:
    """Write files, or leave all as they were: a full disk must not cost what an earlier run has left.

    Args:
        contents: What to write where, in the order in which files are replaced; folders are made.
        outdated: Files to remove after all others are written.
    """
    written: dict[Path, Path] = {}
    path = None
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():  # a device or a pipe, which nothing can be moved over
                path.write_bytes(content)
                continue
            written[path] = path.with_name(f".{path.name[:100]}.{os.getpid()}")
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


def _check_writable(folder: Path, wanted: Path) -> None:
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"cannot be written ({there} is {'read-only' if there.is_dir() else 'a file'})", wanted)
