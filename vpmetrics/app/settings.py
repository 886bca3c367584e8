"""What options ask for, whichever the command: what to compare with, what to write, and what would do nothing."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence

from vpmetrics._report import System
from vpmetrics._trials.scorers import Scoring
from vpmetrics.app.embeddings import read_plda
from vpmetrics.app.errors import InputError
from vpmetrics.app.files import STANDARD_INPUT, files_seen
from vpmetrics.app.output import check_file, check_folder
from vpmetrics.app.report import Wanted
from vpmetrics.app.results import Run
from vpmetrics.suite import VoicePrivacy

# What each kind of input makes use of, beside what concerns the output.
_ALWAYS = {"command", "argv", "inputs", "systems", "title", "out", "json", "figures", "intervals"}
_COMPARED = {"scoring", "plda_fit", "speakers", "no_attacks"}
CONFIDENCE = 0.95  # of intervals, where nothing else is asked for
_USED = {
    "embeddings": _COMPARED
    | {"original", "protected", "similarity", "utterances", "partial", "enrolls", "groups", "weights", "people"},
    "a list of trials": _COMPARED | {"original", "protected", "trials", "enrolls", "groups", "weights"},
    "a folder of embeddings": _COMPARED | {"weights"},
    "a folder of scores": {"weights", "speakers"},
    "score files": {"oo", "op", "pp", "key", "strict", "fit", "speakers", "similarity"},
}
_NAMES = {"speakers": "utt2spk"}


def check_output(options: Namespace) -> None:
    """Refuse what cannot be written, before anything is computed."""
    if options.out is not None:
        check_folder(options.out)
    if options.json is not None:
        check_file(options.json)
    given = [value for option in vars(options).values() for value in (option if isinstance(option, list) else [option])]
    if given.count(STANDARD_INPUT) > 1:
        raise InputError(f"Expected one file from standard input, but got {STANDARD_INPUT} more than once.")


def refuse_idle(options: Namespace, what: str) -> None:
    """An option that would do nothing is a misunderstanding."""
    for name, value in vars(options).items():
        if name not in _ALWAYS | _USED[what] and value not in (None, False, []):
            option = _NAMES.get(name, name).replace("_", "-")
            raise InputError(f"Expected no --{option} with {what}: it would do nothing.")


def check_speakers(options: Namespace, conditions: Mapping[str, object]) -> None:
    """Matrices are of a condition, and need speakers; of speakers, intervals need no more."""
    of_none = set(conditions) == {""}
    if options.speakers and of_none and (options.similarity or confidence_of(options) is None):
        idle = "--similarity" if options.similarity else "--utt2spk"
        raise InputError(f"Expected --oo, --op or --pp with {idle}: without a condition it would do nothing.")
    if options.similarity and not options.speakers:
        raise InputError("Expected --utt2spk with --similarity: without matrices it would do nothing.")


def metric_of(options: Namespace) -> VoicePrivacy:
    """What measures embeddings."""
    enrolment = "speaker" if getattr(options, "enrolls", None) else None
    attacks = None if options.no_attacks else "standard"
    made = {"attacks": attacks, "enrolment": enrolment, "sizes": options.people, "intervals": confidence_of(options)}
    return VoicePrivacy(options.similarity or "geometric", scoring_of(options), **made)


def scoring_of(options: Namespace) -> Scoring:
    """How two embeddings are compared."""
    if (options.scoring == "plda") != (options.plda_fit is not None):
        raise InputError("Expected --scoring plda and --plda-fit FILE together, but got one without the other.")
    return read_plda(options.plda_fit, options.speakers) if options.plda_fit else options.scoring or "cosine"


def confidence_of(options: Namespace) -> float | None:
    """How often an interval is to hold the truth; None for no intervals."""
    return CONFIDENCE if options.intervals is None else options.intervals or None


def run_of(options: Namespace, systems: Sequence[System]) -> Run:
    """What led to the systems."""
    hidden = {"argv", "out", "json", "figures", "command", "title"}
    given = {key: value for key, value in vars(options).items() if key not in hidden and value not in (None, False, [])}
    of_embeddings = any(known.identification for known in systems[0].report.conditions.values())
    defaults = {"scoring": "cosine", "similarity": "geometric"} if of_embeddings else {}
    settings = {**defaults, **given, "intervals": confidence_of(options)}
    return Run(("vpmetrics", *options.argv), settings, files_seen())


def wanted_of(options: Namespace) -> Wanted:
    """Where results go."""
    return Wanted(options.out, options.json, options.figures)
