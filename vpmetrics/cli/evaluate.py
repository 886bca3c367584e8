"""``vpmetrics evaluate``: one system, from files to what is reported of them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from vpmetrics._engine.report import EvaluatedSystem
from vpmetrics._engine.scorers import Scoring
from vpmetrics.cli.attacked import Attackable, with_attacks
from vpmetrics.cli.challenge import find_results, read_result
from vpmetrics.cli.comparison import check_columns
from vpmetrics.cli.embeddings import Embeddings, Files, Sources, locate, read_embeddings, read_plda, strip_suffix
from vpmetrics.cli.errors import InputError, printable, quote
from vpmetrics.cli.evaluation import (
    combine_systems,
    evaluate_embeddings,
    evaluate_listed,
    evaluate_trials,
    require_something,
    with_attributes,
)
from vpmetrics.cli.formats import READERS, is_embedding_file
from vpmetrics.cli.inputs import recorded_files, suffix_of
from vpmetrics.cli.options import confidence_of
from vpmetrics.cli.output import check_file, check_folder
from vpmetrics.cli.progress import show_progress
from vpmetrics.cli.recordings import cache_folder, embed_sides, encoders_of, holds_recordings, pick_samples
from vpmetrics.cli.report import OutputOptions, publish
from vpmetrics.cli.results import Run
from vpmetrics.cli.scores import TrialFile, Trials, has_scores, label_trials, read_key, read_map, read_scores
from vpmetrics.cli.trials import check_listed, read_enrolled, read_protocol, read_weights, score_listed
from vpmetrics.cli.utility import find_utility, read_utility
from vpmetrics.suite import VoicePrivacy

# What each kind of input makes use of, beside what concerns the output.
_ALWAYS = {"command", "argv", "inputs", "systems", "title", "out", "json", "figures", "intervals", "utility"} | {
    *("all", "columns", "latex_intervals", "workers", "samples"),
}
_SCORED = {"original", "protected", "speakers", "speaker_pattern", "strip_suffix", "scoring", "plda_fit", "no_attacks"}
_PAIRED = _SCORED | {"similarity", "rank_model", "population", "partial", "attributes"}
_USED = {
    "recordings": (_PAIRED - {"plda_fit"}) | {"encoder", "feature", "device", "no_audio", "references", "enrolls"},
    "embeddings": _PAIRED | {"format", "utterances", "sessions", "references", "enrolls", "groups", "weights"},
    "a list of trials": _SCORED | {"format", "trials", "enrolls", "groups", "weights", "key_columns"},
    "a folder of embeddings": {"scoring", "plda_fit", "no_attacks", "weights", "speakers"},
    "a folder of scores": {"weights", "speakers"},
    "score files": {"oo", "op", "pp", "key", "strict", "fit", "speakers", "similarity", "score_columns", "key_columns"},
}


def evaluate(options: Namespace, console: Console) -> None:
    """Evaluate one system."""
    check_output(options)
    systems = _route_of(options)(options)
    require_something(systems)
    lead = f"Voice privacy of {printable(', '.join(_sources(options)))}"
    several = len(systems) > 1
    publish(_title(options), lead, systems, console, run_of(options, systems), output_of(options), side_by_side=several)


def check_output(options: Namespace) -> None:
    """Raise for what cannot be written, and for formats nobody reads, before anything is computed."""
    check_columns(options.columns)
    if options.out is not None:
        check_folder(options.out)
    if options.json is not None and str(options.json) != "-":
        check_file(options.json)
    if options.format is not None and options.format not in READERS:
        raise InputError(f"Expected --format to be one of {', '.join(READERS)}, but got {quote(options.format)}.")


def refuse_idle(options: Namespace, what: str) -> None:
    """Raise for an option that would do nothing, which is a misunderstanding."""
    for name, value in vars(options).items():
        if name not in _ALWAYS | _USED[what] and value not in (None, False, []):
            option = {"speakers": "utt2spk"}.get(name, name).replace("_", "-")
            raise InputError(f"Expected no --{option} with {what}: it would do nothing.")


def _route_of(options: Namespace) -> Callable[[Namespace], list[EvaluatedSystem]]:
    """Return what to do with the files given."""
    inputs, scored = options.inputs, options.oo or options.op or options.pp
    sides = [*(options.original or ()), *(options.protected or ())]
    if len(inputs) == 1 and Path(inputs[0]).is_dir() and not sides:
        return _evaluate_results
    is_audio = any(holds_recordings(source) for source in (*inputs, *sides))
    of_embeddings = sides or is_audio or any(holds_embeddings(each, options) for each in inputs)
    if of_embeddings and (scored or options.key or options.fit):
        raise InputError("Expected embeddings or score files, but got both.")
    if not (of_embeddings or scored or inputs):
        raise InputError("Expected embeddings or score files, but got neither; see `vpmetrics evaluate --help`.")
    if not of_embeddings:
        refuse_idle(options, "score files")
        return _evaluate_scores
    if len(inputs) == 2 and not sides:
        options.original, options.protected, options.inputs = [inputs[0]], [inputs[1]], []
    elif len(inputs) > 1:
        raise InputError(f"Expected one file of embeddings, or one of each side, but got {len(inputs)}.")
    if is_audio:
        refuse_idle(options, "recordings")
        return _evaluate_recordings
    listed = options.trials is not None
    refuse_idle(options, "a list of trials" if listed else "embeddings")
    return _evaluate_listed if listed else _evaluate_embeddings


def holds_embeddings(source: str, options: Namespace) -> bool:
    """Return whether an input is a file or folder of embeddings, by its suffix; tables may hold scores as well."""
    path, name = locate(source)
    path = path or source
    if options.format is not None or name is not None or Path(path).is_dir():
        return True
    is_table = suffix_of(path) in ("csv", "tsv", "parquet") and Path(path).is_file()
    return is_embedding_file(path) and not (is_table and (options.key or has_scores(path)))


def _evaluate_recordings(options: Namespace) -> list[EvaluatedSystem]:
    sides = options.original or [], options.protected or []
    if [len(side) for side in sides] != [1, 1]:
        raise InputError("Expected one folder of original and one of protected recordings.")
    with cache_folder(options) as cache:
        return with_utility(options, evaluate_recordings(_title(options), sides[0][0], sides[1][0], options, cache))


def evaluate_recordings(
    name: str, original: str, protected: str, options: Namespace, cache: Path
) -> list[EvaluatedSystem]:
    """Evaluate one system from its recordings: by each encoder, and before these by the best of them."""
    systems: dict[str, EvaluatedSystem] = {}
    encoders = encoders_of(options)
    for encoder in encoders:
        embeddings, files = embed_sides(original, protected, encoder, options, references_of(options), cache)
        short = Path(encoder).stem if Path(encoder).exists() else encoder
        called = name if len(encoders) == 1 else f"{name}, {short}"
        metric = metric_of(options, "euclidean" if encoder == "f0" else None)
        with show_progress(f"scoring {called}"):
            systems[short] = evaluate_sides(called, embeddings, options, metric)
        if options.out is not None and not options.no_audio and not getattr(options, "samples", None):
            options.samples = pick_samples(systems[short], embeddings, files)
    return combine_systems(name, systems)


def evaluate_sides(
    name: str,
    embeddings: Embeddings,
    options: Namespace,
    metric: VoicePrivacy,
    weights: Mapping[str, float] | None = None,
) -> EvaluatedSystem:
    """Evaluate a system by its embeddings, and what they tell of attributes."""
    system = evaluate_embeddings(name, embeddings, metric, weights)
    if options.attributes is None:
        return system
    return with_attributes(system, embeddings, options.attributes, confidence_of(options))


def _evaluate_embeddings(options: Namespace) -> list[EvaluatedSystem]:
    embeddings = read_embeddings(_sides(options), options.partial)
    with show_progress(f"scoring {_title(options)}"):
        weights = read_weights(options.weights, set(embeddings.group_names))
        system = evaluate_sides(_title(options), embeddings, options, metric_of(options), weights)
    return with_utility(options, [system])


def _evaluate_listed(options: Namespace) -> list[EvaluatedSystem]:
    sources = _sides(options)
    files = Files(sources.container, sources.kind)
    sides = [
        strip_suffix(files.side(getattr(sources, role), role), sources.strip_suffix)
        for role in ("original", "protected")
    ]
    speaker_of = {} if options.speakers is None else read_map(options.speakers)
    group_of = {} if options.groups is None else read_map(options.groups, ("utterance", "group"))
    enrolled = read_enrolled(options.enrolls, speaker_of)
    protocol = read_protocol(options.trials, enrolled, speaker_of, group_of, options.key_columns)
    scoring, weights = scoring_of(options), read_weights(options.weights, set(group_of.values()))
    listed = score_listed(sides[0], sides[1], protocol, scoring)
    system = evaluate_listed(_title(options), listed, weights, confidence_of(options))
    return with_utility(options, [_attacked(system, [Attackable(sides[0], sides[1], protocol)], scoring, options)])


def _evaluate_results(options: Namespace) -> list[EvaluatedSystem]:
    return with_utility(options, evaluate_folder(Path(options.inputs[0]), options, ""))


def evaluate_folder(folder: Path, options: Namespace, name: str) -> list[EvaluatedSystem]:
    """Evaluate all systems, datasets and attackers of a results folder of a challenge."""
    found = find_results(folder)
    scored = all(result.is_scored for result in found)
    refuse_idle(options, "a folder of scores" if scored else "a folder of embeddings")
    scoring = "cosine" if scored else scoring_of(options)
    several = {field: len({getattr(one, field) for one in found}) > 1 for field in ("system", "dataset", "attacker")}
    by_attacker: dict[str, dict[str, EvaluatedSystem]] = {}
    for result in found:
        listed, sets = read_result(result, scoring, options.speakers)
        weights = read_weights(getattr(options, "weights", None), set(listed.groups)) or result.weights
        system = name if name and not several["system"] else f"{name} {result.system}".strip()
        called = printable(f"{system} {result.dataset}" if several["dataset"] else system)
        attacker = result.attacker or "another attacker"
        evaluated = evaluate_listed(
            f"{called}, {attacker}" if several["attacker"] else called, listed, weights, confidence_of(options)
        )
        evaluated = replace(
            evaluated,
            dataset=result.dataset,
            attack_models=result.attack_models,
            utility=find_utility(folder, result.suffix, result.dataset, not several["system"]),
        )
        by_attacker.setdefault(called, {})[attacker] = _attacked(evaluated, sets, scoring, options)
    return [system for called, each in by_attacker.items() for system in combine_systems(called, each)]


def _attacked(
    system: EvaluatedSystem, sets: Sequence[Attackable], scoring: Scoring, options: Namespace
) -> EvaluatedSystem:
    if not sets:
        return system
    with show_progress(f"attacking {system.name}"):
        return with_attacks(system, sets, scoring, confidence_of(options), not options.no_attacks)


def _sides(options: Namespace) -> Sources:
    return Sources(
        container=options.inputs[0] if options.inputs else None,
        original=tuple(options.original or ()),
        protected=tuple(options.protected or ()),
        speakers=options.speakers,
        utterances=options.utterances,
        sessions=options.sessions,
        references=references_of(options),
        groups=options.groups,
        speaker_pattern=options.speaker_pattern,
        strip_suffix=options.strip_suffix,
        kind=options.format,
    )


def references_of(options: Namespace) -> str | None:
    """Return the list of enrolment utterances, compared each by itself or as the mean of a speaker's."""
    references, enrolls = (getattr(options, name, None) for name in ("references", "enrolls"))
    if references and enrolls:
        raise InputError("Expected --references or --enrolls, but got both.")
    return references or enrolls


def _evaluate_scores(options: Namespace) -> list[EvaluatedSystem]:
    scored, key_file = _score_files(options)
    check_speakers(options, scored)
    key = None if key_file is None else read_key(key_file, options.key_columns)
    files = {condition: read_scores(path, options.score_columns) for condition, path in scored.items()}
    fit = _read_fit(options, scored, key)
    trials = {condition: label_trials(file, key, options.strict) for condition, file in files.items()}
    with show_progress(f"calibrating {_title(options)}"):
        similarity, speaker_of = options.similarity or "geometric", read_speakers(options, trials.values())
        system = evaluate_trials(_title(options), trials, fit, speaker_of, similarity, confidence_of(options))
    return with_utility(options, [system])


def read_speakers(options: Namespace, sets: Any) -> dict[str, str]:
    """Read the speaker of every name of the trials, if a list is given."""
    if options.speakers is None:
        return {}
    speaker_of, trials = read_map(options.speakers), list(sets)
    if not all("trial" in one.frame.columns for one in trials):
        raise InputError("Expected the names of both sides of a trial for --utt2spk, but the scores name none.")
    check_listed(speaker_of, trials, options.speakers)
    return speaker_of


def check_speakers(options: Namespace, conditions: Mapping[str, object]) -> None:
    """Raise where speakers do nothing: matrices are of a condition, and need speakers; intervals need no more."""
    if options.speakers and set(conditions) == {""} and (options.similarity or confidence_of(options) is None):
        idle = "--similarity" if options.similarity else "--utt2spk"
        raise InputError(f"Expected --oo, --op or --pp with {idle}: without a condition it would do nothing.")
    if options.similarity and not options.speakers:
        raise InputError("Expected --utt2spk with --similarity: without matrices it would do nothing.")


def _score_files(options: Namespace) -> tuple[dict[str, str], str | None]:
    """Return scores by condition, and their key."""
    named = {name: getattr(options, name.lower()) for name in ("OO", "OP", "PP")}
    scored = {name: path for name, path in named.items() if path is not None}
    if not options.inputs:
        return scored, options.key
    if scored or (len(options.inputs) > 1 and options.key) or len(options.inputs) > 2:
        raise InputError("Expected SCORES and KEY, or --oo, --op, --pp with --key, but got a mixture.")
    return {"": options.inputs[0]}, [*options.inputs, options.key][1]


def _read_fit(options: Namespace, scored: Mapping[str, str], key: TrialFile | None) -> Trials | None:
    """Read the run that a calibration is learnt on; its key is that of the scores where it brings no labels."""
    if not options.fit:
        return None
    if "" not in scored and "OP" not in scored:
        raise InputError("Expected the scores that --fit is to calibrate: SCORES or --op.")
    if len(options.fit) > 2:
        raise InputError(f"Expected --fit SCORES [KEY], but got {len(options.fit)} files.")
    file = read_scores(options.fit[0], options.score_columns)
    if len(options.fit) > 1:
        key = read_key(options.fit[1], options.key_columns)
    elif "is_target" in file.frame.columns:
        key = None
    return label_trials(file, key, options.strict)


def metric_of(options: Namespace, scoring: Scoring | None = None) -> VoicePrivacy:
    """Return what measures embeddings, compared as told or by a default."""
    enrolment = "speaker" if getattr(options, "enrolls", None) else None
    return VoicePrivacy(
        options.similarity or "geometric",
        scoring_of(options) if options.scoring or scoring is None else scoring,
        rank_model=options.rank_model or "empirical",
        attacks=None if options.no_attacks else "standard",
        enrolment="utterance" if getattr(options, "references", None) else enrolment,
        sizes=options.population,
        metrics="all",
        intervals=confidence_of(options),
    )


def scoring_of(options: Namespace) -> Scoring:
    """Return how two embeddings are compared."""
    if (options.scoring == "plda") != (options.plda_fit is not None):
        raise InputError("Expected --scoring plda and --plda-fit FILE together, but got one without the other.")
    if options.plda_fit:
        return read_plda(options.plda_fit, options.speakers, options.format)
    return str(options.scoring or "cosine")


def with_utility(options: Namespace, systems: Sequence[EvaluatedSystem]) -> list[EvaluatedSystem]:
    """Return systems with the utility that options give, beside that found in their folders."""
    given = read_utility(options.utility or [], [system.name for system in systems])
    return [replace(system, utility={**system.utility, **given[system.name]}) for system in systems]


def run_of(options: Namespace, systems: Sequence[EvaluatedSystem]) -> Run:
    """Return what led to the systems."""
    hidden = {"argv", "out", "json", "figures", "command", "title", "samples"}
    given = {key: value for key, value in vars(options).items() if key not in hidden and value not in (None, False, [])}
    of_embeddings = any(report.identification for report in systems[0].report.conditions.values())
    defaults = {"scoring": "cosine", "similarity": "geometric"} if of_embeddings else {}
    return Run(
        ("vpmetrics", *options.argv), {**defaults, **given, "intervals": confidence_of(options)}, recorded_files()
    )


def output_of(options: Namespace) -> OutputOptions:
    """Return where results go, and what they show."""
    return OutputOptions(
        options.out,
        options.json,
        options.figures,
        options.all,
        options.columns,
        options.latex_intervals,
        getattr(options, "samples", ()),
    )


def _title(options: Namespace) -> str:
    if options.title:
        return str(options.title)
    given = (*options.inputs, *(options.protected or ()), options.op, options.pp, options.oo, *(options.original or ()))
    return printable(Path(next(source for source in given if source)).name)


def _sources(options: Namespace) -> list[str]:
    sides = *(options.original or ()), *(options.protected or ())
    given = (*options.inputs, *sides, options.oo, options.op, options.pp, options.key)
    return list(dict.fromkeys(str(source) for source in given if source))
