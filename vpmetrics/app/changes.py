"""What got better or worse from one system to another."""

from __future__ import annotations

import math
from typing import NamedTuple

from vpmetrics._report import System
from vpmetrics._scalars import ENDS, key_of, scalar
from vpmetrics.app.differences import compare

# What is compared, and in what order.
GLANCE = ("d_ece_strongest", "d_ece", "d_ece_reversed", "eer", "l_w", "linkability", "max_d", "alid")


class Change(NamedTuple):
    """A scalar of two systems: as texts, what to call the change, and whether it is for the better, if either."""

    heading: str
    before: str
    after: str
    change: str
    better: bool | None


def changes_between(before: System, after: System, confidence: float | None = None) -> list[Change]:
    """What got better or worse from one system to another, as far as both know it."""
    names = [(key, key) for key in ("deid", "gvd")]
    names += [(key_of(before.report.attacked, key), key_of(after.report.attacked, key)) for key in GLANCE]
    names += [(key, key) for key in ("pp_d_ece", "pp_d_ece_strongest")]
    return [
        _change(before, after, *pair, confidence)
        for pair in names
        if pair[0] in before.scalars and pair[1] in after.scalars
    ]


def _change(before: System, after: System, first: str, second: str, confidence: float | None) -> Change:
    known, (old, new) = scalar(first), (before.scalar(first), after.scalar(second))
    heading = f"{known.condition} {known.title}" if known.condition else known.title
    texts = known.show(old), known.show(new)
    if math.isnan(old) or math.isnan(new):
        return Change(heading, *texts, "", None)
    if texts[0] == texts[1]:
        return Change(heading, *texts, "same", None)
    if not _told_apart(before, first, after, second, confidence):
        return Change(heading, *texts, "within error", None)
    arrow = "▲" if new > old else "▼"
    if known.private is None:
        return Change(heading, *texts, f"{arrow} {'more' if new > old else 'less'} distinct", None)
    better = (new > old) == (known.private == "high")
    return Change(heading, *texts, f"{arrow} {'better' if better else 'worse'}", better)


def _told_apart(before: System, first: str, after: System, second: str, confidence: float | None) -> bool:
    """Whether the speakers of both tell two values apart: one by one where these are the same, or by both intervals."""
    pair = compare(before, after, first, confidence) if confidence is not None and first == second else None
    if pair is not None:
        return pair.found.told_apart
    lows, highs = ([before.scalar(first + end), after.scalar(second + end)] for end in ENDS)
    return not max(lows) <= min(highs)  # no comparison with NaN holds
