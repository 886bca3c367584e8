"""Checks whether an evaluation can be trusted, shown first everywhere."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vpmetrics._scores.registry import scalar_key
from vpmetrics._util.dtypes import at_least_float32, read_numbers, widen
from vpmetrics._utterances.utterances import EvaluationData, Utterances, count_values, find_indices

if TYPE_CHECKING:
    from vpmetrics.report.privacy_report import PrivacyReport

OK = "ok"
WARNING = "warning"
FAILED = "failed"
_DOUBTFUL_EER = 0.05  # of original speech, above which a better encoder may find more
_USELESS_EER = 0.20  # of original speech, above which low disclosure proves nothing
# by how much better protected speakers are distinguished where both sides are swapped
_SWAPPED_EER = 0.15
FEW_SPEAKERS = 20  # that attacks are fitted on; they find more with more of them
# mean squared distance of unit embeddings to their mean; below it, they share one direction
_ONE_DIRECTION = 1e-4
# standard deviation of embeddings relative to their length; below it, they differ by rounding
_ROUNDING = 1e-5
_NEAR = 1e-3  # distance of unit embeddings below which two recordings are one
_NEIGHBOURS = 8  # in an order of projections, that each row is compared with
_MUCH_SHARED_TEXT = 0.1  # of the target trials, above which text may give speakers away
# Speaker, chapter and utterance, as in names of LibriSpeech and of challenge data.
_UTTERANCE_OF_CHAPTER = re.compile(r"(?P<chapter>\d+-\d+)-\d+")


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
    checks: list[Check | None] = [
        _check_encoder(values),
        *_check_attacks(values, report),
        _check_across_targets(report),
    ]
    if data is not None:
        original_spread = _check_spread("original", data.original)
        protected_spread = _check_spread("protected", data.protected)
        checks += [
            _check_duplicates(data),
            _check_same_voices_of_two_speakers(data),
            _check_unprotected(data),
            original_spread,
            protected_spread,
            _check_target_shares(data, report.speaker_names),
            _check_enrolment_is_anonymised(data),
        ]
        if len(data.protected):
            checks.append(_check_encoder_training(report))
    return [check for check in checks if check is not None]


def _check_encoder(values: Mapping[str, float]) -> Check | None:
    eer = values.get("oo_eer", math.nan)
    if math.isnan(eer):
        return None
    text = f"The encoder separates original speakers with an EER of {eer:.1%}"
    protected_eer = values.get("pp_eer", math.nan)
    if eer > _USELESS_EER:
        message = f"{text}: it hardly tells them apart, so low disclosure proves nothing."
        if protected_eer < eer - _SWAPPED_EER:
            message += (
                f" Protected speakers are told apart far better (EER {protected_eer:.1%}): are"
                " `original` and `protected` swapped?"
            )
        return Check("encoder", FAILED, message)
    if eer > _DOUBTFUL_EER:
        return Check("encoder", WARNING, f"{text}: a better encoder may disclose more.")
    return Check("encoder", OK, f"{text}.")


def _check_encoder_training(report: PrivacyReport) -> Check:
    """Check that the encoder has seen protected speech, which only the user can know."""
    if report.is_encoder_adapted:
        return Check("encoder training", OK, "The encoder was trained on protected speech.")
    message = (
        "The encoder is taken to be trained on original speech. Attackers who retrained theirs on"
        " protected speech found an EER of 7 % where 40 % had been published."
    )
    return Check("encoder training", WARNING, message)


def _check_attacks(values: Mapping[str, float], report: PrivacyReport) -> list[Check]:
    """Check on how many speakers attacks were fitted, and that they find more than chance."""
    if not report.attacks:
        message = "No attack was tried: the numbers are those of plain comparison."
        if set(report.conditions) - {"OO"}:
            return [Check("attacks", WARNING, message)]
        return []
    fitted_on = []
    for name in report.conditions:
        num_speakers = values.get(scalar_key(name, "attack_speakers"), math.nan)
        if not math.isnan(num_speakers):
            fitted_on.append(num_speakers)
    if not fitted_on:
        message = "Attacks need six speakers; with fewer the numbers are those of plain comparison."
        return [Check("attack speakers", FAILED, message)]
    text = f"Attacks were fitted on {min(fitted_on):.0f} speakers"
    if min(fitted_on) < FEW_SPEAKERS:
        checks = [Check("attack speakers", WARNING, f"{text}: they find more with more of them.")]
    else:
        checks = [Check("attack speakers", OK, f"{text}.")]
    for name in report.conditions:
        key = scalar_key(name, "d_ece_strongest")
        chance = values.get(scalar_key(name, "d_ece_chance"), 0.0)
        if values.get(key, math.nan) <= chance:
            message = f"Attackers of {name} find no more than chance would give ({chance:.3f} bit)."
            high = values.get(f"{key}_high", math.nan)
            status = WARNING
            if not math.isnan(high):
                status = OK
                message += f" The interval excludes more than {high:.3f} bit."
            checks.append(Check(f"attack on {name}", status, message))
    return checks


def _check_across_targets(report: PrivacyReport) -> Check | None:
    """Check that speakers have several sessions; None without sessions."""
    across = report.conditions.get("across")
    if across is None:
        return None
    targets, _ = across.num_trials
    if targets == 0:
        message = (
            "No speaker has two sessions, so nothing is known of linking one person over two draws"
            " of the secret (across)."
        )
        return Check("across", FAILED, message)
    return Check("across", OK, f"There are {targets:,} target trials across sessions.")


def _find_near_pairs(side: Utterances) -> tuple[Tensor, Tensor]:
    """Return pairs of rows ``(P,)`` that are equal but for rounding or for their length.

    Such rows have nearly the same projection, so only neighbours in an order of projections are
    compared.
    """
    unit_rows = normalize(widen(side.embeddings.detach()), dim=1)
    weights = torch.arange(unit_rows.shape[1], device=unit_rows.device, dtype=unit_rows.dtype).cos()
    order = (unit_rows @ weights).argsort(stable=True)
    rows = [order[:0]]
    near_rows = [order[:0]]
    for distance in range(1, min(_NEIGHBOURS, len(order) - 1) + 1):
        row = order[:-distance]
        neighbour = order[distance:]
        is_near = (unit_rows[row] - unit_rows[neighbour]).norm(dim=1) < _NEAR
        rows.append(row[is_near])
        near_rows.append(neighbour[is_near])
    return torch.cat(rows), torch.cat(near_rows)


def _is_collapsed(side: Utterances) -> bool:
    check = _check_spread("", side)
    return check is not None and not check.is_ok


def _check_duplicates(data: EvaluationData) -> Check:
    texts = []
    for name, side in (("original", data.original), ("protected", data.protected)):
        if _is_collapsed(side):
            continue
        rows, near_rows = _find_near_pairs(side)
        is_same_speaker = side.speakers[rows] == side.speakers[near_rows]
        count = len(near_rows[is_same_speaker].unique())
        if count:
            texts.append(f"{count} {name}")
    if not texts:
        return Check("duplicates", OK, "No two embeddings of a speaker are equal.")
    text = " and ".join(texts)
    message = (
        f"{text} embeddings equal another one of their speaker: recordings may be there twice."
    )
    return Check("duplicates", WARNING, message)


def _check_same_voices_of_two_speakers(data: EvaluationData) -> Check | None:
    """Check that no recording is there under two speakers: an original one, if there are any."""
    name = "original"
    side = data.original
    cause = "a recording may have two speakers' labels"
    if len(side) == 0:
        name = "protected"
        side = data.protected
        cause += ", or the anonymiser gives two speakers one voice"
    if len(side) < 2 or _is_collapsed(side):
        return None
    rows, near_rows = _find_near_pairs(side)
    is_other_speaker = side.speakers[rows] != side.speakers[near_rows]
    count = len(near_rows[is_other_speaker].unique())
    if not count:
        return None
    message = f"{count} {name} embeddings equal one of another speaker: {cause}."
    return Check("recordings of two speakers", WARNING, message)


def _check_unprotected(data: EvaluationData) -> Check | None:
    """Check that protected recordings differ from their originals; None where none has one."""
    row_of_original = find_indices(data.original.ids, data.protected.ids)
    has_original = row_of_original >= 0
    if not bool(has_original.any()) or _is_collapsed(data.protected):
        return None
    original = normalize(
        widen(data.original.embeddings.detach()[row_of_original[has_original]]), dim=1
    )
    protected = normalize(widen(data.protected.embeddings.detach()[has_original]), dim=1)
    count = int(((original - protected).norm(dim=1) < _NEAR).sum())
    total = len(original)
    if count == 0:
        return Check(
            "unprotected recordings", OK, "Every protected recording differs from its original."
        )
    if count == total:
        who = f"All {total:,}"
    else:
        who = f"{count:,} of {total:,}"
    return Check(
        "unprotected recordings", WARNING, f"{who} protected recordings equal their originals."
    )


def _check_spread(name: str, side: Utterances) -> Check | None:
    """Check that embeddings differ, in direction and beyond rounding; None for fewer than two."""
    if len(side) < 2:
        return None
    rows = widen(side.embeddings.detach())
    unit_rows = normalize(rows, dim=1)
    variance = float((unit_rows - unit_rows.mean(0)).square().sum(1).mean())
    if not variance < _ONE_DIRECTION:
        return Check(
            f"{name} embeddings", OK, f"The {name} embeddings differ (spread {variance:.2g})."
        )
    centred = rows - rows.mean(0)
    deviation = float(centred.square().sum(1).mean().sqrt())
    length = float(rows.square().sum(1).mean().sqrt())
    if not deviation > _ROUNDING * length:
        if name == "original":
            made_by = "the encoder"
        else:
            made_by = "the anonymiser and the encoder"
        return Check(
            f"{name} embeddings",
            FAILED,
            f"All {len(side):,} {name} embeddings are equal: check {made_by}.",
        )
    message = (
        f"The {name} embeddings have nearly one direction (spread {variance:.0e}): subtract their"
        " mean, since plain comparison hardly sees what differs."
    )
    return Check(f"{name} embeddings", WARNING, message)


def explain_missing_trials(num_speakers: int, num_utterances: int) -> str | None:
    """Return why there are no trials of both kinds, and what to add; None if there may be."""
    if num_utterances == 0:
        return "There are no utterances."
    if num_speakers == 1:
        return (
            f"All utterances ({num_utterances:,}) are of one speaker: add other speakers for"
            " non-target trials."
        )
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
    for name, side in (("original", data.original), ("protected", data.protected)):
        check = _check_spread(name, side)
        if check is not None and check.status == FAILED:
            return check.message
    return None


def _check_target_shares(data: EvaluationData, speaker_names: Mapping[int, str]) -> Check:
    """Check that no speaker holds most of the target trials."""
    side = data.original
    if len(data.protected):
        side = data.protected
    counts = widen(count_values(side.speaker_index, len(data.speakers)))
    if missing := explain_missing_trials(int((counts > 0).sum()), len(side)):
        return Check("trials", FAILED, missing)
    targets = counts * (counts - 1)
    share = float(targets.amax() / targets.sum())
    if len(counts) > 2 and share > 0.5:
        label = int(data.speakers[int(targets.argmax())])
        name = speaker_names.get(label, str(label))
        return Check(
            "target trials", WARNING, f"Speaker {name} holds {share:.0%} of all target trials."
        )
    return Check(
        "target trials", OK, f"No speaker holds more than {share:.0%} of the target trials."
    )


def _check_enrolment_is_anonymised(data: EvaluationData) -> Check | None:
    """Check that references are not much nearer to their originals than tests are.

    None with fewer than two of either.
    """
    if data.protected.is_reference is None:
        return None
    row_of_original = find_indices(data.original.ids, data.protected.ids)
    has_original = row_of_original >= 0
    original = normalize(
        at_least_float32(data.original.embeddings[row_of_original[has_original]]), dim=1
    )
    protected = normalize(at_least_float32(data.protected.embeddings[has_original]), dim=1)
    cosines = widen((original * protected).sum(1))
    is_reference = data.protected.is_reference[has_original]
    references = cosines[is_reference]
    tests = cosines[~is_reference]
    if len(references) < 2 or len(tests) < 2:
        return None
    gap = float(references.mean() - tests.mean())
    deviation = float(torch.sqrt((references.var() + tests.var()) / 2))
    if gap > 0.1 and gap > 2 * deviation:
        message = (
            f"Enrolment is much nearer to its originals (cosine {float(references.mean()):.2f})"
            f" than tests are ({float(tests.mean()):.2f}): it looks as if enrolment was never"
            " anonymised."
        )
        return Check("enrolment", FAILED, message)
    return Check("enrolment", OK, "Enrolment and tests are equally near to their originals.")


def check_identical_systems(reports: Mapping[str, PrivacyReport]) -> list[Check]:
    """Return a warning for every two systems with identical scores."""
    checks = []
    for name, other_name in combinations(reports, 2):
        values = reports[name].scalars
        other_values = reports[other_name].scalars
        keys = [key for key in values if key in other_values and key.startswith(("op_", "pp_"))]
        keys = [key for key in keys if not bool(values[key].isnan())]
        if keys and all(bool(values[key] == other_values[key]) for key in keys):
            message = f"{name} and {other_name} have identical scores."
            checks.append(Check("identical systems", WARNING, message))
    return checks


def check_missing_trials(missing: int, total: int) -> Check:
    """Return the check of trials of a list that have no embeddings."""
    if missing:
        return Check(
            "trials", WARNING, f"{missing:,} of {total:,} trials of the list have no embeddings."
        )
    return Check("trials", OK, f"All {total:,} trials of the list have embeddings.")


def check_shared_text(
    names: Iterable[str], speakers: Sequence[int], is_reference: Sequence[bool] | None = None
) -> Check | None:
    """Return the check whether enrolment and tests share text; None where names tell no chapters.

    Args:
        names: Name of each utterance, such as ``1089-134686-0003``: speaker, chapter, utterance.
        speakers: Speaker of each.
        is_reference: Whether each is enrolled; without it every utterance is on both sides.

    Example:
        >>> check_shared_text(["1-5-0", "1-5-1", "1-6-0", "2-7-0", "2-7-1"], [1, 1, 1, 2, 2]).status
        'warning'
    """
    matches = [_UTTERANCE_OF_CHAPTER.search(name) for name in names]
    chapters = [match["chapter"] for match in matches if match is not None]
    if len(chapters) < len(matches) or not chapters:
        return None
    index_of_chapter = {chapter: index for index, chapter in enumerate(dict.fromkeys(chapters))}
    chapter_index = torch.tensor([index_of_chapter[chapter] for chapter in chapters])
    speaker_index = torch.as_tensor(list(speakers)).unique(return_inverse=True)[1]
    pair_index = torch.stack([speaker_index, chapter_index]).unique(dim=1, return_inverse=True)[1]
    is_enrolled = torch.ones_like(pair_index, dtype=torch.bool)
    is_tested = is_enrolled
    if is_reference is not None:
        is_enrolled = torch.as_tensor(list(is_reference))
        is_tested = ~is_enrolled
    same_recording = int((is_enrolled & is_tested).sum())
    of_speaker = _count_pairs(speaker_index, is_enrolled, is_tested) - same_recording
    of_chapter = _count_pairs(pair_index, is_enrolled, is_tested) - same_recording
    if of_speaker <= 0:
        return None
    share = of_chapter / of_speaker
    if share > _MUCH_SHARED_TEXT:
        message = (
            f"{share:.0%} of the target trials compare two utterances of one chapter: what is said,"
            " and the recording, may tell speakers apart as well as their voice."
        )
        return Check("shared text", WARNING, message)
    return Check(
        "shared text",
        OK,
        f"{share:.0%} of the target trials compare two utterances of one chapter.",
    )


def _count_pairs(index: Tensor, is_enrolled: Tensor, is_tested: Tensor) -> int:
    """Return how many pairs of an enrolled and a tested row have the same index."""
    num_values = int(index.max()) + 1
    num_enrolled = count_values(index[is_enrolled], num_values)
    num_tested = count_values(index[is_tested], num_values)
    return int((num_enrolled * num_tested).sum())
