"""``vpmetrics evaluate`` and ``vpmetrics compare``: from files to what is reported of them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console

from vpmetrics._report import System
from vpmetrics._trials.scorers import Scoring
from vpmetrics.app.attacked import with_attacks
from vpmetrics.app.challenge import find_results
from vpmetrics.app.embeddings import Embeddings, Sources, read_embeddings, read_plda
from vpmetrics.app.errors import InputError, printable
from vpmetrics.app.evaluation import evaluate_embeddings, evaluate_listed, evaluate_trials, require_something
from vpmetrics.app.files import STANDARD_INPUT, files_seen
from vpmetrics.app.listed import score_listed
from vpmetrics.app.lists import Names, TrialFile, looks_like_key, read_key, read_scores
from vpmetrics.app.output import check_file, check_folder
from vpmetrics.app.progress import phase
from vpmetrics.app.protocol import read_protocol, read_weights
from vpmetrics.app.recipes import read_results
from vpmetrics.app.report import Wanted, publish
from vpmetrics.app.results import Run
from vpmetrics.app.sides import Files, holds_arrays
from vpmetrics.app.trials import label_trials, speakers_of
from vpmetrics.suite import VoicePrivacy

# What each kind of input makes use of, beside what concerns the output.
_ALWAYS = {"command", "run", "argv", "inputs", "systems", "title", "out", "json", "figures"}
_COMPARED = {"scoring", "plda_fit", "speakers", "no_attacks"}
_SIDES = {"original", "protected", "enrolls", "groups", "weights"}
_USED = {
    "embeddings": _COMPARED
    | {"original", "protected", "similarity", "utterances", "partial", "enrolls", "groups", "weights", "people"},
    "a list of trials": _COMPARED | {"original", "protected", "trials", "enrolls", "groups", "weights"},
    "a folder of results": {"scoring", "plda_fit", "speakers", "weights"},
    "score files": {"oo", "op", "pp", "key", "strict", "fit", "speakers", "similarity"},
}
_NAMES = {"speakers": "utt2spk"}
_ORIGINAL = "original"  # what tables call unprotected speech


def evaluate(options: Namespace, console: Console) -> None:
    """One system."""
    _check_output(options)
    systems = _route_of(options)(options)
    require_something(systems)
    title, lead = _title(options), f"Voice privacy of {_sources(options)}"
    several = len(systems) > 1
    publish(title, lead, systems, console, *_run_and_wanted(options, systems), side_by_side=several)


def compare(options: Namespace, console: Console) -> None:
    """Several systems side by side."""
    _check_output(options)
    named = [_named(text) for text in options.systems]
    names = [name for name, _ in named]
    if len(set(names)) < len(names) or _ORIGINAL in names:
        got = f"{', '.join(names)}; {_ORIGINAL} is what tables call unprotected speech" * (_ORIGINAL in names)
        got = got or ", ".join(names)
        raise InputError(f"Expected every system to have a name of its own (NAME=FILE), but got {got}.")
    of_arrays = options.original is not None or holds_arrays(named[0][1].split(",")[0])
    _refuse_idle(options, "embeddings" if of_arrays else "score files")
    systems = (_compare_embeddings if of_arrays else _compare_scores)(options, named)
    require_something(systems)
    lead = f"{len(systems)} systems side by side"
    publish(options.title, lead, systems, console, *_run_and_wanted(options, systems), side_by_side=True)


def _run_and_wanted(options: Namespace, systems: Sequence[System]) -> tuple[Run, Wanted]:
    hidden = {"run", "argv", "out", "json", "figures", "command", "title"}
    given = {key: value for key, value in vars(options).items() if key not in hidden and value not in (None, False, [])}
    of_embeddings = any(known.identification for known in systems[0].report.conditions.values())
    defaults = {"scoring": "cosine", "similarity": "geometric"} if of_embeddings else {}
    run = Run(("vpmetrics", *options.argv), {**defaults, **given}, files_seen())
    return run, Wanted(options.out, options.json, options.figures)


def _check_output(options: Namespace) -> None:
    if options.out is not None:
        check_folder(options.out)
    if options.json is not None:
        check_file(options.json)
    given = [value for option in vars(options).values() for value in (option if isinstance(option, list) else [option])]
    if given.count(STANDARD_INPUT) > 1:
        raise InputError(f"Expected one file from standard input, but got {STANDARD_INPUT} more than once.")


def _refuse_idle(options: Namespace, what: str) -> None:
    """An option that would do nothing is a misunderstanding."""
    for name, value in vars(options).items():
        if name not in _ALWAYS | _USED[what] and value not in (None, False, []):
            option = _NAMES.get(name, name).replace("_", "-")
            raise InputError(f"Expected no --{option} with {what}: it would do nothing.")


def _route_of(options: Namespace) -> Callable[[Namespace], list[System]]:
    """What to do with the files given."""
    if options.inputs and Path(options.inputs[0]).is_dir():
        _refuse_idle(options, "a folder of results")
        return _evaluate_results
    scored = options.oo or options.op or options.pp
    of_embeddings = options.original or options.protected or (options.inputs and holds_arrays(options.inputs[0]))
    if of_embeddings and (scored or options.key or options.fit or len(options.inputs) > 1):
        raise InputError("Expected embeddings or score files, but got both.")
    if not (of_embeddings or scored or options.inputs):
        raise InputError("Expected embeddings or score files, but got neither; see `vpmetrics evaluate --help`.")
    if not of_embeddings:
        _refuse_idle(options, "score files")
        return _evaluate_scores
    listed = options.trials is not None
    _refuse_idle(options, "a list of trials" if listed else "embeddings")
    return _evaluate_listed if listed else _evaluate_embeddings


def _evaluate_embeddings(options: Namespace) -> list[System]:
    embeddings = read_embeddings(_sides(options), options.partial)
    with phase(f"scoring {_title(options)}"):
        weights = read_weights(options.weights, set(embeddings.group_names))
        return [evaluate_embeddings(_title(options), embeddings, _metric(options), weights)]


def _evaluate_listed(options: Namespace) -> list[System]:
    sources = _sides(options)
    files = Files(sources.container)
    sides = files.side(sources.original, "original"), files.side(sources.protected, "protected")
    protocol = read_protocol(options.trials, options.enrolls, options.speakers, options.groups, options.weights)
    scoring = _scoring(options)
    system = evaluate_listed(_title(options), score_listed(*sides, protocol, scoring), protocol.weights)
    if options.no_attacks:
        return [system]
    with phase(f"attacking {_title(options)}"):
        return [with_attacks(system, *sides, protocol, scoring)]


def _evaluate_results(options: Namespace) -> list[System]:
    if len(options.inputs) > 1:
        raise InputError(f"Expected one folder of results, but got {len(options.inputs)} inputs.")
    found, systems = find_results(Path(options.inputs[0])), []
    for results in found:
        listed = read_results(results, _scoring(options), options.speakers)
        weights = read_weights(options.weights, set(listed.groups)) or results.weights()
        name = results.name if len(found) > 1 else _title(options)
        systems.append(evaluate_listed(printable(name), listed, weights))
    return systems


def _sides(options: Namespace) -> Sources:
    container = options.inputs[0] if options.inputs else None
    sides = tuple(options.original or ()), tuple(options.protected or ())
    return Sources(container, *sides, options.speakers, options.utterances, options.enrolls, options.groups)


def _metric(options: Namespace) -> VoicePrivacy:
    enrolment = "speaker" if getattr(options, "enrolls", None) else None
    attacks = None if options.no_attacks else "standard"
    made = {"attacks": attacks, "enrolment": enrolment, "sizes": options.people}
    return VoicePrivacy(options.similarity or "geometric", _scoring(options), **made)


def _scoring(options: Namespace) -> Scoring:
    if (options.scoring == "plda") != (options.plda_fit is not None):
        raise InputError("Expected --scoring plda and --plda-fit FILE together, but got one without the other.")
    return read_plda(options.plda_fit, options.speakers) if options.plda_fit else options.scoring or "cosine"


def _evaluate_scores(options: Namespace) -> list[System]:
    scored = {name: getattr(options, name.lower()) for name in ("OO", "OP", "PP")}
    scored = {name: path for name, path in scored.items() if path is not None}
    key_file = options.key
    if options.inputs:
        if scored or (len(options.inputs) > 1 and key_file) or len(options.inputs) > 2:
            raise InputError("Expected SCORES and KEY, or --oo, --op, --pp with --key, but got a mixture.")
        scored, key_file = {"": options.inputs[0]}, [*options.inputs, key_file][1]
    _check_speakers(options, scored)
    names = Names()
    key = _key(key_file, names)
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
    speakers = speakers_of(options.speakers, trials.values(), names)
    with phase(f"calibrating {_title(options)}"):
        return [evaluate_trials(_title(options), trials, fit, speakers, options.similarity)]


def _check_speakers(options: Namespace, conditions: Mapping[str, object]) -> None:
    """Matrices are of a condition, and need speakers."""
    if options.speakers and set(conditions) == {""}:
        raise InputError("Expected --oo, --op or --pp with --utt2spk: without a condition it would do nothing.")
    if options.similarity and not options.speakers:
        raise InputError("Expected --utt2spk with --similarity: without matrices it would do nothing.")


def _compare_embeddings(options: Namespace, named: Sequence[tuple[str, str]]) -> list[System]:
    metric = _metric(options)
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
    _check_speakers(options, {"OP": None} if options.oo or "," in named[0][1] else {"": None})
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
        speakers = speakers_of(options.speakers, trials.values(), names)
        with phase(f"calibrating {name}"):
            systems.append(evaluate_trials(name, trials, None, speakers, options.similarity))
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
