"""What the Lightning callbacks share: their base classes, and where a Trainer writes to.

``pytorch_lightning`` and ``lightning.pytorch`` are one program under two names, with two sets of classes. A Trainer of
the one sorts callbacks and looks for checkpoints by its own classes, so what is to work in both inherits from both.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

_PACKAGES = ("pytorch_lightning", "lightning.pytorch")
_MOST_NAMES = 8  # in a message


def _import(name: str) -> ModuleType | None:
    """A module, or None where it is not installed; any other failure to import it is told."""
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not name.startswith(missing.name):
            raise
        return None


def installed_packages() -> list[ModuleType]:
    """Every Lightning there is."""
    found = [package for package in map(_import, _PACKAGES) if package is not None]
    if not found:
        raise ImportError(
            "Expected `pytorch-lightning` or `lightning` to be installed, but found neither. "
            "`pip install vpmetrics[lightning]` brings the first."
        )
    return found


if TYPE_CHECKING:
    from pytorch_lightning.callbacks import Callback, ModelCheckpoint

    class CallbackBase(Callback): ...

    class ModelCheckpointBase(ModelCheckpoint): ...

else:

    class CallbackBase(*(package.Callback for package in installed_packages())):
        """A callback in the eyes of every Trainer."""

    class ModelCheckpointBase(*(package.callbacks.ModelCheckpoint for package in installed_packages())):
        """A checkpoint callback in the eyes of every Trainer."""


def logging_step(trainer: Any) -> int:
    """The step Lightning files the scalars of an evaluation under, so that figures stand beside them."""
    return int(getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", trainer.global_step))


def tensorboard_loggers(trainer: Any) -> Iterator[Any]:
    """Loggers that take figures; none on any process but the first, nor in a ``fast_dev_run``."""
    if not trainer.is_global_zero or trainer.fast_dev_run:
        return
    for logger in trainer.loggers:
        if hasattr(getattr(logger, "experiment", None), "add_figure"):
            yield logger


def is_fitting(trainer: Any) -> bool:
    """Whether this is ``trainer.fit``, with its validations, rather than ``validate`` or ``test``."""
    return bool(trainer.state.fn == "fit")


def closest(name: str, names: Iterable[str]) -> str:
    """The end of a message about a name that does not exist: those that look like it, or else some that there are.

    The last component says what is meant, so those that share it come first; a forgotten prefix is a small mistake.
    """
    known = sorted(names)
    by_end: dict[str, list[str]] = {}
    for other in known:
        by_end.setdefault(last_component(other), []).append(other)
    ends = difflib.get_close_matches(last_component(name), by_end, n=3, cutoff=0.6)
    # Among several of one end, the one whose beginning is most alike.
    nearest = [other for end in ends for other in sorted(by_end[end], key=lambda other: -_likeness(name, other))]
    alike = list(dict.fromkeys([*nearest, *difflib.get_close_matches(name, known, n=3, cutoff=0.6)]))[:3]
    if alike:
        return "Closest: " + ", ".join(map(repr, alike)) + "."
    if not known:
        return "There is none."
    more = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
    return "Known: " + ", ".join(map(repr, known[:_MOST_NAMES])) + more + "."


def last_component(name: str) -> str:
    """What is measured, without where."""
    return name.rpartition("/")[2]


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
