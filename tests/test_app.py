"""The commands, run as a user runs them; their numbers against the functions and classes of the library."""

from __future__ import annotations

import base64
import gzip
import json
import math
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from vpmetrics import VoicePrivacy, ZebraDisclosure
from vpmetrics._figures import PAGE, figures_of
from vpmetrics._plot import draw_trade_off
from vpmetrics.app import columns, main
from vpmetrics.app.embeddings import Embeddings
from vpmetrics.app.evaluation import evaluate_embeddings
from vpmetrics.data import demo_voices
from vpmetrics.functional import (
    calibration_distortion,
    cllr,
    equal_error_rate,
    linkability,
    min_cllr,
    zebra_disclosure,
    zebra_tag,
)

NAMES = ("anna", "ben", "cleo", "dora", "emil", "finn")


@pytest.fixture(scope="module")
def voices():
    """Sixty utterances of six speakers, with names."""
    data = demo_voices()
    rows = torch.cat([(data.speakers == speaker).nonzero()[:10, 0] for speaker in (1, 5, 9, 14, 20, 30)])
    speakers = torch.arange(6).repeat_interleave(10)
    return SimpleNamespace(
        original=data.original[rows],
        protected={name: side[rows] for name, side in data.protected.items()},
        speakers=speakers,
        names=[NAMES[s] for s in speakers],
        utterances=[f"{NAMES[s]}-{k:02d}" for k, s in enumerate(speakers)],
    )


def expected_scalars(voices, system="B2"):
    metric = VoicePrivacy()
    metric.update(voices.original, voices.protected[system], voices.speakers)
    return metric.compute()


def assert_scalars(got, expected, atol=1e-6):
    assert set(got) == set(expected)
    for key, value in expected.items():
        if key.endswith("tag"):
            assert got[key] == "0ABCDEF"[int(value)], key
        elif math.isnan(float(value)):
            assert got[key] is None, key
        else:
            assert float(got[key]) == pytest.approx(float(value), abs=atol), key


def run(*arguments, expect=0):
    assert main([str(argument) for argument in arguments]) == expect


def scalars_of(path, number=0):
    content = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)  # strict JSON has no NaN
    return content["systems"][number]["scalars"]


# Embeddings


def write_npz(folder, voices):
    np.savez(folder / "all.npz", emb_O=voices.original, anonymised=voices.protected["B2"], spk=voices.speakers)
    return [folder / "all.npz"]


def write_named_npz(folder, voices):
    np.savez(
        folder / "all.npz", a=voices.original, b=voices.protected["B2"], original=voices.original[:3], c=voices.names
    )
    return [folder / "all.npz", "--original", "a", "--protected", "b", "--speakers", "c"]


def write_npy(folder, voices):
    np.save(folder / "o.npy", voices.original)
    np.savez(folder / "p.npz", b2=voices.protected["B2"], other=1)
    (folder / "speakers.txt").write_text("\n".join(voices.names))
    return ["--original", folder / "o.npy", "--protected", f"{folder}/p.npz:b2", "--speakers", folder / "speakers.txt"]


def write_pt(folder, voices):
    content = {"original": voices.original, "protected": voices.protected["B2"], "speakers": voices.names}
    torch.save(content, folder / "all.pt")
    return [folder / "all.pt"]


def write_ark(folder, voices):
    """Kaldi archives in different orders."""
    order = np.random.default_rng(0).permutation(len(voices.names))
    for side, rows in (("o", range(len(order))), ("p", order)):
        vectors = voices.original if side == "o" else voices.protected["B2"]
        lines = [f"{voices.utterances[k]}  [ {' '.join(map(repr, vectors[k].tolist()))} ]\n" for k in rows]
        (folder / f"{side}.ark").write_text("".join(lines))
    write_utt2spk(folder, voices)
    return ["--original", folder / "o.ark", "--protected", folder / "p.ark", "--utt2spk", folder / "utt2spk"]


def write_utt2spk(folder, voices):
    pairs = zip(voices.utterances, voices.names, strict=True)
    (folder / "utt2spk").write_text("".join(f"{utterance} {name}\n" for utterance, name in reversed(list(pairs))))
    return folder / "utt2spk"


@pytest.mark.parametrize("write", [write_npz, write_named_npz, write_npy, write_pt, write_ark])
def test_embeddings_give_every_scalar_of_the_suite(tmp_path, voices, write):
    run("evaluate", *write(tmp_path, voices), "--json", tmp_path / "result.json")
    assert_scalars(scalars_of(tmp_path / "result.json"), expected_scalars(voices))


def test_utterances_only_one_file_names_are_left_out_and_reported(tmp_path, voices, capsys):
    options = write_ark(tmp_path, voices)
    lines = (tmp_path / "p.ark").read_text().splitlines(keepends=True)
    (tmp_path / "p.ark").write_text("".join(lines[:-5]))
    run("evaluate", *options)
    assert "5 of 60 utterances left out" in capsys.readouterr().out


def test_utterances_given_twice_count_once(tmp_path, voices):
    twice = {"original": voices.original, "protected": voices.protected["B2"], "speakers": voices.speakers}
    twice["recording"] = torch.arange(60)
    torch.save({name: values.repeat(2, *[1] * (values.dim() - 1)) for name, values in twice.items()}, tmp_path / "x.pt")
    run("evaluate", tmp_path / "x.pt", "--utterances", "recording", "--json", tmp_path / "result.json")
    assert_scalars(scalars_of(tmp_path / "result.json"), expected_scalars(voices))


def test_arrays_found_by_another_name_are_told(tmp_path, voices, capsys):
    run("evaluate", *write_npz(tmp_path, voices))
    said = f"{tmp_path / 'all.npz'}: taken emb_O as original, anonymised as protected, spk as speakers"
    assert f"note: {said}\n" in capsys.readouterr().out
    for write in (write_pt, write_named_npz):  # nothing was guessed
        run("evaluate", *write(tmp_path, voices))
        assert "taken" not in capsys.readouterr().out


def test_numpy_objects_in_a_file_of_tensors_are_refused_with_a_way_out(tmp_path, voices, capsys):
    torch.save({"original": voices.original.numpy(), "protected": voices.original.numpy()}, tmp_path / "all.pt")
    run("evaluate", tmp_path / "all.pt", expect=2)
    error = f"vpmetrics evaluate: error: {tmp_path / 'all.pt'}: holds NumPy objects; save tensors, or use .npz\n"
    assert capsys.readouterr().err == error


def test_a_binary_archive_in_place_of_scores(tmp_path, capsys):
    (tmp_path / "x.ark").write_bytes(b"u1 \0BFV \4\2\0\0\0\n\0\1")
    run("evaluate", tmp_path / "x.ark", expect=2)
    assert "x.ark: expected a text archive, but got a binary one" in capsys.readouterr().err


# Score files


def trials_of(voices, condition, system="B2", draw=0):
    """All trials of a condition as the suite forms them, in random order."""
    sides = {"O": voices.original, "P": voices.protected[system]}
    scores = normalize(sides[condition[0]].double()) @ normalize(sides[condition[1]].double()).T
    count = len(scores)
    pairs = [(i, j) for i in range(count) for j in range(count) if (i < j or (condition == "OP" and i != j))]
    order = np.random.default_rng(draw).permutation(len(pairs))
    return [(pairs[k][0], pairs[k][1], 8 * float(scores[pairs[k]])) for k in order]


def write_scores(path, voices, trials, fourth=False):
    labels = [label_of(voices, i, j) for i, j, _ in trials]
    lines = [
        f"{voices.utterances[i]} {voices.utterances[j]} {score!r}{' ' + label if fourth else ''}\n"
        for (i, j, score), label in zip(trials, labels, strict=True)
    ]
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        file.write("".join(lines))
    return path


def label_of(voices, i, j):
    return "target" if voices.speakers[i] == voices.speakers[j] else "nontarget"


def write_key(path, voices):
    """A key of all pairs in an order of its own, so larger than any one set of scores."""
    pairs = [(i, j) for j in range(60) for i in range(60)]
    lines = [f"{voices.utterances[i]}\t{voices.utterances[j]}\t{label_of(voices, i, j)}\n" for i, j in pairs]
    path.write_text("".join(lines))
    return path


def tensors_of(voices, trials):
    rows, columns, scores = zip(*trials, strict=True)
    rows, columns = torch.tensor(rows), torch.tensor(columns)
    return torch.tensor(scores, dtype=torch.float64), voices.speakers[rows] == voices.speakers[columns]


def expected_of_scores(preds, target):
    return {
        **zebra_disclosure(preds, target),
        "min_cllr": min_cllr(preds, target),
        "cllr": cllr(preds, target),
        "eer": equal_error_rate(preds, target),
        "linkability": linkability(preds, target),
    }


@pytest.mark.parametrize("piece", [1 << 24, 500, 7])
@pytest.mark.parametrize("fourth", [False, True])
def test_scores_give_what_the_functions_give(tmp_path, voices, monkeypatch, piece, fourth):
    monkeypatch.setattr(columns, "_PIECE", piece)
    trials = trials_of(voices, "OP")
    name = "scores.gz" if piece > 500 else "scores"
    files = [write_scores(tmp_path / name, voices, trials, fourth)]
    files += [] if fourth else [write_key(tmp_path / "key", voices)]
    run("evaluate", *files, "--json", tmp_path / "result.json")
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
    shared -= {f"{name}_linkability" for name in ("oo", "op", "pp")}  # bins feel the last digit
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


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"x1": np.ones((4, 2))}, [], r"expected an array 'original' (--original NAME calls it otherwise), but got x1"),
        ({"original": np.ones((4, 2)), "protected": np.ones((4, 3)), "speakers": [1, 1, 2, 2]}, [],
         r"expected shape (4, 2), that of"),
        ({"original": np.ones((4, 2)), "protected": np.ones((4, 2)), "speakers": [1, 1, 2]}, [],
         r"expected 4 labels, one per embedding, but got shape (3,)"),
        ({"original": np.ones((4, 2)), "protected": np.ones((4, 2)), "speakers": [1.0, 1, 2, 2]}, [],
         r"expected whole numbers or names, but got float64"),
        ({"original": np.full((4, 2), np.nan), "protected": np.ones((4, 2)), "speakers": [1, 1, 2, 2]}, [],
         r"to hold finite numbers"),
        ({"original": np.ones((4, 2))}, ["--protected", "nowhere.npy"], r"expected an array 'nowhere.npy', but got"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_embeddings_is_said(tmp_path, capsys, arrays, options, message):
    np.savez(tmp_path / "all.npz", **arrays)
    run("evaluate", tmp_path / "all.npz", *options, expect=2)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"u1 [ 1 2 ]\nu2 [ 1 2 3 ]\n", "o.ark:2: expected 2 numbers as in the lines before, but got 3"),
        (b"u1 [ 1 x ]\n", "o.ark:1: expected `utterance [ 0.1 ... ]`, but could not convert"),
        (b"u1 \0BFV \4\2", "o.ark: expected a text archive, but got a binary one"),
        (b"u1 [ 1 2 ]\nu1 [ 1 2 ]\n", "o.ark: expected every utterance once, but 1 occur again"),
    ],
)
def test_what_is_wrong_with_archives_is_said(tmp_path, capsys, voices, content, message):
    options = write_ark(tmp_path, voices)
    (tmp_path / "o.ark").write_bytes(content)
    run("evaluate", *options, expect=2)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate"], "Expected embeddings or score files, but got neither"),
        (["evaluate", "missing.npz"], "missing.npz: cannot be read (No such file"),
        (["evaluate", "missing", "missing"], "missing: cannot be read (No such file"),
        (["evaluate", "--original", "missing.npy", "--protected", "p.npy"], "missing.npy: no such file for --original"),
        (["compare", "A=x.npz", "A=y.npz"], "Expected every system to have a name of its own"),
        (["demo", "--epochs", "0"], "Expected --epochs to be 1 at least"),
    ],
)
def test_wrong_use_ends_with_a_message_and_status_2(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    run(*arguments, expect=2)
    assert message in capsys.readouterr().err


def test_data_too_thin_for_a_value_gives_a_dash_and_a_note(tmp_path, voices, capsys):
    trials = trials_of(voices, "OP")
    targets = [trial for trial in trials if label_of(voices, *trial[:2]) == "target"]
    files = [write_scores(tmp_path / name, voices, t, fourth=True) for name, t in (("oo", trials), ("op", targets))]
    run("evaluate", "--oo", files[0], "--op", files[1], "--json", tmp_path / "result.json", "--out", tmp_path / "out")
    got = scalars_of(tmp_path / "result.json")
    assert got["op_d_ece"] is None
    assert got["oo_d_ece"] > 0
    shown = capsys.readouterr().out
    assert "–" in shown
    assert "note: There are no non-target trials" in shown


@pytest.mark.parametrize(
    ("speakers", "reason"),
    [([1, 1, 1, 1], "there are no non-target trials"), ([1, 2, 3, 4], "there are no target trials")],
)
def test_embeddings_that_define_nothing_are_refused(tmp_path, capsys, speakers, reason):
    draw = torch.Generator().manual_seed(0)
    content = {name: torch.randn(4, 3, generator=draw) for name in ("original", "protected")}
    torch.save({**content, "speakers": speakers}, tmp_path / "thin.pt")
    for command in ("evaluate", "compare"):
        run(command, tmp_path / "thin.pt", "--json", tmp_path / "result.json", expect=2)
        captured = capsys.readouterr()
        assert reason in captured.err
        assert captured.out == ""
        assert not (tmp_path / "result.json").exists()


def test_scores_that_define_nothing_are_refused(tmp_path, capsys):
    (tmp_path / "scores").write_text("a b 1 nontarget\na c 2 nontarget\n")
    run("evaluate", tmp_path / "scores", expect=2)
    assert "No measure of privacy is defined: there are no target trials" in capsys.readouterr().err


# What must not pass for privacy


def notes_of(path, number=0):
    return json.loads(path.read_text(encoding="utf-8"))["systems"][number]["notes"]


@pytest.mark.parametrize("sign", [-1, 1])
def test_scores_of_the_wrong_sign_are_noted(tmp_path, voices, capsys, sign):
    trials = [(i, j, sign * score) for i, j, score in trials_of(voices, "OP")]
    files = write_scores(tmp_path / "scores", voices, trials), write_key(tmp_path / "key", voices)
    run("evaluate", *files, "--json", tmp_path / "result.json", "--out", tmp_path / "out")
    for text in (
        capsys.readouterr().out,
        " ".join(notes_of(tmp_path / "result.json")),
        (tmp_path / "out" / "report.html").read_text(encoding="utf-8"),
    ):
        assert ("scores seem to fall with likeness: negate them?" in text) == (sign < 0)


def test_chance_is_no_wrong_sign(tmp_path, voices):
    draw = np.random.default_rng(0)
    for number in range(10):
        trials = [(i, j, float(draw.normal())) for i, j, _ in trials_of(voices, "OO")[:400]]
        run(
            "evaluate", write_scores(tmp_path / "s", voices, trials, fourth=True), "--json", tmp_path / f"{number}.json"
        )
        assert notes_of(tmp_path / f"{number}.json") == []


def test_embeddings_whose_sign_an_attacker_would_turn_are_noted(tmp_path, voices):
    content = {"original": voices.original, "protected": -voices.original, "speakers": voices.speakers}
    torch.save(content, tmp_path / "all.pt")
    run("evaluate", tmp_path / "all.pt", "--json", tmp_path / "result.json")
    (note,) = notes_of(tmp_path / "result.json")
    assert note.startswith("all.pt, OP: D_ECE is 0.000 bit")
    assert note.endswith("an attacker who turns the sign undoes the protection")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda side: 0 * side, "all.pt: 60 of 60 rows of the protected embeddings are all zero; no voice is in them"),
        (lambda side: side * (torch.arange(60) > 2)[:, None],
         "all.pt: 3 of 60 rows of the protected embeddings are all zero; no voice is in them"),
        (lambda side: side[:1].expand(60, -1).clone(),
         "all.pt: all 60 rows of the protected embeddings are the same; no voice is in them"),
    ],
)  # fmt: skip
def test_embeddings_of_nothing_are_noted(tmp_path, voices, capsys, change, expected):
    content = {"original": voices.original, "protected": change(voices.protected["B2"]), "speakers": voices.speakers}
    torch.save(content, tmp_path / "all.pt")
    run("evaluate", tmp_path / "all.pt", "--json", tmp_path / "result.json")
    assert expected in notes_of(tmp_path / "result.json")
    assert f"note: {expected}" in capsys.readouterr().out


# Reports


class Page(HTMLParser):
    """Tags that must be closed, pictures and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.open, self.images, self.texts, self.tags = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "img":
            self.images.append(dict(attrs))
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data.strip())


def test_the_page_is_self_contained_and_holds_numbers_and_figures(tmp_path, voices):
    out, title = tmp_path / "out", "B2 <on> six & more"
    run("evaluate", *write_npz(tmp_path, voices), "--out", out, "--title", title)
    text = (out / "report.html").read_text(encoding="utf-8")
    page, expected = Page(text), expected_scalars(voices)
    for number in (f"{100 * expected['deid']:.2f}", f"{expected['op_d_ece']:.3f}", f"{100 * expected['oo_eer']:.2f}"):
        assert number in page.texts
    assert title in page.texts
    assert zebra_tag(expected["op_l_w"]) in page.texts
    pictures = [base64.b64decode(image["src"].removeprefix("data:image/png;base64,")) for image in page.images]
    assert len(pictures) >= 5
    assert {path.read_bytes() for path in out.glob("*.png")} == set(pictures)
    assert all(image["alt"] for image in page.images)
    links = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")]
    assert all(link.startswith("data:") for link in links)
    assert all("scope" in attributes for tag, attributes in page.tags if tag == "th")


def test_compare_puts_systems_side_by_side(tmp_path, voices, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shared = {"original": voices.original, "speakers": voices.speakers}
    for name in ("B2", "B2u"):
        np.savez(tmp_path / f"{name}.npz", **shared, protected=voices.protected[name])
    np.save(tmp_path / "o.npy", voices.original)
    options = ["--json", tmp_path / "result.json", "--out", tmp_path]
    systems = [tmp_path / "B2.npz", f"random={tmp_path / 'B2u.npz'}"]
    run("compare", *systems, *options, "--title", "Two systems")
    for number, name in enumerate(("B2", "B2u")):
        assert_scalars(scalars_of(tmp_path / "result.json", number), expected_scalars(voices, name))
    shown = capsys.readouterr().out
    table = [line for line in shown.splitlines() if str(tmp_path) not in line]
    assert max(map(len, table)) <= 80
    rows = {line.split()[0]: line.split()[1:] for line in table if line.strip()}
    assert [name for name in rows if name in ("original", "B2", "random")] == ["original", "B2", "random"]
    expected = expected_scalars(voices)
    assert rows["B2"][0] == f"{100 * expected['deid']:.2f}"
    assert rows["B2"][-1] == f"{expected['pp_d_ece']:.3f}"
    assert rows["original"][-1] == f"{expected['oo_d_ece']:.3f}"
    assert "Two systems (D_ECE to MeanD of OP)" in shown
    assert len(Page((tmp_path / "report.html").read_text(encoding="utf-8")).images) >= 5
    # The same from bare arrays and a shared original.
    np.save(tmp_path / "spk.npy", voices.speakers)
    systems = [f"B2={tmp_path / 'B2.npz'}:protected", f"random={tmp_path / 'B2u.npz'}:protected"]
    bare = ["--original", tmp_path / "o.npy", "--speakers", tmp_path / "spk.npy"]
    run("compare", *systems, *bare, "--json", tmp_path / "bare.json")
    assert (tmp_path / "bare.json").read_text() == (tmp_path / "result.json").read_text()


def test_zoo_plots_of_one_figure_share_axes_and_name_their_matrix(voices):
    systems = []
    for name in ("B2", "B2u"):
        names = tuple(sorted(set(voices.names)))
        sides = Embeddings(voices.original, voices.protected[name], voices.speakers, names)
        systems.append(evaluate_embeddings(name, sides, VoicePrivacy()))
    figure = figures_of(systems, PAGE)["zoo"]
    assert [ax.get_title() for ax in figure.axes] == ["original, OO", "B2, OP", "B2u, OP"]
    assert len({(*ax.get_xlim(), *ax.get_ylim()) for ax in figure.axes}) == 1
    for ax in figure.axes:
        (left, right), (x, y) = ax.get_xlim(), ax.lines[-1].get_data()
        assert all(left < value < right for value in x)
        assert all(ax.get_ylim()[0] < value < ax.get_ylim()[1] for value in y)
    figure = figures_of(systems[:1], PAGE)["zoo"]
    assert [ax.get_title() for ax in figure.axes] == ["OO", "OP", "PP"]


def test_trade_off_spans_a_decibel_and_more_where_needed():
    _, ax = draw_trade_off([("a", (0.5, 0.001)), ("b", (0.6, -0.002))])
    assert ax.get_ylim()[1] - ax.get_ylim()[0] == pytest.approx(1)
    draw_trade_off([("c", (0.5, -7.0))], ax)
    assert ax.get_ylim()[0] < -7
    assert ax.get_ylim()[1] > 0.001


def test_the_curve_of_perfect_privacy_is_on_top(voices):
    preds, target = tensors_of(voices, trials_of(voices, "OP"))
    metric = ZebraDisclosure()
    metric.update(preds, target)
    _, ax = metric.plot()
    (prior,) = [line for line in ax.lines if line.get_label() == "perfect privacy"]
    others = [line for line in ax.lines if line is not prior]
    assert others
    assert all(prior.get_zorder() > line.get_zorder() for line in others)
    assert all(prior.get_linewidth() > line.get_linewidth() for line in others)


def test_compare_takes_score_files_of_two_conditions(tmp_path, voices):
    files = {
        (condition, system): write_scores(
            tmp_path / f"{system}_{condition}", voices, trials_of(voices, condition, system)
        )
        for condition in ("OP", "PP")
        for system in ("B2", "B2u")
    }
    oo = write_scores(tmp_path / "oo", voices, trials_of(voices, "OO"))
    key, speakers = write_key(tmp_path / "key", voices), write_utt2spk(tmp_path, voices)
    systems = [f"{system}={files['OP', system]},{files['PP', system]}" for system in ("B2", "B2u")]
    options = ["--key", key, "--oo", oo, "--utt2spk", speakers, "--json", tmp_path / "result.json"]
    run("compare", *systems, *options)
    for number, system in enumerate(("B2", "B2u")):
        got, expected = scalars_of(tmp_path / "result.json", number), expected_scalars(voices, system)
        for name in ("deid", "gvd", "op_d_ece", "oo_eer"):
            assert got[name] == pytest.approx(float(expected[name]), abs=2e-5)


def test_compare_tells_a_key_from_a_system(tmp_path, voices, capsys):
    scores = write_scores(tmp_path / "scores", voices, trials_of(voices, "OP"))
    key = write_key(tmp_path / "key", voices)
    run("compare", f"B1={scores}", key, expect=2)
    assert f"give it as `--key {key}`" in capsys.readouterr().err
    run("compare", f"B1={scores}", "--key", key)


def test_the_report_names_every_file_once(tmp_path, voices):
    scores = write_scores(tmp_path / "scores", voices, trials_of(voices, "OP"))
    key = write_key(tmp_path / "key", voices)
    run("evaluate", scores, key, "--out", tmp_path / "out")
    page = Page((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    assert f"Voice privacy of {scores}, {key}" in page.texts


def test_compare_says_when_originals_differ(tmp_path, voices, capsys):
    for name, sign in (("a", 1), ("b", -1)):
        sides = {"original": voices.original * sign, "protected": voices.protected["B2"], "speakers": voices.speakers}
        sides["original"] = sides["original"] + (0.2 * torch.randn(60, 256) if sign < 0 else 0)
        torch.save(sides, tmp_path / f"{name}.pt")
    run("compare", tmp_path / "a.pt", tmp_path / "b.pt")
    assert "b: its original embeddings are not those of a" in " ".join(capsys.readouterr().out.split())


def test_demo_trains_measures_and_logs(tmp_path, capsys):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run("demo", "--epochs", "2", "--seed", "3", "--out", tmp_path)
    shown = capsys.readouterr().out
    content = json.loads((tmp_path / "results.json").read_text())
    assert [system["name"] for system in content["systems"]] == ["B2", "B2r", "B2u", "averaging", "trained"]
    assert all(system["name"] in shown for system in content["systems"])
    trained = content["systems"][-1]["scalars"]
    limits = "the trained model moves embeddings and makes no speech, unlike B2, B2r, B2u; an attacker who enrols with"
    within = f"(PP D_ECE {trained['pp_d_ece']:.3f} bit, {trained['oo_d_ece']:.3f} of original speech)"
    for text in (shown, (tmp_path / "report.html").read_text(encoding="utf-8")):
        assert limits in text
        assert within in text
    assert f"tensorboard --logdir {tmp_path / 'tensorboard'}" in shown
    (events,) = (tmp_path / "tensorboard").rglob("events*")
    log = EventAccumulator(str(events))
    log.Reload()
    last = log.Scalars("val/privacy/deid")[-1].value
    assert last == pytest.approx(content["systems"][-1]["scalars"]["deid"], abs=1e-5)
    assert len(Page((tmp_path / "report.html").read_text(encoding="utf-8")).images) >= 5


# The command itself


def test_the_command_runs_as_a_process(tmp_path, voices):
    command = [sys.executable, "-m", "vpmetrics.app", "evaluate", *map(str, write_pt(tmp_path, voices))]
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "DeID [%]" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_library_imports_nothing_of_the_application():
    unwanted = ("vpmetrics.app", "vpmetrics._plot", "rich", "pytorch_lightning", "lightning")
    code = f"import sys, vpmetrics; sys.exit(' '.join(name for name in {unwanted} if name in sys.modules) or 0)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def test_without_a_command_there_is_help(capsys):
    run(expect=2)
    assert "evaluate" in capsys.readouterr().out


@pytest.mark.parametrize("command", [[], ["evaluate"], ["compare"], ["demo"]])
def test_help_fits_the_terminal(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert max(map(len, lines)) <= 80
