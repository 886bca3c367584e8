"""``vpmetrics compare``: several systems, side by side."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from vpmetrics._report import System
from vpmetrics.app.differences import pairs_of
from vpmetrics.app.embeddings import Embeddings, Sources, read_embeddings
from vpmetrics.app.errors import InputError
from vpmetrics.app.evaluation import evaluate_embeddings, evaluate_trials, require_something
from vpmetrics.app.lists import Names, looks_like_key, read_key, read_scores
from vpmetrics.app.progress import phase
from vpmetrics.app.report import publish
from vpmetrics.app.settings import (
    check_output,
    check_speakers,
    confidence_of,
    metric_of,
    refuse_idle,
    run_of,
    wanted_of,
)
from vpmetrics.app.sides import holds_arrays
from vpmetrics.app.speakers import read_speakers
from vpmetrics.app.trials import label_trials

_ORIGINAL = "original"  # what tables call unprotected speech


def compare(options: Namespace, console: Console) -> None:
    """Several systems side by side."""
    check_output(options)
    named = [_named(text) for text in options.systems]
    names = [name for name, _ in named]
    if len(set(names)) < len(names) or _ORIGINAL in names:
        got = f"{', '.join(names)}; {_ORIGINAL} is what tables call unprotected speech" * (_ORIGINAL in names)
        got = got or ", ".join(names)
        raise InputError(f"Expected every system to have a name of its own (NAME=FILE), but got {got}.")
    of_arrays = options.original is not None or holds_arrays(named[0][1].split(",")[0])
    refuse_idle(options, "embeddings" if of_arrays else "score files")
    systems = (_compare_embeddings if of_arrays else _compare_scores)(options, named)
    require_something(systems)
    lead = f"{len(systems)} systems side by side"
    pairs = pairs_of(systems, confidence_of(options))
    publish(options.title, lead, systems, console, run_of(options, systems), wanted_of(options), True, pairs)


def _compare_embeddings(options: Namespace, named: Sequence[tuple[str, str]]) -> list[System]:
    metric = metric_of(options)
    systems: list[System] = []
    first: Embeddings | None = None
    for name, source in named:
        # Without a file for what is shared, every file brings its own.
        sources = (
            Sources(None, (options.original,), (source,), options.speakers)
            if options.original
            else Sources(source, speakers=options.speakers)
        )
        embeddings = read_embeddings(sources)
        first = first or embeddings
        if not torch.equal(embeddings.original, first.original):
            note = f"{name}: its original embeddings are not those of {systems[0].name}, to which `original` refers"
            embeddings = embeddings._replace(notes=(*embeddings.notes, note))
        with phase(f"scoring {name}"):
            systems.append(evaluate_embeddings(name, embeddings, metric))
    return systems


def _compare_scores(options: Namespace, named: Sequence[tuple[str, str]]) -> list[System]:
    for text in options.systems:
        if "=" not in text and "," not in text and looks_like_key(text):
            raise InputError(f"expected scores of a system, but got a key; give it as `--key {text}`", text)
    check_speakers(options, {"OP": None} if options.oo or "," in named[0][1] else {"": None})
    names = Names()
    key = None if options.key is None else read_key(options.key, names)
    shared = {"OO": read_scores(options.oo, names)} if options.oo else {}
    systems = []
    for name, source in named:
        conditions = ("OP", "PP") if "," in source else ("OP",) if shared else ("",)
        paths = source.split(",")
        if len(paths) > 2:
            raise InputError(f"Expected NAME=OP or NAME=OP,PP, but got {len(paths)} score files for {name}.")
        files = {**shared, **{c: read_scores(path, names) for c, path in zip(conditions, paths, strict=True)}}
        trials = {condition: label_trials(file, key, names, options.strict) for condition, file in files.items()}
        speakers = read_speakers(options.speakers, trials.values(), names)
        with phase(f"calibrating {name}"):
            similarity = options.similarity or "geometric"
            systems.append(evaluate_trials(name, trials, None, speakers, similarity, confidence_of(options)))
    return systems


def _named(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    return (name, source) if equals else (Path(text.split(",")[0]).stem, text)
