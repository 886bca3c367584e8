"""A model card for the Hugging Face hub: results in its front matter, and a paragraph in words."""

from __future__ import annotations

import json
from collections.abc import Sequence

from vpmetrics import __version__
from vpmetrics._engine.report import EvaluatedSystem
from vpmetrics.cli.headline import THRESHOLDS, verdict_of
from vpmetrics.cli.summary import SummaryRow, summary_rows
from vpmetrics.cli.table_files import as_markdown
from vpmetrics.cli.tables import Cell, Table, clean


def write_model_card(systems: Sequence[EvaluatedSystem], title: str) -> str:
    """Return a model card whose ``model-index`` holds the numbers of each summary, as ``EvalResult`` reads them."""
    lines = ["---", "tags:", "- voice-privacy", "- speaker-anonymization", "model-index:"]
    for system in systems:
        lines += [
            f"- name: {_quote(system.name or title)}",
            "  results:",
            "  - task:",
            "      type: audio-to-audio",
            "      name: Speaker anonymization",
            "    dataset:",
            "      type: speech",
            f"      name: {_quote(title)}",
            "    metrics:",
        ]
        for row in summary_rows(system):
            lines += [f"    - type: {_metric_type(row)}", f"      name: {_quote(row.heading)}"]
            lines += [f"      value: {row.cell.value:.6g}"]
            if row.cell.interval:
                low, high = row.cell.ends
                lines += ["      args:", f"        low: {low:.6g}", f"        high: {high:.6g}"]
    lines += ["---", "", f"# Voice privacy of {' '.join(as_inline(title).split())}", ""]
    for system in systems:
        headline = verdict_of(system)
        name = f"{as_inline(system.name)}: " if len(systems) > 1 else ""
        lines += [f"**{name}{headline.title.lower() if name else headline.title}.** "
                  + " ".join(as_inline(sentence) for sentence in headline.sentences), ""]  # fmt: skip
        rows = tuple((Cell(row.heading), row.cell, Cell(row.unit), Cell(row.note)) for row in summary_rows(system))
        lines += [as_markdown([Table("", ("measure", "value", "unit", "note"), rows)])]
    lines += [f"{THRESHOLDS} Measured with vpmetrics {__version__}.", ""]
    return "\n".join(lines)


def as_inline(text: str) -> str:
    """Return text of a user as Markdown that shows it as it is."""
    return as_markdown([Table(clean(text), (), ())]).split("\n", 1)[0].removeprefix("**").removesuffix("**")


def _metric_type(row: SummaryRow) -> str:
    return "".join(c if c.isalnum() else "_" for c in row.heading.lower()).strip("_").replace("__", "_")


def _quote(text: str) -> str:
    """Return text as YAML reads it; JSON is YAML."""
    return json.dumps(clean(text))
