"""What the Lightning callbacks share: base classes, the state of a Trainer, and its loggers.

``pytorch_lightning`` and ``lightning.pytorch`` are one program under two names, with two sets of
classes. A Trainer sorts callbacks and finds checkpoints by the classes of its own package, so the
callbacks inherit from those of both.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torchmetrics.utilities import rank_zero_warn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Writer = Callable[[str, "Figure", int], None]


def _is_installed(name: str) -> bool:
    """Return whether a module can be imported."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a folder of that name, which is not the package
        return False


_PACKAGES = ("pytorch_lightning", "lightning.pytorch")
_INSTALLED = [import_module(name) for name in _PACKAGES if _is_installed(name)]
if not _INSTALLED:
    raise ImportError(
        "Expected `pytorch-lightning` or `lightning` to be installed, but found neither. "
        "Run `pip install 'vpmetrics[lightning]'`."
    )

if TYPE_CHECKING:
    from pytorch_lightning.callbacks import Callback, ModelCheckpoint

    CallbackBase = Callback
    ModelCheckpointBase = ModelCheckpoint
else:

    class CallbackBase(*(package.Callback for package in _INSTALLED)):
        """A callback for the Trainer of every installed package."""

    class ModelCheckpointBase(*(package.callbacks.ModelCheckpoint for package in _INSTALLED)):
        """A checkpoint callback for the Trainer of every installed package."""


def logging_step(trainer: Any) -> int:
    """Return the step under which Lightning logs the scalars of a validation."""
    return int(getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", trainer.global_step))


def loader_suffixes(trainer: Any) -> dict[int, str]:
    """Return the suffix of logged names for each dataloader; the same on every process."""
    if trainer.testing:
        sizes = trainer.num_test_batches
    else:
        sizes = trainer.num_val_batches
    if not sizes:
        return {}
    # A CombinedLoader that is not sequential yields one batch of all its loaders at a time.
    is_sequential = getattr(getattr(trainer, "_evaluation_loop", None), "_is_sequential", True)
    if not is_sequential or not isinstance(sizes, list) or len(sizes) == 1:
        return {0: ""}
    return {index: f"/dataloader_idx_{index}" for index in range(len(sizes))}


def warn_of_spawned_processes(trainer: Any, callback: str, attributes: str) -> None:
    """Warn where a strategy trains copies of the callbacks, whose memory is lost at the end."""
    if "MultiProcessing" in type(trainer.strategy.launcher).__name__:
        rank_zero_warn(
            f"{callback} does not support strategies that spawn or fork, such as 'ddp_spawn':"
            f" {attributes} stay in the started processes. Use strategy='ddp'.",
            UserWarning,
        )


def suffix_first_component(name: str, suffix: str) -> str:
    """Return a tag in another group: ``val_figures/privacy`` for ``val/privacy``."""
    # Loggers group by the first component of a name.
    group, slash, tag = name.partition("/")
    return f"{group}{suffix}{slash}{tag}"


def rank_zero_loggers(trainer: Any) -> list[Any]:
    """Return the loggers to write to: none on any process but the first, none in a fast_dev_run."""
    if not trainer.is_global_zero or trainer.fast_dev_run:
        return []
    loggers: list[Any] = trainer.loggers
    return loggers


def figure_writers(trainer: Any) -> list[Writer]:
    """Return one function for each logger that takes figures; none on any process but the first."""
    writers = []
    for logger in rank_zero_loggers(trainer):
        writer = _figure_writer(logger)
        if writer is not None:
            writers.append(writer)
    return writers


def _figure_writer(logger: Any) -> Writer | None:
    experiment: Any = getattr(logger, "experiment", None)
    if hasattr(experiment, "add_figure"):  # TensorBoard
        return lambda tag, figure, step: experiment.add_figure(tag, figure, step, close=False)
    if hasattr(logger, "log_image"):  # Weights & Biases
        return lambda tag, figure, step: logger.log_image(tag, [figure], step)
    if hasattr(experiment, "log_figure") and hasattr(logger, "run_id"):  # MLflow
        return lambda tag, figure, step: experiment.log_figure(
            logger.run_id, figure, f"{tag}/{step:08d}.png"
        )
    if hasattr(experiment, "log_figure"):  # Comet
        return lambda tag, figure, step: experiment.log_figure(
            figure_name=tag, figure=figure, step=step
        )
    return None
