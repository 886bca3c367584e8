"""``vpmetrics scores``: systems from scores of trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from rich.console import Console

from vpmetrics._util.inputs import InputError, format_suffix, quote
from vpmetrics._util.scalar import printable
from vpmetrics.cli.compare import name_systems
from vpmetrics.cli.options import ScoresOptions
from vpmetrics.cli.speech import name_of_sources, reject
from vpmetrics.cli.terminal import check_outputs, check_utility, publish_systems
from vpmetrics.readers import evaluation, trial_protocol
from vpmetrics.readers.progress import show_progress
from vpmetrics.readers.score_matrices import evaluate_score_matrices, read_score_matrix
from vpmetrics.readers.trial_files import Trials, label_trials, read_key, read_map, read_scores
from vpmetrics.report.privacy_report import EvaluatedSystem


def scores(options: ScoresOptions, console: Console) -> None:
    """Evaluate systems from their scores."""
    files_of = _find_files(options)
    _check_options(options, files_of)
    if _holds_matrices(files_of):
        systems = _evaluate_matrices(options, files_of)
    else:
        systems = _evaluate_scores(options, files_of)
    sources = dict.fromkeys(_list_paths(files_of))
    title = "Comparison of systems"
    lead = f"{len(systems)} systems side by side"
    if len(systems) == 1:
        title = systems[0].name
        lead = f"Voice privacy of {printable(', '.join(sources))}"
    publish_systems(systems, options, options.output.title or title, lead, console)


def _find_files(options: ScoresOptions) -> dict[str, dict[str, str]]:
    """Return the score files of each system by condition, which is empty where none is named."""
    named = {"OO": options.oo, "OP": options.op, "PP": options.pp}
    by_condition = {condition: path for condition, path in named.items() if path is not None}
    if not options.files:
        if not by_condition:
            raise InputError(
                "Expected files of scores, but got none; see `vpmetrics scores --help`."
            )
        name = printable(options.output.title or name_of_sources([*by_condition.values()][-1:]))
        return {name: by_condition}
    if "OP" in by_condition or "PP" in by_condition:
        raise InputError("Expected FILE, or --oo, --op, --pp, but got both.")
    files_of: dict[str, dict[str, str]] = {}
    for name, source in name_systems(options.files).items():
        paths = source.split(",")
        if len(paths) > 2:
            raise InputError(
                f"Expected NAME=OP or NAME=OP,PP, but got {len(paths)} files of scores for {name}."
            )
        conditions: tuple[str, ...] = ("",)
        if len(paths) == 2 or by_condition:
            conditions = ("OP", "PP")
        files_of[name] = by_condition | dict(zip(conditions, paths, strict=False))
    return files_of


def _list_paths(files_of: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the score files of all systems."""
    paths: list[str] = []
    for files in files_of.values():
        paths += files.values()
    return paths


def _check_options(options: ScoresOptions, files_of: Mapping[str, Mapping[str, str]]) -> None:
    """Raise for options that cannot be used, before anything is read or computed."""
    sources = _list_paths(files_of)
    lists = (options.key, options.speakers, options.row_speakers, options.column_speakers)
    sources += [*options.fit, *filter(None, lists)]
    check_utility(options.output, list(files_of))
    check_outputs(options.output, sources)
    conditions = set(next(iter(files_of.values())))
    if _holds_matrices(files_of):
        reject(
            options,
            ("key", "key_columns", "score_columns", "strict", "fit", "speakers", "similarity"),
            "a matrix",
        )
        return
    reject(options, ("row_speakers", "column_speakers"), "lists of scores")
    if (
        options.speakers
        and conditions == {""}
        and (options.similarity or options.intervals is None)
    ):
        idle = "--utt2spk"
        if options.similarity:
            idle = "--similarity"
        raise InputError(
            f"Expected --oo, --op or --pp with {idle}: without a condition it would do nothing."
        )
    if options.similarity and not options.speakers:
        raise InputError(
            "Expected --utt2spk with --similarity: without matrices it would do nothing."
        )
    if options.fit and not {"", "OP"} & conditions:
        raise InputError("Expected the scores that --fit is to calibrate: SCORES or --op.")
    if len(options.fit) > 2:
        raise InputError(f"Expected --fit SCORES [KEY], but got {len(options.fit)} files.")
    if options.fit and len(files_of) > 1:
        raise InputError(f"Expected one system with --fit, but got {len(files_of)}.")


def _holds_matrices(files_of: Mapping[str, Mapping[str, str]]) -> bool:
    """Return whether all files are score matrices; raise for a mixture."""
    paths = _list_paths(files_of)
    matrices = [path for path in paths if format_suffix(path) in ("npy", "npz")]
    if 0 < len(matrices) < len(paths):
        raise InputError(
            f"Expected score matrices or lists of scores, but got both, as {quote(matrices[0])}."
        )
    return bool(matrices)


def _evaluate_matrices(
    options: ScoresOptions, files_of: Mapping[str, Mapping[str, str]]
) -> list[EvaluatedSystem]:
    """Evaluate systems from their score matrices, which are read by blocks."""
    systems: list[EvaluatedSystem] = []
    for name, files in files_of.items():
        matrices = {}
        for condition, path in files.items():
            matrices[condition] = read_score_matrix(
                path, options.row_speakers, options.column_speakers
            )
        with show_progress(f"counting {name}"):
            systems.append(evaluate_score_matrices(name, matrices, options.intervals))
    return systems


def _evaluate_scores(
    options: ScoresOptions, files_of: Mapping[str, Mapping[str, str]]
) -> list[EvaluatedSystem]:
    """Evaluate systems from their score files in each condition.

    They share that of original speech.
    """
    key = None
    if options.key is not None:
        key = read_key(options.key, options.key_columns)
    speaker_of: dict[str, str] = {}
    if options.speakers is not None:
        speaker_of = read_map(options.speakers)
    systems: list[EvaluatedSystem] = []
    shared: dict[str, Trials] = {}  # of original speech
    for name, files in files_of.items():
        trials: dict[str, Trials] = {}
        for condition, path in files.items():
            trials[condition] = shared.get(condition) or _read_trials(path, key, options)
        if "OO" in trials:
            shared["OO"] = trials["OO"]
        fit = None
        if options.fit:
            fit = _read_calibration_trials(options, key)
        with show_progress(f"calibrating {name}"):
            if options.speakers is not None:
                for of_condition in trials.values():
                    _check_speakers_are_listed(of_condition, speaker_of, options.speakers)
            similarity: Literal["geometric", "sigmoid"] = "geometric"
            if options.similarity == "sigmoid":
                similarity = "sigmoid"
            system = evaluation.evaluate_trials(
                name, trials, fit, speaker_of, similarity, options.intervals
            )
        systems.append(system)
    return systems


def _read_trials(path: str, key: Trials | None, options: ScoresOptions) -> Trials:
    """Read a score file, with the labels that the key has of its trials."""
    return label_trials(read_scores(path, options.score_columns), key, options.strict)


def _read_calibration_trials(options: ScoresOptions, key: Trials | None) -> Trials:
    """Read the trials of ``--fit``.

    Without labels they take ``key``, that of the evaluated scores.
    """
    file = read_scores(options.fit[0], options.score_columns)
    if len(options.fit) > 1:
        key = read_key(options.fit[1], options.key_columns)
    elif "is_target" in file.frame.columns:
        key = None
    return label_trials(file, key, options.strict)


def _check_speakers_are_listed(trials: Trials, speaker_of: Mapping[str, str], path: str) -> None:
    if "trial" not in trials.frame.columns:
        raise InputError(
            "Expected the names of both sides of a trial for --utt2spk, but the scores name none."
        )
    for names in trials.frame.select("enrol", "trial"):
        speakers = trial_protocol.look_up_speakers_or_null(names, speaker_of)
        missing = names.filter(speakers.is_null()).unique().sort()
        if len(missing):
            message = (
                f"expected the speaker of every utterance, but {len(missing):,} are missing:"
                f" {quote(missing[0])}"
            )
            raise InputError(message, path)
