"""A system at a glance: verdict, checks and eight numbers, as data and as text of 80 columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import wrap
from typing import NamedTuple

from vpmetrics._engine.checks import Check
from vpmetrics._engine.registry import scalar, scalar_key
from vpmetrics._engine.report import EvaluatedSystem
from vpmetrics.cli.headline import (
    MOST,
    Verdict,
    attacked_conditions,
    checks_of,
    disclosure_of,
    rank_systems,
    show_disclosed,
    strongest_attack,
    verdict_of,
    worst_speaker_name,
)
from vpmetrics.cli.tables import Cell, clean, format_cell, make_cell

WIDTH, MOST_ROWS = 80, 8
MARKS = {"ok": "✓", "warning": "!", "failed": "✗"}


class SummaryRow(NamedTuple):
    """A number of the first screen; of a disclosure also its share of the most there can be, with its interval."""

    heading: str
    cell: Cell
    unit: str
    note: str
    share: float | None = None
    span: tuple[float, float] | None = None


def summary_rows(system: EvaluatedSystem) -> list[SummaryRow]:
    """Return the eight numbers to be read first, each of a weak attacker beside that of the strongest."""
    conditions = attacked_conditions(system)
    rows = [_disclosure_row(system)]
    for key in ("d_ece", "eer"):
        rows += [row for condition in conditions for row in _attacked_row(system, condition, key)]
    if not math.isnan(system.scalar("worst_speaker_disclosure")):
        chance = scalar("disclosure").show(system.scalar("worst_speaker_chance"))
        note = f"{shorten(worst_speaker_name(system), 24)}; chance {chance}"
        rows.append(_row(system, "worst_speaker_disclosure", "worst speaker", note))
    rows += [_row(system, key, scalar(key).heading, "by comparing embeddings") for key in ("deid", "gvd")]
    for key in ("linkability", "id_rate"):
        rows += [_row(system, scalar_key(c, key), f"{c} {scalar(key).heading}".strip(), "") for c in conditions]
    return [row for row in rows if not math.isnan(row.cell.value)][:MOST_ROWS]


def summary_lines(system: EvaluatedSystem) -> list[str]:
    """Return the summary of one system as lines of at most 80 columns."""
    lines = [*verdict_lines(verdict_of(system)), "", *check_lines(checks_of(system))]
    for row in summary_rows(system):
        value = f"{row.cell.text:>7} {row.cell.interval:<16} {row.unit:<4}".rstrip()
        line = f"{row.heading:<24}{value:<30}{row.note}"
        lines += [line.rstrip()] if len(line) <= WIDTH else [f"{row.heading:<24}{value}", f"{'':<24}{row.note}"]
    return lines


def comparison_lines(systems: Sequence[EvaluatedSystem]) -> list[str]:
    """Return one line per system of at most 80 columns, the least disclosure first."""
    names = {system.name: shorten(clean(system.name), 22) for system in systems}
    width = max(6, *map(len, names.values()))
    lines = [f"{'system':<{width}}  {'disclosure [bit]':<22}{'verdict':<10}{'strongest attack'}"]
    for system in rank_systems(systems):
        found, attack = disclosure_of(system), strongest_attack(system, disclosure_of(system).condition)
        by = "none tried" if attack is None else attack[0]
        by = ", ".join(filter(None, (found.condition, by)))
        line = f"{names[system.name]:<{width}}  {show_disclosed(found):<22}{verdict_of(system).level:<10}"
        lines.append((line + shorten(by, WIDTH - len(line))).rstrip())
    return lines


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return a verdict as lines of at most 80 columns."""
    return [clean(verdict.title), *(line for sentence in verdict.sentences for line in wrap(clean(sentence), WIDTH))]


def check_lines(checks: Sequence[Check]) -> list[str]:
    """Return what does not hold, a line or more each, and how many checks do; nothing without checks."""
    wrong = [check for check in checks if check.status != "ok"]
    texts = [f"{MARKS[check.status]} {clean(check.name)}: {clean(check.message)}" for check in wrong]
    if len(checks) > len(wrong):
        texts.append(f"{MARKS['ok']} {len(checks) - len(wrong)} of {len(checks)} checks passed")
    lines = [line for text in texts for line in wrap(text, WIDTH, subsequent_indent="  ")]
    return [*lines, ""] if lines else []


def shorten(text: str, most: int) -> str:
    """Return text of at most so many characters, the middle left out."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - (most - most // 2) + 1 :]}"


def shares_of(bits: float, low: float, high: float) -> tuple[float | None, tuple[float, float] | None]:
    """Return a disclosure and its interval as shares of the most there can be; None where they are not known."""
    share, *span = (None if math.isnan(part) else min(max(part / MOST, 0.0), 1.0) for part in (bits, low, high))
    return share, None if span[0] is None or span[1] is None else (span[0], span[1])


def _disclosure_row(system: EvaluatedSystem) -> SummaryRow:
    found = disclosure_of(system)
    attack = strongest_attack(system, found.condition)
    by = attack[0] if attack else "comparing embeddings"
    note = ", ".join(filter(None, (found.condition, by)))
    return _with_share(SummaryRow("disclosure", format_cell(scalar("disclosure"), *found[2:]), "bit", note))


def _attacked_row(system: EvaluatedSystem, condition: str, key: str) -> list[SummaryRow]:
    """Return the strongest attack's number, and in the note that of comparing embeddings."""
    name, strongest = scalar_key(condition, key), scalar_key(condition, f"{key}_strongest")
    if name not in system.scalars and strongest not in system.scalars:
        return []
    heading = f"{condition} {scalar(key).heading}".strip()
    if math.isnan(system.scalar(strongest)):
        rows = [_row(system, name, heading, "no attack tried")]
    else:
        note = f"{make_cell(name, system, with_interval=False).text} by comparing"
        rows = [_row(system, strongest, f"{heading}, strongest", note)]
    return rows if key == "eer" else list(map(_with_share, rows))


def _row(system: EvaluatedSystem, name: str, heading: str, note: str) -> SummaryRow:
    if name not in system.scalars:
        return SummaryRow(heading, Cell(""), "", note)
    return SummaryRow(heading, make_cell(name, system), scalar(name).unit.name, note)


def _with_share(row: SummaryRow) -> SummaryRow:
    share, span = shares_of(row.cell.value, *row.cell.ends)
    return row._replace(share=share, span=span)
