"""What the callbacks are given, checked before anything runs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vpmetrics._scalars import scalar, scalars_of
from vpmetrics.lightning.trainers import closest, last_component


def scalar_names() -> tuple[str, ...]:
    """The names of all scalars a :class:`vpmetrics.VoicePrivacy` returns."""
    return scalars_of()


def check_prefix(prefix: Any) -> None:
    """Refuse anything but the beginning of a name."""
    if not isinstance(prefix, str):
        raise TypeError(f"Expected `prefix` to be a string, but got {type(prefix).__name__}.")
    if not prefix or prefix != prefix.strip("/ ") or "/dataloader_idx_" in prefix:
        raise ValueError(f"Expected `prefix` to be a name such as 'val/privacy', but got {prefix!r}.")


def check_kind(name: str, value: Any, kind: type) -> None:
    """Refuse anything but None and one kind of object."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"Expected `{name}` to be a {kind.__name__} or None, but got {type(value).__name__}.")


def selection(argument: str, names: Any) -> tuple[str, ...]:
    """Names of scalars, all of which there are."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise TypeError(f"Expected `{argument}` to be a sequence of names, but got {names!r}.")
    known = scalar_names()
    for name in names:
        if name not in known:
            hint = closest(str(name), known)
            raise ValueError(f"Expected `{argument}` to name scalars of VoicePrivacy, but got {name!r}. {hint}")
    return tuple(names)


def budgets_of(privacy: Any, budget: Any) -> dict[str, float]:
    """Each name of a disclosure with its budget."""
    if isinstance(privacy, Mapping):
        if budget is not None:
            raise ValueError("Expected no `budget` beside a dictionary `privacy`, which holds the budgets.")
        names, values = list(privacy), list(privacy.values())
    else:
        names = [privacy] if isinstance(privacy, str) else privacy
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"Expected `privacy` to be a name, several, or names with budgets, but got {privacy!r}.")
        budget = 0.05 if budget is None and len(names) == 1 else budget
        values = list(budget) if isinstance(budget, Sequence) and not isinstance(budget, str) else [budget]
    if not names or len(names) != len(values) or len(set(names)) != len(names):
        raise ValueError(f"Expected one `budget` for each name in `privacy`, but got {values} for {list(names)}.")
    for name, value in zip(names, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"Expected `budget` to be a number, but got {value!r} for {name!r}.")
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"Expected `budget` to be finite and not negative, but got {value} for {name!r}.")
        _check_disclosure(name)
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def _check_disclosure(name: str) -> None:
    """Refuse the names of scalars that say nothing by being small; what others log is theirs to know."""
    try:
        known = scalar(last_component(re.sub(r"/dataloader_idx_\d+$", "", name)))
    except KeyError:
        return
    if known.private != "low":
        what = "is large where little is" if known.private == "high" else "is no measure of it"
        raise ValueError(
            f"Expected `privacy` to name what is disclosed, less being better, but {name!r} {what}; a budget limits "
            "'op_d_ece', 'op_l_w' or the like."
        )
