"""Embeddings from files: their numbers against the library's, and what is wrong with them."""

from __future__ import annotations

import kaldiio
import numpy as np
import pytest
import torch
from app.cases import (
    assert_scalars,
    expected_scalars,
    run,
    scalars_of,
    write_ark,
    write_named_npz,
    write_npy,
    write_npz,
    write_pt,
)


@pytest.mark.parametrize("write", [write_npz, write_named_npz, write_npy, write_pt, write_ark])
def test_embeddings_give_every_scalar_of_the_suite(tmp_path, voices, write):
    attacks, option = ("standard", []) if write is write_pt else (None, ["--no-attacks"])  # which take their time
    run("evaluate", *write(tmp_path, voices), "--json", tmp_path / "result.json", *option)
    assert_scalars(scalars_of(tmp_path / "result.json"), expected_scalars(voices, attacks=attacks))


def test_utterances_only_one_file_names_are_refused_or_left_out_where_asked_for(tmp_path, voices, capsys):
    options = write_ark(tmp_path, voices)
    lines = (tmp_path / "p.ark").read_text().splitlines(keepends=True)
    (tmp_path / "p.ark").write_text("".join(lines[:-5]))
    run("evaluate", *options, expect=2)
    assert f"{tmp_path / 'o.ark'}: 5 of 60 utterances are not in the other files, first" in capsys.readouterr().err
    run("evaluate", *options, "--partial", "--no-attacks")
    assert "5 of 60 utterances left out" in capsys.readouterr().out


def test_utterances_given_twice_count_once(tmp_path, voices):
    twice = {"original": voices.original, "protected": voices.protected["B2"], "speakers": voices.speakers}
    twice["recording"] = torch.arange(60)
    torch.save({name: values.repeat(2, *[1] * (values.dim() - 1)) for name, values in twice.items()}, tmp_path / "x.pt")
    run("evaluate", tmp_path / "x.pt", "--utterances", "recording", "--json", tmp_path / "result.json", "--no-attacks")
    assert_scalars(scalars_of(tmp_path / "result.json"), expected_scalars(voices, attacks=None))


def test_arrays_found_by_another_name_are_told(tmp_path, voices, capsys):
    run("evaluate", *write_npz(tmp_path, voices), "--no-attacks")
    said = f"{tmp_path / 'all.npz'}: taken emb_O as original, anonymised as protected, spk as speakers"
    assert f"note: {said}\n" in capsys.readouterr().out
    for write in (write_pt, write_named_npz):  # nothing was guessed
        run("evaluate", *write(tmp_path, voices), "--no-attacks")
        assert "taken" not in capsys.readouterr().out


def test_other_objects_than_tensors_are_refused_with_a_safe_way_out(tmp_path, voices, capsys):
    torch.save({"original": voices.original.numpy(), "protected": voices.original.numpy()}, tmp_path / "all.pt")
    run("evaluate", tmp_path / "all.pt", expect=2)
    said = "holds other objects than tensors, numbers and texts; save tensors, or use .npz"
    assert capsys.readouterr().err == f"vpmetrics evaluate: error: {tmp_path / 'all.pt'}: {said}\n"


def test_a_binary_archive_in_place_of_scores(tmp_path, capsys):
    kaldiio.save_ark(str(tmp_path / "x.ark"), {"u1": np.ones(2, dtype=np.float32)})
    run("evaluate", tmp_path / "x.ark", expect=2)
    assert "x.ark: expected several arrays, but got one" in capsys.readouterr().err


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
        (b"u1 [ 1 2 ]\nu2 [ 1 2 3 ]\n", "o.ark:2: expected 2 numbers as in the vectors before, but got 3"),
        (b"u1 [ 1 x ]\n", "o.ark:1: expected `utterance [ 0.1 ... ]`, but got 'x'"),
        (b"u1 \0BFV \4\2", "o.ark: vector 1, u1: expected a vector, but it is damaged"),
        (b"u1 [ 1 2 ]\nu1 [ 1 2 ]\n", "o.ark: expected every utterance once, but 1 occur again"),
    ],
)
def test_what_is_wrong_with_archives_is_said(tmp_path, capsys, voices, content, message):
    options = write_ark(tmp_path, voices)
    (tmp_path / "o.ark").write_bytes(content)
    run("evaluate", *options, expect=2)
    assert message in capsys.readouterr().err
