"""``vpmetrics compare``: several systems, side by side."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from vpmetrics._engine.report import EvaluatedSystem
from vpmetrics.cli.challenge import has_results
from vpmetrics.cli.differences import pairs_of
from vpmetrics.cli.embeddings import Embeddings, Sources, read_embeddings
from vpmetrics.cli.errors import InputError, quote
from vpmetrics.cli.evaluate import (
    check_output,
    check_speakers,
    evaluate_folder,
    evaluate_recordings,
    evaluate_sides,
    holds_embeddings,
    metric_of,
    output_of,
    read_speakers,
    refuse_idle,
    run_of,
    with_utility,
)
from vpmetrics.cli.evaluation import evaluate_trials, require_something
from vpmetrics.cli.options import confidence_of
from vpmetrics.cli.progress import show_progress
from vpmetrics.cli.recordings import cache_folder, holds_recordings
from vpmetrics.cli.report import publish
from vpmetrics.cli.scores import label_trials, read_key, read_scores

_ORIGINAL = "original"  # what tables call unprotected speech


def compare(options: Namespace, console: Console) -> None:
    """Compare several systems."""
    check_output(options)
    named = [_named(text) for text in options.systems]
    names = [name for name, _ in named]
    if len(set(names)) < len(names) or _ORIGINAL in names:
        got = f"{', '.join(names)}; {_ORIGINAL} is what tables call unprotected speech" * (_ORIGINAL in names)
        got = got or ", ".join(names)
        raise InputError(f"Expected every system to have a name of its own (NAME=FILE), but got {got}.")
    first = Path(named[0][1])
    if options.original is None and first.is_dir() and has_results(first):
        systems = [system for name, folder in named for system in evaluate_folder(Path(folder), options, name)]
    elif options.original is not None and holds_recordings(options.original):
        refuse_idle(options, "recordings")
        with cache_folder(options) as cache:
            each = (evaluate_recordings(name, options.original, source, options, cache) for name, source in named)
            systems = [system for several in each for system in several]
    elif options.original is not None or holds_embeddings(named[0][1].split(",")[0], options):
        refuse_idle(options, "embeddings")
        systems = _compare_embeddings(options, named)
    else:
        refuse_idle(options, "score files")
        systems = _compare_scores(options, named)
    systems = with_utility(options, systems)
    require_something(systems)
    lead = f"{len(systems)} systems side by side"
    pairs = pairs_of(systems, confidence_of(options))
    publish(options.title, lead, systems, console, run_of(options, systems), output_of(options), True, pairs)


def _compare_embeddings(options: Namespace, named: Sequence[tuple[str, str]]) -> list[EvaluatedSystem]:
    metric = metric_of(options)
    systems: list[EvaluatedSystem] = []
    first: Embeddings | None = None
    shared = Sources(
        speakers=options.speakers,
        speaker_pattern=options.speaker_pattern,
        strip_suffix=options.strip_suffix,
        kind=options.format,
    )
    for name, source in named:
        # Without a file for what is shared, every file brings its own.
        sources = shared._replace(original=(options.original,), protected=(source,))
        sources = sources if options.original else shared._replace(container=source)
        embeddings = read_embeddings(sources, options.partial)
        first = first or embeddings
        if not torch.equal(embeddings.original, first.original):
            note = f"{name}: its original embeddings are not those of {systems[0].name}, to which `original` refers"
            embeddings = embeddings._replace(notes=(*embeddings.notes, note))
        with show_progress(f"scoring {name}"):
            systems.append(evaluate_sides(name, embeddings, options, metric))
    return systems


def _compare_scores(options: Namespace, named: Sequence[tuple[str, str]]) -> list[EvaluatedSystem]:
    check_speakers(options, {"OP": None} if options.oo or "," in named[0][1] else {"": None})
    key = None if options.key is None else read_key(options.key, options.key_columns)
    shared = {"OO": read_scores(options.oo, options.score_columns)} if options.oo else {}
    systems = []
    for name, source in named:
        conditions = ("OP", "PP") if "," in source else ("OP",) if shared else ("",)
        paths = source.split(",")
        if len(paths) > 2:
            raise InputError(f"Expected NAME=OP or NAME=OP,PP, but got {len(paths)} score files for {name}.")
        pairs = zip(conditions, paths, strict=False)
        files = {**shared, **{condition: read_scores(path, options.score_columns) for condition, path in pairs}}
        trials = {condition: label_trials(file, key, options.strict) for condition, file in files.items()}
        with show_progress(f"calibrating {name}"):
            similarity, speaker_of = options.similarity or "geometric", read_speakers(options, trials.values())
            systems.append(evaluate_trials(name, trials, None, speaker_of, similarity, confidence_of(options)))
    return systems


def _named(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    if equals and not (name and source):
        raise InputError(f"Expected NAME=FILE, but got {quote(text)}.")
    return (name, source) if equals else (Path(text.split(",")[0]).stem, text)
