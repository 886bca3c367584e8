"""Everything the report says of one system, from its embeddings or from its scores."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._plot import PROFILE_LOG_ODDS
from vpmetrics._scores.calibration import isotonic_map, linear_map
from vpmetrics._scores.measures import least_cross_entropy
from vpmetrics._scores.steps import Steps
from vpmetrics._trials.matrices import SimilarityMatrices
from vpmetrics.app.columns import Array
from vpmetrics.app.embeddings import Embeddings
from vpmetrics.app.errors import InputError
from vpmetrics.app.trials import Trials
from vpmetrics.functional import (
    calibration_distortion,
    cllr,
    de_identification,
    diagonal_dominance,
    ece_profile,
    equal_error_rate,
    fit_beta_binomial,
    linkability,
    min_cllr,
    normalised_relatives,
    pav_llr,
    voice_distinctiveness,
    zebra_disclosure,
)
from vpmetrics.suite import VoicePrivacy

PRIORS = torch.as_tensor(PROFILE_LOG_ODDS)
CALIBRATIONS = {"linear": linear_map, "isotonic": isotonic_map}


class Profile(NamedTuple):
    """An ECE profile: minimum, actual where there are scores to take as log-likelihood ratios, and for its legend
    D_ECE and l_w, or, where it is of calibrated scores, C_ECE and Cllr.
    """

    minimum: Tensor | None
    actual: Tensor | None
    legend: tuple[float, float]


class Identified(NamedTuple):
    """Inputs at each rank of their own speaker, the smooth distribution through them, and bits of each trial."""

    histogram: Tensor
    fit: Tensor
    bits: Tensor


@dataclass(frozen=True)
class Evaluation:
    """What is known of one system. Conditions are ``OO``, ``OP``, ``PP``, or nameless for a single set of scores."""

    name: str
    scalars: dict[str, float]
    trials: dict[str, tuple[int, int]]
    profiles: dict[str, Profile]
    calibrated: dict[str, Profile] = field(default_factory=dict)
    identified: dict[str, Identified] = field(default_factory=dict)
    matrices: SimilarityMatrices | None = None
    speakers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def attacked(self) -> str:
        """The condition that says how well speakers are hidden."""
        return "" if "" in self.profiles else "OP"

    @property
    def says_something(self) -> bool:
        """Whether any measure of privacy is defined."""
        keys = [key_of(condition, "d_ece") for condition in self.trials]
        return not all(math.isnan(self.scalars.get(key, math.nan)) for key in (*keys, "deid", "gvd"))


def key_of(condition: str, metric: str) -> str:
    """Name of a scalar of a condition; a nameless condition adds nothing to it."""
    return f"{condition.lower()}_{metric}" if condition else metric


@contextmanager
def collected_notes(notes: list[str]) -> Iterator[None]:
    """Warnings of the library become notes of the report."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    notes += dict.fromkeys(str(warning.message) for warning in caught if warning.category is UserWarning)


def evaluate_embeddings(name: str, embeddings: Embeddings, metric: VoicePrivacy) -> Evaluation:
    """All of a system from its embeddings; one metric for several systems scores shared originals once."""
    notes = [*embeddings.notes, *_notes_on_rows(name, embeddings)]
    metric.reset()
    try:
        with collected_notes(notes):
            metric.update(embeddings.original, embeddings.protected, embeddings.speakers, None, embeddings.utterances)
            report = metric.report()
    except (TypeError, ValueError) as error:
        raise InputError(str(error), name or None) from None
    scalars = {key: float(value) for key, value in report.scalars.items()}
    profiles, trials, identified = {}, {}, {}
    for condition, known in report.conditions.items():
        steps = known.scores.counts.ascending
        profiles[condition] = Profile(least_cross_entropy(steps, PRIORS), None, _legend(known.scalars))
        trials[condition] = _numbers(steps)
        histogram, bits = known.identification.histogram, known.identification.bits
        identified[condition] = Identified(histogram, fit_beta_binomial(histogram).probabilities, bits)
    names = tuple(embeddings.speaker_names[number] for number in report.matrices.speakers.tolist())
    matrices = report.matrices
    advice = "an attacker who turns the sign undoes the protection"
    notes += _notes_on_sign(name, scalars, trials, advice)
    return Evaluation(name, scalars, trials, profiles, {}, identified, matrices, names, notes=tuple(notes))


def evaluate_trials(
    name: str,
    conditions: Mapping[str, Trials],
    fit: Trials | None = None,
    speaker_of: Array | None = None,
    speaker_names: tuple[str, ...] = (),
) -> Evaluation:
    """All of a system from its scores: ``fit`` those of another run, ``speaker_of`` the speaker of every name."""
    notes = [note for trials in conditions.values() for note in trials.notes]
    with collected_notes(notes):
        scalars: dict[str, Tensor] = {}
        profiles, numbers = {}, {}
        for condition, trials in conditions.items():
            preds, target = tensors_of(trials)
            values = scalars_of_trials(preds, target)
            scalars |= {key_of(condition, key): value for key, value in values.items()}
            curves = ece_profile(preds, target, PRIORS)
            profiles[condition] = Profile(curves.minimum, curves.actual, _legend(values))
            numbers[condition] = int(target.sum()), int((~target).sum())
        if {"OO", "OP", "PP"} <= set(conditions):
            scalars |= normalised_relatives(scalars)
        result = Evaluation(name, {}, numbers, profiles)
        if speaker_of is not None:
            matrices = {
                condition: matrix_of_trials(trials, speaker_of, len(speaker_names), condition)
                for condition, trials in conditions.items()
                if condition
            }
            scalars |= scalars_of_matrices(matrices)
            result = replace(result, matrices=_all_matrices(matrices, len(speaker_names)), speakers=speaker_names)
        if fit is not None:
            calibrated = calibrated_profiles(conditions[result.attacked], fit)
            scalars |= {
                f"c_ece_{kind}": torch.tensor(profile.legend[0], dtype=torch.float64)
                for kind, profile in calibrated.items()
            }
            result = replace(result, calibrated=calibrated)
    known = {key: float(value) for key, value in scalars.items()}
    notes += _notes_on_sign(name, known, numbers, "scores seem to fall with likeness: negate them?")
    return replace(result, scalars=known, notes=tuple(notes))


def require_something(systems: Sequence[Evaluation]) -> None:
    """Refuse files of which no measure of privacy is defined: dashes must not pass for a result."""
    if any(system.says_something for system in systems):
        return
    first = systems[0]
    targets, nontargets = (max(numbers[kind] for numbers in first.trials.values()) for kind in (0, 1))
    reasons = []
    if not targets:
        reasons.append("there are no target trials, two utterances of one speaker")
    if not nontargets:
        reasons.append("there are no non-target trials, utterances of two speakers")
    raise InputError(
        f"No measure of privacy is defined: {' and '.join(reasons) or '; '.join(first.notes) or 'all are NaN'}.",
        first.name or None,
    )


def _notes_on_sign(
    name: str, scalars: Mapping[str, float], trials: Mapping[str, tuple[int, int]], advice: str
) -> list[str]:
    """Perfect privacy may be but a wrong sign of the scores, which an attacker would turn."""
    notes = []
    for condition, numbers in trials.items():
        straight, turned = (scalars[key_of(condition, key)] for key in ("d_ece", "d_ece_reversed"))
        # Few trials disclose a little in either direction by chance.
        if turned > 2 * straight + 0.01 + 2 / max(min(numbers), 1):
            where = f"{name}, {condition}" if condition else name
            notes.append(f"{where}: D_ECE is {straight:.3f} bit, but {turned:.3f} with the sign turned; {advice}")
    return notes


def _notes_on_rows(name: str, embeddings: Embeddings) -> list[str]:
    """Embeddings of nothing are perfectly private, too."""
    notes = []
    for side, values in (("original", embeddings.original), ("protected", embeddings.protected)):
        lengths = torch.linalg.vector_norm(values.double(), dim=1)
        zero, rows = int((lengths == 0).sum()), len(values)
        if zero:
            notes.append(
                f"{name}: {zero:,} of {rows:,} rows of the {side} embeddings are all zero; no voice is in them"
            )
        if zero < rows and rows > 1:
            same = int(((values.double() - values[0].double()).abs().amax(1) <= 1e-6 * lengths[0]).sum())
            if same == rows:
                notes.append(f"{name}: all {rows:,} rows of the {side} embeddings are the same; no voice is in them")
    return notes


def tensors_of(trials: Trials) -> tuple[Tensor, Tensor]:
    """Scores and labels as the functions take them."""
    return torch.from_numpy(trials.scores), torch.from_numpy(trials.is_target)


def scalars_of_trials(preds: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Every metric of one set of scores."""
    return {
        **zebra_disclosure(preds, target),
        "min_cllr": min_cllr(preds, target),
        "cllr": cllr(preds, target),
        "eer": equal_error_rate(preds, target),
        "linkability": linkability(preds, target),
    }


def calibrated_profiles(trials: Trials, fit: Trials) -> dict[str, Profile]:
    """How well an attacker does who learnt to calibrate on another run (figure 8 of the 2022 paper)."""
    (preds, target), (fit_preds, fit_target) = tensors_of(trials), tensors_of(fit)
    profiles = {}
    for kind, learn in CALIBRATIONS.items():
        llr = learn(fit_preds, fit_target)(preds)
        actual = ece_profile(llr, target, PRIORS, validate_args=False).actual
        bits = float(calibration_distortion(preds, target, fit_preds, fit_target, kind))
        profiles[kind] = Profile(None, actual, (bits, float(cllr(llr, target, validate_args=False))))
    return profiles


def matrix_of_trials(trials: Trials, speaker_of: Array, speakers: int, condition: str) -> Tensor:
    """Similarity of all pairs of speakers: the geometric mean of the posteriors of their trials."""
    preds, target = tensors_of(trials)
    posterior = torch.nn.functional.logsigmoid(pav_llr(preds, target, laplace=True, validate_args=False))
    cells = torch.from_numpy(speaker_of[trials.enrol] * speakers + speaker_of[trials.trial])
    sums = posterior.new_zeros(2, speakers * speakers)
    sums = sums.index_add(1, cells, torch.stack([posterior, torch.ones_like(posterior)])).view(2, speakers, speakers)
    if condition != "OP":  # within a side a trial has no direction, and a file holds it in either or both
        sums = sums + sums.mT
    total, count = sums
    return torch.where(count > 0, total / count, torch.nan).exp()


def scalars_of_matrices(matrices: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """DeID, G_VD and the dominances they are made of, as far as there are matrices."""
    scalars = {}
    if {"OO", "OP"} <= set(matrices):
        scalars["deid"] = de_identification(matrices["OO"], matrices["OP"])
    if {"OO", "PP"} <= set(matrices):
        scalars["gvd"] = voice_distinctiveness(matrices["OO"], matrices["PP"])
    for condition, matrix in matrices.items():
        scalars[key_of(condition, "d_diag")] = diagonal_dominance(matrix)
        scalars[key_of(condition, "d_diag_log")] = diagonal_dominance(matrix, log_domain=True)
    return scalars


def _all_matrices(matrices: Mapping[str, Tensor], speakers: int) -> SimilarityMatrices:
    unknown = torch.full((speakers, speakers), torch.nan)
    oo, op, pp = (matrices.get(name, unknown) for name in ("OO", "OP", "PP"))
    return SimilarityMatrices(oo, op, pp, torch.arange(speakers))


def _legend(scalars: Mapping[str, Tensor]) -> tuple[float, float]:
    return float(scalars["d_ece"]), float(scalars["l_w"])


def _numbers(steps: Steps) -> tuple[int, int]:
    targets, nontargets = (counts.sum().nan_to_num() for counts in (steps.targets, steps.nontargets))
    return int(targets), int(nontargets)
