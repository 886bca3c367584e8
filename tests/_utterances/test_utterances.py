"""Accumulated utterances.

Labels of any kind, arrays of any kind, widths, names, recordings, enrolment.
"""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from cases import assert_same, embeddings, join
from reports import Everything, compute
from samples import people
from torch.nn.functional import normalize
from torch.testing import assert_close
from torch.utils.data import DataLoader

import vpmetrics as vp
from vpmetrics import functional as F
from vpmetrics._utterances.utterances import (
    count_duplicates,
    deduplicate_and_index,
    pack_utterances,
    split_sessions,
)

ROWS = join(embeddings())
KINDS = {"list": list, "tuple": tuple, "numpy": np.array, "object": partial(np.array, dtype=object)}


@pytest.mark.parametrize("kind", KINDS)
def test_strings_arrays_and_rows_of_one_frame_change_no_number(kind):
    rows = {key: column[:140] for key, column in ROWS.items()}
    rows["speakers"] = rows["speakers"].unique(return_inverse=True)[1]
    rows |= {
        "utterances": torch.arange(140),
        "sessions": torch.arange(140) % 3,
        "groups": rows["speakers"] % 2,
    }
    one = Everything()
    other = Everything()
    one.update(**rows)
    for key in ("speakers", "utterances", "sessions", "groups"):
        rows[key] = KINDS[kind]([f"{key}-{value:04}" for value in rows[key].tolist()])
    for side in ("original", "protected"):
        rows[side] = rows[side].numpy() if kind == "numpy" else rows[side][:, None]
    for start in range(0, 140, 60):
        other.update(**{key: column[start : start + 60] for key, column in rows.items()})
    # The worst speaker is a place among labels, which are others.
    value, expected = (
        {k: v for k, v in m.compute().items() if not k.endswith("worst_speaker")}
        for m in (other, one)
    )
    assert_same(value, expected, atol=1e-9)
    assert other.speaker_names == {
        int(vp.encode_labels([name])[0]): name for name in set(rows["speakers"])
    }


def test_labels_are_encoded_the_same_everywhere():
    codes = vp.encode_labels(["p225", "p226", "p225", "ü", ""])
    assert codes.dtype == torch.int64
    assert (codes >= 0).all()
    assert codes[0] == codes[2]
    assert len(codes.unique()) == 4
    # A fixed hash, not Python's, which differs from process to process.
    assert codes[0] == 8286871450719111505
    assert torch.equal(vp.encode_labels(np.array(["p225", "p226"])), codes[:2])
    assert (
        vp.encode_labels([3, 1]).tolist()
        == vp.encode_labels(np.array([3, 1], np.int16)).tolist()
        == [3, 1]
    )
    assert vp.encode_labels([torch.tensor(3), torch.tensor(1)]).tolist() == [3, 1]
    assert vp.encode_labels([True, False]).dtype == torch.bool
    tensor = torch.tensor([2, 1])
    assert vp.encode_labels(tensor) is tensor
    assert len(vp.encode_labels([])) == 0


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
        vp.encode_labels(labels)


def test_a_default_collate_can_be_passed_on():
    sides = zip(ROWS["original"][:70], ROWS["protected"][:70], strict=True)
    rows = [
        {"original": one, "protected": other, "speakers": f"p{k % 7}"}
        for k, (one, other) in enumerate(sides)
    ]
    metric = vp.DeIdentification()
    for batch in DataLoader(rows, batch_size=30):
        metric.update(**batch)
    expected = compute(
        vp.DeIdentification(), ROWS["original"][:70], ROWS["protected"][:70], torch.arange(70) % 7
    )
    assert_close(metric.compute(), expected)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_names_survive_copying_merging_and_saving_but_no_reset():
    first = vp.VoicePrivacy(attacks=None, metrics=["deid"])
    second = vp.VoicePrivacy(attacks=None, metrics=["deid"])
    labels = [f"speaker {label}" for label in ROWS["speakers"].tolist()]
    groups = [f"group {label % 2}" for label in ROWS["speakers"].tolist()]
    first.update(ROWS["original"][:75], ROWS["protected"][:75], labels[:75], groups=groups[:75])
    second.update(ROWS["original"][75:], ROWS["protected"][75:], labels[75:], groups=groups[75:])
    first.merge_state(second)
    first.persistent(True)
    loaded = vp.VoicePrivacy(attacks=None, metrics=["deid"])
    loaded.persistent(True)
    loaded.load_state_dict(first.state_dict())
    for metric in (first, copy.deepcopy(first), pickle.loads(pickle.dumps(first)), loaded):
        report = metric.report()
        assert set(report.speaker_names.values()) == set(labels)
        assert set(report.groups) == set(groups)
    first.reset()
    first.update(ROWS["original"], ROWS["protected"], ["other"] * 150)
    assert list(first.speaker_names.values()) == ["other"]


NO_WIDTH = torch.empty(4, 0)
PAIRED = torch.arange(4) // 2


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (vp.VoicePrivacy().update, (NO_WIDTH, NO_WIDTH, PAIRED)),
        (F.voice_similarity_matrix, (NO_WIDTH, NO_WIDTH, PAIRED)),
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
def test_width_0_raises(function, arguments):
    with pytest.raises(
        ValueError, match=r"to have at least one (dimension|reference), but got shape \(4, 0\)"
    ):
        function(*arguments)


def test_recordings_count_once_and_another_session_is_another_recording():
    rows = {**ROWS, "utterances": torch.arange(150)}
    twice = {key: torch.cat([column, column]) for key, column in rows.items()}
    assert len(deduplicate_and_index(pack_utterances(**twice)).protected) == 150
    data = deduplicate_and_index(pack_utterances(**twice, sessions=torch.arange(300) // 150))
    assert (len(data.original), len(data.protected)) == (150, 300)
    assert int(count_duplicates(data.protected)) == 150


def test_session_halves_are_independent_of_labels():
    rows = people(number=6, each=8)
    halves = []
    for sessions in (torch.arange(48) % 4, 9 - (torch.arange(48) % 4) * 3):
        parts = split_sessions(deduplicate_and_index(pack_utterances(*rows, sessions=sessions)))
        first, second = (set(part.protected.ids.tolist()) for part in parts)
        assert len(first) == len(second) == 24
        assert not first & second
        halves.append((first, second))
    assert halves[0] == halves[1]


@pytest.mark.parametrize("enrolment", ["utterance", "speaker"])
def test_enrolment_compares_tests_with_references_or_their_means(enrolment):
    original, protected, speakers = people(number=6, each=6)
    is_reference = torch.arange(36) % 2 == 0
    metric = vp.VoicePrivacy(attacks=None, metrics=["op_eer", "op_d_ece"], enrolment=enrolment)
    value = compute(metric, original, protected, speakers, is_reference)
    references = original[is_reference]
    names = speakers[is_reference]
    if enrolment == "speaker":
        references = torch.stack([references[names == name].mean(0) for name in names.unique()])
        names = names.unique()
    scores = normalize(references) @ normalize(protected[~is_reference]).T
    target = names[:, None] == speakers[~is_reference]
    assert_close(value["op_eer"], F.equal_error_rate(scores, target))
    assert_close(value["op_d_ece"], F.zebra_disclosure(scores, target)["d_ece"])
