"""Each format of embeddings: written by its own library, read by its suffix, and damaged."""

import gzip
import pickle
import re

import h5py
import kaldiio
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cli.cases import run
from safetensors.torch import save_file

from vpmetrics._util.inputs import InputError
from vpmetrics.readers.formats import READERS, read_arrays

UTTERANCES = [f"u{k}" for k in range(6)]
SPEAKERS = ["anna", "anna", "ben", "ben", "cleo", "cleo"]


@pytest.fixture
def vectors():
    return np.random.default_rng(0).normal(size=(6, 4)).astype("f")


def by_name(vectors):
    return dict(zip(UTTERANCES, vectors, strict=True))


def save_h5(path, content):
    with h5py.File(path, "w") as file:
        for name, values in content.items():
            file[name] = values


def frame(vectors):
    return pl.DataFrame({"utterance": UTTERANCES, **{f"x{k}": vectors[:, k] for k in range(4)}})


def write_tensor(path, vectors):
    torch.save(torch.from_numpy(vectors), path)


def write_old_format_of_torch(path, vectors):
    content = {"vectors": torch.from_numpy(vectors), "speakers": SPEAKERS}
    torch.save(content, path, _use_new_zipfile_serialization=False)


def write_list_of_tensors(path, vectors):
    torch.save(list(torch.from_numpy(vectors)), path)


def write_safetensors(path, vectors):
    save_file({"vectors": torch.from_numpy(vectors), "other": torch.zeros(1)}, path)


def write_npz(path, vectors):
    np.savez(path, vectors=vectors, utterances=UTTERANCES, speakers=SPEAKERS)


def write_compressed_npz(path, vectors):
    np.savez_compressed(path, vectors=vectors, utterances=UTTERANCES)


def write_npz_by_utterance(path, vectors):
    np.savez(path, **by_name(vectors))


def write_pt_by_utterance(path, vectors):
    torch.save(by_name(torch.from_numpy(vectors)), path)


def write_rows_by_utterance(path, vectors):
    torch.save(by_name(torch.from_numpy(vectors)[:, None]), path)


def write_safetensors_by_utterance(path, vectors):
    save_file(by_name(torch.from_numpy(vectors)), path)


def write_h5(path, vectors):
    save_h5(path, {"vectors": vectors, "utterances": UTTERANCES, "speaker": SPEAKERS})


def write_h5_by_utterance(path, vectors):
    """Every other set is a row ``(1, D)``."""
    content = by_name(vectors)
    for name in UTTERANCES[::2]:
        content[name] = content[name][None]
    save_h5(path, content)


def write_lists_of_parquet(path, vectors):
    columns = {"utterance": UTTERANCES, "vectors": vectors.tolist(), "speaker": SPEAKERS}
    pq.write_table(pa.table(columns), path)


def write_fixed_lists_of_parquet(path, vectors):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 4)
    pq.write_table(pa.table({"utterance": UTTERANCES, "vectors": lists}), path)


def write_columns_of_parquet(path, vectors):
    frame(vectors).write_parquet(path)


def write_csv(path, vectors):
    frame(vectors).write_csv(path)


def write_tsv(path, vectors):
    table = frame(vectors).with_columns(speaker=pl.Series(SPEAKERS))
    table.write_csv(path, separator="\t")


def write_ark(path, vectors):
    kaldiio.save_ark(str(path), by_name(vectors))


def write_matrices_of_ark(path, vectors):
    write_ark(path, vectors[:, None])


def write_doubles_of_ark(path, vectors):
    write_ark(path, vectors.astype("d"))


def write_text_ark(path, vectors):
    kaldiio.save_ark(str(path), by_name(vectors), text=True)


def write_scp(path, vectors):
    kaldiio.save_ark(f"{path}.ark", by_name(vectors), scp=str(path))


# How a file is written, by its kind and its suffix; those that name no utterances first.
NAMELESS = {
    "array.npy": np.save,
    "tensor.pt": write_tensor,
    "old.pt": write_old_format_of_torch,
    "list.pt": write_list_of_tensors,
    "arrays.safetensors": write_safetensors,
}
NAMED = {
    "arrays.npz": write_npz,
    "compressed.npz": write_compressed_npz,
    "utterances.npz": write_npz_by_utterance,
    "utterances.pt": write_pt_by_utterance,
    "rows.pt": write_rows_by_utterance,
    "utterances.safetensors": write_safetensors_by_utterance,
    "arrays.h5": write_h5,
    "utterances.h5": write_h5_by_utterance,
    "lists.parquet": write_lists_of_parquet,
    "fixed_lists.parquet": write_fixed_lists_of_parquet,
    "columns.parquet": write_columns_of_parquet,
    "columns.csv": write_csv,
    "columns.tsv": write_tsv,
    "binary.ark": write_ark,
    "matrices.ark": write_matrices_of_ark,
    "doubles.ark": write_doubles_of_ark,
    "text.ark": write_text_ark,
    "table.scp": write_scp,
}
WRITERS = {**NAMELESS, **NAMED}
assert {kind.split(".")[1] for kind in WRITERS} | {"pth", "hdf5"} == set(READERS)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", WRITERS)
def test_a_format_is_read_back_and_a_truncated_file_raises(tmp_path, vectors, kind, packed):
    path = tmp_path / kind
    WRITERS[kind](path, vectors)
    whole = path.read_bytes()
    is_text = kind.endswith(("csv", "tsv", "scp")) or kind == "text.ark"
    truncated = whole[: len(whole) - 5]
    if is_text:
        start_of_last_line = whole.rindex(b"\n", 0, -1)
        truncated = whole[: start_of_last_line + 4]
    if packed:
        path = tmp_path / f"{kind}.gz"
        whole = gzip.compress(whole)
        truncated = gzip.compress(truncated)
    path.write_bytes(whole)
    arrays = read_arrays(str(path))
    (values,) = [arrays.load(name) for name, array in arrays.by_name.items() if array.ndim == 2]
    assert (arrays.utterances is not None) == (kind in NAMED)
    names = arrays.utterances or UTTERANCES  # a file of Safetensors has an order of its own
    np.testing.assert_allclose(
        values[[names.index(name) for name in UTTERANCES]], vectors, atol=1e-6
    )
    for name in arrays.by_name:
        if name.startswith("speaker"):
            assert arrays.load(name).tolist() == SPEAKERS
    path.write_bytes(truncated)
    with pytest.raises(InputError, match=path.name):
        read_arrays(str(path))


def test_format_option_overrides_the_suffix(tmp_path, assert_same_as_suite, voices, capsys):
    with (tmp_path / "x.unheard").open("wb") as file:
        np.savez(
            file,
            original=voices.original,
            protected=voices.protected["B2"],
            speakers=voices.speakers,
        )
    assert_same_as_suite(tmp_path / "x.unheard", "--format", "npz")
    run(
        "evaluate",
        "--original",
        tmp_path / "x.unheard",
        "--protected",
        tmp_path / "x.unheard",
        expect=2,
    )
    assert "expected recordings, or embeddings (.npz, .npy" in capsys.readouterr().err
    run("evaluate", tmp_path / "x.unheard", "--format", "mat", expect=2)
    assert "Expected --format to be one of npz, npy" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["npy", "pt"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_folder_has_a_file_per_utterance(tmp_path, vectors, suffix, nested):
    for number, (name, row) in enumerate(by_name(vectors).items()):
        path = tmp_path / (
            f"{SPEAKERS[number]}/{number % 2}.{suffix}" if nested else f"{name}.{suffix}"
        )
        path.parent.mkdir(exist_ok=True)
        np.save(path, row[None]) if suffix == "npy" else torch.save(torch.from_numpy(row), path)
    arrays = read_arrays(str(tmp_path))
    np.testing.assert_array_equal(arrays.by_name[""], vectors)
    assert arrays.utterances == (
        [f"{s}/{k % 2}" for k, s in enumerate(SPEAKERS)] if nested else UTTERANCES
    )


def test_text_archive_reads_numbers_without_decimal_point(tmp_path):
    (tmp_path / "x.ark").write_text("u1  [ 1 0.5 1e-05 ]\nu2  [ 0 2 -3.5 ]\n")
    assert read_arrays(str(tmp_path / "x.ark")).by_name[""].tolist() == [
        [1, 0.5, np.float32(1e-5)],
        [0, 2, -3.5],
    ]


def test_scp_finds_its_archive_after_the_folder_moved(tmp_path, vectors):
    WRITERS["table.scp"](tmp_path / "x.scp", vectors)
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("x.scp", "x.scp.ark"):
        (tmp_path / name).rename(moved / name)
    assert read_arrays(str(moved / "x.scp")).utterances == UTTERANCES


def test_nothing_in_a_file_is_run(tmp_path):
    bomb = Bomb(tmp_path / "ran")
    (tmp_path / "pickled.ark").write_bytes(b"u1 PKL" + pickle.dumps(bomb))
    (tmp_path / "hidden.ark").write_bytes(b"u1 \0BPKL" + pickle.dumps(bomb))
    (tmp_path / "piped.scp").write_text(f"u1 touch {tmp_path / 'ran'} |\n")
    np.save(tmp_path / "objects.npy", np.array([bomb], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "objects.npz", original=np.array([bomb], dtype=object))
    torch.save(bomb, tmp_path / "objects.pt")
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(InputError, match=path.name) as error:
            read_arrays(str(path))
        assert "weights_only" not in str(error.value)
        assert not (tmp_path / "ran").exists()


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (type(self.path).touch, (self.path,))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "x.ark",
            b"u1 [ 1 2 ]\nu2 [ 3 ]\n",
            "x.ark:2: expected one vector per utterance, all of one length, but got",
        ),
        ("x.ark", b"u1 [ 1 1_0 ]\n", "x.ark:1: expected `utterance [ 0.1 ... ]`, but got '1_0'"),
        ("x.ark", b"", "x.ark: expected vectors, but got an empty file"),
        (
            "x.csv",
            b"utterance,x0,x1\nu1,1,2\nu2,1,x\n",
            "x.csv:3: expected a number as x1, but got 'x'",
        ),
        ("x.csv", b"", "x.csv: is not a readable .csv file"),
        ("x.scp", b"u1 x.ark:5\n", "x.scp:1: no such archive: x.ark"),
        (
            "x.scp",
            b"u1 cat x.ark |\n",
            "x.scp:1: expected `utterance archive:offset`, but got the command",
        ),
        ("x.npz", b"PK\x03\x04nonsense", "x.npz: is not a readable .npz file"),
        ("x.npz.gz", b"\x1f\x8bnonsense", "x.npz.gz: cannot be read"),
    ],
)
def test_error_for_damaged_file_names_the_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=re.escape(message)):
        read_arrays(str(tmp_path / name))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            torch.eye(3).to_sparse(),
            "expected a dense tensor of numbers, but got a sparse tensor; save its .to_dense()",
        ),
        (
            lambda: torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8),
            "but got a quantised tensor",
        ),
        ((torch.eye(3), torch.eye(3)), "but got a tuple of 2"),
        ([torch.eye(3), torch.zeros(2)], "holds a list of tensors of several shapes"),
        (
            {"original": np.eye(3)},
            "holds other objects than tensors, numbers and texts; save tensors, or use .npz",
        ),
        (
            {"u1": torch.zeros(3), "u2": torch.zeros(2)},
            "one vector per utterance, all of one length, but got shapes",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:torch.quantize", "ignore:TypedStorage")
def test_error_names_the_kind_of_unsupported_tensor(tmp_path, content, message):
    torch.save(content() if callable(content) else content, tmp_path / "x.pt")
    with pytest.raises(InputError, match=rf"x\.pt.*{re.escape(message)}"):
        read_arrays(str(tmp_path / "x.pt"))


def test_vectors_of_a_challenge_are_named_by_their_index(tmp_path, vectors):
    order = np.random.default_rng(0).permutation(6)
    torch.save(torch.from_numpy(vectors[order]), tmp_path / "speaker_vectors.pt")
    (tmp_path / "id2idx").write_text(
        "".join(sorted(f"{UTTERANCES[k]} {row}\n" for row, k in enumerate(order)))
    )
    (tmp_path / "idx2spk").write_text(
        "".join(f"{row} {SPEAKERS[k]}\n" for row, k in enumerate(order))
    )
    for path in (tmp_path, tmp_path / "speaker_vectors.pt"):
        arrays = read_arrays(str(path))
        assert arrays.utterances == [UTTERANCES[k] for k in order]
        assert arrays.by_name["speakers"].tolist() == [SPEAKERS[k] for k in order]
        np.testing.assert_array_equal(arrays.by_name[""], vectors[order])


@pytest.mark.parametrize(
    "lines", ["a 0\nb 0\n", "a 0\n", "a 0\nb 2\n", "a 0\nb x\n", "a 0 1\nb 1 1\n"]
)
def test_incomplete_id2idx_raises(tmp_path, lines):
    torch.save(torch.zeros(2, 3), tmp_path / "speaker_vectors.pt")
    (tmp_path / "id2idx").write_text(lines)
    with pytest.raises(InputError, match="id2idx"):
        read_arrays(str(tmp_path / "speaker_vectors.pt"))
