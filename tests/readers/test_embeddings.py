"""Embeddings from files: their numbers against the library's, and what is wrong with them."""

import math
import re

import numpy as np
import polars as pl
import pytest
import torch
from cli.cases import assert_scalars, expected_scalars, run, write_npz, write_utt2spk

from vpmetrics import AttributeDisclosure, VoicePrivacy


def write_named_npz(folder, voices):
    path = folder / "all.npz"
    np.savez(
        path,
        a=voices.original,
        b=voices.protected["B2"],
        c=voices.names,
        original=voices.original[:3],
    )
    return [path, "--original", "a", "--protected", "b", "--speakers", "c"]


def write_npy(folder, voices):
    np.save(folder / "o.npy", voices.original)
    np.savez(folder / "p.npz", b2=voices.protected["B2"], other=1)
    (folder / "speakers.txt").write_text("\n".join(voices.names))
    return [
        "--original",
        folder / "o.npy",
        "--protected",
        f"{folder}/p.npz:b2",
        "--speakers",
        folder / "speakers.txt",
    ]


def write_pt(folder, voices):
    content = {
        "original": voices.original,
        "protected": voices.protected["B2"],
        "speakers": voices.names,
    }
    torch.save(content, folder / "all.pt")
    return [folder / "all.pt"]


def write_rows_of_one_frame(folder, voices):
    """Sides of shape ``(N, 1, D)``."""
    path = folder / "x.npz"
    np.savez(
        path,
        original=voices.original[:, None],
        protected=voices.protected["B2"][:, None],
        utterances=voices.utterances,
    )
    return [path, "--utt2spk", write_utt2spk(folder, voices)]


def write_sides(folder, voices, suffix=""):
    """Dictionaries of utterances, whose protected side is in another order.

    Its names may have a suffix.
    """
    original = dict(zip(voices.utterances, voices.original, strict=True))
    protected = {}
    for name, row in zip(voices.utterances, voices.protected["B2"], strict=True):
        protected[f"{name}{suffix}"] = row[None]
    torch.save(original, folder / "o.pt")
    torch.save(dict(reversed(protected.items())), folder / "p.pt")
    return [folder / "o.pt", folder / "p.pt", "--utt2spk", write_utt2spk(folder, voices)]


@pytest.mark.parametrize(
    "write", [write_npz, write_named_npz, write_npy, write_pt, write_rows_of_one_frame, write_sides]
)
def test_embeddings_give_every_scalar_of_the_suite(tmp_path, evaluate, voices, write):
    # which take their time
    attacks, option = ("standard", []) if write is write_pt else (None, ["--no-attacks"])
    (system,) = evaluate(*write(tmp_path, voices), *option)
    assert_scalars(system["scalars"], expected_scalars(voices, attacks=attacks))
    if write is write_npz:
        said = (
            f"{tmp_path / 'all.npz'}: taken emb_O as original, anonymised as protected, spk as"
            " speakers"
        )
        assert said in system["notes"]
    else:  # nothing was guessed
        assert "taken" not in " ".join(system["notes"])


def test_unpaired_utterances_raise_unless_partial_is_set(tmp_path, voices, capsys):
    options = write_sides(tmp_path, voices)
    torch.save(dict(list(torch.load(tmp_path / "p.pt").items())[:-5]), tmp_path / "p.pt")
    run("evaluate", *options, expect=2)
    assert (
        f"{tmp_path / 'o.pt'}: 5 of 60 utterances are not in the other files, first"
        in capsys.readouterr().err
    )
    run("evaluate", *options, "--partial", "--no-attacks")
    assert "5 of 60 utterances left out" in capsys.readouterr().out


def test_guessed_array_names_are_noted(tmp_path, voices, capsys):
    run("evaluate", *write_npz(tmp_path, voices), "--no-attacks")
    said = (
        f"{tmp_path / 'all.npz'}: taken emb_O as original, anonymised as protected, spk as speakers"
    )
    assert f"note: {said}\n" in capsys.readouterr().out
    for write in (write_pt, write_named_npz):  # nothing was guessed
        run("evaluate", *write(tmp_path, voices), "--no-attacks")
        assert ": taken " not in capsys.readouterr().out


ONES = np.ones((4, 2))
ROWS = {"original": ONES, "protected": ONES, "speakers": [1, 1, 2, 2]}


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        (
            {"x1": ONES},
            [],
            "expected an array 'original' (--original NAME gives another name), but got x1",
        ),
        (
            {"original": ONES},
            ["--protected", "nowhere.npy"],
            "expected an array 'nowhere.npy', but got",
        ),
        (ROWS | {"protected": np.ones((4, 3))}, [], "expected shape (4, 2), that of"),
        (
            ROWS | {"original": ONES[:, :0]},
            [],
            "expected original embeddings, numbers of shape (N, D), but got float",
        ),
        (
            ROWS | {"original": ONES.astype(complex)},
            [],
            "expected original embeddings, numbers of shape (N, D), but",
        ),
        (
            ROWS | {"protected": ONES * np.array([[1], [np.nan], [1], [np.inf]])},
            [],
            (
                "expected protected embeddings to hold finite numbers, but got 2 of 4 rows with NaN"
                " or infinity, first"
            ),
        ),
        (
            ROWS | {"speakers": [1, 1, 2]},
            [],
            "expected 4 labels, one per embedding, but got shape (3,)",
        ),
        (
            ROWS | {"speakers": [1.0, 1, 2, 2]},
            [],
            "expected whole numbers or names, but got float64",
        ),
        (
            ROWS | {"speakers": [1, 1, 1, 1]},
            [],
            "No measure of privacy is defined. All utterances (4) are of one speaker: add",
        ),
        (
            ROWS | {"speakers": [1, 2, 3, 4]},
            [],
            "Every speaker has one utterance (4 speakers): add",
        ),
    ],
)
def test_invalid_embeddings_raise(tmp_path, capsys, arrays, options, message):
    np.savez(tmp_path / "all.npz", **arrays)
    run("evaluate", tmp_path / "all.npz", *options, expect=2)
    assert message in capsys.readouterr().err


def test_an_utterance_that_occurs_again_raises(tmp_path, capsys):
    for name in ("o.ark", "p.ark"):
        (tmp_path / name).write_bytes(b"u1 [ 1 2 ]\nu1 [ 1 2 ]\n")
    run("evaluate", tmp_path / "o.ark", tmp_path / "p.ark", "--speaker-pattern", ".*", expect=2)
    assert "o.ark: expected every utterance once, but 1 occur again" in capsys.readouterr().err


def test_folders_and_speaker_pattern_match_the_suite(tmp_path, assert_same_as_suite, voices):
    for side, vectors in (("o", voices.original), ("p", voices.protected["B2"])):
        (tmp_path / side).mkdir()
        for name, row in zip(voices.utterances, vectors, strict=True):
            np.save(tmp_path / side / f"{name}.npy", row)
    for pattern in ("^[a-z]+", "^([a-z]+)-"):
        assert_same_as_suite(tmp_path / "o", tmp_path / "p", "--speaker-pattern", pattern)


def test_names_with_a_suffix_are_paired_without_it(tmp_path, assert_same_as_suite, voices, capsys):
    options = write_sides(tmp_path, voices, "_anon")
    run("evaluate", *options, expect=2)
    said = capsys.readouterr().err
    for part in (f"'anna-00' in {tmp_path / 'o.pt'}", f"'finn-59_anon' in {tmp_path / 'p.pt'}"):
        assert part in said
    assert_same_as_suite(*options, "--strip-suffix", "_anon")
    for name, end in (("o", ""), ("p", "_x")):
        np.savez(tmp_path / f"{name}.npz", **{f"u{k}{end}": np.ones(3) for k in range(4)})
    run("evaluate", tmp_path / "o.npz", tmp_path / "p.npz", "--speaker-pattern", ".*", expect=2)
    assert "Try --strip-suffix=_x" in capsys.readouterr().err


def test_missing_speaker_labels_raise(tmp_path, voices, capsys):
    options = write_sides(tmp_path, voices)[:2]
    run("evaluate", *options, expect=2)
    assert (
        "expected the speaker of every utterance, but got none; give --utt2spk FILE"
        in capsys.readouterr().err
    )
    run("evaluate", *options, "--speaker-pattern", "x", expect=2)
    assert (
        "Expected --speaker-pattern to match every utterance, but not 'anna-00'"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "speakers", [["a", None, "b", None, "c", "c"], [1, None, 2, None, 3, 3], [1, np.nan] * 3]
)
def test_missing_speakers_are_counted(tmp_path, capsys, speakers):
    rows = [[float(k), 1.0] for k in range(6)]
    table = {"original": rows, "protected": rows, "speaker": speakers}
    pl.DataFrame(table, strict=False).write_parquet(tmp_path / "x.parquet")
    run("evaluate", tmp_path / "x.parquet", expect=2)
    said = capsys.readouterr().err
    count = sum(speaker is None or speaker != speaker for speaker in speakers)
    assert f"expected a label for every row, but got {count} of 6 missing, first in row 1" in said


def test_sessions_and_references_are_passed_on(tmp_path, evaluate, voices):
    sides = {"original": voices.original, "protected": voices.protected["B2"]}
    sessions = 2 * voices.speakers + torch.arange(60) % 2
    arrays = {
        "spk": voices.speakers,
        "session": [f"s{k:02}" for k in sessions],
        "utterances": voices.utterances,
    }
    torch.save({**sides, **arrays}, tmp_path / "x.pt")
    (tmp_path / "list").write_text("\n".join(voices.utterances[::3]))
    options = [
        "--sessions",
        "session",
        "--enrolls",
        tmp_path / "list",
    ]
    (system,) = evaluate(tmp_path / "x.pt", *options, "--intervals", "0", "--no-attacks")
    metric = VoicePrivacy(attacks=None, enrolment="speaker", metrics="all")
    metric.update(*sides.values(), voices.speakers, torch.arange(60) % 3 == 0, sessions=sessions)
    assert_scalars(system["scalars"], metric.compute())


def test_messages_stay_short(tmp_path, capsys):
    torch.save(
        {f"utterance-{k:06}": torch.zeros(2 + k % 2) for k in range(5000)}, tmp_path / "x.pt"
    )
    np.savez(tmp_path / "y.npz", **{f"array-{k:06}": np.zeros((3, 2)) for k in range(300)})
    for name in ("x.pt", "y.npz"):
        run("evaluate", tmp_path / name, expect=2)
        assert len(capsys.readouterr().err) < 600


@pytest.mark.parametrize("name", ["spk2sex", "labels.csv"])
def test_attributes_are_read_by_utterance_or_speaker(tmp_path, evaluate, voices, name, capsys):
    sex = {speaker: "fm"[number % 2] for number, speaker in enumerate(dict.fromkeys(voices.names))}
    if name == "spk2sex":
        lines = [f"{speaker} {value}" for speaker, value in sex.items()]
    else:
        pairs = zip(voices.utterances, voices.names, strict=True)
        lines = ["utterance,sex,room", *(f"{u},{sex[s]},{k % 3}" for k, (u, s) in enumerate(pairs))]
    (tmp_path / name).write_text("\n".join(lines))
    options = write_sides(tmp_path, voices)
    (system,) = evaluate(*options, "--no-attacks", "--attributes", tmp_path / name)
    metric = AttributeDisclosure(["sex"], intervals=0.95)
    labels = {"sex": [sex[speaker] for speaker in voices.names]}
    metric.update(voices.original, voices.protected["B2"], voices.speakers, labels)
    assert set(system["attributes"]) == ({"sex"} if name == "spk2sex" else {"sex", "room"})
    shown = capsys.readouterr().out
    for attribute in system["attributes"]:
        assert re.search(rf"^attribute {attribute} +.*bit\s+chance", shown, re.MULTILINE)
    for key, value in metric.compute().items():
        kind = key.removeprefix("sex_")
        got = system["attributes"]["sex"][f"disclosure_{kind}" if kind in ("low", "high") else kind]
        assert (math.nan if got is None else got) == pytest.approx(
            float(value), abs=1e-6, nan_ok=True
        ), key
    (tmp_path / "spk2sex").write_text("anna f\nben m\n")
    run("evaluate", *options, "--attributes", tmp_path / "spk2sex", expect=2)
    assert (
        "expected a label for every row, but got none for 'cleo-20' (40 of 60)"
        in capsys.readouterr().err
    )
