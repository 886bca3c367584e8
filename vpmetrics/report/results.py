"""Results as JSON by ``results.schema.json``. Files are written whole, and replace only those of former runs.

A value that is not finite is null among the scalars; ``not_finite`` has it as text: ``nan``, ``inf``, ``-inf``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vpmetrics import __version__
from vpmetrics._scores.registry import SPEAKER, TAG, scalar, scalar_key
from vpmetrics._util.inputs import InputError, describe_error
from vpmetrics.report.comparison import Pair, find_identical_systems
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.report.summary import (
    headline_of,
    sort_checks,
    strongest_attack_and_needs,
    verdict_of,
    worst_speaker_name,
)
from vpmetrics.report.tables import average_of_groups

RESULTS = "results.json"
_UNFINISHED_SUFFIX = ".vpmetrics"  # ends the names of files that are not finished
SCHEMA = 3  # 2 had neither headline nor checks nor files
_DIFFERENCE = "difference", "low", "high", "probability_first_smaller"


class Run(NamedTuple):
    """The origin of results: the command, its settings, and the files that were read, with what each holds."""

    command: tuple[str, ...] = ()
    settings: Mapping[str, Any] = {}
    inputs: Mapping[str, str] = {}


def make_results(
    systems: Sequence[EvaluatedSystem], run: Run, pairs: Sequence[Pair] = (), files: Sequence[str] = ()
) -> dict[str, Any]:
    """Return all results as JSON has them; ``files`` are the names of all files written into the same folder."""
    keys = dict.fromkeys(key for system in systems for key in system.scalars)
    return {
        "schema": SCHEMA,
        "vpmetrics": __version__,
        "command": list(run.command),
        "settings": dict(run.settings),
        "inputs": describe_inputs(run),
        "files": sorted(files),
        "checks": [check._asdict() for check in find_identical_systems(systems)],
        "scalars": {
            entry.key: {
                "heading": entry.heading,
                "unit": entry.unit.name,
                "condition": entry.condition or None,
                "direction": entry.direction,
                "description": entry.description,
            }
            for entry in map(scalar, keys)
        },
        "systems": [_describe_system(system) for system in systems],
        "differences": [
            {
                "first": pair.first,
                "second": pair.second,
                "scalar": pair.key,
                **dict(zip(_DIFFERENCE, map(_finite_or_none, map(float, pair.difference)), strict=True)),
                "told_apart": pair.difference.is_significant,
            }
            for pair in pairs
        ],
    }


def describe_inputs(run: Run) -> list[dict[str, Any]]:
    """Return the files that were read, with size and SHA-256; folders and pipes have neither."""
    described = []
    for path, what in run.inputs.items():
        size = digest = None
        if Path(path).is_file():
            content = Path(path).read_bytes()
            size, digest = len(content), hashlib.sha256(content).hexdigest()
        described.append({"path": path, "format": what, "bytes": size, "sha256": digest})
    return described


def encode_json(results: dict[str, Any]) -> bytes:
    """Return results as a file has them; parts of file names that are no text become escapes."""
    text = json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode(errors="backslashreplace")


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _describe_system(system: EvaluatedSystem) -> dict[str, Any]:
    headline, verdict = headline_of(system), verdict_of(system)
    attack, needs = strongest_attack_and_needs(system, headline.condition) or (None, None)
    # D_ECE by condition, one value per attack.
    d_ece = {
        scalar_key(condition, "d_ece"): report.strongest.d_ece_by_attack.tolist()
        for condition, report in system.report.conditions.items()
        if report.strongest is not None
    }
    described = {
        "name": system.name,
        "headline": {
            "verdict": verdict.level,
            **{key: _finite_or_none(getattr(headline, key)) for key in ("disclosure", "low", "high")},
            "condition": headline.condition or None,
            "attack": attack,
            "needs": needs,
            "worst_speaker": worst_speaker_name(system) if "worst_speaker_disclosure" in system.scalars else None,
            "text": [verdict.title, *verdict.sentences],
        },
        "checks": [check._asdict() for check in sort_checks(system.report.checks)],
        "attacks": [
            {
                "name": name,
                "needs": means,
                "scalars": {key: values[at] for key, values in d_ece.items() if math.isfinite(values[at])},
            }
            for at, (name, means) in enumerate(system.report.attacks)
        ],
        "unattacked": system.no_attacks,
        "speakers": len(system.speakers),
        **_describe_numbers(system),
        "utility": {name: _finite_or_none(value) for name, value in system.utility.items()},
        "attributes": {
            name: {key: _finite_or_none(float(value)) for key, value in numbers.items()}
            for name, numbers in system.attributes.items()
        },
        "notes": list(system.notes),
    }
    if system.groups:
        described["groups"] = {name: _describe_numbers(group) for name, group in system.groups.items()}
    if system.groups and system.weights:
        average = {key: _describe_value(key, value, system) for key, value in average_of_groups(system).items()}
        described["average"] = {"weights": dict(system.weights), "scalars": average}
    return described


def _describe_numbers(system: EvaluatedSystem) -> dict[str, Any]:
    return {
        "scalars": {key: _describe_value(key, value, system) for key, value in system.scalars.items()},
        "not_finite": {key: str(value) for key, value in system.scalars.items() if not math.isfinite(value)},
        "utterances": system.utterances,
        "trials": {
            condition or "scores": dict(zip(("target", "nontarget"), report.num_trials, strict=True))
            for condition, report in system.report.conditions.items()
        },
    }


def _describe_value(key: str, value: float, system: EvaluatedSystem) -> float | str | None:
    unit = scalar(key).unit
    if unit is SPEAKER:
        return system.speaker_name(value)
    return unit.show(value) if unit is TAG else _finite_or_none(value)


def check_output_folder(folder: Path, ignored: Collection[str] = ()) -> None:
    """Raise for a folder that is not writable, or holds files but no ``results.json`` of a former run.

    ``ignored``: names of files that may be in it.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError("expected a folder, but got a file", folder)
        names = {path.name for path in folder.iterdir()} if folder.exists() else set[str]()
        foreign = sorted(name for name in names - set(ignored) if not name.endswith(_UNFINISHED_SUFFIX))
        if foreign and list_written_files(folder / RESULTS) is None:
            expected = f"a new folder, or one of a former run with its {RESULTS}"
            raise InputError(f"expected {expected}, but got one that holds {foreign[0]!r}; choose another name", folder)
        _check_writable(folder, folder)
    except OSError as error:
        raise InputError(f"cannot be written ({describe_error(error)})", folder) from None


def check_replaceable_file(path: Path) -> None:
    """Raise unless a file is writable and is new, empty or the results of a former run."""
    try:
        if path.is_dir():
            raise InputError("expected a file, but got a folder", path)
        if path.is_file() and path.stat().st_size and list_written_files(path) is None:
            raise InputError("holds no results of vpmetrics and would be lost; choose another name", path)
        _check_writable(path.parent, path)
    except OSError as error:
        raise InputError(f"cannot be written ({describe_error(error)})", path) from None


def _check_writable(folder: Path, wanted: Path) -> None:
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"cannot be written ({existing} is {'read-only' if existing.is_dir() else 'a file'})", wanted)


def list_written_files(results: Path) -> set[str] | None:
    """Return the names of the files that a former run lists in its results; None where these are not results."""
    try:
        content = json.loads(results.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not {"vpmetrics", "systems"} <= content.keys():
        return None
    names = content.get("files", [])
    return {name for name in names if isinstance(name, str) and Path(name).name == name} | {results.name}


def check_and_find_outdated_files(folder: Path, names: Collection[str]) -> list[Path]:
    """Raise if ``names`` would replace a file of no former run; return the former files that are not in ``names``."""
    former = list_written_files(folder / RESULTS) or set()
    foreign = [name for name in names if name not in former and (folder / name).exists()]
    if foreign:
        raise InputError("is of no former run and would be lost; choose another folder", folder / foreign[0])
    return [folder / name for name in sorted(former - set(names)) if (folder / name).is_file()]


def write_files(contents: Mapping[Path, bytes], outdated: Iterable[Path] = ()) -> None:
    """Write all files, or leave all as they were: a full disk must not destroy the results of an earlier run.

    Where the process is killed, every file is whole, and the next run into a folder removes what it did not finish.
    Files are replaced in the order of ``contents``, and ``outdated`` ones removed at the end; folders are made.
    """
    prepared, backups, replaced = dict[Path, Path](), dict[Path, Path](), list[Path]()
    path = None
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():  # a device or a pipe, which nothing can be moved over
                path.write_bytes(content)
                continue
            unfinished = f".{path.name[:100]}.{os.getpid()}"
            prepared[path] = path.with_name(f"{unfinished}.new{_UNFINISHED_SUFFIX}")
            prepared[path].write_bytes(content)
            with prepared[path].open("rb+") as file:
                os.fsync(file.fileno())  # or each replacement below waits for the disk, and a kill may come between
            if path.exists():
                backups[path] = path.with_name(f"{unfinished}.old{_UNFINISHED_SUFFIX}")
                shutil.copyfile(path, backups[path])
        for path, new in prepared.items():
            replaced.append(path)
            new.replace(path.resolve())
        replaced.clear()
        for path in set(outdated) - set(contents):
            path.unlink(missing_ok=True)
    except BaseException as error:  # Ctrl-C, too
        _restore_backups(replaced, backups)
        if isinstance(error, OSError):
            raise InputError(f"cannot be written ({describe_error(error)})", path) from None
        raise
    finally:
        folders = [path.parent for path in contents if path.name == RESULTS]
        of_killed_runs = (left for folder in folders for left in folder.glob(f".*{_UNFINISHED_SUFFIX}"))
        for left in {*prepared.values(), *backups.values(), *of_killed_runs}:
            left.unlink(missing_ok=True)


def _restore_backups(paths: Iterable[Path], backups: Mapping[Path, Path]) -> None:
    for path in paths:
        if path not in backups:  # the file is new
            path.unlink(missing_ok=True)
        elif backups[path].exists():
            backups[path].replace(path.resolve())
