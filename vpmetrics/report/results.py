"""Results as JSON, for programs.

``version`` changes when something is removed or renamed. A value that is not finite is null among
the scalars, and ``not_finite`` has it as text: ``nan``, ``inf``, ``-inf``. Speakers and attacks are
written by name, tags as letters. Shares are from 0 to 1, whatever their unit in tables. ``groups``
and ``average`` are there where groups and weights were given; ``differences`` has all pairs of
systems measured on the same speakers. For example, shortened:

.. code-block:: json

    {
      "version": 4,
      "vpmetrics": "0.1.0",
      "command": ["vpmetrics", "evaluate", "o.npz", "p.npz", "--out", "report"],
      "settings": {"scoring": "cosine", "similarity": "geometric", "intervals": 0.95},
      "inputs": [{"path": "p.npz", "format": "npz: 60 x 256", "bytes": 61440, "sha256": "9f86d0…"}],
      "files": ["report.html", "tables.csv"],
      "checks": [],
      "scalars": {
        "op_eer": {"heading": "EER", "unit": "%", "condition": "OP", "direction": "high",
        "description": "…"}
      },
      "systems": [
        {
          "name": "p",
          "headline": {
            "level": "high", "verdict": "High speaker leakage.",
            "disclosure": 0.44, "disclosure_low": 0.37, "disclosure_high": 0.51,
            "disclosure_conversation": 0.7, "conversation_utterances": 10.0, "found_in_100": 0.45,
            "condition": "OP", "encoder": "ecapa", "attack": "fused attacks", "needs": "pairs",
            "worst_speaker": "anna", "is_worst_speaker_exposed": true,
            "risks": [
              {"name": "found_in_100", "condition": "OP", "level": "high", "value": 0.45, "low":
              0.33, "high": 0.58,
               "chance": 0.01, "limit_low": 0.03, "limit_high": 0.1, "utterances": 1}
            ],
            "text": ["From 10 utterances of one person an attacker learns …"]
          },
          "checks": [{"name": "encoder", "status": "ok", "message": "…"}],
          "attacks": [
            {"name": "centred", "needs": "protected speech", "scalars": {"op_d_ece": 0.5}, "shares":
            {"op": 0.1}}
          ],
          "unattacked": "",
          "speakers": 6,
          "scalars": {"op_eer": 0.11, "op_tag": "C", "pp_worst_speaker": "anna", "op_l_w": null},
          "not_finite": {"op_l_w": "inf"},
          "utterances": 60,
          "trials": {"OP": {"target": 540, "nontarget": 3000}},
          "rates": [
            {"scalar": "op_found_in_100", "people": 100, "gallery": 6, "distractors": 0,
             "utterances": 1, "attacker": "fused attacks", "value": 0.45, "low": 0.33,
             "high": 0.58, "chance": 0.01}
          ],
          "utility": {"WER": 4.2},
          "attributes": {"sex": {"disclosure": 0.3, "chance": 0.01}},
          "notes": []
        }
      ],
      "differences": [
        {"first": "A", "second": "B", "scalar": "disclosure", "difference": 0.1, "low": 0.05,
        "high": 0.15,
         "p_value": 0.001, "told_apart": true}
      ]
    }
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vpmetrics import __version__
from vpmetrics._scores.registry import SPEAKER, TAG, Scalar, scalar, scalar_key
from vpmetrics.report.comparison import Pair, find_identical_systems
from vpmetrics.report.difference import p_value_of
from vpmetrics.report.headline import Risk
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.report.rates import Rate, collect_rates
from vpmetrics.report.summary import (
    headline_of,
    sort_checks,
    strongest_attack_and_needs,
    verdict_of,
    worst_speaker_name,
)
from vpmetrics.report.tables import average_of_groups

if TYPE_CHECKING:
    from vpmetrics.attacks.results import ReportedAttack

VERSION = 4  # 3 had a schema beside it
_HEADLINE_NUMBERS = (
    "disclosure",
    "disclosure_low",
    "disclosure_high",
    "disclosure_conversation",
    "conversation_utterances",
    "found_in_100",
)
_RISK_NUMBERS = ("value", "low", "high", "chance", "limit_low", "limit_high", "utterances")


class Run(NamedTuple):
    """The origin of results: the command, its settings, and the files that were read.

    Each file comes with a description of its content.
    """

    command: tuple[str, ...] = ()
    settings: Mapping[str, Any] = {}
    inputs: Mapping[str, str] = {}


def make_results(
    systems: Sequence[EvaluatedSystem],
    run: Run,
    pairs: Sequence[Pair] = (),
    files: Sequence[str] = (),
) -> dict[str, Any]:
    """Return all results as JSON has them.

    ``files`` are the names of all files written into the same folder.
    """
    keys: dict[str, None] = {}
    for system in systems:
        keys |= dict.fromkeys(system.scalars)
    return {
        "version": VERSION,
        "vpmetrics": __version__,
        "command": list(run.command),
        "settings": dict(run.settings),
        "inputs": describe_inputs(run),
        "files": sorted(files),
        "checks": [check._asdict() for check in find_identical_systems(systems)],
        "scalars": {key: _describe_entry(scalar(key)) for key in keys},
        "systems": [_describe_system(system) for system in systems],
        "differences": [_describe_pair(pair) for pair in pairs],
    }


def _describe_entry(entry: Scalar) -> dict[str, Any]:
    """Return what a number means."""
    return {
        "heading": entry.heading,
        "unit": entry.unit.name,
        "condition": entry.condition or None,
        "direction": entry.direction,
        "description": entry.description,
    }


def _describe_pair(pair: Pair) -> dict[str, Any]:
    """Return by how much two systems differ."""
    difference = pair.difference
    return {
        "first": pair.system,
        "second": pair.other_system,
        "scalar": pair.key,
        "difference": _finite_or_none(float(difference.value)),
        "low": _finite_or_none(float(difference.low)),
        "high": _finite_or_none(float(difference.high)),
        "p_value": _finite_or_none(p_value_of(difference)),
        "told_apart": pair.is_told_apart,
    }


def describe_inputs(run: Run) -> list[dict[str, Any]]:
    """Return the files that were read, with size and SHA-256; folders and pipes have neither."""
    described = []
    for path, what in run.inputs.items():
        size = digest = None
        if Path(path).is_file():
            content = Path(path).read_bytes()
            size = len(content)
            digest = hashlib.sha256(content).hexdigest()
        described.append({"path": path, "format": what, "bytes": size, "sha256": digest})
    return described


def encode_json(results: dict[str, Any]) -> bytes:
    """Return results as a file has them; parts of file names that are no text become escapes."""
    text = json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode(errors="backslashreplace")


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _describe_attack(attack: ReportedAttack) -> dict[str, Any]:
    scalars: dict[str, Any] = {}
    for condition, value in attack.d_ece.items():
        scalars[scalar_key(condition, "d_ece")] = value
    shares = {condition.lower(): value for condition, value in attack.share.items()}
    return {"name": attack.name, "needs": attack.needs, "scalars": scalars, "shares": shares}


def _describe_headline(system: EvaluatedSystem) -> dict[str, Any]:
    headline = headline_of(system)
    verdict = verdict_of(system)
    attack = strongest_attack_and_needs(system, headline.condition)
    numbers = {key: _finite_or_none(getattr(headline, key)) for key in _HEADLINE_NUMBERS}
    return {
        "level": verdict.level,
        "verdict": verdict.title,
        **numbers,
        "condition": headline.condition or None,
        "encoder": headline.encoder or None,
        "attack": None if attack is None else attack[0],
        "needs": headline.needs or None,
        "worst_speaker": headline.worst_speaker and worst_speaker_name(system),
        "is_worst_speaker_exposed": headline.is_speaker_exposed,
        "risks": [_describe_risk(risk) for risk in headline.risks],
        "text": list(verdict.sentences),
    }


def _describe_risk(risk: Risk) -> dict[str, Any]:
    numbers = {key: _finite_or_none(getattr(risk, key)) for key in _RISK_NUMBERS}
    return {"name": risk.name, "condition": risk.condition or None, "level": risk.level, **numbers}


def _describe_rate(rate: Rate) -> dict[str, Any]:
    search = rate.search
    return {
        "scalar": scalar_key(search.condition, rate.key),
        "people": rate.people,
        "gallery": search.gallery or None,
        "distractors": search.distractors,
        "utterances": search.utterances,
        "attacker": search.attacker,
        "value": _finite_or_none(rate.value),
        "low": _finite_or_none(rate.low),
        "high": _finite_or_none(rate.high),
        "chance": _finite_or_none(rate.chance),
    }


def _describe_system(system: EvaluatedSystem) -> dict[str, Any]:
    described = {
        "name": system.name,
        "headline": _describe_headline(system),
        "checks": [check._asdict() for check in sort_checks(system.report.checks)],
        "attacks": [_describe_attack(attack) for attack in system.report.attacks],
        "unattacked": system.no_attacks,
        "speakers": len(system.speakers),
        **_describe_numbers(system),
        "rates": [_describe_rate(rate) for rate in collect_rates(system)],
        "utility": {name: _finite_or_none(value) for name, value in system.utility.items()},
        "attributes": _describe_attributes(system),
        "notes": list(system.notes),
    }
    if system.groups:
        groups: dict[str, Any] = {}
        for name, group in system.groups.items():
            groups[name] = _describe_numbers(group)
        described["groups"] = groups
    if system.groups and system.weights:
        averages: dict[str, float | str | None] = {}
        for key, value in average_of_groups(system).items():
            averages[key] = _describe_value(key, value, system)
        described["average"] = {"weights": dict(system.weights), "scalars": averages}
    return described


def _describe_attributes(system: EvaluatedSystem) -> dict[str, Any]:
    described: dict[str, Any] = {}
    for name, numbers in system.attributes.items():
        described[name] = {key: _finite_or_none(float(value)) for key, value in numbers.items()}
    return described


def _describe_numbers(system: EvaluatedSystem) -> dict[str, Any]:
    scalars: dict[str, float | str | None] = {}
    not_finite: dict[str, str] = {}
    for key, value in system.scalars.items():
        scalars[key] = _describe_value(key, value, system)
        if not math.isfinite(value):
            not_finite[key] = str(value)
    trials: dict[str, dict[str, int]] = {}
    for condition, report in system.report.conditions.items():
        num_targets, num_nontargets = report.num_trials
        trials[condition or "scores"] = {"target": num_targets, "nontarget": num_nontargets}
    return {
        "scalars": scalars,
        "not_finite": not_finite,
        "utterances": system.utterances,
        "trials": trials,
    }


def _describe_value(key: str, value: float, system: EvaluatedSystem) -> float | str | None:
    unit = scalar(key).unit
    if unit is SPEAKER:
        return system.speaker_name(value)
    if unit is TAG:
        return unit.show(value)
    return _finite_or_none(value)
