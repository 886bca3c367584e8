"""What the callbacks are given, checked before anything runs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vpmetrics._names import last_component, without_loader
from vpmetrics._scalars import Scalar, scalar, scalars_of
from vpmetrics._trials.conditions import ALWAYS, CONDITIONS
from vpmetrics.suite import VoicePrivacy

_HEADLINE = re.compile(r"deid|gvd|(op|pp|within|across)_(d_ece|d_ece_strongest|eer_strongest)")


def scalar_names(suite: VoicePrivacy, sessions: bool = False) -> tuple[str, ...]:
    """The names of all scalars a suite can return, of several sessions or of one, without the ends of intervals."""
    conditions = tuple(CONDITIONS) if sessions else ALWAYS
    return scalars_of(conditions, suite.attacks is not None, sessions, suite.sizes)


def headline_of(names: Sequence[str]) -> tuple[str, ...]:
    """The few of these names that are looked at first.

    Example:
        >>> headline_of(["deid", "oo_d_ece", "op_d_ece", "op_d_ece_reversed", "op_d_ece_strongest"])
        ('deid', 'op_d_ece', 'op_d_ece_strongest')
    """
    return tuple(name for name in names if _HEADLINE.fullmatch(name))


def known_scalar(name: str) -> Scalar | None:
    """What is known of a logged name by its last component; None of names of others."""
    try:
        return scalar(last_component(without_loader(name)))
    except KeyError:
        return None


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


def check_number_kept(save_top_k: Any) -> None:
    """Refuse anything but a number of checkpoints, one at least, or -1 for all."""
    if isinstance(save_top_k, bool) or not isinstance(save_top_k, int):
        raise TypeError(f"Expected `save_top_k` to be a whole number of checkpoints, but got {save_top_k!r}.")
    if save_top_k != -1 and save_top_k < 1:
        raise ValueError(f"Expected `save_top_k` to be at least 1, or -1 for the whole front, but got {save_top_k}.")


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
    known = known_scalar(name)
    if known is not None and known.private != "low":
        what = "is large where little is" if known.private == "high" else "is no measure of it"
        raise ValueError(
            f"Expected `privacy` to name what is disclosed, less being better, but {name!r} {what}; a budget limits "
            "'op_d_ece_strongest', 'op_l_w' or the like."
        )
