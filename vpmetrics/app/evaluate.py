"""``vpmetrics evaluate`` and ``vpmetrics compare``: from files to what is reported of them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.status import Status

from vpmetrics._report import System
from vpmetrics.app.embeddings import Embeddings, Sources, read_embeddings
from vpmetrics.app.errors import InputError
from vpmetrics.app.evaluation import evaluate_embeddings, evaluate_trials, require_something
from vpmetrics.app.lists import Names, TrialFile, looks_like_key, read_key, read_scores
from vpmetrics.app.output import check_file, check_folder
from vpmetrics.app.report import publish
from vpmetrics.app.sides import holds_arrays
from vpmetrics.app.trials import label_trials, speakers_of
from vpmetrics.suite import VoicePrivacy


def evaluate(options: Namespace, console: Console) -> None:
    """One system."""
    _check_output(options)
    with progress("reading and scoring"):
        system = _evaluate_one(options)
        require_something([system])
    lead = f"Voice privacy of {_sources(options)}"
    publish(system.name, lead, [system], console, options.out, options.json)


def compare(options: Namespace, console: Console) -> None:
    """Several systems side by side."""
    _check_output(options)
    named = [_named(text) for text in options.systems]
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        raise InputError(f"Expected every system to have a name of its own (NAME=FILE), but got {', '.join(names)}.")
    with progress("reading and scoring"):
        of_arrays = options.original is not None or holds_arrays(named[0][1].split(",")[0])
        systems = (_compare_embeddings if of_arrays else _compare_scores)(options, named)
        require_something(systems)
    lead = f"{len(systems)} systems side by side"
    publish(options.title, lead, systems, console, options.out, options.json, side_by_side=True)


def _check_output(options: Namespace) -> None:
    if options.out is not None:
        check_folder(options.out)
    if options.json is not None:
        check_file(options.json)


def progress(text: str) -> Status:
    """A sign of life on a terminal, on the stream that is not the result."""
    return Console(stderr=True).status(text)


def _evaluate_one(options: Namespace) -> System:
    scored = {name: getattr(options, name.lower()) for name in ("OO", "OP", "PP")}
    scored = {name: path for name, path in scored.items() if path is not None}
    sides = options.original or options.protected
    if sides or (options.inputs and holds_arrays(options.inputs[0])):
        if scored or options.key or options.fit or len(options.inputs) > 1:
            raise InputError("Expected embeddings or score files, but got both.")
        container = options.inputs[0] if options.inputs else None
        sides = tuple(options.original or ()), tuple(options.protected or ())
        sources = Sources(container, *sides, options.speakers, options.utterances)
        metric = VoicePrivacy(similarity=options.similarity, scoring=options.scoring)
        return evaluate_embeddings(_title(options), read_embeddings(sources, options.partial), metric)
    if options.inputs:
        if scored or (len(options.inputs) > 1 and options.key) or len(options.inputs) > 2:
            raise InputError("Expected SCORES and KEY, or --oo, --op, --pp with --key, but got a mixture.")
        scored = {"": options.inputs[0]}
        options.key = options.inputs[1] if len(options.inputs) > 1 else options.key
    if not scored:
        raise InputError("Expected embeddings or score files, but got neither; see `vpmetrics evaluate --help`.")
    return _evaluate_scores(options, scored)


def _evaluate_scores(options: Namespace, scored: Mapping[str, str]) -> System:
    names = Names()
    key = _key(options.key, names)
    files = {condition: read_scores(path, names) for condition, path in scored.items()}
    fit = None
    if options.fit:
        if "" not in scored and "OP" not in scored:
            raise InputError("Expected the scores that --fit is to calibrate: SCORES or --op.")
        if len(options.fit) > 2:
            raise InputError(f"Expected --fit SCORES [KEY], but got {len(options.fit)} files.")
        fit_file = read_scores(options.fit[0], names)
        fit_key = read_key(options.fit[1], names) if len(options.fit) > 1 else None
        if fit_key is None and fit_file.is_target is None:
            fit_key = key
        fit = label_trials(fit_file, fit_key, names, options.strict)
    trials = {condition: label_trials(file, key, names, options.strict) for condition, file in files.items()}
    return evaluate_trials(_title(options), trials, fit, *speakers_of(options.speakers, trials.values(), names))


def _compare_embeddings(options: Namespace, named: Sequence[tuple[str, str]]) -> list[System]:
    metric = VoicePrivacy(similarity=options.similarity, scoring=options.scoring)
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
        systems.append(evaluate_embeddings(name, embeddings, metric))
    return systems


def _compare_scores(options: Namespace, named: Sequence[tuple[str, str]]) -> list[System]:
    for text in options.systems:
        if "=" not in text and "," not in text and looks_like_key(text):
            raise InputError(f"expected scores of a system, but got a key; give it as `--key {text}`", text)
    names = Names()
    key = _key(options.key, names)
    shared = {"OO": read_scores(options.oo, names)} if options.oo else {}
    systems = []
    for name, source in named:
        conditions = ("OP", "PP") if "," in source else ("OP",) if shared else ("",)
        paths = source.split(",")
        if len(paths) > 2:
            raise InputError(f"Expected NAME=OP or NAME=OP,PP, but got {len(paths)} score files for {name}.")
        files = {**shared, **{c: read_scores(path, names) for c, path in zip(conditions, paths, strict=True)}}
        trials = {condition: label_trials(file, key, names, options.strict) for condition, file in files.items()}
        systems.append(evaluate_trials(name, trials, None, *speakers_of(options.speakers, trials.values(), names)))
    return systems


def _key(path: str | None, names: Names) -> TrialFile | None:
    return None if path is None else read_key(path, names)


def _named(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    return (name, source) if equals else (Path(text.split(",")[0]).stem, text)


def _title(options: Namespace) -> str:
    if options.title:
        return str(options.title)
    sides = options.original or (), options.protected or ()
    given = (*options.inputs, *sides[1], options.op, options.pp, options.oo, *sides[0])
    first = next(source for source in given if source)
    return Path(first).name


def _sources(options: Namespace) -> str:
    sides = *(options.original or ()), *(options.protected or ())
    given = (*options.inputs, *sides, options.oo, options.op, options.pp, options.key)
    return ", ".join(dict.fromkeys(str(source) for source in given if source))
