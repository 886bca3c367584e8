"""Damaged files of every format: the answer is arrays, or an error that the user can correct.

``MUTATIONS=1000 pytest tests/readers/test_damaged_files.py`` tries as many of every kind of file.
"""

import gzip
import json
import os
import resource
from contextlib import contextmanager

import h5py
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from readers.test_formats import WRITERS

from vpmetrics._util.inputs import InputError
from vpmetrics.audio import AudioError, read_audio
from vpmetrics.readers.formats import READERS, read_arrays
from vpmetrics.readers.published import read_published_table
from vpmetrics.readers.score_matrices import rank_matrix, read_score_matrix
from vpmetrics.readers.trial_files import read_attributes, read_key, read_map, read_scores

MUTATIONS = int(os.environ.get("MUTATIONS", "8"))
LISTS = {
    "scores": (read_scores, "a b 0.5 target\nc d -1.5 nontarget\n"),
    "scores.csv": (read_scores, "enrol,trial,score,label\na,b,0.5,target\nc,d,-1e3,nontarget\n"),
    "trials": (read_key, "a b target\nc d nontarget\n"),
    "utt2spk": (read_map, "u1 anna\nu2 ben\n"),
    "Table4.csv": (read_published_table, "Experiment,EER,LID+\nB3,0.24,1.94\nB4,0.27,2.21\n"),
    "attributes.tsv": (read_attributes, "speaker\tsex\tage\nanna\tf\t30\nben\tm\t40\n"),
}
MATRICES = ("matrix.npy", "matrix.npy.json", "archive.npz")
RECORDINGS = ("wav", "flac", "ogg", "mp3")
EXTREMES = (
    b"\xff" * 4,
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\0" * 4,
    b"\xff" * 8,
    b"\x80",
    b"\n",
    b"nan",
    b"1e400",
)


def load_all(path):
    """Read every array of a file, as a command does that needs all of them."""
    arrays = read_arrays(str(path))
    return [np.asarray(arrays.load(name)) for name in arrays.by_name]


def write_score_matrix(path):
    """Write a matrix of scores with its speakers in an archive, or in a file beside it."""
    scores = np.random.default_rng(0).normal(size=(4, 6))
    rows = list("abcd")
    columns = list("abcdab")
    if path.suffix == ".npz":
        np.savez(path, scores=scores, enroll_speakers=rows, test_speakers=columns)
        return path
    matrix = path.with_name("matrix.npy")
    np.save(matrix, scores)
    lists = json.dumps({"enroll_speakers": rows, "test_speakers": columns})
    matrix.with_name("matrix.npy.json").write_text(lists)
    return matrix


def read_whole_matrix(path):
    return rank_matrix(read_score_matrix(path))


def make_good_file(path, kind):
    """Write a file of a kind, and return how it is read."""
    draw = np.random.default_rng(0)
    if kind in WRITERS:
        WRITERS[kind](path, draw.normal(size=(6, 4)).astype("f"))
        return load_all
    if kind in LISTS:
        read, text = LISTS[kind]
        path.write_text(text)
        return read
    if kind in MATRICES:
        matrix = write_score_matrix(path)
        return lambda _: read_whole_matrix(matrix)
    soundfile.write(path, 0.1 * draw.normal(size=1600), 16000)
    return lambda path: read_audio(path, 16000)


def mutate(content, chance):
    """Change some bytes of a file, cut it off, or move and repeat parts of it."""
    for _ in range(chance.randint(1, 3)):
        start = chance.randrange(len(content) + 1)
        stop = min(len(content), start + chance.choice((1, 2, 4, 16, 200)))
        content = chance.choice(
            (
                content[:start] + chance.randbytes(stop - start) + content[stop:],
                content[:start] + chance.choice(EXTREMES) + content[stop:],
                content[:start] + content[stop:],
                content[:start],
                content[:stop] + content[start:],
                content[:start]
                + bytes(byte ^ 1 << chance.randrange(8) for byte in content[start:stop])
                + content[stop:],
            )
        )
    return content


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kind", [*WRITERS, *LISTS, *MATRICES, *(f"voice.{suffix}" for suffix in RECORDINGS)]
)
def test_a_damaged_file_gives_arrays_or_an_error_that_names_it(tmp_path, kind):
    path = tmp_path / kind
    read = make_good_file(path, kind)
    read(path)
    good = path.read_bytes()

    @settings(max_examples=MUTATIONS, deadline=None, derandomize=True, database=None)
    @given(chance=st.randoms(use_true_random=True))
    def read_damaged_file(chance):
        path.write_bytes(mutate(good, chance))
        with suppress_named_errors(path):
            read(path)

    read_damaged_file()


@contextmanager
def suppress_named_errors(path):
    """Let errors pass that the user can correct and that name the file."""
    name = path.name.removesuffix(".json")  # speakers that do not fit are told of their matrix
    message = name
    try:
        yield
    except (InputError, AudioError) as error:
        message = str(error)
    assert name in message


def test_every_format_is_damaged():
    assert {kind.split(".")[1] for kind in WRITERS} | {"pth", "hdf5"} == set(READERS)


@pytest.fixture
def memory():
    """What was allocated since the start of the test, at its peak, in MiB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return lambda: (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def write_wide_table(path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    constant = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(1 << 22, dtype="i4")), pa.array([0.5])
    )
    pq.write_table(pa.table({f"x{column}": constant for column in range(100)}), path)


def write_long_lists(path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    lists = pa.ListArray.from_arrays(
        np.arange(0, (1 << 22) + 1, 1 << 10, dtype="i4"), pa.array(np.zeros(1 << 22))
    )
    pq.write_table(pa.table({"x": pa.concat_arrays([lists] * 80)}), path)


def write_promising_set(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("original", (1 << 20, 1 << 12), "f", chunks=(1, 1 << 12))


def write_promising_header(path):
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"shape": (1 << 30, 4), "fortran_order": False, "descr": "<f4"}
        )
        file.write(bytes(64))


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        (
            "x.parquet",
            write_wide_table,
            "expected at most 2,048 MiB once unpacked, but got 3,200 MiB; split it",
        ),
        (
            "lists.parquet",
            write_long_lists,
            "expected at most 2,048 MiB once unpacked, but got 2,560 MiB",
        ),
        (
            "x.h5",
            write_promising_set,
            "expected at most 2,048 MiB once unpacked, but got 16,384 MiB",
        ),
        (
            "x.npy",
            write_promising_header,
            r"is cut off: it has 192 bytes for an array of shape \(1073741824, 4\)",
        ),
    ],
)
def test_what_asks_for_too_much_memory_is_refused_before_it_is_allocated(
    tmp_path, memory, name, write, message
):
    path = tmp_path / name
    write(path)
    before = memory()
    with pytest.raises(InputError, match=message):
        load_all(path)
    assert memory() - before < 300


def test_a_set_that_nobody_needs_is_not_read(tmp_path):
    path = tmp_path / "x.h5"
    write_promising_set(path)
    with h5py.File(path, "a") as file:
        file["other"] = np.eye(3)
    np.testing.assert_array_equal(read_arrays(str(path)).load("other"), np.eye(3))


def test_sets_in_other_files_are_refused(tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = np.eye(3)
    layout = h5py.VirtualLayout((3, 3), "f")
    layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "x", (3, 3))
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    with h5py.File(tmp_path / "external.h5", "w") as file:
        file.create_dataset("x", (3, 3), "f8", external=[(str(tmp_path / "secret.h5"), 0, 72)])
    with h5py.File(tmp_path / "linked.h5", "w") as file:
        file["x"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "x")
        file["y"] = np.eye(2)
    for name in ("virtual.h5", "external.h5"):
        with pytest.raises(
            InputError, match=rf"{name}:x: is stored in other files, which are not read; copy it"
        ):
            read_arrays(str(tmp_path / name))
    assert list(read_arrays(str(tmp_path / "linked.h5")).by_name) == ["y"]


@pytest.mark.parametrize("rate", [1, 999, 768_001, 2147483647])
def test_impossible_sample_rates_are_refused(tmp_path, rate):
    path = tmp_path / "x.wav"
    soundfile.write(path, 0.1 * np.ones(1600), 16000)
    content = bytearray(path.read_bytes())
    content[24:28] = rate.to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(
        AudioError,
        match=rf"x\.wav has a sample rate of {rate:,} Hz; expected one of 1,000 to 768,000",
    ):
        read_audio(path, 16000)


def test_unpacking_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("vpmetrics._util.inputs._UNPACKED_BYTES", 1 << 16)
    zeros = np.zeros(1 << 22, dtype="f")
    np.savez_compressed(tmp_path / "x.npz", zeros=zeros)
    np.save(tmp_path / "x.npy", zeros)
    (tmp_path / "x.npy.gz").write_bytes(gzip.compress((tmp_path / "x.npy").read_bytes()))
    for name in ("x.npz", "x.npy.gz"):
        with pytest.raises(InputError, match=r"expected at most .* MiB once unpacked"):
            read_arrays(str(tmp_path / name))
    assert len(read_arrays(str(tmp_path / "x.npy")).by_name[""]) == 1 << 22
