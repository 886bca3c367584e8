"""Names of utterances in well-known corpora, which begin with their speaker."""

from __future__ import annotations

import re
from collections.abc import Iterable

INFERRED_SPEAKERS = "speakers are the first part of names of utterances"
_PATTERNS = {
    "LibriSpeech": re.compile(r"(\d+)-\d+-\d{4}(?!\d).*"),  # speaker-chapter-utterance
    "VCTK": re.compile(r"(p\d{3}|s5)_\d{3}(?!\d).*"),
}


def speaker_of_known_name(name: str) -> str | None:
    """Return the speaker in the name of an utterance of LibriSpeech or VCTK; None for other names.

    Example:
        >>> speaker_of_known_name("1272-128104-0000"), speaker_of_known_name("p225_001_mic1")
        ('1272', 'p225')
    """
    for pattern in _PATTERNS.values():
        if match := pattern.fullmatch(name):
            return match[1]
    return None


def infer_speakers(names: Iterable[str]) -> dict[str, str]:
    """Return the speaker of every utterance.

    Empty unless all names are those of LibriSpeech or VCTK.
    """
    speaker_of: dict[str, str] = {}
    for name in names:
        speaker = speaker_of_known_name(name)
        if speaker is None:
            return {}
        speaker_of[name] = speaker
    return speaker_of


def describe_inferred_speakers(speaker_of: dict[str, str]) -> str:
    """Return a sentence to print on speakers that were inferred from names."""
    name, speaker = next(iter(speaker_of.items()))
    return f"{INFERRED_SPEAKERS}: {name!r} is of {speaker!r}"
