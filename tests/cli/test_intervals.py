"""How sure numbers are: intervals in tables, page and files, a verdict by their upper end, and pairs of systems."""

import re

import numpy as np
import pytest
from cli.cases import results_of, run, systems_of, trials_of, write_scores, write_utt2spk


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same original speech, protected hardly, hardly otherwise, and well."""
    folder, draw = tmp_path_factory.mktemp("systems"), np.random.default_rng(0)
    voices = 1.5 * draw.normal(size=(12, 8)).repeat(4, axis=0)
    shared = {"original": voices + draw.normal(size=(48, 8)), "speakers": np.arange(12).repeat(4)}
    for name, noise in (("a", 0.5), ("b", 0.6), ("c", 4.0)):
        np.savez(folder / f"{name}.npz", protected=shared["original"] + noise * draw.normal(size=(48, 8)), **shared)
    return folder


def test_numbers_have_intervals_unless_disabled(files, tmp_path, capsys):
    run("evaluate", files / "a.npz", "--no-attacks", "--out", tmp_path / "out")
    content = results_of(tmp_path / "out" / "results.json")
    scalars = content["systems"][0]["scalars"]
    assert content["settings"]["intervals"] == 0.95
    for key in ("deid", "op_d_ece", "oo_eer", "op_alid"):
        assert scalars[f"{key}_low"] <= scalars[key] <= scalars[f"{key}_high"]
        assert scalars[f"{key}_low"] < scalars[f"{key}_high"]
    shown = f"{scalars['op_d_ece']:.3f} [{scalars['op_d_ece_low']:.3f}, {scalars['op_d_ece_high']:.3f}]"
    page = re.sub("</?small>", "", (tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    for text in (capsys.readouterr().out, page):
        assert shown in text
        assert "In brackets: 95 % confidence intervals" in text
    assert shown in (tmp_path / "out" / "tables.md").read_text(encoding="utf-8").replace("\\", "")
    run("evaluate", files / "a.npz", "--no-attacks", "--intervals", "0", "--json", tmp_path / "none.json")
    assert not [key for key in systems_of(tmp_path / "none.json")[0]["scalars"] if key.endswith("_low")]


def test_speakers_are_inferred_from_target_trials_without_utt2spk(tmp_path, voices, capsys):
    scores = write_scores(tmp_path / "s", voices, trials_of(voices, "OP"), fourth=True)
    run("evaluate", scores, "--out", tmp_path / "joined")
    said = " ".join(capsys.readouterr().out.split())
    assert "In brackets: 95 % confidence intervals" in said
    assert "intervals take names that target trials join for one speaker: 6 speakers" in said
    run("evaluate", scores, "--utt2spk", write_utt2spk(tmp_path, voices), "--json", tmp_path / "told.json")
    assert "target trials join" not in capsys.readouterr().out
    joined, told = (systems_of(path)[0] for path in (tmp_path / "joined/results.json", tmp_path / "told.json"))
    assert joined["scalars"] == pytest.approx(told["scalars"])
    assert joined["speakers"] == told["speakers"] == 6
    assert joined["scalars"]["d_ece_low"] < joined["scalars"]["d_ece"] < joined["scalars"]["d_ece_high"]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["a b 1 target", "c d 2 target", "a e 0 nontarget"], "1 names are in no target trial, as 'e'"),
        (["a b 1 target", "b c 2 target", "a c 0 nontarget", "d e 3 target", "a d 1 nontarget"], "are of one speaker"),
        (["1.0 target", "0.5 nontarget", "2.0 target"], "the scores do not name what they compare"),
    ],
)
def test_unknown_speakers_give_no_intervals_and_a_reason(tmp_path, evaluate, capsys, lines, why):
    (tmp_path / "scores").write_text("\n".join(lines))
    (system,) = evaluate(tmp_path / "scores")
    assert [note for note in system["notes"] if note.startswith("No intervals: ") and why in note]
    assert not [key for key in system["scalars"] if key.endswith("_low")]
    said = capsys.readouterr().out
    assert "No intervals: " in said
    assert "In brackets" not in said
    run("evaluate", tmp_path / "scores", "--intervals", "0")
    assert "No intervals" not in capsys.readouterr().out


def test_compare_gives_differences_of_score_systems(tmp_path, voices, capsys):
    files = [
        f"{name}={write_scores(tmp_path / name, voices, trials_of(voices, 'OP', name), fourth=True)}"
        for name in ("B2", "B2r0", "B2r1")
    ]
    run("compare", *files, "--out", tmp_path / "out")
    found = {(d["first"], d["second"]): d for d in results_of(tmp_path / "out/results.json")["differences"]}
    assert len(found) == 3
    worst = found["B2", "B2r1"]
    assert worst["scalar"] == "disclosure"
    assert worst["told_apart"]
    assert worst["low"] > 0
    assert "B2r1 discloses less" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "these data do not tell it apart from" in " ".join(capsys.readouterr().out.split())


def test_compare_gives_differences_of_embedding_systems(files, tmp_path, capsys):
    systems = [f"{name}={files / name}.npz" for name in "abc"]
    run("compare", *systems, "--no-attacks", "--out", tmp_path / "out")
    pairs = {(d["first"], d["second"]): d for d in results_of(tmp_path / "out" / "results.json")["differences"]}
    assert set(pairs) == {("a", "b"), ("a", "c"), ("b", "c")}
    for pair in pairs.values():
        assert pair["scalar"] == "disclosure"
        assert pair["told_apart"] == (pair["low"] > 0 or pair["high"] < 0)
    assert not pairs["a", "b"]["told_apart"]
    assert pairs["a", "c"]["told_apart"]
    assert pairs["a", "c"]["probability_first_smaller"] < 0.025
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "not significant; lower for" in page
    assert "c discloses less" in page
    assert "c discloses least." in capsys.readouterr().out
    run("compare", *systems[:2], "--no-attacks", "--json", tmp_path / "two.json")
    assert "but these data do not tell it apart from" in " ".join(capsys.readouterr().out.split())
