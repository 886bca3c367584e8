"""Each format written by its own library, and read back by content alone; and what is damaged."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import sys

import kaldiio
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from app.cases import assert_scalars, expected_scalars, run, scalars_of, trials_of, write_key
from app.cases import write_scores as write_scores_of
from safetensors.torch import save_file

from vpmetrics.app.errors import InputError
from vpmetrics.app.formats import read_arrays
from vpmetrics.app.lists import Names, read_key, read_scores
from vpmetrics.app.pairs import read_pairs

UTTERANCES = [f"u{k}" for k in range(6)]
SPEAKERS = ["anna", "anna", "ben", "ben", "cleo", "cleo"]


@pytest.fixture
def vectors():
    return np.random.default_rng(0).normal(size=(6, 4)).astype("f")


def by_name(vectors):
    return dict(zip(UTTERANCES, vectors, strict=True))


def write_npy(path, vectors):
    np.save(path, vectors)


def write_npz(path, vectors):
    np.savez(path, vectors=vectors, utterances=UTTERANCES, speakers=SPEAKERS)


def write_compressed_npz(path, vectors):
    np.savez_compressed(path, vectors=vectors, utterances=np.array(UTTERANCES, dtype=object))


def write_torch(path, vectors):
    torch.save(torch.from_numpy(vectors), path)


def write_old_torch(path, vectors):
    torch.save({"vectors": torch.from_numpy(vectors), "speakers": SPEAKERS}, path, _use_new_zipfile_serialization=False)


def write_list_of_tensors(path, vectors):
    torch.save(list(torch.from_numpy(vectors)), path)


def write_safetensors(path, vectors):
    save_file({"vectors": torch.from_numpy(vectors), "other": torch.zeros(1)}, path)


def write_parquet_lists(path, vectors):
    table = {"utterance": UTTERANCES, "vectors": vectors.tolist(), "speaker": SPEAKERS}
    pq.write_table(pa.table(table), path)


def write_parquet_fixed(path, vectors):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 4)
    pq.write_table(pa.table({"utterance": UTTERANCES, "vectors": lists}), path)


def write_parquet_columns(path, vectors):
    pl.DataFrame({"utterance": UTTERANCES, **{f"x{k}": vectors[:, k] for k in range(4)}}).write_parquet(path)


def write_ark(path, vectors):
    kaldiio.save_ark(str(path), by_name(vectors))


def write_matrices(path, vectors):
    """As one-row matrices, as some toolkits have it."""
    kaldiio.save_ark(str(path), {name: row[None] for name, row in by_name(vectors).items()})


def write_doubles(path, vectors):
    kaldiio.save_ark(str(path), by_name(vectors.astype("d")))


def write_text_ark(path, vectors):
    kaldiio.save_ark(str(path), by_name(vectors), text=True)


def write_scp(path, vectors):
    kaldiio.save_ark(f"{path}.ark", by_name(vectors), scp=str(path))


def write_csv(path, vectors):
    pl.DataFrame({"utterance": UTTERANCES, **{f"x{k}": vectors[:, k] for k in range(4)}}).write_csv(path)


def write_tsv_without_header(path, vectors):
    frame = pl.DataFrame({"u": UTTERANCES, "s": SPEAKERS, **{f"x{k}": vectors[:, k] for k in range(4)}})
    frame.write_csv(path, separator="\t", include_header=False)


def write_blanks(path, vectors):
    path.write_text("".join(f"{u}   {' '.join(map(repr, v.tolist()))}\n" for u, v in by_name(vectors).items()))


NAMELESS = write_npy, write_torch, write_old_torch, write_list_of_tensors, write_safetensors
NAMED = (
    write_npz, write_compressed_npz, write_parquet_lists, write_parquet_fixed, write_parquet_columns, write_ark,
    write_matrices, write_doubles, write_text_ark, write_scp, write_csv, write_tsv_without_header, write_blanks,
)  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("write", [*NAMELESS, *NAMED])
def test_a_format_is_seen_from_content_and_read_back(tmp_path, vectors, write, packed):
    path = tmp_path / "file.unheard"
    with path.open("wb") as file:
        write(file if write is write_npy or "npz" in write.__name__ else path, vectors)
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    arrays = read_arrays(str(path))
    (values,) = [array for array in arrays.by_name.values() if array.ndim == 2]
    np.testing.assert_allclose(values, vectors, atol=1e-6)
    assert arrays.utterances == (UTTERANCES if write in NAMED else None)
    for name, array in arrays.by_name.items():
        if name.startswith("speaker"):
            assert array.tolist() == SPEAKERS


def test_a_vector_of_whole_numbers_in_a_text_archive_is_read_as_it_is(tmp_path):
    (tmp_path / "x").write_text("u1  [ 1 0.5 1e-05 ]\nu2  [ 0 2 -3.5 ]\n")
    assert read_arrays(str(tmp_path / "x")).by_name[""].tolist() == [[1, 0.5, np.float32(1e-5)], [0, 2, -3.5]]


def test_a_table_of_archives_is_read_beside_them_when_a_folder_has_moved(tmp_path, vectors):
    write_scp(tmp_path / "x.scp", vectors)
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("x.scp", "x.scp.ark"):
        (tmp_path / name).rename(moved / name)
    assert read_arrays(str(moved / "x.scp")).utterances == UTTERANCES


def test_nothing_in_a_file_is_run(tmp_path):
    bomb = pickle.dumps(Bomb(tmp_path / "ran"))
    (tmp_path / "pickled.ark").write_bytes(b"u1 PKL" + bomb)
    (tmp_path / "piped.scp").write_text(f"u1 touch {tmp_path / 'ran'} |\n")
    np.save(tmp_path / "objects.npy", np.array([Bomb(tmp_path / "ran")], dtype=object), allow_pickle=True)
    torch.save(Bomb(tmp_path / "ran"), tmp_path / "objects.pt")
    for name in ("pickled.ark", "piped.scp", "objects.npy", "objects.pt"):
        with pytest.raises(InputError, match=name) as error:
            read_arrays(str(tmp_path / name))
        assert "weights_only" not in str(error.value)
        assert not (tmp_path / "ran").exists()


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (type(self.path).touch, (self.path,))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"u1 [ 1 2 ]\nu2 [ 1 2 3 ]\n", "x:2: expected 2 numbers as in the vectors before, but got 3"),
        (b"u1 [ 1 1_0 ]\n", "x:1: expected `utterance [ 0.1 ... ]`, but got '1_0'"),
        (b"u1,1,2\nu2,1,x\n", "x:2: expected a number, but got 'x'"),
        (b"u1,1,2\n\nu2,1\n", "x:3: expected 3 columns as in the lines before, but got 2"),
        (b"u1 x.ark:5\n", "x:1: no such archive: x.ark"),
        (b"u1 cat x.ark |\n", "x:1: expected `utterance archive:offset`, but got the command 'cat x.ark |'"),
        (b"PK\x03\x04nonsense", "x: looks like a zip archive of arrays, but is damaged"),
        (b"\x93NUMPY\x01\x00nonsense", "x: looks like an array of NumPy, but is damaged"),
        (b"PAR1nonsense", "x: looks like a Parquet file, but is damaged"),
        (b"\x1f\x8bnonsense", "x: cannot be read"),
        (b"", "x: expected lines"),
    ],
)
def test_damage_is_told_with_its_place(tmp_path, content, message):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InputError) as error:
        read_arrays(str(tmp_path / "x"))
    assert message in str(error.value)


@pytest.mark.parametrize("write", [*NAMELESS, *NAMED])
def test_a_file_cut_short_is_refused(tmp_path, vectors, write):
    path = tmp_path / "x"
    with path.open("wb") as file:
        write(file if write is write_npy or "npz" in write.__name__ else path, vectors)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 5] if b"\0" in whole else whole[: whole.rindex(b"\n", 0, -1) + 4])
    with pytest.raises(InputError, match="x"):
        read_arrays(str(path))


def test_the_challenges_vectors_are_paired_by_their_index(tmp_path, voices):
    """Their rows are in the order of a set, another on each side."""
    draw = np.random.default_rng(0)
    for side, vectors in (("o", voices.original), ("p", voices.protected["B2"])):
        order = draw.permutation(60)
        folder = tmp_path / side
        folder.mkdir()
        torch.save(vectors[order], folder / "speaker_vectors.pt")
        lines = [f"{voices.utterances[k]} {row}\n" for row, k in enumerate(order)]
        (folder / "id2idx").write_text("".join(draw.permutation(lines)))
        (folder / "idx2spk").write_text("".join(f"{row} {voices.names[k]}\n" for row, k in enumerate(order)))
    for end in ("", "/speaker_vectors.pt"):
        sides = ["--original", f"{tmp_path}/o{end}", "--protected", f"{tmp_path}/p{end}"]
        run("evaluate", *sides, "--json", tmp_path / "r.json", "--no-attacks")
        assert_scalars(scalars_of(tmp_path / "r.json"), expected_scalars(voices, attacks=None))


@pytest.mark.parametrize("lines", ["a 0\nb 0\n", "a 0\n", "a 0\nb 2\n", "a 0\nb x\n", "a 0 1\nb 1 1\n"])
def test_an_index_that_does_not_name_every_row_is_refused(tmp_path, lines):
    torch.save(torch.zeros(2, 3), tmp_path / "speaker_vectors.pt")
    (tmp_path / "id2idx").write_text(lines)
    with pytest.raises(InputError, match="id2idx"):
        read_arrays(str(tmp_path / "speaker_vectors.pt"))


# Lists of trials

TRIALS = [("a", "b", 1.5, True), ("a", "c", -2.0, False), ("b", "c", 0.25, False)]
LABELS = {True: "target", False: "nontarget"}
NUMBERS = {True: "1", False: "0"}


def lines_of(columns, separator=" ", labels=LABELS):
    fields = {"e": lambda t: t[0], "t": lambda t: t[1], "s": lambda t: repr(t[2]), "l": lambda t: labels[t[3]]}
    return "".join(separator.join(fields[column](trial) for column in columns) + "\n" for trial in TRIALS)


@pytest.mark.parametrize(
    ("text", "has"),
    [
        (lines_of("ets"), "e s"),
        (lines_of("etsl"), "e s l"),
        (lines_of("etls"), "e s l"),
        (lines_of("etls", labels=NUMBERS), "e s l"),  # SpeechBrain's
        (lines_of("lets", labels=NUMBERS), "e s l"),
        (lines_of("sl", labels=NUMBERS), "s l"),
        (lines_of("ls"), "s l"),
        (lines_of("ets", "\t"), "e s"),
        (lines_of("ets", ","), "e s"),
        (lines_of("ets", " \t  "), "e s"),
        (lines_of("ets", ", "), "e s"),
        ("enroll_id trial_id score\n" + lines_of("ets"), "e s"),
        ("label;enrol;test;llr\n" + lines_of("lets", ";"), "e s l"),
        ("left,right,score,same\n" + lines_of("etsl", ",", {True: "True", False: "False"}), "e s l"),
        ("\ufeff" + lines_of("etsl"), "e s l"),
        (lines_of("etsl").replace("\n", "\r\n"), "e s l"),
        ("\n\n" + lines_of("etsl").replace("\n", " \n\n"), "e s l"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_lists_of_scores_are_read_whatever_their_columns(tmp_path, text, has, packed):
    (tmp_path / "x").write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    names = Names()
    got = read_scores(tmp_path / "x", names)
    assert got.scores.tolist() == [trial[2] for trial in TRIALS]
    assert (None if got.is_target is None else got.is_target.tolist()) == (
        [t[3] for t in TRIALS] if "l" in has else None
    )
    if "e" in has:
        assert [names[n] for n in got.enrol] == [trial[0] for trial in TRIALS]
        assert [names[n] for n in got.trial] == [trial[1] for trial in TRIALS]


@pytest.mark.parametrize(
    "text",
    [
        lines_of("etl"),
        lines_of("let", labels=NUMBERS),  # VoxCeleb's
        lines_of("etsl"),
        lines_of("etls", labels=NUMBERS),
        lines_of("etl", "\t"),
        "enrol,test,target\n" + lines_of("etl", ",", NUMBERS),
        "enrol trial target\n" + lines_of("etl"),
        "modelid\tsegmentid\tside\ttargettype\n" + lines_of("etll", "\t"),
    ],
)
def test_keys_are_read_whatever_their_columns(tmp_path, text):
    (tmp_path / "x").write_text(text)
    names = Names()
    got = read_key(tmp_path / "x", names)
    assert got.is_target.tolist() == [trial[3] for trial in TRIALS]
    assert [names[n] for n in got.trial] == [trial[1] for trial in TRIALS]


def dictionary(texts):
    return pa.array(texts).dictionary_encode()


@pytest.mark.parametrize(
    "names", [("enrol", "trial", "score", "label"), ("utt1", "utt2", "llr", "is_target"), ("a", "b", "c", "d")]
)
@pytest.mark.parametrize("labels", [["target", "nontarget", "nontarget"], [True, False, False], [1, 0, 0]])
@pytest.mark.parametrize("packed", [False, True])
def test_lists_in_parquet_are_read_by_the_names_of_columns_or_by_content(tmp_path, names, labels, packed):
    enrol, trial, scores, _ = zip(*TRIALS, strict=True)
    columns = dictionary(enrol), pa.array(trial), pa.array(scores, type=pa.float32()), pa.array(labels)
    pq.write_table(pa.table(dict(zip(names, columns, strict=True))), tmp_path / "x")
    if packed:
        (tmp_path / "x").write_bytes(gzip.compress((tmp_path / "x").read_bytes()))
    numbers = Names()
    got = read_scores(tmp_path / "x", numbers)
    assert got.scores.tolist() == list(scores)
    assert got.is_target.tolist() == [t[3] for t in TRIALS]
    assert [numbers[n] for n in got.enrol] == list(enrol)
    assert read_key(tmp_path / "x", numbers).codes(numbers).tolist() == got.codes(numbers).tolist()


def test_scores_and_key_in_parquet_say_what_the_same_in_text_says(tmp_path, voices, monkeypatch):
    monkeypatch.setattr("vpmetrics.app.parquet._PIECE", 100)
    write_scores_of(tmp_path / "scores", voices, trials_of(voices, "OP"))
    write_key(tmp_path / "key", voices)
    run("evaluate", tmp_path / "scores", tmp_path / "key", "--json", tmp_path / "text.json")
    for name, columns in (("scores", ("enrol", "trial", "score")), ("key", ("enrol", "trial", "label"))):
        frame = pl.read_csv(tmp_path / name, separator="\t" if name == "key" else " ", has_header=False)
        frame.rename(dict(zip(frame.columns, columns, strict=True))).write_parquet(tmp_path / f"{name}.parquet")
    run("evaluate", tmp_path / "scores.parquet", tmp_path / "key.parquet", "--json", tmp_path / "parquet.json")
    assert scalars_of(tmp_path / "parquet.json") == scalars_of(tmp_path / "text.json")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"enrol": ["a", "a"], "trial": ["b", "c"], "score": [1.0, None]}, "x:2: expected a number as score, but got"),
        ({"enrol": ["a", "a"], "trial": ["b", "c"], "score": [1.0, math.nan]}, "x:2: expected a number as score"),
        ({"enrol": ["a", "a"], "trial": ["b", None], "score": [1.0, 2.0]}, "x:2: expected a name, but got None"),
        ({"enrol": ["a"], "trial": ["b"], "score": [1.0], "label": ["maybe"]}, "x:1: expected target or nontarget"),
        ({"enrol": ["a"], "trial": ["b"]}, "x: expected columns `enrol trial score [target|nontarget]`, but got enrol"),
        ({"enrol": [], "trial": [], "score": []}, "x: expected lines `enrol trial score [target|nontarget]`, but got"),
    ],
)
def test_what_is_wrong_in_parquet_is_told_with_its_row(tmp_path, columns, message):
    pq.write_table(pa.table(columns), tmp_path / "x")
    with pytest.raises(InputError) as error:
        read_scores(tmp_path / "x", Names())
    assert message in str(error.value)


def test_names_are_the_same_numbers_in_all_files_of_a_run(tmp_path):
    names, files = Names(), []
    for number, text in enumerate((lines_of("etl"), "z c 1\na z 2\n", lines_of("ets"))):
        (tmp_path / str(number)).write_text(text)
        files.append((read_key if number == 0 else read_scores)(tmp_path / str(number), names))
    assert files[0].codes(names).tolist() == files[2].codes(names).tolist()
    assert [names[n] for n in files[1].enrol] == ["z", "a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b 1_0\n", "x:1: expected a number as score, but got '1_0'"),
        ("a b 1\na c 0x1\n", "x:2: expected a number as score, but got '0x1'"),
        ("enrol trial score\na b 1\n\na c nan\n", "x:4: expected a number as score, but got 'nan'"),
        ("a b 1\na c 2 3\n", "x:2: expected 3 columns as in the lines before, but got 4"),
        ("a,b,1\na,c\n", "x:2: expected 3 columns as in the lines before, but got 2"),
        ("enrol trial score\n", "x: expected lines `enrol trial score [target|nontarget]`, but got none"),
        ("\n\n", "x: expected lines"),
    ],
)
def test_scores_that_are_no_numbers_are_told_with_their_line(tmp_path, text, message):
    (tmp_path / "x").write_text(text)
    with pytest.raises(InputError) as error:
        read_scores(tmp_path / "x", Names())
    assert message in str(error.value)


@pytest.mark.parametrize(("content", "line"), [(b"a b 1\n\xe9 c 2\n", 2), ("a b 1\n".encode("utf-16"), None)])
def test_text_of_another_encoding_is_refused(tmp_path, content, line):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InputError, match=f"x:{line}: expected text in UTF-8" if line else "x: expected text"):
        read_scores(tmp_path / "x", Names())


def test_utt2spk_may_have_a_header_and_any_separator(tmp_path):
    for text in ("u1 anna\nu2 ben\n", "utterance,speaker\nu1,anna\nu2,ben\n", "u1\tanna\nu2\tben\n"):
        (tmp_path / "x").write_text(text)
        assert read_pairs(tmp_path / "x") == [["u1", "u2"], ["anna", "ben"]]


def test_standard_input_is_a_file_like_others(tmp_path, monkeypatch, capsys):
    for content in (lines_of("etsl").encode(), gzip.compress(lines_of("etsl").encode())):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
        run("evaluate", "-", "--json", tmp_path / "r.json")
        assert scalars_of(tmp_path / "r.json")["eer"] == 0
    assert "-: 3 trials, columns enrol trial score label" in capsys.readouterr().out
    run("evaluate", "-", "-", expect=2)
    assert "Expected one file from standard input, but got - more than once" in capsys.readouterr().err
