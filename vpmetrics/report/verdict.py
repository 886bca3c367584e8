"""The verdict of a report: its headline, and checks whether the evaluation can be trusted, shown first everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vpmetrics._scores.registry import CI_SUFFIXES, scalar, scalar_key
from vpmetrics._scores.speaker_disclosure import find_largest
from vpmetrics._util.dtypes import at_least_float32, read_numbers, widen
from vpmetrics._utterances.utterances import EvaluationData, Utterances, count_duplicates, count_values, find_indices

if TYPE_CHECKING:
    from vpmetrics.report.privacy_report import PrivacyReport

OK, WARNING, FAILED = "ok", "warning", "failed"
_ENCODER_EER = (0.05, 0.20)  # of original speech, above which the encoder is doubtful or useless
_FEW_SPEAKERS = 20  # that attacks are fitted on
_LEAST_VARIANCE = 1e-4  # mean squared distance of unit embeddings to their mean; below it, they are all the same
HIGH_LEAKAGE, LOW_LEAKAGE = 0.25, 0.05  # bits, by the upper end of the interval of the disclosure
_PLAIN = {"d_ece": "plain comparison", "d_ece_reversed": "plain comparison, sign turned"}


class Check(NamedTuple):
    """One question about the evaluation: ``status`` is ``"ok"``, ``"warning"`` or ``"failed"``."""

    name: str
    status: str
    message: str

    @property
    def is_ok(self) -> bool:
        """Whether the check passed."""
        return self.status == OK


def check_report(report: PrivacyReport, data: EvaluationData | None) -> list[Check]:
    """Return the checks of a report, and with ``data`` those of its embeddings."""
    values = read_numbers(report.scalars)
    checks: list[Check | None] = [_check_encoder(values), *_check_attacks(values, report)]
    if data is not None:
        checks += [
            _check_duplicates(data),
            _check_spread("original", data.original),
            _check_spread("protected", data.protected),
            _check_target_shares(data, report.speaker_names),
            _check_enrolment_is_anonymised(data),
        ]
    return [check for check in checks if check is not None]


def _check_encoder(values: Mapping[str, float]) -> Check | None:
    eer = values.get("oo_eer", math.nan)
    if math.isnan(eer):
        return None
    text = f"The encoder separates original speakers with an EER of {eer:.1%}"
    if eer > _ENCODER_EER[1]:
        return Check("encoder", FAILED, f"{text}: it hardly tells them apart, so low disclosure proves nothing.")
    if eer > _ENCODER_EER[0]:
        return Check("encoder", WARNING, f"{text}: a better encoder may disclose more.")
    return Check("encoder", OK, f"{text}.")


def _check_attacks(values: Mapping[str, float], report: PrivacyReport) -> list[Check]:
    """Check on how many speakers attacks were fitted, and that the strongest finds more than chance."""
    if not report.attacks:
        message = "No attack was tried: the numbers are those of plain comparison."
        return [Check("attacks", WARNING, message)] if set(report.conditions) - {"OO"} else []
    numbers = [value for key, value in values.items() if key.endswith("_attack_speakers") and not math.isnan(value)]
    if not numbers:
        message = "Attacks need six speakers; with fewer the numbers are those of plain comparison."
        return [Check("attack speakers", FAILED, message)]
    text, has_few = f"Attacks were fitted on {min(numbers):.0f} speakers", min(numbers) < _FEW_SPEAKERS
    message = f"{text}: they find more with more of them." if has_few else f"{text}."
    checks = [Check("attack speakers", WARNING if has_few else OK, message)]
    for name in report.conditions:
        key, chance = scalar_key(name, "d_ece_strongest"), values.get(scalar_key(name, "d_ece_chance"), 0.0)
        if values.get(key, math.nan) <= chance:
            message = f"The strongest attack on {name} finds no more than chance ({chance:.3f} bit)."
            high = values.get(f"{key}_high", math.nan)
            if not math.isnan(high):
                message += f" The interval excludes more than {high:.3f} bit."
            checks.append(Check(f"attack on {name}", WARNING if math.isnan(high) else OK, message))
    return checks


def _check_duplicates(data: EvaluationData) -> Check:
    counts = {"original": int(count_duplicates(data.original)), "protected": int(count_duplicates(data.protected))}
    if not any(counts.values()):
        return Check("duplicates", OK, "No two embeddings of a speaker are equal.")
    text = " and ".join(f"{count} {name}" for name, count in counts.items() if count)
    message = f"{text} embeddings equal another one of their speaker: recordings may be there twice."
    return Check("duplicates", WARNING, message)


def _check_spread(name: str, side: Utterances) -> Check | None:
    """Check that embeddings differ; None for fewer than two."""
    if len(side) < 2:
        return None
    unit = normalize(widen(side.embeddings.detach()), dim=1)
    variance = float((unit - unit.mean(0)).square().sum(1).mean())
    if variance < _LEAST_VARIANCE:
        made_by = "the encoder" if name == "original" else "the anonymiser and the encoder"
        return Check(f"{name} embeddings", FAILED, f"All {len(side):,} {name} embeddings are equal: check {made_by}.")
    return Check(f"{name} embeddings", OK, f"The {name} embeddings differ (spread {variance:.2g}).")


def explain_missing_trials(num_speakers: int, num_utterances: int) -> str | None:
    """Return why these numbers allow no target or no non-target trials, and what to add; None if both may exist."""
    if num_utterances == 0:
        return "There are no utterances."
    if num_speakers == 1:
        return f"All utterances ({num_utterances:,}) are of one speaker: add other speakers for non-target trials."
    if num_utterances == num_speakers:
        cause = f"Every speaker has one utterance ({num_speakers:,} speakers)"
        return f"{cause}: add more utterances of each for target trials."
    return None


def find_cause(data: EvaluationData) -> str | None:
    """Return what is wrong with data that give undefined results; None where that is not known."""
    recordings = torch.cat([data.original.ids, data.protected.ids]).unique()
    if len(recordings) == 0:  # the reason for NaN says so
        return None
    if missing := explain_missing_trials(len(data.speakers), len(recordings)):
        return missing
    checks = (_check_spread(name, side) for name, side in zip(("original", "protected"), data[:2], strict=True))
    return next((check.message for check in checks if check is not None and not check.is_ok), None)


def _check_target_shares(data: EvaluationData, speaker_names: Mapping[int, str]) -> Check:
    """Check that no speaker holds most of the target trials."""
    side = data.protected if len(data.protected) else data.original
    counts = widen(count_values(side.speaker_index, len(data.speakers)))
    if missing := explain_missing_trials(int((counts > 0).sum()), len(side)):
        return Check("trials", FAILED, missing)
    targets = counts * (counts - 1)
    share = float(targets.amax() / targets.sum())
    if len(counts) > 2 and share > 0.5:
        label = int(data.speakers[int(targets.argmax())])
        name = speaker_names.get(label, str(label))
        return Check("target trials", WARNING, f"Speaker {name} holds {share:.0%} of all target trials.")
    return Check("target trials", OK, f"No speaker holds more than {share:.0%} of the target trials.")


def _check_enrolment_is_anonymised(data: EvaluationData) -> Check | None:
    """Check that references are not much nearer to their originals than tests; None with fewer than two of either."""
    if data.protected.is_reference is None:
        return None
    place = find_indices(data.original.ids, data.protected.ids)
    has_original = place >= 0
    original = normalize(at_least_float32(data.original.embeddings[place[has_original]]), dim=1)
    protected = normalize(at_least_float32(data.protected.embeddings[has_original]), dim=1)
    cosines, is_reference = widen((original * protected).sum(1)), data.protected.is_reference[has_original]
    references, tests = cosines[is_reference], cosines[~is_reference]
    if len(references) < 2 or len(tests) < 2:
        return None
    gap = float(references.mean() - tests.mean())
    deviation = float(torch.sqrt((references.var() + tests.var()) / 2))
    if gap > 0.1 and gap > 2 * deviation:
        message = (
            f"Enrolment is much nearer to its originals (cosine {float(references.mean()):.2f}) than tests are "
            f"({float(tests.mean()):.2f}): it looks as if enrolment was never anonymised."
        )
        return Check("enrolment", FAILED, message)
    return Check("enrolment", OK, "Enrolment and tests are equally near to their originals.")


def check_identical_systems(reports: Mapping[str, PrivacyReport]) -> list[Check]:
    """Return a warning for every two systems with identical scores."""
    checks = []
    for (first, report), (second, other) in combinations(reports.items(), 2):
        values, others = report.scalars, other.scalars
        keys = [key for key in values if key in others and key.startswith(("op_", "pp_"))]
        keys = [key for key in keys if not bool(values[key].isnan())]
        if keys and all(bool(values[key] == others[key]) for key in keys):
            checks.append(Check("identical systems", WARNING, f"{first} and {second} have identical scores."))
    return checks


def check_missing_trials(missing: int, total: int) -> Check:
    """Return the check of trials of a list that have no embeddings."""
    if missing:
        return Check("trials", WARNING, f"{missing:,} of {total:,} trials of the list have no embeddings.")
    return Check("trials", OK, f"All {total:,} trials of the list have embeddings.")


class Headline(NamedTuple):
    """The numbers to read first, and the verdict on them.

    ``level`` is ``"high"``, ``"moderate"``, ``"low"`` or ``"unknown"`` leakage; ``reasons`` are sentences.
    ``condition`` and ``attack`` attain the disclosure, ``needs``: what that attacker must have. ``worst_speaker`` is a
    place among all speakers, ascending, and -1 where it is unknown. ``worst_chance`` and ``most_by_chance``: the mean
    and the largest of what the worst speaker discloses with speakers permuted.
    """

    level: str
    disclosure: float
    low: float
    high: float
    condition: str
    attack: str
    needs: str
    worst_speaker: int
    worst_disclosure: float
    worst_chance: float
    most_by_chance: float
    reasons: tuple[str, ...]

    @property
    def is_speaker_exposed(self) -> bool:
        """Whether the worst speaker discloses more than all speakers do in any permutation, and clearly so."""
        excess = self.worst_disclosure - self.worst_chance
        return excess > LOW_LEAKAGE and self.worst_disclosure > self.most_by_chance

    @property
    def verdict(self) -> str:
        """Return the verdict as a sentence."""
        is_unknown = self.level == "unknown"
        return "The speaker leakage is unknown." if is_unknown else f"{self.level.capitalize()} speaker leakage."


def disclosure_keys(conditions: Mapping[str, Any], scalars: Mapping[str, Tensor]) -> list[str]:
    """Return the keys of which ``disclosure`` is the largest: the strongest attacks, else plain scores both ways."""
    keys: list[str] = []
    for name in ("OP", "across" if "across" in conditions else "PP", ""):
        candidates = [scalar_key(name, key) for key in ("d_ece_strongest", "d_ece", "d_ece_reversed")]
        known = [key for key in candidates if key in scalars and not bool(scalars[key].isnan())]
        keys += known[:1] if candidates[0] in known else known
    return keys


def make_headline(report: PrivacyReport) -> Headline | None:
    """Make the headline of the condition and attack that disclose most; None if no disclosure is defined."""
    keys = disclosure_keys(report.conditions, report.scalars)
    if not keys:
        return None
    values = read_numbers(report.scalars)
    key = max(keys, key=lambda each: values[each])
    condition = scalar(key).condition
    plain = _PLAIN.get(key.removeprefix(scalar_key(condition, "")))
    attack, needs = plain or "an attack", "nothing"
    strongest = report.conditions[condition].strongest if condition in report.conditions else None
    if plain is None and strongest is not None:
        attack, needs = strongest.name, strongest.needs
    disclosure, low, high = (values.get(f"disclosure{end}", math.nan) for end in ("", *CI_SUFFIXES))
    worst, chance, most, place = math.nan, values.get("worst_speaker_chance", math.nan), math.nan, -1
    if "OP" in report.conditions and (worst_speaker := report.conditions["OP"].worst_speaker) is not None:
        (worst, index), most = map(float, find_largest(worst_speaker.d_ece)), float(worst_speaker.most_by_chance)
        place = -1 if math.isnan(worst) else int(index)
    headline = Headline("", disclosure, low, high, condition, attack, needs, place, worst, chance, most, ())
    level, reasons = _choose_level(report, headline)
    return headline._replace(level=level, reasons=tuple(reasons))


def _choose_level(report: PrivacyReport, headline: Headline) -> tuple[str, list[str]]:
    """Return the level of leakage, and sentences that explain it."""
    reasons = [check.message for check in report.checks if check.status == FAILED]
    if math.isnan(headline.disclosure):
        return "unknown", reasons
    upper = headline.disclosure if math.isnan(headline.high) else headline.high
    level = "high" if upper > HIGH_LEAKAGE else "moderate" if upper > LOW_LEAKAGE else "low"
    if headline.is_speaker_exposed:
        is_high = headline.worst_disclosure - headline.worst_chance > HIGH_LEAKAGE
        level = "high" if level == "high" or is_high else "moderate"
        reasons.append(
            f"Speaker {report.speaker_name(headline.worst_speaker)} is exposed: {headline.worst_disclosure:.3f} bit, "
            f"where chance gives {headline.worst_chance:.3f} bit."
        )
    elif level == "low" and reasons:
        level = "unknown"
    return level, reasons
