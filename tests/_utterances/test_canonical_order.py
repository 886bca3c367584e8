"""The canonical order: by the values of embeddings alone.

It stays the same while protected speech changes.
"""

import pytest
import torch
from reference.order import canonical_order, places_in_groups, row_hash
from samples import people

from vpmetrics._utterances.canonical_order import (
    count_within,
    hash_rows,
    number_sets,
    order_rows,
    sum_hashes,
)
from vpmetrics._utterances.encoders import Encoder
from vpmetrics._utterances.utterances import deduplicate_and_index, pack_utterances

ORIGINAL, PROTECTED, SPEAKERS = people(number=6, each=6)
SESSIONS = torch.arange(36) % 3


def collect(rows=None, **changed):
    """Data of the utterances, or of some rows of them in any order."""
    columns = {
        "original": ORIGINAL,
        "protected": PROTECTED,
        "speakers": SPEAKERS,
        "sessions": SESSIONS,
    } | changed
    if rows is not None:
        columns = {
            name: column if column is None else column[rows] for name, column in columns.items()
        }
    return deduplicate_and_index(pack_utterances(**columns))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_hashes_are_those_of_the_reference(dtype):
    rows = torch.tensor([[0.0, -1.5], [-0.0, -1.5], [2.0, 1e-7], [1e-7, 2.0]]).to(dtype)
    assert hash_rows(rows).tolist() == [row_hash(row) for row in rows.tolist()]
    assert hash_rows(rows)[0] == hash_rows(rows)[1]
    assert len(hash_rows(rows).unique()) == 3
    assert order_rows(rows.flip(1), rows).tolist() == canonical_order(rows.flip(1), rows)


def test_hashes_do_not_depend_on_blocks(monkeypatch):
    expected = hash_rows(ORIGINAL)
    monkeypatch.setattr("vpmetrics._utterances.canonical_order._ENTRIES_AT_ONCE", 100)
    assert torch.equal(hash_rows(ORIGINAL), expected)
    assert len(hash_rows(ORIGINAL[:0])) == 0


def test_sets_are_hashed_whatever_their_order():
    hashes = hash_rows(ORIGINAL)
    index = torch.arange(36) % 4
    order = torch.randperm(36, generator=torch.Generator().manual_seed(0))
    assert torch.equal(sum_hashes(hashes, index, 4), sum_hashes(hashes[order], index[order], 4))
    assert number_sets(torch.tensor([5, -1, 5]), torch.tensor([2, 9, 1])).tolist() == [2, 0, 1]


def test_rows_are_counted_within_their_group():
    assert count_within(torch.tensor([7, 3, 7, 7, 3])).tolist() == [0, 0, 1, 2, 1]
    groups = SPEAKERS[order_rows(ORIGINAL)]
    counted = torch.empty(36).long().scatter(0, order_rows(ORIGINAL), count_within(groups))
    assert counted.tolist() == places_in_groups(SPEAKERS, ORIGINAL).tolist()


def test_order_numbers_and_sessions_ignore_row_order_and_labels():
    data = collect()
    rows = torch.randperm(36, generator=torch.Generator().manual_seed(1))
    shuffled = collect(rows)
    renamed = collect(speakers=99 - 7 * SPEAKERS, sessions=5 - SESSIONS)
    for other in (shuffled, renamed):
        for side, expected in zip(other[:2], data[:2], strict=True):
            assert torch.equal(side.embeddings, expected.embeddings)
            assert torch.equal(side.speaker_index, expected.speaker_index)
            assert torch.equal(side.sessions, expected.sessions)
    assert torch.equal(renamed.speakers, 99 - 7 * data.speakers)
    assert data.original.embeddings.tolist() == ORIGINAL[canonical_order(ORIGINAL)].tolist()
    assert sorted(data.speakers.tolist()) == SPEAKERS.unique().tolist()


def test_the_order_is_that_of_original_speech_while_protected_speech_changes():
    data = collect()
    later = collect(protected=PROTECTED.flip(1) + 1)
    for side, expected in zip(later[:2], data[:2], strict=True):
        assert torch.equal(side.ids, expected.ids)
        assert torch.equal(side.sessions, expected.sessions)
    assert torch.equal(later.speakers, data.speakers)
    assert (
        collect(original=None).protected.embeddings.tolist()
        == PROTECTED[canonical_order(PROTECTED)].tolist()
    )


@pytest.mark.filterwarnings("ignore:.*embeddings equal another")
def test_protected_speech_breaks_ties_only():
    constant = torch.ones_like(ORIGINAL)
    data = collect(original=constant)
    assert data.protected.embeddings.tolist() == PROTECTED[canonical_order(PROTECTED)].tolist()
    rows = torch.arange(35, -1, -1)
    assert torch.equal(
        collect(rows, original=constant).protected.speaker_index, data.protected.speaker_index
    )


def test_versions_of_a_recording_are_adjacent():
    twice = {
        "original": ORIGINAL.repeat(2, 1),
        "protected": torch.cat([PROTECTED, PROTECTED.flip(1)]),
        "speakers": SPEAKERS.repeat(2),
        "sessions": torch.arange(72) // 36,
        "utterances": torch.arange(36).repeat(2),
    }
    data = deduplicate_and_index(pack_utterances(**twice))
    assert len(data.original) == 36
    assert torch.equal(data.protected.ids, data.original.ids.repeat_interleave(2))
    assert data.original.embeddings.tolist() == ORIGINAL[canonical_order(ORIGINAL)].tolist()


def test_of_several_encoders_the_first_by_name_decides():
    encoders = (Encoder("wavlm", 10), Encoder("ecapa", ORIGINAL.shape[1] - 10))
    data = deduplicate_and_index(pack_utterances(ORIGINAL, PROTECTED, SPEAKERS), encoders=encoders)
    assert data.original.embeddings.tolist() == ORIGINAL[canonical_order(ORIGINAL[:, 10:])].tolist()


def test_speakers_of_a_group_have_adjacent_numbers():
    groups = SPEAKERS % 2
    data = collect(groups=groups)
    group_of_speaker = (
        torch.empty(6).long().scatter(0, data.original.speaker_index, data.original.groups)
    )
    assert int((group_of_speaker.diff() != 0).sum()) == 1
    swapped = collect(groups=1 - groups)
    assert torch.equal(swapped.speakers, data.speakers)
    for group in (0, 1):
        part = data.of_group(group)
        assert torch.equal(part.speakers, data.speakers[group_of_speaker == group])
