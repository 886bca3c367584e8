"""Evaluate systems from their speech: recordings, embeddings, or exactly the trials of a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from vpmetrics._scores.scorers import Scoring
from vpmetrics._util.inputs import InputError, format_suffix, quote
from vpmetrics._util.scalar import printable
from vpmetrics._utterances.encoders import Encoder
from vpmetrics.cli.options import MeasureOptions, SpeechOptions
from vpmetrics.cli.recordings import (
    EmbeddedSystem,
    check_encoders,
    embed_system,
    holds_recordings,
    pick_worst_and_best_speakers,
)
from vpmetrics.cli.terminal import check_outputs, check_utility
from vpmetrics.readers import challenge, evaluation, trial_protocol
from vpmetrics.readers.distractors import read_distractors
from vpmetrics.readers.embeddings import (
    EmbeddingFiles,
    Embeddings,
    fit_plda,
    locate_source,
    read_embeddings,
)
from vpmetrics.readers.formats import READERS
from vpmetrics.readers.progress import show_progress
from vpmetrics.readers.score_matrices import is_score_matrix
from vpmetrics.readers.trial_files import (
    has_score_column,
    read_attributes,
    read_first_column,
    read_map,
)
from vpmetrics.report.outputs import Sample
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.suite import VoicePrivacy

RECORDINGS = "recordings"
EMBEDDINGS = "embeddings"
LISTED_TRIALS = "a list of trials"
_SIZES_WITH_DISTRACTORS = (20, 100)  # people to search among where --population names no numbers


@dataclass(frozen=True)
class SystemInputs:
    """The sources of one system: a file of all arrays, if any, and the sources of both sides."""

    name: str
    container: str | None = None
    original: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """All sources that are given."""
        sides = (*self.original, *self.protected)
        if self.container is None:
            return sides
        return (self.container, *sides)


@dataclass(frozen=True)
class EvaluatedSpeech:
    """Evaluated systems, and recordings to listen to."""

    systems: list[EvaluatedSystem]
    samples: list[Sample]


def evaluate_speech(inputs: Sequence[SystemInputs], options: SpeechOptions) -> EvaluatedSpeech:
    """Check all options, then evaluate each system."""
    input_kind = _find_input_kind(inputs, options)
    _check_options(inputs, options, input_kind)
    if input_kind == RECORDINGS:
        return _evaluate_recordings(inputs, options)
    if input_kind == LISTED_TRIALS:
        systems = [_evaluate_listed_trials(of_system, options) for of_system in inputs]
        return EvaluatedSpeech(systems, [])
    return EvaluatedSpeech(_evaluate_embeddings(inputs, options), [])


def _find_input_kind(inputs: Sequence[SystemInputs], options: SpeechOptions) -> str:
    """Return what the inputs hold.

    Raise for what other commands read, and where a side is missing.
    """
    sources = _list_sources(inputs)
    for source in sources:
        _reject_input_of_other_commands(source, options)
    is_audio = [holds_recordings(source) for source in sources]
    if options.trials and not any(is_audio):
        return LISTED_TRIALS
    if not any(is_audio):
        return EMBEDDINGS
    for of_system in inputs:
        if len(of_system.original) != 1 or len(of_system.protected) != 1:
            got = ", ".join(of_system.sources)
            message = "Expected two folders of recordings, original and protected, but got"
            raise InputError(f"{message} {got}: the other side is missing.")
    return RECORDINGS


def _list_sources(inputs: Sequence[SystemInputs]) -> list[str]:
    """Return the sources of all systems."""
    sources: list[str] = []
    for of_system in inputs:
        sources += of_system.sources
    return sources


def _reject_input_of_other_commands(source: str, options: SpeechOptions) -> None:
    """Raise for a file or folder that another command reads, or that no command reads.

    A source may also be an array, or an array in a file. Then, or with ``--format``, the user has
    said what it holds, and it is not examined.
    """
    path, array = locate_source(source)
    is_described = array is not None or options.rows.format is not None
    if path is None or is_described:
        return
    if Path(path).is_dir():
        if challenge.find_encoders(Path(path)):
            raise InputError(f"holds results of a challenge: vpmetrics challenge {path}", path)
        return
    if is_score_matrix(path):
        raise InputError(f"is a score matrix: vpmetrics scores {path}", path)
    if holds_recordings(path):
        return
    suffix = format_suffix(path)
    is_table = suffix in ("csv", "tsv", "parquet") and Path(path).is_file()
    has_scores_of_trials = is_table and has_score_column(path)
    if suffix in READERS and not has_scores_of_trials:
        return
    if not Path(path).is_file():
        # The path exists, or it would not have been located: it is a pipe or a device.
        raise InputError("expected a file or a folder", path)
    suffixes = ", ".join(f".{name}" for name in READERS)
    hint = (
        f"scores of trials are for `vpmetrics scores {path}`; --format tells the format of other"
        " names"
    )
    raise InputError(f"expected recordings, or embeddings ({suffixes}); {hint}", path)


def _check_options(inputs: Sequence[SystemInputs], options: SpeechOptions, input_kind: str) -> None:
    """Raise for options that cannot be used, before anything is computed."""
    names = [of_system.name for of_system in inputs]
    check_utility(options.output, names)
    check_outputs(options.output, _list_sources(inputs))
    rows = options.rows
    measures = options.measures
    if rows.format is not None and rows.format not in READERS:
        raise InputError(
            f"Expected --format to be one of {', '.join(READERS)}, but got {quote(rows.format)}."
        )
    if (measures.scoring == "plda") != (measures.plda_fit is not None):
        raise InputError(
            "Expected --scoring plda and --plda-fit FILE together, but got one without the other."
        )
    if options.attributes is not None:
        read_attributes(options.attributes)
    if options.weights is not None:
        read_map(options.weights, "group weight")
    if input_kind == RECORDINGS:
        reject(rows, ("format", "sessions", "groups"), input_kind)
        reject(measures, ("plda_fit",), input_kind)
        reject(options, ("trials", "key_columns"), input_kind)
        if rows.enrolls is not None:
            read_first_column(rows.enrolls)
        encoders = check_encoders(options.recordings)
        if measures.distractors is not None:
            read_distractors(measures.distractors, _make_empty_embeddings(encoders), rows)
        return
    reject(options.recordings, ("encoder", "feature", "device", "no_audio"), input_kind)
    if measures.distractors is not None and locate_source(measures.distractors)[0] is None:
        raise InputError("no such file for --distractors", measures.distractors)
    if input_kind == LISTED_TRIALS:
        reject(rows, ("sessions",), input_kind)
        reject(measures, ("population", "distractors"), input_kind)
        reject(options, ("attributes",), input_kind)
    else:
        reject(options, ("key_columns",), input_kind)


def reject(options: Any, names: Iterable[str], input_kind: str) -> None:
    """Raise if an option was given that would do nothing with a kind of input.

    That is a misunderstanding.
    """
    defaults = {field.name: field.default for field in fields(options)}
    for name in names:
        value = getattr(options, name)
        if value not in (None, False, (), defaults[name]):
            option = {"speakers": "utt2spk"}.get(name, name).replace("_", "-")
            raise InputError(f"Expected no --{option} with {input_kind}: it would do nothing.")


def _evaluate_recordings(inputs: Sequence[SystemInputs], options: SpeechOptions) -> EvaluatedSpeech:
    """Evaluate systems from recordings, and pick some of the first system to listen to."""
    out = options.output.out
    is_f0_alone = options.recordings.encoder == ("f0",) and not options.recordings.feature
    metric = make_metric(options, default_scoring="euclidean" if is_f0_alone else "cosine")
    systems: list[EvaluatedSystem] = []
    samples: list[Sample] = []
    with TemporaryDirectory(prefix="vpmetrics-") as temporary:
        if out is None:
            cache = Path(temporary)
        else:
            cache = out.with_name(f"{out.name}-embeddings")
        for of_system in inputs:
            embedded = embed_system(
                of_system.original[0],
                of_system.protected[0],
                options.recordings,
                options.rows,
                cache,
            )
            system = _evaluate_with_attributes(of_system.name, embedded.embeddings, options, metric)
            system = _add_encoder_check(system, embedded)
            systems += evaluation.list_encoders(system)
            if out is not None and not options.recordings.no_audio and not samples:
                samples = pick_worst_and_best_speakers(system, embedded)
    return EvaluatedSpeech(systems, samples)


def _add_encoder_check(system: EvaluatedSystem, embedded: EmbeddedSystem) -> EvaluatedSystem:
    """Add a check that counts the utterances that some encoder did not take."""
    if embedded.check is None:
        return system
    report = replace(system.report, checks=(*system.report.checks, embedded.check))
    return replace(system, report=report)


def _evaluate_embeddings(
    inputs: Sequence[SystemInputs], options: SpeechOptions
) -> list[EvaluatedSystem]:
    """Evaluate systems from files of embeddings; originals that they share are scored once."""
    metric = make_metric(options)
    systems: list[EvaluatedSystem] = []
    of_first_system: Embeddings | None = None
    for of_system in inputs:
        embeddings = read_embeddings(
            of_system.container, of_system.original, of_system.protected, options.rows
        )
        if of_first_system is None:
            of_first_system = embeddings
        elif not _has_same_originals(embeddings, of_first_system):
            note = (
                f"{of_system.name}: its original embeddings are not those of {inputs[0].name}, to"
                " which `original` refers"
            )
            embeddings = embeddings._replace(notes=(*embeddings.notes, note))
        systems.append(_evaluate_with_attributes(of_system.name, embeddings, options, metric))
    return systems


def _make_empty_embeddings(encoders: Sequence[Encoder]) -> Embeddings:
    """Return the form of the embeddings that recordings will have, to check other files by."""
    no_rows = torch.zeros(0, sum(encoder.width for encoder in encoders))
    no_speakers = torch.zeros(0, dtype=torch.int64)
    return Embeddings(no_rows, no_rows, no_speakers, (), encoders=tuple(encoders))


def _has_same_originals(embeddings: Embeddings, other: Embeddings) -> bool:
    if embeddings.original is None or other.original is None:
        return embeddings.original is other.original
    return torch.equal(embeddings.original, other.original)


def _evaluate_with_attributes(
    name: str, embeddings: Embeddings, options: SpeechOptions, metric: VoicePrivacy
) -> EvaluatedSystem:
    with show_progress(f"scoring {name}"):
        weights = trial_protocol.read_weights_or_empty(options.weights, set(embeddings.group_names))
        source = options.measures.distractors
        if source is not None:
            distractors = read_distractors(source, embeddings, options.rows)
            metric.distractors = distractors.by_side()
            embeddings = embeddings._replace(notes=(*embeddings.notes, distractors.note))
        system = evaluation.evaluate_embeddings(name, embeddings, metric, weights)
        if options.attributes is None:
            return system
        return evaluation.add_attributes(
            system, embeddings, options.attributes, options.measures.intervals
        )


def _evaluate_listed_trials(inputs: SystemInputs, options: SpeechOptions) -> EvaluatedSystem:
    """Evaluate a system by exactly the trials of a list, and attack the utterances they name."""
    rows = options.rows
    measures = options.measures
    files = EmbeddingFiles(inputs.container, rows.format, rows.strip_suffix)
    original, protected = trial_protocol.read_protocol_sides(
        files, inputs.original, inputs.protected
    )
    protocol = trial_protocol.read_protocol_options(rows, options.trials, options.key_columns)
    complete, check = trial_protocol.drop_missing_trials(protocol, (original, protected))
    if rows.partial:
        protocol = complete
    scoring = read_scoring(measures, rows.speakers, rows.format)
    weights = trial_protocol.read_weights_or_empty(options.weights, set(protocol.group_of.values()))
    listed = trial_protocol.score_protocol(original, protected, protocol, scoring)
    system = evaluation.evaluate_listed_trials(inputs.name, listed, weights, measures.intervals)
    system = replace(system, report=replace(system.report, checks=(*system.report.checks, check)))
    embeddings = trial_protocol.TrialEmbeddings(original, protected, protocol)
    is_attacked = not measures.no_attacks
    return trial_protocol.add_attacks_and_matrices(
        system, [embeddings], scoring, measures.intervals, is_attacked
    )


def make_metric(options: SpeechOptions, default_scoring: str = "cosine") -> VoicePrivacy:
    """Return the metric that options describe."""
    rows = options.rows
    measures = options.measures
    sizes = measures.population
    if measures.distractors is not None and not sizes:
        sizes = _SIZES_WITH_DISTRACTORS
    return VoicePrivacy(
        scoring=read_scoring(measures, rows.speakers, rows.format, default_scoring),
        attacks=None if measures.no_attacks else "standard",
        enrolment=None if rows.enrolls is None else "speaker",
        sizes=sizes or None,
        metrics="all",
        intervals=measures.intervals,
    )


def read_scoring(
    measures: MeasureOptions,
    utt2spk: str | None,
    file_format: str | None = None,
    default: str = "cosine",
) -> Scoring:
    """Return the scoring of embeddings that options choose; a PLDA is fitted on its file."""
    if measures.plda_fit is not None:
        return fit_plda(measures.plda_fit, utt2spk, file_format)
    return measures.scoring or default


def name_of_sources(sources: Iterable[str]) -> str:
    """Return the name of the first source, for a title."""
    return printable(Path(next(iter(sources), "")).name)
