"""Notes and warnings of the command line: what an evaluation lacks is named."""

import numpy as np
import pytest
import torch
from cli.cases import label_of, run, scalars_of, trials_of, write_key, write_scores


def test_undefined_value_gives_a_dash_and_a_note(tmp_path, voices, capsys):
    trials = trials_of(voices, "OP")
    targets = [trial for trial in trials if label_of(voices, *trial[:2]) == "target"]
    files = [write_scores(tmp_path / name, voices, t, fourth=True) for name, t in (("oo", trials), ("op", targets))]
    run("evaluate", "--oo", files[0], "--op", files[1], "--json", tmp_path / "result.json", "--out", tmp_path / "out")
    got = scalars_of(tmp_path / "result.json")
    assert got["op_d_ece"] is None
    assert got["oo_d_ece"] > 0
    shown = capsys.readouterr().out
    assert "No verdict" in shown
    assert ">–<" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "note: There are no non-target trials" in shown


def test_scores_without_target_trials_raise(tmp_path, capsys):
    (tmp_path / "scores").write_text("a b 1 nontarget\na c 2 nontarget\n")
    run("evaluate", tmp_path / "scores", expect=2)
    assert "No measure of privacy is defined. There are no target trials" in capsys.readouterr().err


@pytest.mark.parametrize("sign", [-1, 1])
def test_scores_of_the_wrong_sign_are_noted(tmp_path, evaluate, voices, capsys, sign):
    trials = [(i, j, sign * score) for i, j, score in trials_of(voices, "OP")]
    files = write_scores(tmp_path / "scores", voices, trials), write_key(tmp_path / "key", voices)
    (system,) = evaluate(*files, "--out", tmp_path / "out")
    for text in (
        capsys.readouterr().out,
        " ".join(system["notes"]),
        (tmp_path / "out" / "report.html").read_text(encoding="utf-8"),
    ):
        assert ("scores seem to fall with likeness: negate them?" in text) == (sign < 0)


def test_random_scores_give_no_sign_note(tmp_path, evaluate, voices):
    draw = np.random.default_rng(0)
    for _ in range(10):
        trials = [(i, j, float(draw.normal())) for i, j, _ in trials_of(voices, "OO")[:400]]
        scores = write_scores(tmp_path / "s", voices, trials, fourth=True)
        assert evaluate(scores, "--intervals", "0")[0]["notes"] == []


def test_negated_embeddings_give_a_note(tmp_path, evaluate, voices):
    content = {"original": voices.original, "protected": -voices.original, "speakers": voices.speakers}
    torch.save(content, tmp_path / "all.pt")
    (note,) = evaluate(tmp_path / "all.pt")[0]["notes"]
    assert note.startswith("all.pt, OP: D_ECE is 0.000 bit")
    assert note.endswith("an attacker who turns the sign undoes the protection")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda side: 0 * side, "all.pt: 60 of 60 rows of the protected embeddings are all zero; no voice is in them"),
        (lambda side: side * (torch.arange(60) > 2)[:, None],
         "all.pt: 3 of 60 rows of the protected embeddings are all zero; no voice is in them"),
        (lambda side: side[:1].expand(60, -1).clone(),
         "Linkability needs scores that are finite and not all the same. All 60 protected embeddings are equal: "
         "check the anonymiser and the encoder. The result is NaN."),
    ],
)  # fmt: skip
def test_degenerate_embeddings_give_a_note(tmp_path, evaluate, voices, capsys, change, expected):
    content = {"original": voices.original, "protected": change(voices.protected["B2"]), "speakers": voices.speakers}
    torch.save(content, tmp_path / "all.pt")
    assert expected in evaluate(tmp_path / "all.pt")[0]["notes"]
    assert f"note: {expected}" in capsys.readouterr().out
