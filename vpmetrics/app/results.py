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
from vpmetrics._report import System
from vpmetrics._scalars import SPEAKER, TAG, key_of, scalar
from vpmetrics.app.differences import Pair
from vpmetrics.app.tables import average_of_groups

SCHEMA = 2  # 1 had neither settings nor inputs


@dataclass(frozen=True)
class Run:
    """What led to results: the command, its settings, and the files that were read, with what they turned out to be."""

    command: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)


def results_of(systems: Sequence[System], run: Run, pairs: Sequence[Pair] = ()) -> dict[str, Any]:
    """All that is known, as JSON has it."""
    keys = dict.fromkeys(key for system in systems for key in system.scalars)
    return {
        "schema": SCHEMA,
        "vpmetrics": __version__,
        "command": list(run.command),
        "settings": dict(run.settings),
        "inputs": [{"path": path, "format": what, **_checksum(path)} for path, what in run.inputs.items()],
        "scalars": {key: _described(key) for key in keys},
        "systems": [_system(system) for system in systems],
        "differences": [_difference(pair) for pair in pairs],
    }


def as_json(systems: Sequence[System], run: Run, pairs: Sequence[Pair] = ()) -> bytes:
    """The same as a file."""
    return as_file(results_of(systems, run, pairs))


def as_file(results: dict[str, Any]) -> bytes:
    """Results as a file has them."""
    return f"{json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False)}\n".encode()


def _difference(pair: Pair) -> dict[str, Any]:
    names = ("difference", "low", "high", "probability_first_smaller")
    values = {name: float(part) for name, part in zip(names, pair.found, strict=True)}
    known = {name: value if math.isfinite(value) else None for name, value in values.items()}
    return {
        "first": pair.first,
        "second": pair.second,
        "scalar": pair.key,
        **known,
        "told_apart": pair.found.told_apart,
    }


def _described(key: str) -> dict[str, str | None]:
    known = scalar(key)
    return {
        "heading": known.heading,
        "unit": known.unit.name,
        "condition": known.condition or None,
        "private": known.private,
        "tells": known.tells,
    }


def _system(system: System) -> dict[str, Any]:
    return {
        "name": system.name,
        "scalars": {key: _value(key, value, system) for key, value in system.scalars.items()},
        "not_finite": {key: str(value) for key, value in system.scalars.items() if not math.isfinite(value)},
        "attacks": [_attack(system, number) for number in range(len(system.attacks))],
        "unattacked": system.unattacked,
        "utterances": system.utterances,
        "speakers": len(system.speakers),
        "trials": {
            condition or "scores": dict(zip(("target", "nontarget"), known.trials, strict=True))
            for condition, known in system.report.conditions.items()
        },
        **_groups(system),
        "notes": list(system.notes),
    }


def _attack(system: System, number: int) -> dict[str, Any]:
    """An attack by its number, and what it finds where it was tried."""
    name, needs = system.attacks[number]
    d_ece = {}
    for condition, known in system.report.conditions.items():
        if known.strongest is not None and bool(known.strongest.each[number].isfinite()):
            d_ece[key_of(condition, "d_ece")] = float(known.strongest.each[number])
    return {"name": name, "needs": needs, "scalars": d_ece}


def _groups(system: System) -> dict[str, Any]:
    if not system.groups:
        return {}
    kept = ("scalars", "not_finite", "utterances", "trials")
    groups = {name: {key: _system(group)[key] for key in kept} for name, group in system.groups.items()}
    if not system.weights:
        return {"groups": groups}
    average = {key: _value(key, value, system) for key, value in average_of_groups(system).items()}
    return {"groups": groups, "average": {"weights": dict(system.weights), "scalars": average}}


def _value(key: str, value: float, system: System) -> float | str | None:
    if (unit := scalar(key).unit) is TAG or unit is SPEAKER:
        return unit.show(value) if unit is TAG else system.name_of(value)
    return value if math.isfinite(value) else None


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
