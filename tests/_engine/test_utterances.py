"""Accumulated utterances: labels of any kind, arrays of any kind, widths, names, recordings, enrolment."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from cases import EMBEDDING_CASES, assert_same, embeddings, entries, join
from reports import Everything, compute
from samples import people
from torch.testing import assert_close
from torch.utils.data import DataLoader

import vpmetrics as vp
from vpmetrics import encode_labels
from vpmetrics import functional as F
from vpmetrics._engine.utterances import count_duplicates, deduplicate_and_index, pack_utterances, split_sessions

ROWS = join(embeddings())
COLUMNS = ("speakers", "utterances", "sessions", "groups")
KINDS = {"list": list, "tuple": tuple, "numpy": np.array, "object": partial(np.array, dtype=object)}


def numbered():
    """Rows with every column of integers."""
    place = ROWS["speakers"].unique(return_inverse=True)[1]
    return (
        ROWS
        | {"utterances": torch.arange(150) % 140, "sessions": torch.arange(150) % 3, "groups": place % 2}
        | {"speakers": place}
    )


def named(kind):
    """The same rows with strings instead, as lists, tuples or NumPy arrays, and NumPy embeddings."""
    rows = numbered()
    for key in COLUMNS:
        words = [f"{key}-{value:04}" for value in rows[key].tolist()]
        rows[key] = KINDS[kind](words)
    if kind == "numpy":
        rows |= {side: rows[side].numpy() for side in ("original", "protected")}
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_strings_and_numpy_arrays_change_no_number(kind):
    keep = slice(0, 140)  # each recording once, and so of one speaker
    one, other = (Everything() for _ in range(2))
    one.update(**{key: column[keep] for key, column in numbered().items()})
    rows = {key: column[keep] for key, column in named(kind).items()}
    for start in range(0, 140, 60):
        other.update(**{key: column[start : start + 60] for key, column in rows.items()})
    # The worst speaker is a place among labels, which are others.
    value, expected = ({k: v for k, v in m.compute().items() if not k.endswith("worst_speaker")} for m in (other, one))
    assert_same(value, expected, atol=1e-9)
    assert other.speaker_names == {int(encode_labels([name])[0]): name for name in set(rows["speakers"])}


@pytest.mark.parametrize("case", EMBEDDING_CASES, ids=str)
def test_every_embedding_metric_takes_strings_and_rows_of_one_frame(case):
    plain, other = case.metric(), case.metric()
    names = {label: f"p{label}" for label in ROWS["speakers"].unique().tolist()}
    for batch in case.batches():
        plain.update(**batch)
        strings = [names[label] for label in batch["speakers"].tolist()]
        other.update(batch["original"][:, None], batch["protected"][:, None].numpy(), strings)
    expected, found = plain.compute(), other.compute()
    if case.name == "VoiceSimilarityMatrix":
        order = encode_labels([names[label] for label in expected.speakers.tolist()]).argsort()
        expected = expected._replace(**{side: getattr(expected, side)[order][:, order] for side in ("oo", "op", "pp")})
        found, expected = found[:3], expected[:3]
    if isinstance(expected, dict):
        expected = {key: value for key, value in expected.items() if not key.endswith("worst_speaker")}
        found = {key: found[key] for key in expected}
    assert_same(found, expected, atol=1e-9)


def test_labels_are_encoded_the_same_everywhere():
    codes = encode_labels(["p225", "p226", "p225", "ü", ""])
    assert codes.dtype == torch.int64
    assert (codes >= 0).all()
    assert codes[0] == codes[2]
    assert len(codes.unique()) == 4
    # A fixed hash, not Python's, which differs from process to process.
    assert codes[0] == 8286871450719111505
    assert torch.equal(encode_labels(np.array(["p225", "p226"])), codes[:2])
    assert encode_labels([3, 1]).tolist() == encode_labels(np.array([3, 1], np.int16)).tolist() == [3, 1]
    assert encode_labels([torch.tensor(3), torch.tensor(1)]).tolist() == [3, 1]
    assert encode_labels([True, False]).dtype == torch.bool
    tensor = torch.tensor([2, 1])
    assert encode_labels(tensor) is tensor
    assert len(encode_labels([])) == 0


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([None, "a", None], "but 2 of 3 are missing"),
        (np.array([1.0, np.nan]), "but 1 of 2 are missing"),
        ([1.5], "but got float"),
        ([["a"]], "but got list"),
        ([torch.ones(2)], "but got Tensor"),
    ],
    ids=str,
)
def test_invalid_or_missing_labels_raise(labels, message):
    with pytest.raises(TypeError, match=f"Expected `labels` to be integers or strings, {message}"):
        encode_labels(labels)


def test_a_default_collate_can_be_passed_on():
    sides = zip(ROWS["original"][:70], ROWS["protected"][:70], strict=True)
    rows = [{"original": one, "protected": other, "speakers": f"p{k % 7}"} for k, (one, other) in enumerate(sides)]
    metric = vp.DeIdentification()
    for batch in DataLoader(rows, batch_size=30):
        metric.update(**batch)
    expected = compute(vp.DeIdentification(), ROWS["original"][:70], ROWS["protected"][:70], torch.arange(70) % 7)
    assert_close(metric.compute(), expected)


def test_speaker_names_survive_copying_and_merging():
    first, second = vp.VoicePrivacy(attacks=None), vp.VoicePrivacy(attacks=None)
    labels = [f"speaker {label}" for label in ROWS["speakers"].tolist()]
    first.update(ROWS["original"][:75], ROWS["protected"][:75], labels[:75])
    second.update(ROWS["original"][75:], ROWS["protected"][75:], labels[75:])
    first.merge_state(second)
    for metric in (first, copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert set(metric.report().speaker_names.values()) >= {"speaker -5", "speaker 1000"}


@pytest.mark.parametrize("case", EMBEDDING_CASES, ids=str)
def test_width_0_raises(case):
    metric = case.metric()
    with pytest.raises(ValueError, match="`original` to have at least one dimension"):
        metric.update(torch.empty(4, 0), torch.empty(4, 0), torch.arange(4) // 2)
    assert not metric.update_called


NO_WIDTH, PAIRED = torch.empty(4, 0), torch.arange(4) // 2


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (F.voice_similarity_matrix, (NO_WIDTH, NO_WIDTH, PAIRED)),
        (F.bootstrap_embeddings, (NO_WIDTH, NO_WIDTH, PAIRED)),
        (F.conversations, (NO_WIDTH, None, PAIRED, 2)),
        (F.rank_histogram, (NO_WIDTH, PAIRED)),
        (F.rank_histogram, (torch.ones(4, 1), PAIRED, NO_WIDTH, PAIRED)),
        (F.identify, (NO_WIDTH, PAIRED)),
        (F.singling_out, (NO_WIDTH, PAIRED, NO_WIDTH, PAIRED, (2,))),
        (F.attribute_disclosure, (NO_WIDTH, PAIRED % 2, PAIRED)),
        (F.local_information, (NO_WIDTH, PAIRED, 1.0)),
        (F.fit_local_slope, (NO_WIDTH, PAIRED)),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
def test_functions_take_no_width_0(function, arguments):
    with pytest.raises(ValueError, match=r"to have at least one (dimension|reference), but got shape \(4, 0\)"):
        function(*arguments)


def test_recordings_count_once_and_another_session_is_another_recording():
    rows = {**ROWS, "utterances": torch.arange(150)}
    twice = {key: torch.cat([column, column]) for key, column in rows.items()}
    assert len(deduplicate_and_index(pack_utterances(**twice)).protected) == 150
    data = deduplicate_and_index(pack_utterances(**twice, sessions=torch.arange(300) // 150))
    assert (len(data.original), len(data.protected)) == (150, 300)
    assert int(count_duplicates(data.protected)) == 150


def test_session_halves_are_independent_of_labels():
    original, protected, speakers = people(number=6, each=8)
    halves = []
    for sessions in (torch.arange(48) % 4, 9 - (torch.arange(48) % 4) * 3):
        data = deduplicate_and_index(pack_utterances(original, protected, speakers, sessions=sessions))
        halves.append(split_sessions(data))
        for first, second in (halves[-1], halves[-1][::-1]):
            assert len(first.protected) == 24
            assert not set(first.protected.ids.tolist()) & set(second.protected.ids.tolist())
    for one, other in zip(*halves, strict=True):
        assert set(one.protected.ids.tolist()) == set(other.protected.ids.tolist())


@pytest.mark.parametrize("enrolment", ["utterance", "speaker"])
def test_enrolment_compares_tests_with_references_or_their_means(enrolment):
    original, protected, speakers = people(number=6, each=6)
    is_reference = torch.arange(36) % 2 == 0
    metric = vp.VoicePrivacy(attacks=None, metrics=["op_eer", "op_d_ece"], enrolment=enrolment)
    value = compute(metric, original, protected, speakers, is_reference)
    references, names = original[is_reference], speakers[is_reference]
    if enrolment == "speaker":
        references = torch.stack([references[names == name].mean(0) for name in names.unique()])
        names = names.unique()
    unit = torch.nn.functional.normalize
    scores = unit(references) @ unit(protected[~is_reference]).T
    target = names[:, None] == speakers[~is_reference]
    assert_close(value["op_eer"], vp.functional.equal_error_rate(scores, target))
    assert_close(value["op_d_ece"], vp.functional.zebra_disclosure(scores, target)["d_ece"])
    assert all(bool(entry.isfinite()) for entry in entries(value))
