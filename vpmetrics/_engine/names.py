"""Names of scalars as they are logged: their parts, and suggestions for misspelt ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

_MOST_NAMES = 8  # in a message
_LOADER = re.compile(r"/dataloader_idx_\d+$")


def strip_loader_suffix(name: str) -> str:
    """Return a logged name without its ``/dataloader_idx_<i>``.

    Example:
        >>> strip_loader_suffix("val/privacy/deid/dataloader_idx_1")
        'val/privacy/deid'
    """
    return _LOADER.sub("", name)


def last_component(name: str) -> str:
    """Return the last component of a name, after the last slash."""
    return name.rpartition("/")[2]


def check_selection(argument: str, names: Any, choices: Sequence[str]) -> tuple[str, ...]:
    """Return names of scalars as a tuple; raise for names that do not exist."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise TypeError(f"Expected `{argument}` to be a sequence of names, but got {names!r}.")
    for name in names:
        if name not in choices:
            hint = closest_name(str(name), choices)
            raise ValueError(f"Expected `{argument}` to name scalars of VoicePrivacy, but got {name!r}. {hint}")
    return tuple(names)


def closest_name(name: str, names: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: similar names, or else some known ones.

    Names with a similar last component come first, since a forgotten prefix is a small mistake.
    """
    choices = sorted(names)
    by_end: dict[str, list[str]] = {}
    for other in choices:
        by_end.setdefault(last_component(strip_loader_suffix(other)), []).append(other)
    ends = difflib.get_close_matches(last_component(strip_loader_suffix(name)), by_end, n=3, cutoff=0.6)
    nearest = [other for end in ends for other in sorted(by_end[end], key=lambda other: -_name_similarity(name, other))]
    alike = list(dict.fromkeys([*nearest, *difflib.get_close_matches(name, choices, n=3, cutoff=0.6)]))[:3]
    if alike:
        return "Closest: " + ", ".join(map(repr, alike)) + "."
    if not choices:
        return "There is none."
    more = f" and {len(choices) - _MOST_NAMES} more" if len(choices) > _MOST_NAMES else ""
    return "Known: " + ", ".join(map(repr, choices[:_MOST_NAMES])) + more + "."


def _name_similarity(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
