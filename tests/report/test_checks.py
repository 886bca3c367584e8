"""Checks: for each a made-up evaluation that triggers it and one that does not."""

from functools import partial

import pytest
import torch
from reports import make_report
from samples import voices

from vpmetrics.attacks import Plain
from vpmetrics.report.checks import check_identical_systems, check_missing_trials, check_shared_text

report_of = partial(make_report, metrics="headline")


def found(report, name):
    """Status and message of a check; None where it was not made."""
    return next(
        ((check.status, check.message) for check in report.checks if check.name == name), None
    )


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clear(spread=0.3, speakers=30, utterances=6):
    """Voices that an encoder separates as well as ``spread`` is small, and hidden versions."""
    rows = voices(speakers=speakers, utterances=utterances, leak=0.0)
    rows["original"] = noise(speakers, 16)[rows["speakers"]] + spread * noise(
        len(rows["speakers"]), 16, seed=1
    )
    return rows


@pytest.mark.parametrize(("spread", "status"), [(0.2, "ok"), (1.0, "warning"), (4.0, "failed")])
def test_the_encoder_separates_original_speakers(spread, status):
    given, message = found(report_of(clear(spread)), "encoder")
    assert given == status
    assert ("low disclosure proves nothing" in message) == (status == "failed")


@pytest.mark.filterwarnings("ignore:.*The result is NaN")
def test_attackers_need_speakers_to_learn_from():
    status, message = found(report_of(clear()), "attacks")
    assert (status, message.startswith("No attack was tried")) == ("warning", True)
    for speakers, status in ((30, "ok"), (12, "warning"), (5, "failed")):
        report = report_of(clear(speakers=speakers), attacks=[Plain()])
        assert found(report, "attacks") is None
        assert found(report, "attack speakers")[0] == status


def test_the_attack_beats_chance():
    assert (
        found(report_of(voices(speakers=30, leak=1.0), attacks=[Plain()]), "attack on OP") is None
    )
    rows = clear(speakers=30)
    for seed in range(20):  # some of which, by chance, disclose less than chance
        rows["protected"] = noise(*rows["protected"].shape, seed=seed)
        report = report_of(rows, attacks=[Plain()], intervals=0.95)
        if report.scalars["op_d_ece_strongest"] <= report.scalars["op_d_ece_chance"]:
            break
    status, message = found(report, "attack on OP")
    assert (status, "no more than chance" in message) == ("ok", True)
    assert f"excludes more than {report.scalars['op_d_ece_strongest_high']:.3f} bit" in message


@pytest.mark.filterwarnings("ignore:.* equal another")
def test_duplicate_recordings():
    rows = clear()
    again = {key: torch.cat([column, column[:5]]) for key, column in rows.items()}
    status, message = found(report_of(again), "duplicates")
    assert status == "warning"
    assert message.startswith(
        "5 original and 5 protected embeddings equal another one of their speaker"
    )
    near = {key: column.clone() for key, column in again.items()}
    near["original"][-5:] *= 1 + 1e-4 * noise(5, 16, seed=7)
    assert found(report_of(near), "duplicates")[1].startswith("5 original and 5 protected")
    ids = torch.cat([torch.arange(len(rows["speakers"])), torch.arange(5)])
    assert found(report_of(again | {"utterances": ids}), "duplicates")[0] == "ok"


def test_one_recording_under_two_speakers():
    rows = clear()
    assert found(report_of(rows), "recordings of two speakers") is None
    rows["original"][rows["speakers"] == 1] = rows["original"][rows["speakers"] == 0]
    status, message = found(report_of(rows), "recordings of two speakers")
    assert (status, message.startswith("6 original embeddings equal one of another speaker")) == (
        "warning",
        True,
    )


@pytest.mark.filterwarnings("ignore:There are no trials")  # of original speech
def test_one_voice_of_two_speakers_where_there_is_protected_speech_alone():
    rows = clear() | {"original": None}
    assert found(report_of(rows), "recordings of two speakers") is None
    rows["protected"][rows["speakers"] == 1] = rows["protected"][rows["speakers"] == 0]
    status, message = found(report_of(rows), "recordings of two speakers")
    assert status == "warning"
    assert message.startswith("6 protected embeddings equal one of another speaker")


def test_protected_recordings_that_equal_their_originals():
    rows = clear()
    assert found(report_of(rows), "unprotected recordings")[0] == "ok"
    rows["protected"][::10] = rows["original"][::10]
    status, message = found(report_of(rows), "unprotected recordings")
    assert (status, message) == ("warning", "18 of 180 protected recordings equal their originals.")
    message = found(
        report_of({**rows, "protected": rows["original"].clone()}), "unprotected recordings"
    )[1]
    assert message == "All 180 protected recordings equal their originals."


def test_a_common_vector_is_not_taken_for_equal_embeddings():
    rows = clear()
    rows["original"] = rows["original"] + 1000 * noise(1, 16, seed=5)
    status, message = found(report_of(rows), "original embeddings")
    assert (status, "nearly one direction" in message) == ("warning", True)


def test_swapped_sides():
    rows = clear()
    rows["original"], rows["protected"] = noise(180, 16, seed=3), rows["original"]
    status, message = found(report_of(rows, metrics="all"), "encoder")
    assert (status, "are `original` and `protected` swapped?" in message) == ("failed", True)


def test_the_encoder_is_taken_to_be_trained_on_original_speech():
    assert found(report_of(clear()), "encoder training")[0] == "warning"
    assert found(report_of(clear(), trained_on_protected=True), "encoder training")[0] == "ok"


@pytest.mark.filterwarnings(
    "ignore:There are no", "ignore:.*The result is NaN", "ignore:Linkability"
)
def test_across_without_target_trials():
    rows = clear()
    assert found(report_of(rows), "across") is None
    assert found(report_of(rows | {"sessions": torch.arange(180) % 2}), "across")[0] == "ok"
    status, message = found(report_of(rows | {"sessions": rows["speakers"]}), "across")
    assert (status, message.startswith("No speaker has two sessions")) == ("failed", True)


def test_text_shared_by_both_sides():
    names = [
        f"{speaker}-{chapter}-{k:04}"
        for speaker in (10, 11)
        for chapter in (1, 2)
        for k in range(3)
    ]
    speakers = [10] * 6 + [11] * 6
    check = check_shared_text(names, speakers)
    assert (check.status, check.message.startswith("40% of the target trials")) == ("warning", True)
    is_reference = [chapter == "1" for _, chapter, _ in (name.split("-") for name in names)]
    assert check_shared_text(names, speakers, is_reference).status == "ok"
    assert check_shared_text(["a", "b"], [0, 0]) is None


def test_checks_of_clear_voices_pass():
    rows = clear() | {"is_reference": torch.arange(180) % 2 == 0}
    status = {check.name: check.status for check in report_of(rows).checks}
    names = (
        "duplicates",
        "protected embeddings",
        "original embeddings",
        "target trials",
        "enrolment",
    )
    assert {name: status.get(name) for name in names} == dict.fromkeys(names, "ok")
    assert found(report_of(clear()), "enrolment") is None


@pytest.mark.filterwarnings(
    "ignore:.* equal another", "ignore:.*The result is NaN", "ignore:Linkability"
)
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_collapsed_embeddings(value):
    rows = clear()
    rows["protected"] = torch.full_like(rows["protected"], value)
    report = report_of(rows)
    message = "All 180 protected embeddings are equal: check the anonymiser and the encoder."
    assert found(report, "protected embeddings") == ("failed", message)
    assert found(report, "original embeddings")[0] == "ok"


@pytest.mark.parametrize("names", [None, ["p225", "p226", "p227"]])
def test_one_speaker_holds_most_target_trials(names):
    labels = torch.tensor([0] * 20 + [1] * 5 + [2] * 5)
    rows = {"original": noise(30, 8), "protected": noise(30, 8, seed=1), "speakers": labels}
    rows["speakers"] = labels if names is None else [names[label] for label in labels]
    status, message = found(report_of(rows), "target trials")
    assert status == "warning"
    assert message == f"Speaker {0 if names is None else 'p225'} holds 90% of all target trials."


@pytest.mark.filterwarnings("ignore:.*The result is NaN")
@pytest.mark.parametrize(
    ("speakers", "message"),
    [
        (
            range(8),
            (
                "Every speaker has one utterance (8 speakers): add more utterances of each for"
                " target trials."
            ),
        ),
        (
            [7] * 8,
            "All utterances (8) are of one speaker: add other speakers for non-target trials.",
        ),
    ],
)
def test_trials_of_one_kind_are_missing(speakers, message):
    rows = {
        "original": noise(8, 8),
        "protected": noise(8, 8, seed=1),
        "speakers": torch.tensor(speakers),
    }
    assert found(report_of(rows), "trials") == ("failed", message)


def test_enrolment_that_was_not_anonymised():
    rows = clear()
    rows["is_reference"] = torch.arange(len(rows["speakers"])) % 2 == 0
    rows["protected"] = torch.where(
        rows["is_reference"][:, None], rows["original"], rows["protected"]
    )
    status, message = found(report_of(rows), "enrolment")
    assert (status, "enrolment was never anonymised" in message) == ("failed", True)


def test_two_systems_with_identical_scores():
    reports = {name: report_of(voices(seed=seed)) for name, seed in (("a", 0), ("b", 0), ("c", 1))}
    (check,) = check_identical_systems(reports)
    assert (check.status, check.message) == ("warning", "a and b have identical scores.")


def test_trials_of_a_list_without_embeddings():
    assert check_missing_trials(0, 1000).status == "ok"
    assert check_missing_trials(3, 1000) == (
        "trials",
        "warning",
        "3 of 1,000 trials of the list have no embeddings.",
    )
