"""Accumulated utterances: columns of embeddings and labels, and the two sides of trials."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vpmetrics._util.distributed import SINGLE_PROCESS, Processes
from vpmetrics._util.dtypes import at_least_float32, widen
from vpmetrics._util.validation import (
    check_embeddings,
    check_finite_embeddings,
    check_recordings,
    warn_if,
    warn_undefined,
)
from vpmetrics._utterances.canonical_order import (
    hash_rows,
    lexsort_columns,
    number_sets,
    sum_hashes,
)
from vpmetrics._utterances.conditions import Condition
from vpmetrics._utterances.encoders import Encoder, as_squeezed_tensor

# Flags of a row, as bits of one integer: which columns were given for it.
_HAS_ORIGINAL = 1 << 0
_HAS_PROTECTED = 1 << 1
_HAS_UTTERANCE = 1 << 2
_HAS_REFERENCE = 1 << 3
_IS_REFERENCE = 1 << 4
_HAS_SESSION = 1 << 5
_HAS_GROUP = 1 << 6
_ENTRIES_AT_ONCE = 1 << 20  # entries of embeddings widened at a time


class UtteranceColumns(NamedTuple):
    """Utterances as metrics store them: a row each in every column, with flags for those given."""

    original: Tensor
    protected: Tensor
    speakers: Tensor
    utterances: Tensor
    sessions: Tensor
    groups: Tensor
    row_flags: Tensor


@dataclass(frozen=True, eq=False)
class Utterances:
    """One side, original or protected.

    ``embeddings`` ``(N, D)``; ``speakers`` ``(N,)``, labels; ``ids`` ``(N,)``, the same for one
    recording on both sides; ``speaker_index`` ``(N,)``, the row of :attr:`EvaluationData.speakers`;
    ``is_reference``, ``sessions``, ``groups`` ``(N,)``, or None where they were not given.
    """

    embeddings: Tensor
    speakers: Tensor
    ids: Tensor
    speaker_index: Tensor
    is_reference: Tensor | None = None
    sessions: Tensor | None = None
    groups: Tensor | None = None

    def __len__(self) -> int:
        return len(self.speaker_index)

    def take(self, rows: Tensor | slice) -> Utterances:
        """Return some of the rows, by index, mask or slice."""
        columns: dict[str, Any] = {}
        for field in fields(self):
            column = getattr(self, field.name)
            columns[field.name] = None if column is None else column[rows]
        return Utterances(**columns)


class EvaluationData(NamedTuple):
    """Both sides and their speakers.

    ``speakers`` ``(S,)`` are the labels that ``speaker_index`` refers to. With groups, a speaker in
    two groups counts as two, and those of one group have adjacent indices. ``processes`` share the
    work. ``encoders`` are those of the columns of embeddings, side by side.
    """

    original: Utterances
    protected: Utterances
    speakers: Tensor
    processes: Processes = SINGLE_PROCESS
    encoders: tuple[Encoder, ...] = ()

    def of_encoder(self, index: int) -> EvaluationData:
        """Return the data with the embeddings of one encoder."""
        if len(self.encoders) < 2:
            return self
        start = sum(encoder.width for encoder in self.encoders[:index])
        columns = slice(start, start + self.encoders[index].width)
        original = replace(self.original, embeddings=self.original.embeddings[:, columns])
        protected = replace(self.protected, embeddings=self.protected.embeddings[:, columns])
        return self._replace(
            original=original, protected=protected, encoders=(self.encoders[index],)
        )

    def sides(
        self, condition: Condition, references_per: Literal["utterance", "speaker"] | None = None
    ) -> tuple[Utterances, Utterances]:
        """Return the enrolment and the test side of a condition.

        The same object where every utterance is on both.

        With ``references_per``, utterances marked by ``is_reference`` are enrolled, each one or
        their mean per speaker, and all others are tested.
        """
        enrolment: Utterances = getattr(self, condition.enrolment)
        test: Utterances = getattr(self, condition.test)
        has_sessions = condition.target_sessions != "any"
        if has_sessions and test.sessions is None:
            warn_undefined(f"Condition {condition.name!r} requires `sessions`.")
            return enrolment.take(slice(0, 0)), test.take(slice(0, 0))
        if references_per is None or enrolment.is_reference is None or test.is_reference is None:
            return enrolment, test
        references = enrolment.take(enrolment.is_reference)
        if references_per == "speaker":
            references = average_by_speaker(references, by_session=has_sessions)
        return references, test.take(~test.is_reference)

    def groups(self) -> list[int]:
        """Return all groups, ascending; an empty list where none were given."""
        columns = []
        for side in (self.original, self.protected):
            if side.groups is not None:
                columns.append(side.groups)
        if not columns:
            return []
        groups: list[int] = torch.unique(torch.cat(columns)).tolist()
        return groups

    def by_group(self) -> list[EvaluationData]:
        """Return the data of each group, or the data as they are without two groups."""
        groups = self.groups()
        if len(groups) < 2:
            return [self]
        return [self.of_group(group) for group in groups]

    def of_group(self, group: int) -> EvaluationData:
        """Return the utterances of one group."""
        sides = []
        for side in (self.original, self.protected):
            if side.groups is None:
                rows = side
            else:
                rows = side.take(side.groups == group)
            sides.append(replace(rows, groups=None))
        data = renumber_speakers(*sides)
        return data._replace(processes=self.processes, encoders=self.encoders)


def encode_labels(labels: Any) -> Tensor:
    """Return an integer for each label, the same for a string in every batch, process and run.

    Args:
        labels: Strings or integers: a list, a tuple, a NumPy array or a tensor. Strings become
            63-bit hashes.

    Returns:
        int64 tensor of the same length.

    Example:
        >>> first, second, third = encode_labels(["p225", "p226", "p225"])
        >>> bool(first == third), bool(first == second)
        (True, False)
    """
    return encode_column("labels", labels)


def encode_column(name: str, labels: Any) -> Tensor:
    """Encode labels as :func:`encode_labels` does; errors call them ``name``."""
    if isinstance(labels, Tensor):
        return labels
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "iub":
        dtype = bool if labels.dtype.kind == "b" else np.int64
        return torch.from_numpy(labels.astype(dtype))
    if isinstance(labels, np.ndarray):
        values = labels.tolist()
    else:
        values = list(labels)
    if values and all(isinstance(value, Tensor) and value.numel() == 1 for value in values):
        return torch.stack([value.flatten()[0] for value in values])
    _check_labels(name, values)
    if values and all(isinstance(value, bool) for value in values):
        return torch.tensor(values, device="cpu")
    if not any(isinstance(value, str) for value in values):
        return torch.tensor(values, dtype=torch.int64, device="cpu")
    return torch.tensor([_hash_text(str(value)) for value in values], device="cpu")


def _check_labels(name: str, values: list[Any]) -> None:
    """Raise unless the values are integers or strings."""
    num_missing = 0
    types = set()
    for value in values:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            num_missing += 1
        elif not isinstance(value, (str, int)):
            types.add(type(value).__name__)
    if num_missing:
        raise TypeError(
            f"Expected `{name}` to be integers or strings, but {num_missing} of {len(values)} are"
            " missing."
        )
    if types:
        raise TypeError(
            f"Expected `{name}` to be integers or strings, but got {', '.join(sorted(types))[:80]}."
        )


def _hash_text(text: str) -> int:
    """Return a hash of 63 bits."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def pack_utterances(
    original: Tensor | None = None,
    protected: Tensor | None = None,
    speakers: Tensor | None = None,
    is_reference: Tensor | None = None,
    utterances: Tensor | None = None,
    sessions: Tensor | None = None,
    groups: Tensor | None = None,
    *,
    width: int | None = None,
    validate_values: bool = False,
) -> UtteranceColumns:
    """Return validated arguments of ``update`` as columns that keep their graph.

    A missing side is stored as zeros, without its flag. ``width`` is that of earlier batches.
    ``validate_values`` forces a GPU sync.
    """
    original = as_squeezed_tensor("original", original)
    protected = as_squeezed_tensor("protected", protected)
    rows = next((side for side in (original, protected) if isinstance(side, Tensor)), None)
    labels = {
        "speakers": speakers,
        "utterances": utterances,
        "sessions": sessions,
        "groups": groups,
        "is_reference": is_reference,
    }
    for name, column in labels.items():  # a default collate yields lists of strings
        if isinstance(column, (list, tuple, np.ndarray)) and rows is not None:
            labels[name] = encode_column(name, column).to(rows.device)
    is_reference = labels.pop("is_reference")
    speakers = labels.pop("speakers")
    check_embeddings(original, protected, speakers, is_reference, labels, width)
    assert rows is not None
    assert speakers is not None
    if validate_values:
        check_finite_embeddings(original, protected)
        if labels["utterances"] is not None:
            check_recordings(labels["utterances"], speakers=speakers, groups=labels["groups"])

    flag_of_column = {
        _HAS_ORIGINAL: original,
        _HAS_PROTECTED: protected,
        _HAS_REFERENCE: is_reference,
        _HAS_UTTERANCE: labels["utterances"],
        _HAS_SESSION: labels["sessions"],
        _HAS_GROUP: labels["groups"],
    }
    flags = sum(flag for flag, column in flag_of_column.items() if column is not None)
    speakers = speakers.to(torch.int64)
    row_flags = torch.full_like(speakers, flags, dtype=torch.uint8)
    if is_reference is not None:
        row_flags = row_flags + is_reference.to(torch.uint8) * _IS_REFERENCE

    missing_side = at_least_float32(rows).detach().new_zeros(rows.shape)
    if original is None:
        original = missing_side
    if protected is None:
        protected = missing_side
    dtype = torch.promote_types(torch.promote_types(original.dtype, protected.dtype), torch.float32)
    return UtteranceColumns(
        original=original.to(dtype),
        protected=protected.to(dtype),
        speakers=speakers,
        utterances=_as_int64(labels["utterances"], speakers),
        sessions=_as_int64(labels["sessions"], speakers),
        groups=_as_int64(labels["groups"], speakers),
        row_flags=row_flags,
    )


def _as_int64(labels: Tensor | None, speakers: Tensor) -> Tensor:
    """Return labels as int64; zeros, one for each speaker, where there are none."""
    if labels is None:
        return torch.zeros_like(speakers)
    return labels.to(torch.int64)


def check_speaker_per_recording(columns: UtteranceColumns) -> None:
    """Raise if one recording has two speakers or groups.

    ``update`` checks this only within a batch.
    """
    has_id = (columns.row_flags & _HAS_UTTERANCE) != 0
    check_recordings(
        columns.utterances[has_id], speakers=columns.speakers[has_id], groups=columns.groups[has_id]
    )


def deduplicate_and_index(
    columns: UtteranceColumns,
    processes: Processes = SINGLE_PROCESS,
    encoders: tuple[Encoder, ...] = (),
) -> EvaluationData:
    """Return stored utterances in canonical order: each recording once, with numbered speakers."""
    is_original = (columns.row_flags & _HAS_ORIGINAL) != 0
    is_protected = (columns.row_flags & _HAS_PROTECTED) != 0
    hashes = _hash_columns(columns, encoders)
    recordings = _number_recordings(columns)
    bits = (_HAS_REFERENCE, _HAS_SESSION, _HAS_GROUP)
    is_given = torch.stack([((columns.row_flags & bit) != 0).any() for bit in bits])
    has_references, has_sessions, has_groups = is_given.tolist()  # one GPU sync for all
    sessions = columns.sessions if has_sessions else None
    groups = columns.groups if has_groups else None
    if has_references:
        is_reference = (columns.row_flags & _IS_REFERENCE) != 0
    else:
        is_reference = None
    versions = recordings
    if sessions is not None:
        # One recording protected in two sessions counts as two protected recordings, but as one
        # original.
        versions = torch.stack([recordings, sessions]).unique(dim=1, return_inverse=True)[1]
    first_hash = torch.where(is_original, hashes.original, hashes.protected)
    order = lexsort_columns(hashes.protected, first_hash)
    original_rows = _first_rows(order[is_original[order]], recordings)
    protected_rows = _first_rows(order[is_protected[order]], versions)
    labels = _RowLabels(columns.speakers, recordings, sessions, groups, columns.row_flags)
    numbering = _number_canonically(hashes, labels, original_rows, protected_rows)

    all_rows = Utterances(
        columns.original,
        columns.speakers,
        recordings,
        numbering.speaker_index,
        is_reference,
        numbering.session_index,
        groups,
    )
    original = all_rows.take(numbering.original_rows)
    protected = replace(all_rows, embeddings=columns.protected).take(numbering.protected_rows)
    data = renumber_speakers(original, protected)._replace(processes=processes, encoders=encoders)
    if len(data.original):
        _warn_of_duplicates("original", data.original)
    else:
        _warn_of_duplicates("protected", data.protected)
    return data


def _warn_of_duplicates(name: str, side: Utterances) -> None:
    """Warn where some, but not all, embeddings equal another one of their speaker."""

    def describe(num_duplicates: float) -> str | None:
        if not 0 < num_duplicates < len(side) - 1:
            return None
        return (
            f"{num_duplicates:.0f} of {len(side)} {name} embeddings equal another one of their"
            " speaker. If a sampler repeats utterances, pass `utterances=` so that each counts"
            " once."
        )

    warn_if(count_duplicates(side), describe)


class _Hashes(NamedTuple):
    """Hashes of the rows of both sides, ``(N,)``; 0 where a row has no embedding of that side."""

    original: Tensor
    protected: Tensor


class _RowLabels(NamedTuple):
    """What is known of every row but its embeddings, ``(N,)``."""

    speakers: Tensor
    recordings: Tensor
    sessions: Tensor | None
    groups: Tensor | None
    flags: Tensor


class _Numbering(NamedTuple):
    """Rows of both sides in canonical order, and numbers of speakers and sessions of all rows."""

    original_rows: Tensor
    protected_rows: Tensor
    speaker_index: Tensor
    session_index: Tensor | None


def _hash_columns(columns: UtteranceColumns, encoders: tuple[Encoder, ...]) -> _Hashes:
    """Return hashes of the embeddings; of several encoders, those of the first by name."""
    start = 0
    stop = columns.original.shape[1]
    if len(encoders) > 1:
        index = min(range(len(encoders)), key=lambda number: encoders[number].name)
        start = sum(encoder.width for encoder in encoders[:index])
        stop = start + encoders[index].width
    is_original = (columns.row_flags & _HAS_ORIGINAL) != 0
    is_protected = (columns.row_flags & _HAS_PROTECTED) != 0
    original = hash_rows(columns.original[:, start:stop])
    protected = hash_rows(columns.protected[:, start:stop])
    return _Hashes(torch.where(is_original, original, 0), torch.where(is_protected, protected, 0))


def _number_recordings(columns: UtteranceColumns) -> Tensor:
    """Return a number for each row, ``(N,)``, the same for rows of one recording."""
    count = len(columns.speakers)
    has_id = (columns.row_flags & _HAS_UTTERANCE) != 0
    # An utterance without an id counts as a separate recording.
    unnamed = torch.arange(count, 2 * count, device=has_id.device)
    named = torch.unique(columns.utterances, return_inverse=True)[1]
    numbers: Tensor = torch.unique(torch.where(has_id, named, unnamed), return_inverse=True)[1]
    return numbers


def _first_rows(rows: Tensor, ids: Tensor) -> Tensor:
    """Return the first of the given rows of every id."""
    rows = rows[ids[rows].argsort(stable=True)]
    is_first = torch.ones_like(rows, dtype=torch.bool)
    is_first[1:] = ids[rows].diff() != 0
    return rows[is_first]


def _number_canonically(
    hashes: _Hashes, labels: _RowLabels, original_rows: Tensor, protected_rows: Tensor
) -> _Numbering:
    """Return the canonical order of the rows of both sides, of speakers and of sessions.

    What counts is original speech, then protected speech, then speaker and session.
    """
    original_hashes = hashes.original[original_rows]
    protected_hashes = hashes.protected[protected_rows]
    original_recordings = labels.recordings[original_rows]
    protected_recordings = labels.recordings[protected_rows]

    # The hash of a recording is that of its original, or of its protected versions where it has
    # none.
    num_recordings = len(labels.recordings)
    hash_of_versions = protected_hashes.new_zeros(num_recordings)
    hash_of_versions = hash_of_versions.index_add(0, protected_recordings, protected_hashes)
    hash_of_recording = hash_of_versions.index_copy(0, original_recordings, original_hashes)

    speaker_index = _number_speakers(hashes, labels, original_rows, protected_rows)
    session_index = None
    last_keys = [labels.flags, speaker_index]
    if labels.sessions is not None:
        names, session = labels.sessions.unique(return_inverse=True)
        protected_sessions = session[protected_rows]
        # such sessions have the highest numbers
        is_missing = count_values(protected_sessions, len(names)) == 0
        by_recording = sum_hashes(
            hash_of_recording[protected_recordings], protected_sessions, len(names)
        )
        by_version = sum_hashes(protected_hashes, protected_sessions, len(names))
        session_index = number_sets(is_missing.long(), by_recording, by_version)[session]
        last_keys.append(session_index)

    original_order = lexsort_columns(
        *(key[original_rows] for key in last_keys),
        hash_of_versions[original_recordings],
        original_hashes,
    )
    protected_order = lexsort_columns(
        *(key[protected_rows] for key in last_keys),
        protected_hashes,
        hash_of_recording[protected_recordings],
    )
    return _Numbering(
        original_rows[original_order], protected_rows[protected_order], speaker_index, session_index
    )


def _number_speakers(
    hashes: _Hashes, labels: _RowLabels, original_rows: Tensor, protected_rows: Tensor
) -> Tensor:
    """Return the number of the speaker of each row, ``(N,)``; those of a group are adjacent.

    A speaker in two groups has two numbers.
    """
    groups = labels.groups
    if groups is None:
        groups = torch.zeros_like(labels.speakers)
    pairs, speaker = torch.stack([groups, labels.speakers]).unique(dim=1, return_inverse=True)
    num_speakers = pairs.shape[1]
    group = pairs[0].unique(return_inverse=True)[1]
    speaker_of_original = speaker[original_rows]
    speaker_of_protected = speaker[protected_rows]
    by_original = sum_hashes(hashes.original[original_rows], speaker_of_original, num_speakers)
    by_protected = sum_hashes(hashes.protected[protected_rows], speaker_of_protected, num_speakers)
    group_by_original = sum_hashes(by_original, group, num_speakers)[group]
    group_by_protected = sum_hashes(by_protected, group, num_speakers)[group]
    numbers = number_sets(group_by_original, group_by_protected, group, by_original, by_protected)
    return numbers[speaker]


def renumber_speakers(original: Utterances, protected: Utterances) -> EvaluationData:
    """Return both sides as data of the speakers that they have, whose order stays."""
    numbers = torch.cat([original.speaker_index, protected.speaker_index])
    labels = torch.cat([original.speakers, protected.speakers])
    distinct, speaker_index = numbers.unique(return_inverse=True)
    speakers = labels.new_zeros(len(distinct)).scatter(0, speaker_index, labels)
    index_of_original, index_of_protected = speaker_index.split([len(original), len(protected)])
    return EvaluationData(
        replace(original, speaker_index=index_of_original),
        replace(protected, speaker_index=index_of_protected),
        speakers,
    )


def count_duplicates(side: Utterances) -> Tensor:
    """Return how many embeddings equal another one of their speaker, as no two recordings do."""
    hashes = hash_rows(side.embeddings)
    order = lexsort_columns(hashes, side.speaker_index)
    is_same_speaker = side.speaker_index[order].diff() == 0
    is_same_hash = hashes[order].diff() == 0
    num_duplicates: Tensor = (is_same_speaker & is_same_hash).sum()
    return num_duplicates


def average_by_speaker(side: Utterances, by_session: bool) -> Utterances:
    """Return the mean of every speaker's rows, within a group and, on request, within a session."""
    columns = ["sessions"] if by_session else []
    mean_of_row, first_rows = combination_index_and_first_rows(side, *columns)
    rows = widen(side.embeddings)
    sums = rows.new_zeros(len(first_rows), rows.shape[1]).index_add(0, mean_of_row, rows)
    means = sums / count_values(mean_of_row, len(first_rows)).unsqueeze(1)
    # Ids below those of all recordings: a mean is no recording.
    ids = -1 - torch.arange(len(first_rows), device=rows.device)
    return replace(side.take(first_rows), embeddings=means.to(side.embeddings.dtype), ids=ids)


def combination_index_and_first_rows(side: Utterances, *columns: str) -> tuple[Tensor, Tensor]:
    """Return the combination of speaker and given columns of each row, and each one's first row."""
    keys = [side.speaker_index]
    for name in columns:
        column = getattr(side, name)
        if column is not None:
            keys.append(column)
    combinations, index = torch.unique(torch.stack(keys), dim=1, return_inverse=True)
    rows = torch.arange(len(index), device=index.device)
    first_rows = torch.full((combinations.shape[1],), len(index), device=index.device)
    return index, first_rows.scatter_reduce(0, index, rows, "amin")


def find_indices(distinct_values: Tensor, wanted: Tensor) -> Tensor:
    """Return the index of each wanted value among distinct values; -1 where it is missing."""
    if len(distinct_values) == 0:
        return torch.full_like(wanted, -1)
    sorted_values, order = distinct_values.sort()
    position = torch.searchsorted(sorted_values, wanted.contiguous())
    position = position.clamp(max=len(sorted_values) - 1)
    return torch.where(sorted_values[position] == wanted, order[position], -1)


def take_evenly(order: Tensor, max_count: int) -> Tensor:
    """Return at most ``max_count`` entries, evenly spaced."""
    count = min(max_count, len(order))
    return order[torch.arange(count, device=order.device) * len(order) // max(1, count)]


def count_values(values: Tensor, count: int) -> Tensor:
    """Return how often each of ``0 ... count - 1`` occurs; unlike bincount without a GPU sync."""
    return torch.zeros(count, dtype=torch.int64, device=values.device).index_add_(
        0, values, torch.ones_like(values)
    )


def add_counts(counts: Tensor, slots: Tensor) -> None:
    """Add 1 at every slot, in place, without a tensor of ones."""
    counts.index_add_(0, slots.flatten(), counts.new_ones(()).expand(slots.numel()))


def split_sessions(
    data: EvaluationData, max_rows: int = 2048
) -> tuple[EvaluationData, EvaluationData]:
    """Return the data of half of every speaker's sessions, and of the other half.

    Originals are in both. Speakers with one session are left out. Of each side ``max_rows`` are
    taken at most, evenly spaced.
    """
    side = data.protected
    if side.sessions is None:
        raise ValueError(
            "Expected `sessions`, but got None: a calibration is fitted on some and used on others."
        )
    pairs, session_index = torch.unique(
        torch.stack([side.speaker_index, side.sessions]), dim=1, return_inverse=True
    )
    speaker_of_session = pairs[0]
    num_sessions = count_values(speaker_of_session, len(data.speakers))
    first_session = num_sessions.cumsum(0) - num_sessions
    sessions = torch.arange(len(speaker_of_session), device=session_index.device)
    session_within_speaker = sessions - first_session[speaker_of_session]
    num_of_same_speaker = num_sessions[speaker_of_session]
    is_in_later_half = (2 * session_within_speaker >= num_of_same_speaker)[session_index]
    has_several = (num_of_same_speaker > 1)[session_index]
    original = _take_evenly_spaced(data.original, max_rows)
    earlier = _take_evenly_spaced(side.take(has_several & ~is_in_later_half), max_rows)
    later = _take_evenly_spaced(side.take(has_several & is_in_later_half), max_rows)
    return (
        renumber_speakers(original, earlier)._replace(encoders=data.encoders),
        renumber_speakers(original, later)._replace(encoders=data.encoders),
    )


def _take_evenly_spaced(side: Utterances, max_rows: int) -> Utterances:
    """Return at most ``max_rows`` rows, evenly spaced."""
    return side.take(take_evenly(torch.arange(len(side), device=side.ids.device), max_rows))
