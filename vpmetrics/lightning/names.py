"""Names of what is logged: parts of them, which there are, and which one was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

_MOST_NAMES = 8  # in a message
_LOADER = re.compile(r"/dataloader_idx_\d+$")


def without_loader(name: str) -> str:
    """A name without the number of a loader.

    Example:
        >>> without_loader("val/privacy/deid/dataloader_idx_1")
        'val/privacy/deid'
    """
    return _LOADER.sub("", name)


def reversed_twin(name: str) -> str:
    """The name of the same disclosure to who takes unlikeness for likeness.

    Example:
        >>> reversed_twin("val/privacy/op_d_ece/dataloader_idx_1")
        'val/privacy/op_d_ece_reversed/dataloader_idx_1'
    """
    plain = without_loader(name)
    return f"{plain}_reversed{name.removeprefix(plain)}"


def last_component(name: str) -> str:
    """What is measured, without where."""
    return name.rpartition("/")[2]


def logged_names(trainer: Any) -> set[str]:
    """All that has been logged, also by a sanity check, whose values per loader the Trainer soon forgets."""
    results = getattr(trainer, "_results", None) or {}
    metas = [metric.meta for metric in results.values() if hasattr(metric, "meta")]
    suffixes = [
        f"/dataloader_idx_{meta.dataloader_idx}" if meta.add_dataloader_idx and meta.dataloader_idx is not None else ""
        for meta in metas
    ]
    return {*trainer.callback_metrics, *(meta.name + suffix for meta, suffix in zip(metas, suffixes, strict=True))}


def closest(name: str, names: Iterable[str]) -> str:
    """The end of a message about a name that does not exist: those that look like it, or else some that there are.

    The last component says what is meant, so those that share it come first; a forgotten prefix is a small mistake.
    """
    known = sorted(names)
    by_end: dict[str, list[str]] = {}
    for other in known:
        by_end.setdefault(last_component(without_loader(other)), []).append(other)
    ends = difflib.get_close_matches(last_component(without_loader(name)), by_end, n=3, cutoff=0.6)
    # Among several of one end, the one whose beginning is most alike.
    nearest = [other for end in ends for other in sorted(by_end[end], key=lambda other: -_likeness(name, other))]
    alike = list(dict.fromkeys([*nearest, *difflib.get_close_matches(name, known, n=3, cutoff=0.6)]))[:3]
    if alike:
        return "Closest: " + ", ".join(map(repr, alike)) + "."
    if not known:
        return "There is none."
    more = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
    return "Known: " + ", ".join(map(repr, known[:_MOST_NAMES])) + more + "."


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
