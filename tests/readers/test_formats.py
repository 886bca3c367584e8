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


# How a file is written, by its kind and its suffix; those that name no utterances first.
NAMELESS = {
    "array.npy": np.save,
    "tensor.pt": lambda path, v: torch.save(torch.from_numpy(v), path),
    "old.pt": lambda path, v: torch.save(
        {"vectors": torch.from_numpy(v), "speakers": SPEAKERS},
        path,
        _use_new_zipfile_serialization=False,
    ),
    "list.pt": lambda path, v: torch.save(list(torch.from_numpy(v)), path),
    "arrays.safetensors": lambda path, v: save_file(
        {"vectors": torch.from_numpy(v), "other": torch.zeros(1)}, path
    ),
}
NAMED = {
    "arrays.npz": lambda path, v: np.savez(
        path, vectors=v, utterances=UTTERANCES, speakers=SPEAKERS
    ),
    "compressed.npz": lambda path, v: np.savez_compressed(path, vectors=v, utterances=UTTERANCES),
    "utterances.npz": lambda path, v: np.savez(path, **by_name(v)),
    "utterances.pt": lambda path, v: torch.save(by_name(torch.from_numpy(v)), path),
    "rows.pt": lambda path, v: torch.save(by_name(torch.from_numpy(v)[:, None]), path),
    "utterances.safetensors": lambda path, v: save_file(by_name(torch.from_numpy(v)), path),
    "arrays.h5": lambda path, v: save_h5(
        path, {"vectors": v, "utterances": UTTERANCES, "speaker": SPEAKERS}
    ),
    "utterances.h5": lambda path, v: save_h5(
        path, by_name(v) | dict(list(by_name(v[:, None]).items())[::2])
    ),
    "lists.parquet": lambda path, v: pq.write_table(
        pa.table({"utterance": UTTERANCES, "vectors": v.tolist(), "speaker": SPEAKERS}), path
    ),
    "fixed_lists.parquet": lambda path, v: pq.write_table(
        pa.table(
            {
                "utterance": UTTERANCES,
                "vectors": pa.FixedSizeListArray.from_arrays(pa.array(v.ravel()), 4),
            }
        ),
        path,
    ),
    "columns.parquet": lambda path, v: frame(v).write_parquet(path),
    "columns.csv": lambda path, v: frame(v).write_csv(path),
    "columns.tsv": lambda path, v: (
        frame(v).with_columns(speaker=pl.Series(SPEAKERS)).write_csv(path, separator="\t")
    ),
    "binary.ark": lambda path, v: kaldiio.save_ark(str(path), by_name(v)),
    "matrices.ark": lambda path, v: kaldiio.save_ark(str(path), by_name(v[:, None])),
    "doubles.ark": lambda path, v: kaldiio.save_ark(str(path), by_name(v.astype("d"))),
    "text.ark": lambda path, v: kaldiio.save_ark(str(path), by_name(v), text=True),
    "table.scp": lambda path, v: kaldiio.save_ark(f"{path}.ark", by_name(v), scp=str(path)),
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
    truncated = whole[: whole.rindex(b"\n", 0, -1) + 4] if is_text else whole[: len(whole) - 5]
    if packed:
        path, whole, truncated = (
            tmp_path / f"{kind}.gz",
            gzip.compress(whole),
            gzip.compress(truncated),
        )
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
