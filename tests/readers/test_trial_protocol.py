"""A challenge's listed trials, means of enrolment and groups, against plain NumPy."""

import kaldiio
import numpy as np
import pytest
import torch
from cli.cases import run
from cli.libri import CONDITIONS, SETS, expected_scores
from reference.verification import equal_error_rate

from vpmetrics.readers.trial_protocol import score_pairs
from vpmetrics.scoring import PLDA


def options_of(libri, **changes):
    """Options for all files of libri_test.

    A change replaces the files of an option, or leaves it out if it is None.
    """
    options = {
        name: [libri.folder / f"libri_test_{part}{end}" / "xvector.ark" for part in SETS]
        for name, end in (("original", ""), ("protected", "_anon"))
    }
    options |= {name: [libri.folder / name] for name in ("utt2spk", "enrolls")}
    options |= {
        "groups": [libri.folder / "spk2gender"],
        "trials": [libri.folder / f"trials_{sex}" for sex in "fm"],
    }
    options |= {"no-attacks": (), **changes}
    return [
        part
        for name, files in options.items()
        if files is not None
        for part in (f"--{name}", *files)
    ]


def test_measures_match_numpy_per_sex_and_condition(evaluate, libri, libri_measures):
    (system,) = evaluate(*options_of(libri, weights=[libri.folder / "weights"]))
    groups = system["groups"]
    assert set(groups) == {"f", "m"}
    for (sex, condition), values in libri_measures.items():
        for name, value in values.items():
            key = f"{condition}_{name}"
            assert groups[sex]["scalars"][key] == pytest.approx(value, abs=1e-9), (sex, key)
        targets = sum(same for *_, same in libri.trials[sex])
        counts = {"target": targets, "nontarget": len(libri.trials[sex]) - targets}
        assert groups[sex]["trials"][condition.upper()] == counts
    for condition in CONDITIONS:
        scores_of_women, labels_of_women = expected_scores(libri, "f", condition)
        scores_of_men, labels_of_men = expected_scores(libri, "m", condition)
        scores = np.concatenate([scores_of_women, scores_of_men])
        labels = np.concatenate([labels_of_women, labels_of_men])
        assert system["scalars"][f"{condition}_eer"] == pytest.approx(
            equal_error_rate(scores, labels), abs=1e-9
        )
        average = (
            0.6 * libri_measures["f", condition]["eer"]
            + 0.4 * libri_measures["m", condition]["eer"]
        )
        assert system["average"]["scalars"][f"{condition}_eer"] == pytest.approx(average, abs=1e-12)
    assert system["average"]["weights"] == {"f": 0.6, "m": 0.4}
    assert "op_tag" not in system["average"]["scalars"]


def test_strongest_attack_on_more_trials_than_listed_gives_a_note(tmp_path, evaluate, libri):
    lines = (libri.folder / "trials_f").read_text().splitlines()
    (tmp_path / "some").write_text("".join(f"{line}\n" for line in lines[::7]))
    (system,) = evaluate(*options_of(libri, trials=[tmp_path / "some"], **{"no-attacks": None}))
    assert system["groups"]["f"]["scalars"]["op_d_ece_strongest"] > 0
    (note,) = system["notes"]
    assert note.endswith(f"the list has {len(lines[::7]):,}")


def test_without_a_list_all_pairs_of_a_group_are_trials(evaluate, libri, libri_measures):
    """That is what the challenge lists.

    So the engine's averaged enrolment and groups have to agree with it.
    """
    (got,) = evaluate(*options_of(libri, trials=None, weights=[libri.folder / "weights"]))
    for (sex, condition), values in libri_measures.items():
        assert got["groups"][sex]["trials"][condition.upper()]["target"] == sum(
            same for *_, same in libri.trials[sex]
        )
        for name, value in values.items():
            assert got["groups"][sex]["scalars"][f"{condition}_{name}"] == pytest.approx(
                value, abs=1e-5
            ), name
    average = 0.6 * libri_measures["f", "op"]["eer"] + 0.4 * libri_measures["m", "op"]["eer"]
    assert got["average"]["scalars"]["op_eer"] == pytest.approx(average, abs=1e-5)
    assert got["utterances"] == 438 + 734 + 762


def test_groups_are_shown_and_conditions_without_embeddings_are_named(evaluate, libri, capsys):
    protected = [libri.folder / f"libri_test_{name}_anon/xvector.ark" for name in SETS[1:]]
    (system,) = evaluate(*options_of(libri, protected=protected), "--all")
    shown = capsys.readouterr().out
    assert "By group, OP" in shown
    assert "PP left out: none of the enrolment utterances is in" in " ".join(shown.split())
    assert not any(key.startswith("pp_") for key in system["scalars"])
    run("evaluate", *options_of(libri, enrolls=None), expect=2)
    assert (
        "Nothing to score: OO left out: none of the enrolment utterances is in"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "trials_f",
            lambda lines: [*lines, "1000 nobody-1-1 nontarget"],
            "expected all trial utterances, but 1 of 1,497 are missing, first 'nobody-1-1'",
        ),
        ("trials_f", lambda lines: [*lines, lines[0]], "expected every trial once, but 1 of"),
        (
            "trials_f",
            lambda lines: [lines[0].replace(" target", " nontarget"), *lines[1:]],
            (
                "expected target labels to agree with the speakers of utt2spk, but 1 do not, first"
                " '1000 1000-134691-0000'"
            ),
        ),
        (
            "enrolls",
            lambda lines: [*lines, "nobody-1-1"],
            "expected the speaker of every enrolment utterance",
        ),
        (
            "spk2gender",
            lambda lines: lines[1:],
            "Expected the group of every trial utterance in --groups, but got",
        ),
    ],
)
def test_invalid_protocol_files_raise(tmp_path, libri, capsys, name, change, message):
    lines = (libri.folder / name).read_text().splitlines()
    (tmp_path / name).write_text("".join(f"{line}\n" for line in change(lines)))
    options = [
        tmp_path / name if str(option) == str(libri.folder / name) else option
        for option in options_of(libri)
    ]
    run("evaluate", *options, "--json", tmp_path / "r.json", expect=2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "r.json").exists()


def test_files_of_a_side_are_merged_and_conflicts_raise(tmp_path, libri, capsys):
    vectors = dict(kaldiio.load_ark(str(libri.folder / "libri_test_enrolls" / "xvector.ark")))
    name = next(iter(vectors))
    for change in (0, 1):
        kaldiio.save_ark(str(tmp_path / f"{change}.ark"), {name: vectors[name] + change})
    options = options_of(libri)
    run("evaluate", *options[:4], tmp_path / "0.ark", *options[4:])
    run("evaluate", *options[:4], tmp_path / "1.ark", *options[4:], expect=2)
    assert (
        f"expected the same vector for {name!r} as in the files before" in capsys.readouterr().err
    )


def test_trials_without_embeddings_raise_unless_partial_is_set(tmp_path, evaluate, libri, capsys):
    whole = str(libri.folder / "libri_test_trials_f_anon" / "xvector.ark")
    vectors = dict(kaldiio.load_ark(whole))
    absent = next(iter(vectors))
    del vectors[absent]
    kaldiio.save_ark(str(tmp_path / "some.ark"), vectors)
    options = [
        tmp_path / "some.ark" if str(option) == whole else option for option in options_of(libri)
    ]
    run("evaluate", *options, expect=2)
    assert "--partial leaves such trials out" in capsys.readouterr().err
    lost = sum(name == absent for _, name, _ in libri.trials["f"])
    total = sum(map(len, libri.trials.values()))
    for arguments, status in (([*options, "--partial"], "warning"), (options_of(libri), "ok")):
        (check,) = [
            check for check in evaluate(*arguments)[0]["checks"] if check["name"] == "trials"
        ]
        assert check["status"] == status
        assert (f"{lost} of {total:,} trials" in check["message"]) == (status == "warning")


@pytest.mark.parametrize(
    "scoring", ["cosine", "dot", "euclidean", "plda", lambda a, b: a[:, None, 0] - b[None, :, 1]]
)
def test_pairs_are_scored_as_whole_matrices_are(scoring, monkeypatch):
    monkeypatch.setattr("vpmetrics.readers.trial_protocol._PAIRS_AT_ONCE", 11)
    draw = torch.Generator().manual_seed(0)
    left = torch.randn(20, 5, generator=draw, dtype=torch.float64)
    right = torch.randn(33, 5, generator=draw, dtype=torch.float64)
    rows = torch.randint(20, (90,), generator=draw)
    columns = torch.randint(33, (90,), generator=draw)
    if scoring == "plda":
        scoring = PLDA().fit(torch.randn(40, 5, generator=draw).double(), torch.arange(40) // 4)
    if scoring == "cosine":
        whole = torch.nn.functional.normalize(left) @ torch.nn.functional.normalize(right).T
    elif scoring == "dot":
        whole = left @ right.T
    elif scoring == "euclidean":
        whole = -(left[:, None] - right[None]).square().sum(2).sqrt()
    else:
        whole = scoring(left, right)
    got = score_pairs(left, right, rows, columns, scoring)
    torch.testing.assert_close(got, whole[rows, columns], atol=1e-12, rtol=0)


def test_plda_is_fitted_on_other_speakers(tmp_path, evaluate, libri):
    draw = np.random.default_rng(1)
    voices = draw.normal(size=(60, 32)).repeat(5, axis=0)
    vectors = voices + 1.5 * draw.normal(size=(300, 32))
    speakers = np.arange(60).repeat(5)
    np.savez(tmp_path / "train.npz", vectors=vectors, speakers=speakers)
    (system,) = evaluate(
        *options_of(libri), "--scoring", "plda", "--plda-fit", tmp_path / "train.npz"
    )
    assert system["scalars"]["oo_eer"] < 0.2


def test_enrolment_and_tests_of_other_chapters_share_no_text(evaluate, libri):
    (system,) = evaluate(*options_of(libri))
    (check,) = [check for check in system["checks"] if check["name"] == "shared text"]
    assert check["status"] == "ok"
    assert check["message"] == "0% of the target trials compare two utterances of one chapter."
