"""Write results without losing files of other programs.

A folder is written whole under a name of its own next to the target, and then takes the place of
the target by rename: of two runs into one folder the last one wins whole. Only files of the names
that a run writes are ever removed.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from vpmetrics._util.inputs import InputError, describe_error

RESULTS = "results.json"
_LONGEST_NAME = 50  # letters of the target in the names next to it: file systems allow 255 bytes


def check_output_folder(folder: Path, own_names: Collection[str]) -> None:
    """Raise for a folder that cannot be replaced.

    It holds anything but the files of a former run.

    ``own_names``: the names of all files that a run may write.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError("expected a folder, but got a file", folder)
        if folder.exists():
            names = {path.name for path in folder.iterdir()}
        else:
            names = set[str]()
        foreign = sorted(names - set(own_names))
        if names and not foreign and not is_results_file(folder / RESULTS):
            foreign = sorted(names)
        if foreign:
            expected = (
                f"a new folder, or one that holds nothing but a former run with its {RESULTS}"
            )
            raise InputError(
                f"expected {expected}, but got one that holds {foreign[0]!r}; choose another name",
                folder,
            )
        target = folder.resolve()
        if target.is_mount() or target in (Path.cwd(), *Path.cwd().parents):
            raise InputError("is in use and cannot be replaced; name a new folder in it", folder)
        _check_writable(target.parent, folder)
    except OSError as error:
        raise InputError(f"cannot be written ({describe_error(error)})", folder) from None


def replace_folder(folder: Path, contents: Mapping[str, bytes], own_names: Collection[str]) -> None:
    """Write all files into a new folder, and put it in the place of ``folder``."""
    target = folder.resolve()
    new = _unique_sibling(target, "new")
    former: list[Path] = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new.mkdir()
        for name, content in contents.items():
            (new / name).write_bytes(content)
        check_output_folder(folder, own_names)
        while new.exists():
            _put_in_place(new, target, former)
    except OSError as error:
        raise InputError(f"cannot be written ({describe_error(error)})", folder) from None
    finally:
        # After an end between two renames, the former and the new folder both stay.
        is_target_moved = bool(former) and not target.exists()
        for own in () if is_target_moved else (new, *former):
            _remove_own_files(own, own_names)


def _put_in_place(new: Path, target: Path, former: list[Path]) -> None:
    """Move the new folder into the place of the target, unless another run has been quicker."""
    aside = _unique_sibling(target, "old")
    try:
        target.rename(aside)
        former.append(aside)
    except FileNotFoundError:
        pass  # there is none, or another run has just moved it
    try:
        new.rename(target)
    except OSError:
        # A folder that is not empty cannot be renamed to: another run has put its own there.
        if not target.is_dir():
            raise


def _remove_own_files(folder: Path, own_names: Collection[str]) -> None:
    """Remove a folder that this run has made or moved; files of other programs stay."""
    with suppress(OSError):
        for name in own_names:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()  # which fails where anything is left


def check_output_file(path: Path) -> None:
    """Raise unless a file is writable and is new, empty or the results of a former run."""
    try:
        if path.is_dir():
            raise InputError("expected a file, but got a folder", path)
        if path.is_file() and path.stat().st_size and not is_results_file(path):
            raise InputError(
                "holds no results of vpmetrics and would be lost; choose another name", path
            )
        _check_writable(path.absolute().parent, path)
    except OSError as error:
        raise InputError(f"cannot be written ({describe_error(error)})", path) from None


def replace_file(path: Path, content: bytes) -> None:
    """Write a file next to the target, and put it in the place of the target."""
    target = path.resolve()
    new = _unique_sibling(target, "new")
    try:
        # a device or a pipe, which nothing can be moved over
        if target.exists() and not target.is_file():
            target.write_bytes(content)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(content)
        new.replace(target)
    except OSError as error:
        raise InputError(f"cannot be written ({describe_error(error)})", path) from None
    finally:
        new.unlink(missing_ok=True)


def is_results_file(path: Path) -> bool:
    """Return whether a file holds the results of a run."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"vpmetrics", "systems"} <= content.keys()


def _unique_sibling(target: Path, role: str) -> Path:
    """Return a name next to the target that no other process has."""
    return target.with_name(f"{target.name[:_LONGEST_NAME]}.{role}-{uuid.uuid4().hex[:12]}")


def _check_writable(folder: Path, wanted: Path) -> None:
    """Raise unless a folder, or the nearest one above it that exists, can be written to."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not existing.is_dir():
        raise InputError(f"cannot be written ({existing} is a file)", wanted)
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"cannot be written ({existing} is read-only)", wanted)
