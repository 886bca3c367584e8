"""One self-contained HTML page: verdict and checks first, then numbers, figures, and what they mean.

For the screen, light or dark, the printer and a screen reader.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vpmetrics import __version__
from vpmetrics._engine.checks import Check, check_systems
from vpmetrics._engine.headline import HIGH_LEAKAGE, LOW_LEAKAGE
from vpmetrics._engine.registry import CONDITION_TITLES, scalar
from vpmetrics.cli.differences import verdict_of_systems
from vpmetrics.cli.figures import Picture
from vpmetrics.cli.headline import (
    MOST,
    THRESHOLDS,
    attacked_conditions,
    checks_of,
    disclosed_in,
    rank_systems,
    verdict_of,
)
from vpmetrics.cli.results import inputs_of
from vpmetrics.cli.summary import MARKS, shares_of, summary_rows
from vpmetrics.cli.tables import conditions_of, format_cell, name_condition

if TYPE_CHECKING:
    from vpmetrics._engine.report import EvaluatedSystem
    from vpmetrics.cli.report import Content

_NAMED = {  # where a table shows a name, not the number that stands for it
    "strongest": "name of the attack that finds most, chosen on other speakers than it is counted on",
    "worst_speaker": "name of the speaker who is protected worst",
}


class Bar(NamedTuple):
    """What a condition of a system discloses: as text, as a share of the most there is, and its interval as shares."""

    text: str
    interval: str
    share: float | None
    span: tuple[float, float] | None


def render_page(content: Content, pictures: Sequence[Picture]) -> str:
    """Return the page as text."""
    systems = content.systems
    several = len(systems) > 1
    conditions = dict.fromkeys(name for system in systems for name in conditions_of(system) if name)
    text: str = _template().render(
        version=__version__,
        title=content.title,
        lead=content.lead,
        headline=verdict_of_systems(systems, content.pairs) if several else verdict_of(systems[0]),
        checks=_checks(systems),
        marks=MARKS,
        thresholds=THRESHOLDS,
        limits=[(100 * bits / MOST, f"{bits:g}") for bits in (LOW_LEAKAGE, HIGH_LEAKAGE)],
        cards=[] if several else summary_rows(systems[0]),
        glances=_glances(systems) if several else ((), []),
        most=f"{MOST:.3f}",
        intervals=content.intervals,
        conditions=[(name_condition(name, systems), CONDITION_TITLES[name]) for name in conditions],
        notes=content.notes,
        pictures=[(p, base64.b64encode(p.files["png"]).decode()) for p in pictures],
        tables=[(fold, list(tables)) for fold, tables in groupby(content.tables, lambda table: table.fold)],
        samples=[
            (s.speaker, s.label, *(base64.b64encode(wav).decode() for wav in (s.original, s.protected)))
            for s in content.samples
        ],
        terms=_terms(content),
        command=shlex.join(content.run.command),
        inputs=inputs_of(content.run),
    )
    return text


def _template() -> Any:
    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("page.html.jinja")


def _checks(systems: Sequence[EvaluatedSystem]) -> list[Check]:
    found = [*check_systems({system.name: system.report for system in systems})]
    for system in systems:
        name = f"{system.name}: " if len(systems) > 1 else ""
        found += [check._replace(name=f"{name}{check.name}") for check in checks_of(system)]
    return sorted(found, key=lambda check: list(MARKS).index(check.status), reverse=True)


def _glances(systems: Sequence[EvaluatedSystem]) -> tuple[Sequence[str], list[tuple[str, str, list[Bar]]]]:
    """Return the attacked conditions, and of each system its name, its verdict and what each condition discloses."""
    conditions = list(dict.fromkeys(name for system in systems for name in attacked_conditions(system)))
    rows = []
    for system in rank_systems(systems):
        found = [disclosed_in(system, condition) for condition in conditions]
        cells = [format_cell(scalar("disclosure"), *each[2:]) for each in found]
        bars = [Bar(cell.text, cell.interval, *shares_of(cell.value, *cell.ends)) for cell in cells]
        rows.append((system.name, verdict_of(system).level, bars))
    return [condition or "scores" for condition in conditions], rows


def _terms(content: Content) -> list[tuple[str, str]]:
    """Return what each measure shown is, once."""
    keys = dict.fromkeys(["disclosure", *(key for table in content.tables for key in table.keys)])
    entries = {scalar(key).heading: _NAMED.get(key, scalar(key).description) for key in keys}
    return list(entries.items())
