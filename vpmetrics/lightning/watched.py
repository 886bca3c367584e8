"""Names a checkpoint watches: what is wrong with them is said before the first batch, wherever it can be known."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from torchmetrics import Metric
from torchmetrics.utilities import rank_zero_warn

from vpmetrics._names import closest, last_component, without_loader
from vpmetrics._scalars import key_of
from vpmetrics.lightning.arguments import known_scalar
from vpmetrics.lightning.monitor import PrivacyMonitor
from vpmetrics.lightning.names import logged_names, reversed_twin, with_end
from vpmetrics.lightning.trainers import loaders_in_turn

# Small, too, where targets score below all others: an attacker has but to flip the sign.
_ONE_WAY = re.compile(r"_(d_ece|l_w|tag|id_rate|link_rate)$")


def monitors_of(trainer: Any) -> list[PrivacyMonitor]:
    """Every monitor among the callbacks."""
    return [callback for callback in trainer.callbacks if isinstance(callback, PrivacyMonitor)]


def refuse_unpromised(trainer: Any, names: Iterable[str]) -> None:
    """Refuse, before anything runs, names that are meant for a monitor that does not log them."""
    promised = _promised(trainer)
    for name in names:
        plain = without_loader(name)
        if plain not in promised and _meant_for_monitor(trainer, plain, promised):
            raise ValueError(
                f"PrivacyCheckpoint watches {name!r}, but no PrivacyMonitor logs it. {closest(plain, promised)}"
            )


def refuse_without_intervals(trainer: Any, names: Iterable[str], confidence: float) -> None:
    """Refuse names of a monitor that logs no upper end for them, or one of another confidence."""
    for monitor in monitors_of(trainer):
        for name in set(map(without_loader, names)) & set(monitor.logged_names):
            if with_end(name, "_high") not in monitor.logged_names:
                text = "it has no interval" if monitor.intervals else f"give it `intervals={confidence}`"
                raise ValueError(
                    f"PrivacyCheckpoint(confidence={confidence}) watches the upper end of {name!r}, but PrivacyMonitor "
                    f"logs none: {text}."
                )
            if monitor.intervals != confidence:
                raise ValueError(
                    f"Expected `confidence` to be that of the intervals PrivacyMonitor logs, {monitor.intervals}, "
                    f"but got {confidence}."
                )


def refuse_wrong_loaders(trainer: Any, names: Iterable[str]) -> None:
    """Refuse names of a monitor that lack the number of a loader where there are several, or have one too many."""
    promised = _promised(trainer)
    suffixes = loaders_in_turn(trainer).values()
    for name in names:
        plain = without_loader(name)
        if plain in promised and name not in {plain + suffix for suffix in suffixes}:
            there = ", ".join(repr(plain + suffix) for suffix in suffixes) or "nothing"
            raise ValueError(
                f"PrivacyCheckpoint watches {name!r}, but with {len(suffixes)} loaders to validate on PrivacyMonitor "
                f"logs {there}."
            )


def refuse_unlogged(trainer: Any, pl_module: Any, names: Iterable[str]) -> None:
    """After a sanity check, refuse names that cannot be meant as they are, and warn of others nobody has logged.

    A training step may log those yet, and some steps and callbacks log nothing during the sanity check.
    """
    logged = logged_names(trainer) | _promised(trainer)
    for name in names:
        if name in logged or without_loader(name) in _promised(trainer) or name.startswith("train"):
            continue
        forgotten = _is_of_a_forgotten_monitor(trainer, name)
        text = f"PrivacyCheckpoint watches {name!r}, but the sanity check has not logged it. "
        text += closest(without_loader(name), logged) + why_unlogged(trainer, name)
        of_another_loader = without_loader(name) in map(without_loader, logged)
        misspelt = monitors_of(trainer) and _is_misspelt(name, logged_names(trainer))
        if of_another_loader or misspelt or (forgotten and not _measures_itself(pl_module)):
            raise ValueError(text)
        rank_zero_warn(text, UserWarning)


def warn_of_forgotten_monitor(trainer: Any, pl_module: Any, names: Iterable[str]) -> None:
    """Where no sanity check will tell, say at once that a monitor seems to be missing."""
    if trainer.num_sanity_val_steps or _measures_itself(pl_module):
        return
    for name in names:
        if _is_of_a_forgotten_monitor(trainer, name):
            rank_zero_warn(
                f"PrivacyCheckpoint watches {name!r}, and no PrivacyMonitor is among the callbacks. Unless the module "
                "logs it, training will stop after the first validation.",
                UserWarning,
            )


def why_unlogged(trainer: Any, name: str) -> str:
    """The likeliest reason why a scalar of this library is missing."""
    return " No PrivacyMonitor is among the callbacks." if _is_of_a_forgotten_monitor(trainer, name) else ""


def warn_of_weak_attackers(trainer: Any, budgets: Mapping[str, float]) -> None:
    """Say what a gate misses that no budget of the strongest attack guards."""
    ours = {name: known for name in budgets if (known := known_scalar(name)) is not None}
    if any(known.family == "attack" for known in ours.values()):
        return
    for name, known in ours.items():
        one_way = _ONE_WAY.search(known.key) and without_loader(reversed_twin(name)) not in _promised(trainer)
        direction = ", and in one direction only: `protected = -original` passes" if one_way else ""
        stronger = key_of(known.condition or "OP", "d_ece_strongest")
        rank_zero_warn(
            f"PrivacyCheckpoint watches {name!r}, the measure of an attacker who compares embeddings as they "
            f"are{direction}. One who transforms them first may learn far more: watch {stronger!r}, too.",
            UserWarning,
        )


def _promised(trainer: Any) -> set[str]:
    return {name for monitor in monitors_of(trainer) for name in monitor.logged_names}


def _meant_for_monitor(trainer: Any, name: str, promised: set[str]) -> bool:
    """Whether a name is under the prefix of a monitor, ends as one that a monitor logs, or all but equals it."""
    under = any(name.startswith(f"{monitor.prefix}/") for monitor in monitors_of(trainer))
    ends = last_component(name) in map(last_component, promised)
    return under or ends or bool(difflib.get_close_matches(name, promised, n=1, cutoff=0.9))


def _is_misspelt(name: str, logged: Iterable[str]) -> bool:
    """Whether a name begins as one that was logged, ``val/`` or ``val_``, and goes on almost as that one does."""
    start, rest = _start_and_rest(name)
    rests = [there for begins, there in map(_start_and_rest, logged) if begins == start]
    return bool(start) and bool(difflib.get_close_matches(rest, rests, n=1, cutoff=0.75))


def _start_and_rest(name: str) -> tuple[str, str]:
    match = re.match(r"([^/_]*)[/_](.*)", name)
    return (match[1], match[2]) if match else ("", name)


def _is_of_a_forgotten_monitor(trainer: Any, name: str) -> bool:
    return not monitors_of(trainer) and known_scalar(name) is not None


def _measures_itself(pl_module: Any) -> bool:
    """Whether the module keeps a metric of this library, whose values it may log as it likes."""
    return any(isinstance(m, Metric) and type(m).__module__.startswith("vpmetrics.") for m in pl_module.modules())
