"""The results as JSON, for programs. The layout is that of ``results.schema.json`` beside this file.

A value that is not finite is null among the scalars, and ``not_finite`` says which it is: ``nan``, ``inf``, ``-inf``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vpmetrics import __version__
from vpmetrics._engine.checks import check_systems
from vpmetrics._engine.registry import SPEAKER, TAG, scalar, scalar_key
from vpmetrics._engine.report import EvaluatedSystem
from vpmetrics.cli.differences import Pair
from vpmetrics.cli.headline import checks_of, disclosure_of, strongest_attack, verdict_of, worst_speaker_name
from vpmetrics.cli.tables import average_of_groups

SCHEMA = 3  # 2 had neither headline nor checks nor files


@dataclass(frozen=True)
class Run:
    """What led to results: the command, its settings, and the files that were read, with what they turned out to be."""

    command: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)


def results_of(
    systems: Sequence[EvaluatedSystem], run: Run, pairs: Sequence[Pair] = (), files: Sequence[str] = ()
) -> dict[str, Any]:
    """Return all that is known, as JSON has it; ``files`` are the names of what is written beside it."""
    keys = dict.fromkeys(key for system in systems for key in system.scalars)
    return {
        "schema": SCHEMA,
        "vpmetrics": __version__,
        "command": list(run.command),
        "settings": dict(run.settings),
        "inputs": inputs_of(run),
        "files": sorted(files),
        "checks": [check._asdict() for check in check_systems({system.name: system.report for system in systems})],
        "scalars": {key: _description(key) for key in keys},
        "systems": [_system(system) for system in systems],
        "differences": [_difference(pair) for pair in pairs],
    }


def inputs_of(run: Run) -> list[dict[str, Any]]:
    """Return the files that were read, with what tells them from others."""
    return [{"path": path, "format": what, **_checksum(path)} for path, what in run.inputs.items()]


def as_json(results: dict[str, Any]) -> bytes:
    """Return results as a file has them; parts of file names that are no text become escapes."""
    text = json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode(errors="backslashreplace")


def _difference(pair: Pair) -> dict[str, Any]:
    names = ("difference", "low", "high", "probability_first_smaller")
    values = {name: _finite(float(part)) for name, part in zip(names, pair.difference, strict=True)}
    pairs = {"first": pair.first, "second": pair.second, "scalar": pair.key}
    return {**pairs, **values, "told_apart": pair.difference.is_significant}


def _description(key: str) -> dict[str, str | None]:
    entry = scalar(key)
    return {
        "heading": entry.heading,
        "unit": entry.unit.name,
        "condition": entry.condition or None,
        "direction": entry.direction,
        "description": entry.description,
    }


def _headline(system: EvaluatedSystem) -> dict[str, Any]:
    found, verdict = disclosure_of(system), verdict_of(system)
    name, needs = strongest_attack(system, found.condition) or (None, None)
    bits = {key: _finite(value) for key, value in zip(("disclosure", "low", "high"), found[2:], strict=True)}
    by = {"condition": found.condition or None, "attack": name, "needs": needs}
    speaker = worst_speaker_name(system) if "worst_speaker_disclosure" in system.scalars else None
    return {
        "verdict": verdict.level,
        **bits,
        **by,
        "worst_speaker": speaker,
        "text": [verdict.title, *verdict.sentences],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _system(system: EvaluatedSystem) -> dict[str, Any]:
    return {
        "name": system.name,
        "headline": _headline(system),
        "checks": [check._asdict() for check in checks_of(system)],
        "scalars": {key: _value(key, value, system) for key, value in system.scalars.items()},
        "not_finite": {key: str(value) for key, value in system.scalars.items() if not math.isfinite(value)},
        "attacks": [_attack(system, number) for number in range(len(system.report.attacks))],
        "unattacked": system.no_attacks,
        "utterances": system.utterances,
        "speakers": len(system.speakers),
        "trials": {
            condition or "scores": dict(zip(("target", "nontarget"), known.num_trials, strict=True))
            for condition, known in system.report.conditions.items()
        },
        "utility": {name: _finite(value) for name, value in system.utility.items()},
        "attributes": {
            name: {key: _finite(float(value)) for key, value in numbers.items()}
            for name, numbers in system.attributes.items()
        },
        **_groups(system),
        "notes": list(system.notes),
    }


def _attack(system: EvaluatedSystem, number: int) -> dict[str, Any]:
    """An attack by its number, and what it finds where it was tried."""
    name, needs = system.report.attacks[number]
    d_ece = {}
    for condition, known in system.report.conditions.items():
        if known.strongest is not None and bool(known.strongest.d_ece_by_attack[number].isfinite()):
            d_ece[scalar_key(condition, "d_ece")] = float(known.strongest.d_ece_by_attack[number])
    return {"name": name, "needs": needs, "scalars": d_ece}


def _groups(system: EvaluatedSystem) -> dict[str, Any]:
    if not system.groups:
        return {}
    kept = ("scalars", "not_finite", "utterances", "trials")
    groups = {name: {key: _system(group)[key] for key in kept} for name, group in system.groups.items()}
    if not system.weights:
        return {"groups": groups}
    average = {key: _value(key, value, system) for key, value in average_of_groups(system).items()}
    return {"groups": groups, "average": {"weights": dict(system.weights), "scalars": average}}


def _value(key: str, value: float, system: EvaluatedSystem) -> float | str | None:
    if (unit := scalar(key).unit) is TAG or unit is SPEAKER:
        return unit.show(value) if unit is TAG else system.speaker_name(value)
    return _finite(value)


def _checksum(path: str) -> dict[str, Any]:
    """Size and SHA-256 of a file; nothing of what came through a pipe."""
    file = Path(path)
    if not file.is_file():
        return {"bytes": None, "sha256": None}
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return {"bytes": file.stat().st_size, "sha256": digest.hexdigest()}
