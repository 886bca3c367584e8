"""One self-contained HTML page: a verdict first, then figures, tables and what they mean.

For the screen, light or dark, the printer and a screen reader.
"""

from __future__ import annotations

import base64
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vpmetrics import __version__
from vpmetrics._report import System
from vpmetrics._scalars import HEADINGS, key_of, scalar
from vpmetrics.app.changes import Change, changes_between
from vpmetrics.app.figures import Picture
from vpmetrics.app.report import Content
from vpmetrics.app.tables import show, split_interval
from vpmetrics.app.verdict import (
    disclosed,
    easiest_speakers,
    ends,
    show_disclosed,
    strongest,
    verdict_of,
    verdict_of_systems,
)

_MOST = 0.5 / math.log(2)  # bits that calibrated scores can disclose


class Card(NamedTuple):
    """A number of the first screen; its share of the most there can be, and that of original speech, for a bar."""

    heading: str
    value: str
    unit: str
    tells: str
    share: float | None = None
    mark: float | None = None
    span: tuple[float, float] | None = None


class Glance(NamedTuple):
    """A system among others: what is disclosed under each heading, as text, and as shares of the most."""

    name: str
    headings: tuple[str, ...]
    values: tuple[tuple[str, float, tuple[float, float] | None], ...]


def render_page(content: Content, pictures: Sequence[Picture]) -> str:
    """The page as text."""
    systems = content.systems
    named = {entry.heading: entry for table in content.tables for entry in map(scalar, table.keys)}
    conditions = dict.fromkeys(name for system in systems for name in system.report.conditions if name)
    text: str = _template().render(
        version=__version__,
        title=content.title,
        lead=content.lead,
        verdict=verdict_of(systems[0]) if len(systems) == 1 else verdict_of_systems(systems, content.pairs),
        cards=_cards(systems[0]) if len(systems) == 1 else (),
        glances=[_glance(system, systems) for system in systems] if len(systems) > 1 else (),
        most=f"{_MOST:.3f}",
        names=[system.name for system in systems],
        changes=_changes(content),
        intervals=content.intervals,
        conditions=[(name, HEADINGS[name]) for name in conditions],
        notes=content.notes,
        pictures=[{**p._asdict(), "base64": base64.b64encode(p.files["png"]).decode()} for p in pictures],
        tables=content.tables,
        wide=len(systems) > 1,
        terms=list(named.values()),  # of several conditions once
        command=shlex.join(content.results["command"]),
        inputs=content.results["inputs"],
    )
    return text


def _changes(content: Content) -> list[Change]:
    """From the first to the second system, where there are two."""
    if len(content.systems) != 2:
        return []
    return changes_between(content.systems[0], content.systems[1], content.results["settings"].get("intervals"))


def _template() -> Any:
    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("page.html.jinja")


def _cards(system: System) -> list[Card]:
    attacked = system.report.attacked
    of_original = _share(system.scalar("d_ece", "OO"))
    mark = None if math.isnan(of_original) else of_original
    found = strongest(system, attacked)
    by = f"by {found.name}, which needs {found.needs}" if found else "by comparing voices; no stronger attack was tried"
    cards = [_bits(f"Learnt by an attacker{f' ({attacked})' if attacked else ''}", system, attacked, by, mark)]
    if "PP" in system.report.conditions and attacked != "PP":
        cards.append(_bits("By one who protects the same way (PP)", system, "PP", "the mark is original speech", mark))
    cards += [card for key in ("eer", "tag", "deid", "gvd") if (card := _of_scalar(key, system)) is not None]
    if system.groups:
        worst = max(system.groups, key=lambda name: disclosed(system.groups[name]))
        bits = scalar("d_ece").show(disclosed(system.groups[worst]))
        cards.append(Card("Worst group", worst, "", f"{bits} bit learnt by an attacker"))
    speakers = easiest_speakers(system)
    if speakers:
        cards.append(Card("Easiest to recognise", ", ".join(speakers), "", "of original against protected speech"))
    return cards


def _of_scalar(key: str, system: System) -> Card | None:
    """One number; an error rate as the strongest attacker has it, where one was tried."""
    condition = "" if scalar(key).family == "system" else system.report.attacked
    value, known = system.scalar(key, condition), scalar(key)
    if key_of(condition, key) not in system.scalars:
        return None
    stronger, tells = system.scalar(f"{key}_strongest", condition), known.tells
    if not math.isnan(stronger):
        key, tells = f"{key}_strongest", f"of the strongest attack, {known.show(value)} by comparing voices; {tells}"
    shown = split_interval(show(key_of(condition, key), system))
    interval = f"[{shown[1]}, {shown[2]}] " if shown[1] else ""
    return Card(known.heading, shown[0], interval + known.unit.name, tells)


def _bits(heading: str, system: System, condition: str, tells: str, mark: float | None) -> Card:
    bits = disclosed(system, condition)
    share = None if math.isnan(bits) else _share(bits)
    value, _, interval = show_disclosed(system, condition).partition(" ")
    return Card(heading, value, f"{interval} of {_MOST:.3f} bit".strip(), tells, share, mark, _span(system, condition))


def _span(system: System, condition: str) -> tuple[float, float] | None:
    """The interval of what is disclosed, as shares."""
    low, high = ends(system, condition)
    return None if math.isnan(low + high) else (_share(low), _share(high))


def _glance(system: System, systems: Sequence[System]) -> Glance:
    headings = {system.report.attacked or "scores": system.report.attacked}
    if any("PP" in other.report.conditions for other in systems):
        headings["PP"] = "PP"
    shares = [_share(disclosed(system, condition)) for condition in headings.values()]
    values = tuple(
        (show_disclosed(system, condition), 0.0 if math.isnan(share) else share, _span(system, condition))
        for condition, share in zip(headings.values(), shares, strict=True)
    )
    return Glance(system.name, tuple(headings), values)


def _share(bits: float) -> float:
    return min(max(bits / _MOST, 0.0), 1.0) if not math.isnan(bits) else math.nan
