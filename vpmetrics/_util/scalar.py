"""What a number is: key, heading, unit, direction of privacy, description, range, name in logs."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

DASH = "–"  # of a value that is undefined or unknown
TAG_LETTERS = "0ABCDEF"  # 0 for exactly 0, A below the first bound, and so on
TAG_BOUNDS = (1.0, 2.0, 4.0, 5.0, 6.0)
FULL_DISCLOSURE = 1 / (2 * math.log(2))  # bits, the largest D_ECE
CI_SUFFIXES = ("_low", "_high")  # of the keys of a confidence interval
_MOST_NAMES = 3  # in a message


class Unit(NamedTuple):
    """A unit and how its values are written."""

    name: str
    spec: str
    scale: float = 1.0

    def show(self, value: float) -> str:
        """Return a value as text, with a true minus sign, and zero without a sign."""
        if math.isnan(value):
            return DASH
        text = format(self.scale * value, self.spec)
        # What three decimals would hide is shown as a power of ten, unless it is rounding.
        if self.spec == ".3f" and 1e-9 < abs(value) < 0.0005:
            text = f"{value:.0e}"
        if not text.strip("-+0."):
            return text.lstrip("-+")
        return text.replace("-", "−")


class _Tag(Unit):
    """A category, stored as a number and written as a letter."""

    def show(self, value: float) -> str:
        return TAG_LETTERS[int(value)] if value >= 0 else "?"


class _Index(Unit):
    """A speaker or an attack, stored as a number."""

    def show(self, value: float) -> str:
        if math.isnan(value):
            return DASH
        return str(int(value)).replace("-", "−")


BITS = Unit("bit", ".3f")
PERCENT = Unit("%", ".2f", 100.0)
DECIBELS = Unit("dB", "+.2f")
LOG10 = Unit("log10", ".2f")
PLAIN = Unit("", ".3f")
COUNT = Unit("", ".0f")
TAG = _Tag("", "")
SPEAKER = _Index("", "")


@dataclass(frozen=True)
class Scalar:
    """A number as people read it.

    ``direction`` is where privacy lies: ``"low"``, ``"high"``, or None for neither.
    ``has_interval``: whether leaving speakers out gives a confidence interval; not of extremes,
    chance levels, single speakers and names. ``needs_many_trials``: whether it is undefined,
    without a warning, where there are few trials. ``is_limited_by_speakers``: whether it cannot
    exceed log2 of the number of speakers. ``is_saturating``: whether it often comes close to the
    upper end of its range, so that its interval is one of what is missing to that end.
    """

    key: str
    heading: str
    unit: Unit
    direction: str | None
    description: str
    range: tuple[float, float] = (-math.inf, math.inf)
    has_interval: bool = True
    is_limited_by_speakers: bool = False
    is_bias_corrected: bool = False
    is_saturating: bool = False
    needs_many_trials: bool = False
    family: str = ""
    condition: str = ""

    def range_among(self, speakers: int) -> tuple[float, float]:
        """Return the range of the number among ``speakers`` speakers."""
        lowest, highest = self.range
        if self.is_limited_by_speakers and speakers:
            highest = math.log2(speakers)
        return lowest, highest

    @property
    def title(self) -> str:
        """Heading and unit."""
        if self.unit.name:
            return f"{self.heading} [{self.unit.name}]"
        return self.heading

    def show(self, value: float) -> str:
        """Return a value of it as text."""
        return self.unit.show(value)


def strip_loader_suffix(name: str) -> str:
    """Return a logged name without its ``/dataloader_idx_<i>``.

    Example:
        >>> strip_loader_suffix("val/privacy/deid/dataloader_idx_1")
        'val/privacy/deid'
    """
    return re.sub(r"/dataloader_idx_\d+$", "", name)


def last_component(name: str) -> str:
    """Return the last component of a logged name, without its ``/dataloader_idx_<i>``."""
    return strip_loader_suffix(name).rpartition("/")[2]


def check_scalar_names(argument: str, names: Any, choices: Sequence[str]) -> tuple[str, ...]:
    """Return a sequence of names of scalars as a tuple.

    Raise for a string and for names that do not exist.
    """
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise TypeError(f"Expected `{argument}` to be a sequence of names, but got {names!r}.")
    for name in names:
        if name not in choices:
            hint = closest_or_known_names(str(name), choices)
            raise ValueError(
                f"Expected `{argument}` to name scalars of VoicePrivacy, but got {name!r}. {hint}"
            )
    return tuple(names)


def closest_or_known_names(name: str, names: Iterable[str]) -> str:
    """Return a sentence with the names that are most like an unknown one.

    It ends a message about that name.

    Names with a similar last component come first, since a forgotten prefix is a small mistake;
    then those that contain it, as ``op_eer`` contains ``eer``.
    """
    choices = sorted(set(names))
    if not choices:
        return "There is none."
    end = last_component(name)

    def likeness(choice: str) -> tuple[float, float]:
        choice_end = last_component(choice)
        of_end = difflib.SequenceMatcher(None, end, choice_end).ratio()
        if end and (choice_end.startswith(end) or choice_end.endswith(end)):
            of_end += 1
        return of_end, difflib.SequenceMatcher(None, name, choice).ratio()

    closest = sorted(choices, key=likeness, reverse=True)[:_MOST_NAMES]
    return "Closest: " + ", ".join(map(repr, closest)) + "."


def printable(name: object) -> str:
    """Return a name with control characters spelt out.

    A name in a file must not move the cursor of a terminal.
    """
    characters: list[str] = []
    for character in str(name):
        if character.isprintable():
            characters.append(character)
        else:
            characters.append(repr(character)[1:-1])
    return "".join(characters)
