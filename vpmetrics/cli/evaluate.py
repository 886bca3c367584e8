"""``vpmetrics evaluate`` and ``compare``: read the files of one system or several, evaluate and publish them."""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from rich.console import Console

from vpmetrics._scores.scorers import Scoring
from vpmetrics._util.inputs import InputError, format_suffix, quote, read_files
from vpmetrics._util.scalar import printable
from vpmetrics.cli.audio_inputs import embed_sides, holds_recordings, pick_worst_and_best_speakers
from vpmetrics.cli.terminal import OutputOptions, check_outputs, publish
from vpmetrics.readers import challenge, evaluation, trial_protocol
from vpmetrics.readers.embeddings import EmbeddingFiles, Embeddings, fit_plda, locate_source, read_embeddings
from vpmetrics.readers.formats import READERS
from vpmetrics.readers.progress import show_progress
from vpmetrics.readers.trial_files import Trials, has_score_column, label_trials, read_key, read_map, read_scores
from vpmetrics.report.outputs import Content
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.report.results import Run
from vpmetrics.report.tables import clean
from vpmetrics.suite import VoicePrivacy

# The options that each kind of input uses; those of the output are always used.
_ALWAYS = {"command", "argv", "inputs", "systems", "title", "columns", "intervals", "utility", "workers", "samples"}
_ALWAYS |= {"out", "json", "figures", "all", "latex_intervals"}
_SCORED = {"original", "protected", "speakers", "speaker_pattern", "strip_suffix", "scoring", "plda_fit", "no_attacks"}
_PAIRED = _SCORED | {"similarity", "rank_model", "population", "partial", "attributes"}
_USED = {
    "recordings": (_PAIRED - {"plda_fit"}) | {"encoder", "feature", "device", "no_audio", "references", "enrolls"},
    "embeddings": _PAIRED | {"format", "utterances", "sessions", "references", "enrolls", "groups", "weights"},
    "a list of trials": _SCORED | {"format", "trials", "enrolls", "groups", "weights", "key_columns", "partial"},
    "a folder of embeddings": {"scoring", "plda_fit", "no_attacks", "weights", "speakers"},
    "a folder of scores": {"weights", "speakers"},
    "score files": {"oo", "op", "pp", "key", "strict", "fit", "speakers", "similarity", "score_columns", "key_columns"},
}
_NOT_GIVEN: tuple[object, ...] = (None, False, [], ())  # values of options
_ORIGINAL = "original"  # what tables call unprotected speech


def evaluate(options: Namespace, console: Console) -> None:
    """Evaluate one system."""
    _check_format_and_outputs(options)
    original, protected = options.original or [], options.protected or []
    sources = [*options.inputs, *original, *protected, options.oo, options.op, options.pp, options.key]
    by_importance = (*options.inputs, *protected, options.op, options.pp, options.oo, *original)
    options.title = printable(options.title or Path(next(filter(None, by_importance), "")).name)
    systems = _evaluate_inputs(options, [*original, *protected])
    lead = f"Voice privacy of {printable(', '.join(dict.fromkeys(filter(None, sources))))}"
    _publish_with_utility(options, lead, systems, console)


def compare(options: Namespace, console: Console) -> None:
    """Compare several systems."""
    _check_format_and_outputs(options)
    sources = {}
    for text in options.systems:
        name, equals, source = text.partition("=")
        if equals and not (name and source):
            raise InputError(f"Expected NAME=FILE, but got {quote(text)}.")
        sources[printable(name if equals else Path(text.split(",")[0]).stem)] = source if equals else text
    if len(sources) < len(options.systems) or _ORIGINAL in sources:
        got = ", ".join(options.systems)
        if _ORIGINAL in sources:
            got = f"{', '.join(sources)}; {_ORIGINAL} is what tables call unprotected speech"
        raise InputError(f"Expected every system to have a name of its own (NAME=FILE), but got {got}.")
    first, shared = next(iter(sources.values())), options.original
    if shared is None and Path(first).is_dir() and challenge.find_encoders(Path(first)):
        systems = [one for name, folder in sources.items() for one in _evaluate_folder(Path(folder), options, name)]
    elif shared is not None and holds_recordings(shared[0]):
        systems = _evaluate_recordings(options, shared[0], sources)
    elif shared is not None or not _holds_scores(first.split(",")[0], options):
        # Without --original, every file holds its own originals.
        inputs = {name: (None, shared, [file]) if shared else (file, (), ()) for name, file in sources.items()}
        systems = _evaluate_embeddings(options, inputs)
    else:
        _reject_unused_option(options, "score files")
        files_of = {}
        for name, source in sources.items():
            files = {"OO": options.oo} if options.oo else {}
            conditions, paths = ("OP", "PP") if "," in source or files else ("",), source.split(",")
            if len(paths) > 2:
                raise InputError(f"Expected NAME=OP or NAME=OP,PP, but got {len(paths)} score files for {name}.")
            files_of[name] = files | dict(zip(conditions, paths, strict=False))
        systems = _evaluate_scores(options, files_of, options.key)
    _publish_with_utility(options, f"{len(systems)} systems side by side", systems, console)


def _check_format_and_outputs(options: Namespace) -> None:
    """Raise for options that cannot be used, before anything is computed."""
    check_outputs(_output_options(options))
    if options.format is not None and options.format not in READERS:
        raise InputError(f"Expected --format to be one of {', '.join(READERS)}, but got {quote(options.format)}.")


def _output_options(options: Namespace) -> OutputOptions:
    return OutputOptions(
        options.out,
        options.json,
        options.all,
        tuple(options.columns),
        tuple(options.figures),
        options.latex_intervals,
    )


def _publish_with_utility(options: Namespace, lead: str, systems: Sequence[EvaluatedSystem], console: Console) -> None:
    """Add the values of ``--utility`` and publish the systems; raise if no measure of any is defined."""
    utility = challenge.read_utility(options.utility or [], [system.name for system in systems])
    systems = [replace(system, utility={**system.utility, **utility[system.name]}) for system in systems]
    evaluation.check_anything_defined(systems)
    has_embeddings = any(report.identification for report in systems[0].report.conditions.values())
    settings = {"scoring": "cosine", "similarity": "geometric"} if has_embeddings else {}
    hidden = {"argv", "out", "json", "figures", "command", "title", "samples", "intervals"}
    settings |= {name: value for name, value in vars(options).items() if value not in _NOT_GIVEN and name not in hidden}
    settings["intervals"] = options.intervals  # None is a setting, too
    run = Run(("vpmetrics", *options.argv), settings, dict(read_files))
    content = Content(clean(options.title), clean(lead), systems, run, options.columns, options.samples)
    publish(content, console, _output_options(options))


def _reject_unused_option(options: Namespace, input_kind: str) -> None:
    """Raise for an option that does nothing with a kind of input, which is a misunderstanding."""
    for name, value in vars(options).items():
        if value not in _NOT_GIVEN and name not in _ALWAYS | _USED[input_kind]:
            option = {"speakers": "utt2spk"}.get(name, name).replace("_", "-")
            raise InputError(f"Expected no --{option} with {input_kind}: it would do nothing.")


def _evaluate_inputs(options: Namespace, side_options: Sequence[str]) -> list[EvaluatedSystem]:
    """Evaluate recordings, embeddings, score files or the folder of a challenge; two inputs become side options."""
    inputs = options.inputs
    if len(inputs) == 1 and Path(inputs[0]).is_dir() and not side_options:
        return _evaluate_folder(Path(inputs[0]), options, "")
    has_recordings = any(map(holds_recordings, (*inputs, *side_options)))
    has_embeddings = side_options or has_recordings or not all(_holds_scores(each, options) for each in inputs)
    if has_embeddings and (options.oo or options.op or options.pp or options.key or options.fit):
        raise InputError("Expected embeddings or score files, but got both.")
    if not has_embeddings:
        _reject_unused_option(options, "score files")
        files, key = _find_score_files(options)
        return _evaluate_scores(options, {options.title: files}, key)
    if len(inputs) == 2 and not side_options:
        options.original, options.protected, options.inputs = [inputs[0]], [inputs[1]], []
        if options.title == printable(Path(inputs[0]).name):  # which is the default
            options.title = printable(Path(inputs[1]).name)
    elif len(inputs) > 1:
        raise InputError(f"Expected one file of embeddings, or one of each side, but got {len(inputs)}.")
    if has_recordings:
        if [len(side or ()) for side in (options.original, options.protected)] != [1, 1]:
            raise InputError("Expected one folder of original and one of protected recordings.")
        return _evaluate_recordings(options, options.original[0], {options.title: options.protected[0]})
    if options.trials is not None:
        return [_evaluate_protocol(options)]
    source = next(iter(options.inputs), None), options.original or (), options.protected or ()
    return _evaluate_embeddings(options, {options.title: source})


def _holds_scores(source: str, options: Namespace) -> bool:
    """Return whether an input holds scores, not embeddings; recordings are ruled out by the caller."""
    located, name = locate_source(source)
    path = located or source
    if options.format is not None or name is not None or Path(path).is_dir():
        return False
    is_table = format_suffix(path) in ("csv", "tsv", "parquet") and Path(path).is_file()
    return format_suffix(path) not in READERS or (is_table and bool(options.key or has_score_column(path)))


def _evaluate_recordings(options: Namespace, original: str, sources: Mapping[str, str]) -> list[EvaluatedSystem]:
    """Evaluate systems from recordings: each by its strongest encoder, followed by its result with every encoder."""
    _reject_unused_option(options, "recordings")
    evaluated, features = list[EvaluatedSystem](), [options.feature] if options.feature else []
    encoders = [*(options.encoder or ([] if features else ["resemblyzer"])), *features]
    with TemporaryDirectory(prefix="vpmetrics-") as temporary:
        cache = Path(temporary) if options.out is None else options.out.with_name(f"{options.out.name}-embeddings")
        for name, protected in sources.items():
            by_encoder: dict[str, EvaluatedSystem] = {}
            for encoder in encoders:
                embeddings, files = embed_sides(original, protected, encoder, options, cache)
                short = Path(encoder).stem if Path(encoder).exists() else encoder
                full_name = name if len(encoders) == 1 else f"{name}, {short}"
                metric = _make_metric(options, "euclidean" if encoder == "f0" else None)
                by_encoder[short] = _evaluate_with_attributes(full_name, embeddings, options, metric)
                if options.out is not None and not options.no_audio and not options.samples:
                    options.samples = pick_worst_and_best_speakers(by_encoder[short], embeddings, files)
            evaluated += evaluation.prepend_strongest_encoder(name, by_encoder)
    return evaluated


def _evaluate_embeddings(
    options: Namespace, inputs: Mapping[str, tuple[str | None, Sequence[str], Sequence[str]]]
) -> list[EvaluatedSystem]:
    """Evaluate systems from their inputs by name: a file of arrays, and original and protected sources."""
    _reject_unused_option(options, "embeddings")
    metric, systems, first = _make_metric(options), list[EvaluatedSystem](), None
    for name, sources in inputs.items():
        embeddings = read_embeddings(*sources, options)
        first = first or embeddings
        sides = (embeddings.original, first.original)
        if sides[0] is not None and sides[1] is not None and not torch.equal(sides[0], sides[1]):
            note = f"{name}: its original embeddings are not those of {systems[0].name}, to which `original` refers"
            embeddings = embeddings._replace(notes=(*embeddings.notes, note))
        systems.append(_evaluate_with_attributes(name, embeddings, options, metric))
    return systems


def _evaluate_with_attributes(
    name: str, embeddings: Embeddings, options: Namespace, metric: VoicePrivacy
) -> EvaluatedSystem:
    with show_progress(f"scoring {name}"):
        weights = trial_protocol.read_weights_or_empty(options.weights, set(embeddings.group_names))
        system = evaluation.evaluate_embeddings(name, embeddings, metric, weights)
        if options.attributes is None:
            return system
        return evaluation.add_attributes(system, embeddings, options.attributes, options.intervals)


def _evaluate_protocol(options: Namespace) -> EvaluatedSystem:
    _reject_unused_option(options, "a list of trials")
    files = EmbeddingFiles(options.inputs[0] if options.inputs else None, options.format, options.strip_suffix)
    original, protected = trial_protocol.read_protocol_sides(files, options.original or (), options.protected or ())
    protocol = trial_protocol.read_protocol_options(options)
    complete, check = trial_protocol.drop_missing_trials(protocol, (original, protected))
    protocol = complete if options.partial else protocol
    scoring, groups = _read_scoring(options), set(protocol.group_of.values())
    weights = trial_protocol.read_weights_or_empty(options.weights, groups)
    listed = trial_protocol.score_protocol(original, protected, protocol, scoring)
    system = evaluation.evaluate_listed_trials(options.title, listed, weights, options.intervals)
    system = replace(system, report=replace(system.report, checks=(*system.report.checks, check)))
    embeddings, is_attacked = [trial_protocol.TrialEmbeddings(original, protected, protocol)], not options.no_attacks
    return trial_protocol.add_attacks_and_matrices(system, embeddings, scoring, options.intervals, is_attacked)


def _evaluate_folder(folder: Path, options: Namespace, name: str) -> list[EvaluatedSystem]:
    """Evaluate all systems, datasets and attackers of a results folder of a challenge."""
    results = challenge.find_score_and_vector_files(folder)
    is_read_from_scores = all(result.is_read_from_scores for result in results)
    _reject_unused_option(options, "a folder of scores" if is_read_from_scores else "a folder of embeddings")
    scoring = "cosine" if is_read_from_scores else _read_scoring(options)
    fields = "system", "dataset", "attacker"
    has_several = {field: len({getattr(result, field) for result in results}) > 1 for field in fields}
    by_attacker: dict[str, dict[str, EvaluatedSystem]] = defaultdict(dict)
    for result in results:
        listed, embeddings = challenge.read_listed_trials(result, scoring, options.speakers)
        weights = trial_protocol.read_weights_or_empty(options.weights, set(listed.groups)) or result.official_weights
        short = name if name and not has_several["system"] else f"{name} {result.system}".strip()
        short = printable(f"{short} {result.dataset}" if has_several["dataset"] else short)
        attacker = result.attacker or "another attacker"
        full_name = f"{short}, {attacker}" if has_several["attacker"] else short
        system = replace(
            evaluation.evaluate_listed_trials(full_name, listed, weights, options.intervals),
            dataset=result.dataset,
            challenge_condition_names=result.challenge_condition_names,
            utility=challenge.find_utility(folder, result.suffix, result.dataset, not has_several["system"]),
        )
        by_attacker[short][attacker] = trial_protocol.add_attacks_and_matrices(
            system, embeddings, scoring, options.intervals, not options.no_attacks
        )
    ranked = [evaluation.prepend_strongest_encoder(short, systems) for short, systems in by_attacker.items()]
    return [system for systems in ranked for system in systems]


def _find_score_files(options: Namespace) -> tuple[dict[str, str], str | None]:
    """Return the score files of one system by condition, which is empty where none is named, and the key."""
    files = {name: path for name in ("OO", "OP", "PP") if (path := getattr(options, name.lower())) is not None}
    key = options.key
    if options.inputs:
        if files or (len(options.inputs) > 1 and key) or len(options.inputs) > 2:
            raise InputError("Expected SCORES and KEY, or --oo, --op, --pp with --key, but got a mixture.")
        files, key = {"": options.inputs[0]}, [*options.inputs, key][1]
    if not files:
        raise InputError("Expected embeddings or score files, but got neither; see `vpmetrics evaluate --help`.")
    if options.fit and not {"", "OP"} & set(files):
        raise InputError("Expected the scores that --fit is to calibrate: SCORES or --op.")
    return files, key


def _evaluate_scores(
    options: Namespace, files_of: Mapping[str, Mapping[str, str]], key_file: str | None
) -> list[EvaluatedSystem]:
    """Evaluate systems from their score files in each condition; they share that of original speech."""
    has_conditions = set(next(iter(files_of.values()))) != {""}
    if options.speakers and not has_conditions and (options.similarity or options.intervals is None):
        idle = "--similarity" if options.similarity else "--utt2spk"
        raise InputError(f"Expected --oo, --op or --pp with {idle}: without a condition it would do nothing.")
    if options.similarity and not options.speakers:
        raise InputError("Expected --utt2spk with --similarity: without matrices it would do nothing.")
    key = None if key_file is None else read_key(key_file, options.key_columns)
    speaker_of = {} if options.speakers is None else read_map(options.speakers)
    systems, trials = list[EvaluatedSystem](), dict[str, Trials]()
    for name, files in files_of.items():
        shared = {"OO": trials["OO"]} if trials and "OO" in files else {}
        read = {c: read_scores(path, options.score_columns) for c, path in files.items() if c not in shared}
        trials = shared | {c: label_trials(file, key, options.strict) for c, file in read.items()}
        fit = _read_calibration_trials(options, key) if options.fit else None
        with show_progress(f"calibrating {name}"):
            for one in trials.values() if options.speakers else ():
                _check_speakers_are_listed(one, speaker_of, options.speakers)
            similarity: Literal["geometric", "sigmoid"] = options.similarity or "geometric"
            systems.append(evaluation.evaluate_trials(name, trials, fit, speaker_of, similarity, options.intervals))
    return systems


def _read_calibration_trials(options: Namespace, key: Trials | None) -> Trials:
    """Read the trials of ``--fit``; without labels they take ``key``, that of the evaluated scores."""
    if len(options.fit) > 2:
        raise InputError(f"Expected --fit SCORES [KEY], but got {len(options.fit)} files.")
    file = read_scores(options.fit[0], options.score_columns)
    if len(options.fit) > 1:
        key = read_key(options.fit[1], options.key_columns)
    elif "is_target" in file.frame.columns:
        key = None
    return label_trials(file, key, options.strict)


def _check_speakers_are_listed(trials: Trials, speaker_of: Mapping[str, str], path: str) -> None:
    if "trial" not in trials.frame.columns:
        raise InputError("Expected the names of both sides of a trial for --utt2spk, but the scores name none.")
    for names in trials.frame.select("enrol", "trial"):
        missing = names.filter(trial_protocol.look_up_speakers_or_null(names, speaker_of).is_null()).unique().sort()
        if len(missing):
            message = f"expected the speaker of every utterance, but {len(missing):,} are missing: {quote(missing[0])}"
            raise InputError(message, path)


def _make_metric(options: Namespace, default_scoring: Scoring | None = None) -> VoicePrivacy:
    return VoicePrivacy(
        options.similarity or "geometric",
        default_scoring if default_scoring and not options.scoring else _read_scoring(options),
        rank_model=options.rank_model or "empirical",
        attacks=None if options.no_attacks else "standard",
        enrolment="utterance" if options.references else "speaker" if options.enrolls else None,
        sizes=options.population,
        metrics="all",
        intervals=options.intervals,
    )


def _read_scoring(options: Namespace) -> Scoring:
    """Return the scoring of embeddings that options choose; a PLDA is fitted on its file."""
    if (options.scoring == "plda") != (options.plda_fit is not None):
        raise InputError("Expected --scoring plda and --plda-fit FILE together, but got one without the other.")
    if options.plda_fit:
        return fit_plda(options.plda_fit, options.speakers, options.format)
    return str(options.scoring or "cosine")
