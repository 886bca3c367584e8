"""What a user says of the rows of embeddings: where names and labels are, and which rows to use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowOptions:
    """Sources of labels.

    A source is ``FILE``, ``FILE:ARRAY`` or the name of an array in the file of all arrays.

    ``format``: that of files whose suffix does not tell it. ``strip_suffix``: end of names of
    utterances to leave out. ``speaker_pattern``: a regular expression that finds the speaker in the
    name of an utterance. ``enrolls``: a list of utterances to compare the others with, as means of
    speakers. ``partial``: whether utterances that are not
    everywhere are left out, which is an error otherwise.
    """

    format: str | None = None
    strip_suffix: str | None = None
    speakers: str | None = None
    speaker_pattern: str | None = None
    sessions: str | None = None
    enrolls: str | None = None
    groups: str | None = None
    partial: bool = False
