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
from vpmetrics.app.figures import Picture
from vpmetrics.app.tables import Table
from vpmetrics.app.verdict import (
    Verdict,
    changes_between,
    disclosed,
    easiest_speakers,
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


class Glance(NamedTuple):
    """A system among others: what is disclosed under each heading, as text and as a share."""

    name: str
    headings: tuple[str, ...]
    values: tuple[tuple[str, float], ...]


class Content(NamedTuple):
    """What a page shows."""

    title: str
    lead: str
    systems: Sequence[System]
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    notes: Sequence[str]
    results: dict[str, Any]


def render_page(content: Content) -> str:
    """The page as text."""
    systems = content.systems
    keys = dict.fromkeys(key for table in content.tables for key in table.keys)
    conditions = dict.fromkeys(name for system in systems for name in system.report.conditions if name)
    text: str = _template().render(
        version=__version__,
        title=content.title,
        lead=content.lead,
        verdict=_verdict(systems),
        cards=_cards(systems[0]) if len(systems) == 1 else (),
        glances=[_glance(system, systems) for system in systems] if len(systems) > 1 else (),
        most=f"{_MOST:.3f}",
        names=[system.name for system in systems],
        changes=changes_between(*systems) if len(systems) == 2 else (),
        conditions=[(name, HEADINGS[name]) for name in conditions],
        notes=content.notes,
        pictures=[{**p._asdict(), "base64": base64.b64encode(p.files["png"]).decode()} for p in content.pictures],
        tables=content.tables,
        wide=len(systems) > 1,
        terms=[scalar(key) for key in keys],
        command=shlex.join(content.results["command"]),
        inputs=content.results["inputs"],
    )
    return text


def _template() -> Any:
    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("page.html.jinja")


def _verdict(systems: Sequence[System]) -> Verdict:
    return verdict_of(systems[0]) if len(systems) == 1 else verdict_of_systems(systems)


def _cards(system: System) -> list[Card]:
    attacked = system.report.attacked
    of_original = _share(system.scalar("d_ece", "OO"))
    mark = None if math.isnan(of_original) else of_original
    found = strongest(system, attacked)
    by = f"by {found.name}, which needs {found.needs}" if found else "by comparing voices; no stronger attack was tried"
    cards = [_bits(f"Learnt by an attacker{f' ({attacked})' if attacked else ''}", system, attacked, by, mark)]
    if "PP" in system.report.conditions and attacked != "PP":
        cards.append(_bits("By one who protects the same way (PP)", system, "PP", "the mark is original speech", mark))
    for key, condition in (("eer", attacked), ("tag", attacked), ("deid", ""), ("gvd", "")):
        known = scalar(key)
        if key_of(condition, key) in system.scalars:
            cards.append(Card(known.heading, known.show(system.scalar(key, condition)), known.unit.name, known.tells))
    if system.groups:
        worst = max(system.groups, key=lambda name: disclosed(system.groups[name]))
        bits = scalar("d_ece").show(disclosed(system.groups[worst]))
        cards.append(Card("Worst group", worst, "", f"{bits} bit learnt by an attacker"))
    speakers = easiest_speakers(system)
    if speakers:
        cards.append(Card("Easiest to recognise", ", ".join(speakers), "", "of original against protected speech"))
    return cards


def _bits(heading: str, system: System, condition: str, tells: str, mark: float | None) -> Card:
    bits = disclosed(system, condition)
    share = None if math.isnan(bits) else _share(bits)
    return Card(heading, scalar("d_ece").show(bits), f"of {_MOST:.3f} bit", tells, share, mark)


def _glance(system: System, systems: Sequence[System]) -> Glance:
    headings = {system.report.attacked or "scores": system.report.attacked}
    if any("PP" in other.report.conditions for other in systems):
        headings["PP"] = "PP"
    bits = [disclosed(system, condition) for condition in headings.values()]
    shares = [0.0 if math.isnan(_share(value)) else _share(value) for value in bits]
    return Glance(system.name, tuple(headings), tuple(zip(map(scalar("d_ece").show, bits), shares, strict=True)))


def _share(bits: float) -> float:
    return min(max(bits / _MOST, 0.0), 1.0) if not math.isnan(bits) else math.nan
