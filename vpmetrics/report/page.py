"""One self-contained HTML page with its figures.

It is made for the screen, light or dark, for the printer and for a screen reader.
"""

from __future__ import annotations

import base64
import io
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from PIL import Image

from vpmetrics import __version__
from vpmetrics._scores.registry import CONDITION_TITLES, DASH, scalar
from vpmetrics.report import summary
from vpmetrics.report.comparison import collect_checks, verdict_of_systems
from vpmetrics.report.figures import FIGURES, PAGE, draw_all_figures
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.report.results import describe_inputs
from vpmetrics.report.tables import (
    Cell,
    Table,
    condition_with_challenge_name,
    conditions_in_table_order,
)
from vpmetrics.report.verdict import CONVERSATION

if TYPE_CHECKING:
    from vpmetrics.report.outputs import Content

_CSS_DPI = 96  # pixels of CSS in an inch
# pixels of a panel whose letters can still be read when a phone of 390 pixels shrinks it
_WIDEST_LEGIBLE = 520
_PANEL_MARGIN = 4  # pixels around a panel
# of all pictures, so that a page that holds them in base64 stays below a megabyte
_MOST_BYTES = 650_000
_DATE_KEYS = {"svg": "Date", "pdf": "CreationDate"}  # of the metadata of each format
_NAME_DESCRIPTIONS = {  # where a table shows a name, not the number that stands for it
    "worst_speaker": "name of the speaker who is protected worst",
}


class Panel(NamedTuple):
    """A part of a figure that can stand alone: a PNG file, and its width in pixels of CSS."""

    png: bytes
    width: int


class Picture(NamedTuple):
    """A figure, drawn: a file for every format, and its panels.

    A narrow screen shows one panel below the other.
    """

    key: str
    title: str
    description: str
    files: Mapping[str, bytes]
    panels: Sequence[Panel]


def draw_figures(
    systems: Sequence[EvaluatedSystem], formats: Sequence[str] = ("png",)
) -> list[Picture]:
    """Draw all figures that have data.

    They are PNG files for the page, and files of the other formats that are asked for.
    """
    drawn = draw_all_figures(systems, PAGE)
    pictures = []
    for dpi in (150, 110, 80):
        pngs = {key: _draw_small_png(figure, dpi) for key, figure in drawn.items()}
        if sum(map(len, pngs.values())) < _MOST_BYTES:
            break
    for figure_kind in FIGURES:
        figure = drawn.get(figure_kind.key)
        if figure is None:
            continue
        png = pngs[figure_kind.key]
        files = {"png": png} | _draw_other_formats(figure, formats)
        panels = _cut_into_panels(figure, png, dpi)
        title = figure_kind.title
        pictures.append(Picture(figure_kind.key, title, figure_kind.description, files, panels))
    return pictures


def _draw_other_formats(figure: Figure, formats: Sequence[str]) -> dict[str, bytes]:
    """Return a figure in all formats but PNG; equal figures give equal files."""
    files: dict[str, bytes] = {}
    # no dates, no random names
    with rc_context({"svg.hashsalt": "vpmetrics", "svg.fonttype": "none", "pdf.fonttype": 42}):
        for name in sorted({*formats} - {"png"}):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=name, metadata={_DATE_KEYS[name]: None})
            files[name] = buffer.getvalue()
    return files


def _draw_small_png(figure: Figure, dpi: int) -> bytes:
    """Return a picture of few colours, which is a third as large and looks the same."""
    buffer = io.BytesIO()
    small = io.BytesIO()
    # it is compressed below
    figure.savefig(buffer, format="png", dpi=dpi, pil_kwargs={"compress_level": 0})
    Image.open(buffer).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(
        small, "PNG", optimize=True
    )
    return small.getvalue()


def _cut_into_panels(figure: Figure, png: bytes, dpi: int) -> list[Panel]:
    """Return the panels of a figure in the order of reading.

    Each with its labels, legend and colour bar.
    """
    boxes = _boxes_of_panels(figure)
    if len(boxes) == 1:
        return [Panel(png, round(_CSS_DPI * figure.get_figwidth()))]
    picture = Image.open(io.BytesIO(png))
    scale = dpi / figure.dpi
    panels = []
    for box in boxes:
        left = max(0, math.floor(scale * box.x0) - _PANEL_MARGIN)
        right = min(picture.width, math.ceil(scale * box.x1) + _PANEL_MARGIN)
        # Pictures count from the top, figures from the bottom.
        top = max(0, math.floor(picture.height - scale * box.y1) - _PANEL_MARGIN)
        bottom = min(picture.height, math.ceil(picture.height - scale * box.y0) + _PANEL_MARGIN)
        buffer = io.BytesIO()
        picture.crop((left, top, right, bottom)).save(buffer, "PNG", optimize=True)
        panels.append(Panel(buffer.getvalue(), round(_CSS_DPI / dpi * (right - left))))
    return panels


def _boxes_of_panels(figure: Figure) -> list[Bbox]:
    """Return the extent of each panel in pixels of the figure, row by row."""
    boxes: list[Bbox] = []
    for ax in figure.axes:
        box = ax.get_tightbbox()
        if box is None:
            continue
        if ax.get_label() == "<colorbar>":  # drawn after its panel, and part of it
            boxes[-1] = Bbox.union([boxes[-1], box])
        else:
            boxes.append(Bbox(box))
    return boxes


class Glance(NamedTuple):
    """A system at a glance: its level of leakage, what each condition discloses, and utilities."""

    name: str
    level: str
    disclosures: list[Cell]
    utilities: list[str]


def _glance_at(
    system: EvaluatedSystem, conditions: Sequence[str], utilities: Sequence[str]
) -> Glance:
    texts = []
    for name in utilities:
        value = system.utility.get(name, math.nan)
        texts.append(DASH if math.isnan(value) else f"{value:.4g}")
    disclosures = [summary.disclosure_in_condition(system, name) for name in conditions]
    return Glance(system.name, summary.verdict_of(system).level, disclosures, texts)


def _describe_terms(keys: Iterable[str]) -> dict[str, str]:
    """Return the description of each scalar by its heading."""
    terms: dict[str, str] = {}
    for key in keys:
        entry = scalar(key)
        terms[entry.heading] = _NAME_DESCRIPTIONS.get(key, entry.description)
    return terms


def render_page(content: Content, pictures: Sequence[Picture]) -> str:
    """Return the HTML page, with figures and recordings inside it."""
    systems = content.systems
    several = len(systems) > 1
    conditions: dict[str, None] = {}
    attacked: dict[str, None] = {}
    utilities: dict[str, None] = {}
    for system in systems:
        conditions |= dict.fromkeys(name for name in conditions_in_table_order(system) if name)
        attacked |= dict.fromkeys(summary.conditions_meant_to_hide(system))
        utilities |= dict.fromkeys(system.utility)
    glances = []
    if several:
        for system in summary.sort_by_dataset_and_disclosure(systems):
            glances.append(_glance_at(system, list(attacked), list(utilities)))
    verdict = summary.verdict_of(systems[0])
    people = ""
    if several:
        verdict = verdict_of_systems(systems, content.pairs)
        people = summary.describe_people(systems[0])  # one system says it in its verdict
    risks: list[summary.RiskRow] = []
    cards: list[summary.SummaryRow] = []
    if not several:
        risks = summary.risk_rows(systems[0])
        cards = summary.summary_rows(systems[0])
    keys = {"disclosure": None}
    for table in content.tables:
        keys |= dict.fromkeys(table.keys)
    samples = []
    for sample in content.samples:
        original = base64.b64encode(sample.original).decode()
        protected = base64.b64encode(sample.protected).decode()
        samples.append((sample.speaker, sample.label, original, protected))
    conditions_and_titles: list[tuple[str, str]] = []
    for name in conditions:
        heading = condition_with_challenge_name(name, systems)
        conditions_and_titles.append((heading, CONDITION_TITLES[name]))
    tables_by_fold: list[tuple[str, list[Table]]] = []
    for fold, tables in groupby(content.tables, lambda table: table.fold):
        tables_by_fold.append((fold, list(tables)))
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    template = environment.get_template("page.html.jinja")
    return template.render(
        version=__version__,
        title=content.title,
        lead=content.lead,
        headline=verdict,
        checks=collect_checks(systems),
        marks=summary.MARKS,
        rule=summary.RULE,
        limits_in_words=summary.LIMITS,
        limits=[
            100 * CONVERSATION.limit_low / summary.MOST_BITS,
            100 * CONVERSATION.limit_high / summary.MOST_BITS,
        ],
        people=people,
        risks=risks,
        cards=cards,
        utilities=list(utilities),
        attacked=[condition or "scores" for condition in attacked],
        glances=glances,
        shares_of=summary.shares_of,
        most=f"{summary.MOST_BITS:.3f}",
        intervals=content.intervals,
        conditions=conditions_and_titles,
        notes=content.notes,
        pictures=pictures,
        widest_legible=_WIDEST_LEGIBLE,
        encode=lambda png: base64.b64encode(png).decode(),
        tables=tables_by_fold,
        samples=samples,
        terms=_describe_terms(keys),
        command=shlex.join(content.run.command),
        inputs=describe_inputs(content.run),
    )
