"""``vpmetrics evaluate``: one system, from files to what is reported of them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from vpmetrics._report import System
from vpmetrics._trials.scorers import Scoring
from vpmetrics.app.attacked import Attackable, with_attacks
from vpmetrics.app.challenge import find_results
from vpmetrics.app.embeddings import Sources, read_embeddings
from vpmetrics.app.errors import InputError, printable
from vpmetrics.app.evaluation import (
    NONE_WANTED,
    evaluate_embeddings,
    evaluate_listed,
    evaluate_trials,
    require_something,
)
from vpmetrics.app.listed import score_listed
from vpmetrics.app.lists import Names, TrialFile, read_key, read_scores
from vpmetrics.app.progress import phase
from vpmetrics.app.protocol import read_protocol, read_weights
from vpmetrics.app.recipes import read_results
from vpmetrics.app.report import publish
from vpmetrics.app.settings import (
    check_output,
    check_speakers,
    confidence_of,
    metric_of,
    refuse_idle,
    run_of,
    scoring_of,
    wanted_of,
)
from vpmetrics.app.sides import Files, holds_arrays
from vpmetrics.app.speakers import read_speakers
from vpmetrics.app.trials import Trials, label_trials


def evaluate(options: Namespace, console: Console) -> None:
    """One system."""
    check_output(options)
    systems = _route_of(options)(options)
    require_something(systems)
    title, lead = _title(options), f"Voice privacy of {_sources(options)}"
    several = len(systems) > 1
    publish(title, lead, systems, console, run_of(options, systems), wanted_of(options), side_by_side=several)


def _route_of(options: Namespace) -> Callable[[Namespace], list[System]]:
    """What to do with the files given."""
    if options.inputs and Path(options.inputs[0]).is_dir():
        return _evaluate_results
    scored = options.oo or options.op or options.pp
    of_embeddings = options.original or options.protected or (options.inputs and holds_arrays(options.inputs[0]))
    if of_embeddings and (scored or options.key or options.fit or len(options.inputs) > 1):
        raise InputError("Expected embeddings or score files, but got both.")
    if not (of_embeddings or scored or options.inputs):
        raise InputError("Expected embeddings or score files, but got neither; see `vpmetrics evaluate --help`.")
    if not of_embeddings:
        refuse_idle(options, "score files")
        return _evaluate_scores
    listed = options.trials is not None
    refuse_idle(options, "a list of trials" if listed else "embeddings")
    return _evaluate_listed if listed else _evaluate_embeddings


def _evaluate_embeddings(options: Namespace) -> list[System]:
    embeddings = read_embeddings(_sides(options), options.partial)
    with phase(f"scoring {_title(options)}"):
        weights = read_weights(options.weights, set(embeddings.group_names))
        return [evaluate_embeddings(_title(options), embeddings, metric_of(options), weights)]


def _evaluate_listed(options: Namespace) -> list[System]:
    sources = _sides(options)
    files = Files(sources.container)
    sides = files.side(sources.original, "original"), files.side(sources.protected, "protected")
    protocol = read_protocol(options.trials, options.enrolls, options.speakers, options.groups, options.weights)
    scoring = scoring_of(options)
    listed = score_listed(*sides, protocol, scoring)
    system = evaluate_listed(_title(options), listed, protocol.weights, confidence_of(options))
    return [_attacked(system, [Attackable(*sides, protocol)], scoring, options)]


def _evaluate_results(options: Namespace) -> list[System]:
    if len(options.inputs) > 1:
        raise InputError(f"Expected one folder of results, but got {len(options.inputs)} inputs.")
    found, systems = find_results(Path(options.inputs[0])), []
    scored = all(results.scored for results in found)
    refuse_idle(options, "a folder of scores" if scored else "a folder of embeddings")
    scoring = "cosine" if scored else scoring_of(options)
    for results in found:
        listed, sets = read_results(results, scoring, options.speakers)
        weights = read_weights(options.weights, set(listed.groups)) or results.weights()
        name = printable(results.name) if len(found) > 1 else _title(options)
        system = evaluate_listed(name, listed, weights, confidence_of(options))
        systems.append(_attacked(system, sets, scoring, options))
    return systems


def _attacked(system: System, sets: Sequence[Attackable], scoring: Scoring, options: Namespace) -> System:
    if options.no_attacks:
        return replace(system, unattacked=NONE_WANTED)
    if not sets:
        return system
    with phase(f"attacking {system.name}"):
        return with_attacks(system, sets, scoring, confidence_of(options))


def _sides(options: Namespace) -> Sources:
    container = options.inputs[0] if options.inputs else None
    sides = tuple(options.original or ()), tuple(options.protected or ())
    return Sources(container, *sides, options.speakers, options.utterances, options.enrolls, options.groups)


def _evaluate_scores(options: Namespace) -> list[System]:
    scored, key_file = _score_files(options)
    check_speakers(options, scored)
    names = Names()
    key = None if key_file is None else read_key(key_file, names)
    # All files before any is labelled: names have to be known by then.
    files = {condition: read_scores(path, names) for condition, path in scored.items()}
    fit = _read_fit(options, scored, key, names)
    trials = {condition: label_trials(file, key, names, options.strict) for condition, file in files.items()}
    speakers, similarity = read_speakers(options.speakers, trials.values(), names), options.similarity or "geometric"
    with phase(f"calibrating {_title(options)}"):
        return [evaluate_trials(_title(options), trials, fit, speakers, similarity, confidence_of(options))]


def _score_files(options: Namespace) -> tuple[dict[str, str], str | None]:
    """Scores by condition, and their key."""
    named = {name: getattr(options, name.lower()) for name in ("OO", "OP", "PP")}
    scored = {name: path for name, path in named.items() if path is not None}
    if not options.inputs:
        return scored, options.key
    if scored or (len(options.inputs) > 1 and options.key) or len(options.inputs) > 2:
        raise InputError("Expected SCORES and KEY, or --oo, --op, --pp with --key, but got a mixture.")
    return {"": options.inputs[0]}, [*options.inputs, options.key][1]


def _read_fit(options: Namespace, scored: Mapping[str, str], key: TrialFile | None, names: Names) -> Trials | None:
    """The run that a calibration is learnt on; its key is that of the scores where it brings no labels."""
    if not options.fit:
        return None
    if "" not in scored and "OP" not in scored:
        raise InputError("Expected the scores that --fit is to calibrate: SCORES or --op.")
    if len(options.fit) > 2:
        raise InputError(f"Expected --fit SCORES [KEY], but got {len(options.fit)} files.")
    file = read_scores(options.fit[0], names)
    own = read_key(options.fit[1], names) if len(options.fit) > 1 else None
    return label_trials(file, key if own is None and file.is_target is None else own, names, options.strict)


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
