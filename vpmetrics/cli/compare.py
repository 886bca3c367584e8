"""``vpmetrics compare``: several systems side by side, from recordings or embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from vpmetrics._util.inputs import InputError, quote
from vpmetrics._util.scalar import printable
from vpmetrics.cli.options import CompareOptions
from vpmetrics.cli.speech import SystemInputs, evaluate_speech
from vpmetrics.cli.terminal import publish_systems
from vpmetrics.readers.embeddings import holds_originals

_ORIGINAL = "original"  # what tables call unprotected speech


def compare(options: CompareOptions, console: Console) -> None:
    """Compare several systems."""
    inputs = []
    for name, source in name_systems(options.systems).items():
        if not options.original and holds_originals(source, options.rows.format):
            inputs.append(SystemInputs(name, source))
        else:
            # Without any originals, PP is compared.
            inputs.append(SystemInputs(name, None, options.original, (source,)))
    evaluated = evaluate_speech(inputs, options)
    lead = f"{len(evaluated.systems)} systems side by side"
    title = options.output.title or "Comparison of systems"
    publish_systems(evaluated.systems, options, title, lead, console, evaluated.samples)


def name_systems(texts: Sequence[str]) -> dict[str, str]:
    """Return the source of each system by name, from ``NAME=SOURCE`` or ``SOURCE``."""
    sources: dict[str, str] = {}
    for text in texts:
        name, equals, source = text.partition("=")
        if equals and not (name and source):
            raise InputError(f"Expected NAME=FILE, but got {quote(text)}.")
        if not equals:
            source = text
            name = Path(text.split(",")[0]).stem
        name = printable(name)
        if name == _ORIGINAL:
            got = f"{text}; {_ORIGINAL} is what tables call unprotected speech"
            raise InputError(f"Expected another name for a system (NAME=FILE), but got {got}.")
        if name in sources:
            message = "Expected every system to have a name of its own (NAME=FILE), but got"
            raise InputError(f"{message} {', '.join(texts)}.")
        sources[name] = source
    return sources
