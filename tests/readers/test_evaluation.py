"""Notes of an evaluation, and intervals: what it lacks is named, and what it finds has an error."""

import re

import numpy as np
import pytest
import torch
from cli.cases import (
    label_of,
    results_of,
    run,
    scalars_of,
    systems_of,
    trials_of,
    write_key,
    write_scores,
    write_utt2spk,
)


def test_undefined_value_gives_a_dash_and_a_note(tmp_path, voices, capsys):
    trials = trials_of(voices, "OP")
    targets = [trial for trial in trials if label_of(voices, *trial[:2]) == "target"]
    files = [
        write_scores(tmp_path / name, voices, t, fourth=True)
        for name, t in (("oo", trials), ("op", targets))
    ]
    run("scores", "--oo", files[0], "--op", files[1], "--out", tmp_path / "out")
    got = scalars_of(tmp_path / "out" / "results.json")
    assert got["op_d_ece"] is None
    assert got["oo_d_ece"] > 0
    shown = capsys.readouterr().out
    assert "No verdict" in shown
    assert "note: There are no non-target trials" in shown
    assert ">–<" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_scores_without_target_trials_raise(tmp_path, capsys):
    (tmp_path / "scores").write_text("a b 1 nontarget\na c 2 nontarget\n")
    run("scores", tmp_path / "scores", expect=2)
    assert "No measure of privacy is defined. There are no target trials" in capsys.readouterr().err


@pytest.mark.parametrize("sign", [-1, 1])
def test_scores_of_the_wrong_sign_are_noted(tmp_path, evaluate_scores, voices, sign):
    trials = [(i, j, sign * score) for i, j, score in trials_of(voices, "OP")]
    (system,) = evaluate_scores(
        write_scores(tmp_path / "scores", voices, trials),
        "--key",
        write_key(tmp_path / "key", voices),
    )
    assert ("scores seem to fall with likeness: negate them?" in " ".join(system["notes"])) == (
        sign < 0
    )


def test_random_scores_give_no_sign_note(tmp_path, evaluate_scores, voices):
    draw = np.random.default_rng(0)
    for _ in range(5):
        trials = [(i, j, float(draw.normal())) for i, j, _ in trials_of(voices, "OO")[:400]]
        scores = write_scores(tmp_path / "s", voices, trials, fourth=True)
        assert evaluate_scores(scores, "--intervals", "0")[0]["notes"] == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda side: -side, "an attacker who turns the sign undoes the protection"),
        (
            lambda side: side * (torch.arange(60) > 2)[:, None],
            "all.pt: 3 of 60 rows of the protected embeddings are all zero; no voice is in them",
        ),
        (
            lambda side: side[:1].expand(60, -1).clone(),
            (
                "Linkability needs scores that are finite and not all the same. All 60 protected"
                " embeddings are equal: check the anonymiser and the encoder. The result is NaN."
            ),
        ),
    ],
)
def test_degenerate_embeddings_give_a_note(tmp_path, evaluate, voices, capsys, change, expected):
    content = {
        "original": voices.original,
        "protected": change(voices.original),
        "speakers": voices.speakers,
    }
    torch.save(content, tmp_path / "all.pt")
    assert any(
        expected in note for note in evaluate(tmp_path / "all.pt", "--no-attacks")[0]["notes"]
    )
    assert expected in capsys.readouterr().out


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same original speech, protected hardly, hardly otherwise, and well."""
    folder = tmp_path_factory.mktemp("systems")
    draw = np.random.default_rng(0)
    voices = 1.5 * draw.normal(size=(12, 8)).repeat(4, axis=0)
    shared = {"original": voices + draw.normal(size=(48, 8)), "speakers": np.arange(12).repeat(4)}
    for name, noise in (("a", 0.5), ("b", 0.6), ("c", 4.0)):
        np.savez(
            folder / f"{name}.npz",
            protected=shared["original"] + noise * draw.normal(size=(48, 8)),
            **shared,
        )
    return folder


def test_numbers_have_intervals_unless_disabled(files, tmp_path, capsys):
    run("evaluate", files / "a.npz", "--no-attacks", "--out", tmp_path / "out")
    content = results_of(tmp_path / "out" / "results.json")
    scalars = content["systems"][0]["scalars"]
    assert content["settings"]["intervals"] == 0.95
    for key in ("deid", "op_d_ece", "oo_eer", "op_alid"):
        assert scalars[f"{key}_low"] <= scalars[key] <= scalars[f"{key}_high"]
        assert scalars[f"{key}_low"] < scalars[f"{key}_high"]
    shown = (
        f"{scalars['op_d_ece']:.3f} [{scalars['op_d_ece_low']:.3f}, {scalars['op_d_ece_high']:.3f}]"
    )
    page = re.sub("</?small>", "", (tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    for text in (capsys.readouterr().out, page):
        assert shown in text
        assert "In brackets: 95 % confidence intervals" in text
    assert shown in (tmp_path / "out" / "tables.md").read_text(encoding="utf-8").replace("\\", "")
    run(
        "evaluate",
        files / "a.npz",
        "--no-attacks",
        "--intervals",
        "0",
        "--json",
        tmp_path / "none.json",
    )
    assert not [
        key for key in systems_of(tmp_path / "none.json")[0]["scalars"] if key.endswith("_low")
    ]


def test_speakers_are_inferred_from_target_trials_without_utt2spk(tmp_path, voices, capsys):
    scores = write_scores(tmp_path / "s", voices, trials_of(voices, "OP"), fourth=True)
    run("scores", scores, "--out", tmp_path / "joined")
    said = " ".join(capsys.readouterr().out.split())
    assert "In brackets: 95 % confidence intervals" in said
    assert "intervals take names that target trials join for one speaker: 6 speakers" in said
    run(
        "scores",
        scores,
        "--utt2spk",
        write_utt2spk(tmp_path, voices),
        "--json",
        tmp_path / "told.json",
    )
    assert "target trials join" not in capsys.readouterr().out
    (joined,) = systems_of(tmp_path / "joined/results.json")
    (told,) = systems_of(tmp_path / "told.json")
    assert joined["scalars"] == pytest.approx(told["scalars"])
    assert joined["speakers"] == told["speakers"] == 6
    assert (
        joined["scalars"]["d_ece_low"]
        < joined["scalars"]["d_ece"]
        < joined["scalars"]["d_ece_high"]
    )


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (
            ["a b 1 target", "c d 2 target", "a e 0 nontarget"],
            "1 names are in no target trial, as 'e'",
        ),
        (
            ["a b 1 target", "b c 2 target", "a c 0 nontarget", "d e 3 target", "a d 1 nontarget"],
            "are of one speaker",
        ),
        (["1.0 target", "0.5 nontarget", "2.0 target"], "the scores do not name what they compare"),
    ],
)
def test_unknown_speakers_give_no_intervals_and_a_reason(
    tmp_path, evaluate_scores, capsys, lines, why
):
    (tmp_path / "scores").write_text("\n".join(lines))
    (system,) = evaluate_scores(tmp_path / "scores")
    assert any(note.startswith("No intervals: ") and why in note for note in system["notes"])
    assert not [key for key in system["scalars"] if key.endswith("_low")]
    assert "In brackets" not in capsys.readouterr().out


def test_compare_gives_differences_of_score_systems(tmp_path, voices):
    names = "B2", "B2r0", "B2r1"
    files = [
        write_scores(tmp_path / name, voices, trials_of(voices, "OP", name), fourth=True)
        for name in names
    ]
    run("scores", *files, "--json", tmp_path / "r.json")
    found = {(d["first"], d["second"]): d for d in results_of(tmp_path / "r.json")["differences"]}
    assert len(found) == 3
    assert found["B2", "B2r1"]["told_apart"]
    assert found["B2", "B2r1"]["low"] > 0


def test_compare_gives_differences_of_embedding_systems(files, tmp_path, capsys):
    systems = [f"{name}={files / name}.npz" for name in "abc"]
    run("compare", *systems, "--no-attacks", "--out", tmp_path / "out")
    pairs = {
        (d["first"], d["second"]): d
        for d in results_of(tmp_path / "out" / "results.json")["differences"]
    }
    assert set(pairs) == {("a", "b"), ("a", "c"), ("b", "c")}
    for pair in pairs.values():
        assert pair["scalar"] == "disclosure_conversation"
        assert pair["told_apart"] == (pair["low"] > 0 or pair["high"] < 0)
    assert not pairs["a", "b"]["told_apart"]
    assert pairs["a", "c"]["told_apart"]
    assert pairs["a", "c"]["p_value"] < 0.05
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "not significant; lower for" in page
    assert "c discloses less" in page
    assert "c discloses least." in capsys.readouterr().out
    run("compare", *systems[:2], "--no-attacks", "--json", tmp_path / "two.json")
    assert "but these data do not tell it apart from" in " ".join(capsys.readouterr().out.split())


def name_by_chapter(voices, num_chapters):
    """Names as in LibriSpeech, with as many chapters of each speaker."""
    return [
        f"{speaker}-{row % num_chapters}-{row:04d}"
        for row, speaker in enumerate(voices.speakers.tolist())
    ]


def find_check(system, name):
    return next((check for check in system["checks"] if check["name"] == name), None)


@pytest.mark.parametrize(("num_chapters", "share"), [(1, "100%"), (5, "11%")])
def test_names_of_chapters_tell_how_much_text_is_shared(
    tmp_path, evaluate, voices, num_chapters, share
):
    """Of the nine other utterances of a speaker with ten in five chapters, one is of the same."""
    path = tmp_path / "both.npz"
    names = name_by_chapter(voices, num_chapters)
    arrays = {"original": voices.original, "protected": voices.protected["B2"]}
    np.savez(path, **arrays, utterances=names, speakers=voices.speakers)
    check = find_check(evaluate(path, "--no-attacks")[0], "shared text")
    assert check["status"] == "warning"
    assert check["message"].startswith(f"{share} of the target trials compare two utterances")


def test_names_without_chapters_tell_nothing_of_the_text(tmp_path, evaluate, voices):
    path = tmp_path / "both.npz"
    arrays = {"original": voices.original, "protected": voices.protected["B2"]}
    np.savez(path, **arrays, utterances=voices.utterances, speakers=voices.speakers)
    assert find_check(evaluate(path, "--no-attacks")[0], "shared text") is None
