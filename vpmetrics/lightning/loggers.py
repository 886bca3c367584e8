"""What goes to the loggers beside what a module logs: figures, each in the logger's own way, and minor scalars."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[str, "Figure", int], None]


def ways_to_draw(trainer: Any) -> list[Draw]:
    """One for each logger that takes figures; none on any process but the first, nor in a ``fast_dev_run``."""
    if not trainer.is_global_zero or trainer.fast_dev_run:
        return []
    return [way for logger in trainer.loggers if (way := _way_of(logger)) is not None]


def _way_of(logger: Any) -> Draw | None:
    experiment: Any = getattr(logger, "experiment", None)
    if hasattr(experiment, "add_figure"):  # TensorBoard
        return lambda name, figure, step: experiment.add_figure(name, figure, step, close=False)
    if hasattr(logger, "log_image"):  # Weights & Biases
        return lambda name, figure, step: logger.log_image(name, [figure], step)
    if hasattr(experiment, "log_figure") and hasattr(logger, "run_id"):  # MLflow
        return lambda name, figure, step: experiment.log_figure(logger.run_id, figure, f"{name}/{step:08d}.png")
    if hasattr(experiment, "log_figure"):  # Comet
        return lambda name, figure, step: experiment.log_figure(figure_name=name, figure=figure, step=step)
    return None


def log_apart(trainer: Any, values: Mapping[str, float], step: int) -> None:
    """Scalars in a group of their own: TensorBoard opens one for every first component of a name.

    Where a module's own ``self.log`` would file them among what people look at first.
    """
    if not values or not trainer.is_global_zero or trainer.fast_dev_run:
        return
    for logger in trainer.loggers:
        logger.log_metrics({apart(name): value for name, value in values.items()}, step)
        logger.save()


def apart(name: str) -> str:
    """The name in the log of a scalar that is not looked at first.

    Example:
        >>> apart("val/privacy/op_l_w")
        'val_details/privacy/op_l_w'
    """
    first, slash, rest = name.partition("/")
    return f"{first}_details{slash}{rest}"


def log_hyperparameters(trainer: Any, hparams: Mapping[str, Any], values: Mapping[str, float]) -> None:
    """A line in TensorBoard's table of hyperparameters."""
    if not trainer.is_global_zero or trainer.fast_dev_run or not hparams or not values:
        return
    for logger in trainer.loggers:
        if hasattr(getattr(logger, "experiment", None), "add_hparams"):
            logger.log_hyperparams(dict(hparams), metrics=dict(values))
