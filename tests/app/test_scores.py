"""Score files: their numbers against the functions', and what is wrong with them."""

from __future__ import annotations

import json
import time

import numpy as np
import polars as pl
import pytest
from app.cases import (
    assert_scalars,
    expected_of_scores,
    expected_scalars,
    run,
    scalars_of,
    tensors_of,
    trials_of,
    write_key,
    write_scores,
    write_utt2spk,
)

from vpmetrics._scalars import ENDS
from vpmetrics.app import files as reading
from vpmetrics.app.lists import Names, read_key, read_scores
from vpmetrics.app.trials import label_trials
from vpmetrics.functional import (
    calibration_distortion,
)


@pytest.mark.parametrize("piece", [1 << 24, 500, 7])
@pytest.mark.parametrize("fourth", [False, True])
def test_scores_give_what_the_functions_give(tmp_path, voices, monkeypatch, piece, fourth):
    monkeypatch.setattr(reading, "_PIECE", piece)
    trials = trials_of(voices, "OP")
    name = "scores.gz" if piece > 500 else "scores"
    files = [write_scores(tmp_path / name, voices, trials, fourth)]
    files += [] if fourth else [write_key(tmp_path / "key", voices)]
    run("evaluate", *files, "--intervals", "0", "--json", tmp_path / "result.json")
    assert_scalars(scalars_of(tmp_path / "result.json"), expected_of_scores(*tensors_of(voices, trials)), atol=1e-12)


def test_scores_of_all_conditions_and_speakers_say_what_the_embeddings_say(tmp_path, voices):
    """The matrices of score files are those of the suite, formed another way."""
    options = []
    for condition in ("OO", "OP", "PP"):
        path = write_scores(tmp_path / condition, voices, trials_of(voices, condition))
        options += [f"--{condition.lower()}", path]
    options += ["--key", write_key(tmp_path / "key", voices), "--utt2spk", write_utt2spk(tmp_path, voices)]
    run("evaluate", *options, "--json", tmp_path / "result.json")
    got, expected = scalars_of(tmp_path / "result.json"), expected_scalars(voices)
    # Scores were spread by 8 for the files, which changes what is not a matter of order.
    shared = {key for key in got if "cllr" not in key or "min_cllr" in key} - {"cllr_op_oo", "g_cllr"}
    shared = {key for key in shared if "_linkability" not in key and not key.endswith(ENDS)}  # bins feel the last digit
    assert {"deid", "gvd", "op_d_ece", "g_d_ece", "pp_d_diag_log"} <= shared
    assert_scalars({key: got[key] for key in shared}, {key: expected[key] for key in shared}, atol=2e-5)


def test_enrolment_may_be_called_by_its_speaker(tmp_path):
    (tmp_path / "scores").write_text("anna u1 2 target\nanna u2 0 nontarget\nben u1 0.5 nontarget\nben u2 3 target\n")
    (tmp_path / "utt2spk").write_text("u1 anna\nu2 ben\n")
    options = ["--oo", tmp_path / "scores", "--op", tmp_path / "scores", "--utt2spk", tmp_path / "utt2spk"]
    run("evaluate", *options, "--json", tmp_path / "result.json")
    assert scalars_of(tmp_path / "result.json")["deid"] == pytest.approx(0, abs=1e-12)


def test_fit_reports_calibration_distortion(tmp_path, voices):
    attacked, learnt = (trials_of(voices, "OP", system) for system in ("B2r0", "B2r1"))
    key = write_key(tmp_path / "key", voices)
    files = [write_scores(tmp_path / name, voices, t) for name, t in (("run1", attacked), ("run0", learnt))]
    options = ["--json", tmp_path / "result.json", "--out", tmp_path]
    run("evaluate", files[0], key, "--fit", files[1], key, *options)
    got = scalars_of(tmp_path / "result.json")
    for kind in ("linear", "isotonic"):
        expected = calibration_distortion(*tensors_of(voices, attacked), *tensors_of(voices, learnt), kind)
        assert got[f"c_ece_{kind}"] == pytest.approx(float(expected), abs=1e-9)
    assert (tmp_path / "calibration.png").exists()


def test_trials_without_partner_are_reported_and_can_be_refused(tmp_path, capsys):
    (tmp_path / "scores").write_text("a b 1\n\na c 2\nx y 3\na d 4\n")
    (tmp_path / "key").write_text("a b target\na c nontarget\na d nontarget\na e target\n")
    run("evaluate", tmp_path / "scores", tmp_path / "key", "--json", tmp_path / "result.json")
    notes = " ".join(json.loads((tmp_path / "result.json").read_text())["systems"][0]["notes"])
    assert "1 of 4 scores left out" in notes
    assert "line 4: x y" in notes
    assert "1 trials of" in notes
    capsys.readouterr()
    run("evaluate", tmp_path / "scores", tmp_path / "key", "--strict", expect=2)
    assert "1 of 4 scores left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("scores", "key", "message"),
    [
        ("a b 1\na c x\n", "a b target\n", r"scores:2: expected a number as score, but got 'x'"),
        ("a b 1\n\na c nan\n", "a b target\n", r"scores:3: expected a number as score, but got 'nan'"),
        ("a b 1\na c\na d 2\n", "a b target\n", r"scores:2: expected 3 columns as in the lines before, but got 2"),
        ("1 2 1\n1 3\n1 4 2 5\n", "1 2 target\n", r"scores:2: expected 3 columns"),
        ("a b\n", "a b target\n", r"scores:1: expected `enrol trial score [target|nontarget]`, but got 2 columns"),
        ("", "a b target\n", r"scores: expected lines `enrol trial score"),
        ("a b 1\na c 1\na b 2\n", "a b target\n", r"scores:3: expected every trial once, but 1 occur again, the first"),
        ("a b 1\n", "a b target\na c maybe\n", r"key:2: expected target or nontarget, but got 'maybe'"),
        ("a b 1\n", "a b target\nc d target\na b nontarget\n", r"key:3: expected the label that line 1 gives"),
        ("b a 1\n", "a b target\n", r"scores: none of its 1 trials is in the key"),
        ("b a 1\n", "a b target\n", r"with its first two columns exchanged, 1 would be"),
        ("a b 1\n", None, r"expected a fourth column target|nontarget, or a key file"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_score_files_is_said_with_its_line(tmp_path, capsys, scores, key, message):
    (tmp_path / "scores").write_text(scores)
    if key is not None:
        (tmp_path / "key").write_text(key)
    run("evaluate", tmp_path / "scores", *([tmp_path / "key"] if key is not None else []), expect=2)
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.bench
def test_lists_are_read_and_joined_in_at_most_twice_the_time_of_polars(tmp_path):
    draw, count = np.random.default_rng(0), 4_000_000
    enrol, trial = np.divmod(np.arange(count), 4000)
    names = pl.DataFrame({"e": enrol, "t": trial}).select(pl.format("spk{}", "e"), pl.format("{}-134686-{}", "t", "t"))
    frames = {"scores": draw.normal(size=count), "key": np.where(enrol == trial % 1000, "target", "nontarget")}
    for name, values in frames.items():
        frame = names.with_columns(pl.Series("x", values))[draw.permutation(count)]
        frame.write_csv(tmp_path / name, separator=" ", include_header=False)
    spent = {}
    for who, read in (("ours", read_and_join), ("polars", read_and_join_by_polars)):
        began = time.process_time()
        assert read(tmp_path) == count
        spent[who] = time.process_time() - began
    assert spent["ours"] < 2 * spent["polars"], spent


def read_and_join(folder):
    names = Names()
    key, scores = read_key(folder / "key", names), read_scores(folder / "scores", names)
    return len(label_trials(scores, key, names).scores)


def read_and_join_by_polars(folder):
    options = {"separator": " ", "has_header": False, "quote_char": None}
    key, scores = (pl.read_csv(folder / name, new_columns=["e", "t", name], **options) for name in ("key", "scores"))
    return len(scores.join(key, on=["e", "t"], how="left"))
