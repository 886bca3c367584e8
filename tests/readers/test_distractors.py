"""Files of distractors: speakers who are enrolled and never tested."""

import numpy as np
import pytest
import torch

from vpmetrics._util.inputs import InputError
from vpmetrics._utterances.encoders import Encoder
from vpmetrics.readers.distractors import read_distractors
from vpmetrics.readers.embeddings import Embeddings
from vpmetrics.readers.options import RowOptions

NAMES = ["7-1-0001", "7-1-0002", "9-4-0001"]  # as in LibriSpeech: of speakers 7 and 9


def draw_vectors(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, 5)).astype("f")


def make_evaluated(has_originals=True, speakers=("1", "2")):
    """Embeddings of two speakers, two utterances each."""
    original = torch.from_numpy(draw_vectors(4, seed=1)) if has_originals else None
    protected = torch.from_numpy(draw_vectors(4, seed=2))
    return Embeddings(original, protected, torch.tensor([0, 0, 1, 1]), speakers)


def save(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def read(source, embeddings=None, **options):
    return read_distractors(source, embeddings or make_evaluated(), RowOptions(**options))


def test_rows_of_a_speaker_are_averaged(tmp_path):
    vectors = draw_vectors(3)
    path = save(tmp_path / "d.npz", embeddings=vectors, speakers=["c", "b", "c"])
    found = read(path)
    assert found.speaker_names == ("b", "c")
    expected = np.stack([vectors[1], vectors[[0, 2]].mean(0)])
    np.testing.assert_allclose(found.by_side()["original"], expected, rtol=1e-6)
    assert found.protected is None
    assert found.note == f"{path}: 2 distractors join the gallery of original speech"


def test_both_sides_are_read_where_the_file_has_them(tmp_path):
    sides = {"original": draw_vectors(3), "protected": draw_vectors(3, seed=4)}
    path = save(tmp_path / "d.npz", **sides, speakers=["a", "b", "c"])
    found = read(path)
    for side, vectors in found.by_side().items():
        np.testing.assert_allclose(vectors, sides[side], rtol=1e-6)
    assert list(read(path, make_evaluated(has_originals=False)).by_side()) == ["protected"]


def test_one_array_is_protected_without_originals_or_by_its_name(tmp_path):
    np.save(tmp_path / "d.npy", draw_vectors(3))
    path = str(tmp_path / "d.npy")
    assert list(read(path).by_side()) == ["original"]
    assert list(read(path, make_evaluated(has_originals=False)).by_side()) == ["protected"]
    named = save(tmp_path / "d.npz", protected=draw_vectors(3))
    assert list(read(named).by_side()) == ["protected"]
    assert list(read(f"{named}:protected").by_side()) == ["protected"]


def test_without_speakers_each_row_is_one(tmp_path):
    np.save(tmp_path / "d.npy", draw_vectors(3))
    found = read(str(tmp_path / "d.npy"))
    assert len(found.by_side()["original"]) == 3
    assert found.note.endswith("each row is taken for a speaker, since the file names none")


def test_speakers_come_from_names_of_librispeech_or_from_a_list(tmp_path):
    path = save(tmp_path / "d.npz", embeddings=draw_vectors(3), utterances=NAMES)
    assert read(path).speaker_names == ("7", "9")
    (tmp_path / "utt2spk").write_text("".join(f"{name} s{name[-1]}\n" for name in NAMES))
    assert read(path, speakers=str(tmp_path / "utt2spk")).speaker_names == ("s1", "s2")
    (tmp_path / "utt2spk").write_text("other 5\n")  # of the evaluated utterances alone
    assert read(path, speakers=str(tmp_path / "utt2spk")).speaker_names == ("7", "9")


def test_every_format_of_embeddings_is_read(tmp_path):
    vectors = draw_vectors(3)
    lines = [f"{name},{','.join(map(str, row))}" for name, row in zip(NAMES, vectors, strict=True)]
    header = "utterance_id," + ",".join(f"x{number}" for number in range(5))
    (tmp_path / "d.csv").write_text("\n".join([header, *lines]))
    torch.save(
        {"embeddings": torch.from_numpy(vectors), "speakers": torch.tensor([7, 7, 9])},
        tmp_path / "d.pt",
    )
    for name in ("d.csv", "d.pt"):
        found = read(str(tmp_path / name))
        assert found.speaker_names == ("7", "9")
        expected = np.stack([vectors[:2].mean(0), vectors[2]])
        np.testing.assert_allclose(found.by_side()["original"], expected, rtol=1e-5)


def test_speakers_of_the_evaluation_are_named(tmp_path):
    path = save(tmp_path / "d.npz", embeddings=draw_vectors(3), speakers=["2", "5", "1"])
    message = r"who are not evaluated, but 2 of 3 are: '1', '2'; leave them out, or rename"
    with pytest.raises(InputError, match=message):
        read(path)
    many = [str(number) for number in range(6)]
    vectors = draw_vectors(6)
    path = save(tmp_path / "d.npz", embeddings=vectors, speakers=many)
    with pytest.raises(InputError, match="'0', '1', '2' and 3 more"):
        read(path, make_evaluated(speakers=many))


def test_an_evaluated_embedding_is_no_distractor_under_any_name(tmp_path):
    vectors = draw_vectors(3)
    vectors[1] = make_evaluated().original[2]
    path = save(tmp_path / "d.npz", embeddings=vectors, utterances=NAMES)
    with pytest.raises(InputError, match="'7-1-0002' equals an evaluated embedding"):
        read(path)


def test_another_width_or_encoder_is_an_error(tmp_path):
    path = save(tmp_path / "d.npz", embeddings=draw_vectors(3)[:, :4])
    with pytest.raises(InputError, match=r"distractors of width 5, as .*, but got 4"):
        read(path)
    path = save(tmp_path / "e.npz", embeddings=draw_vectors(3), encoder="wavlm")
    evaluated = make_evaluated()._replace(encoders=(Encoder("ecapa", 5),))
    with pytest.raises(InputError, match=r"by the encoder 'ecapa', as .*, but got 'wavlm'"):
        read(path, evaluated)


def test_a_missing_file_and_what_is_no_number_are_errors(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.npz: no such file for --distractors"):
        read(str(tmp_path / "nowhere.npz"))
    vectors = draw_vectors(3)
    vectors[2, 1] = np.nan
    path = save(tmp_path / "d.npz", embeddings=vectors)
    with pytest.raises(InputError, match="original distractor embeddings to hold finite numbers"):
        read(path)
