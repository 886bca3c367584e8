"""What the Lightning callbacks share: their base classes, and where a Trainer writes to.

``pytorch_lightning`` and ``lightning.pytorch`` are one program under two names, with two sets of classes. A Trainer of
the one sorts callbacks and looks for checkpoints by its own classes, so what is to work in both inherits from both.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

_PACKAGES = ("pytorch_lightning", "lightning.pytorch")


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


def is_fitting(trainer: Any) -> bool:
    """Whether this is ``trainer.fit``, with its validations, rather than ``validate`` or ``test``."""
    return bool(trainer.state.fn == "fit")


def loaders_in_turn(trainer: Any) -> dict[int, str]:
    """Numbers of the loaders that are run one after the other, and what the names of each end in; alike everywhere."""
    sizes = trainer.num_test_batches if trainer.testing else trainer.num_val_batches
    if not sizes:
        return {}
    # A combined loader gives one batch of all its loaders at a time.
    in_turn = getattr(getattr(trainer, "_evaluation_loop", None), "_is_sequential", True)
    count = len(sizes) if in_turn and isinstance(sizes, list) else 1
    return {number: f"/dataloader_idx_{number}" if count > 1 else "" for number in range(count)}
