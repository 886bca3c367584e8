"""A callback that keeps the checkpoints worth keeping when privacy and utility disagree."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from vpmetrics.lightning.arguments import budgets_of, scalar_names
from vpmetrics.lightning.monitor import PrivacyMonitor
from vpmetrics.lightning.pareto import ParetoPoint, choose, front_with, is_finite, meets
from vpmetrics.lightning.trainers import (
    ModelCheckpointBase,
    closest,
    is_fitting,
    last_component,
    logging_step,
    tensorboard_loggers,
)

_OWN_CHOICE = ("monitor", "save_top_k", "enable_version_counter")
FRONT_FILE = "pareto_front.json"


class PrivacyCheckpoint(ModelCheckpointBase):
    r"""Saves the checkpoints of best utility for what they disclose, and chooses one under a budget of disclosure.

    A checkpoint is kept while no other is at least as good in utility and in every disclosure: the Pareto front. The
    files of all others are removed. :attr:`best_model_path` is the kept checkpoint of best utility among those within
    all budgets, or the one of least disclosure while there is none; ``trainer.test(ckpt_path="best")`` takes it. The
    front is written to ``pareto_front.json`` beside the files, and drawn into TensorBoard as
    ``<privacy>/pareto_front`` whenever it changes.

    What is saved is what was measured: an epoch that :class:`PrivacyMonitor` leaves out is not saved. Values that are
    not finite are not compared, and so not saved.

    Works with the Trainer of ``pytorch_lightning`` and with that of ``lightning.pytorch``; to both it is a
    ``ModelCheckpoint``.

    Args:
        privacy: Name of what is logged of disclosure, less being better; several in a sequence, or in a dictionary
            with their budgets.
        budget: How much may be disclosed at most; as many as there are names. Not with a dictionary.
        utility: Name of what is logged of utility.
        mode: ``"min"`` or ``"max"``, which utility is better.
        dirpath: Folder of the checkpoints, as in ``ModelCheckpoint``.
        filename: Their names, as in ``ModelCheckpoint``.
        kwargs: Those of ``ModelCheckpoint``, but for ``monitor``, ``save_top_k`` and ``enable_version_counter``.

    Attributes:
        pareto_front: The kept checkpoints, least disclosure first: ``epoch``, ``step``, ``disclosure`` (a dictionary),
            ``utility`` and ``path`` of each.
        best_model_path: The chosen one.
        within_budget: Whether that one meets all budgets.

    Example:
        >>> checkpoint = PrivacyCheckpoint({"val/privacy/op_d_ece": 0.05, "val/privacy/op_l_w": 1.0}, utility="val/wer")
        >>> checkpoint.budgets
        {'val/privacy/op_d_ece': 0.05, 'val/privacy/op_l_w': 1.0}
    """

    def __init__(
        self,
        privacy: str | Sequence[str] | Mapping[str, float] = "val/privacy/op_d_ece",
        budget: float | Sequence[float] | None = None,
        utility: str = "val/loss",
        mode: str = "min",
        dirpath: str | Path | None = None,
        filename: str | None = None,
        **kwargs: Any,
    ) -> None:
        for name in _OWN_CHOICE:
            if name in kwargs:
                raise TypeError(f"Expected no `{name}`: PrivacyCheckpoint keeps the Pareto front, whatever its size.")
        if not isinstance(utility, str):
            raise TypeError(f"Expected `utility` to be a name, but got {type(utility).__name__}.")
        self.budgets = budgets_of(privacy, budget)
        self.utility = utility
        super().__init__(dirpath=dirpath, filename=filename, monitor=utility, mode=mode, **kwargs)
        self.pareto_front: list[ParetoPoint] = []
        self.within_budget = False
        self._measured: list[ParetoPoint] = []
        self._resuming = True

    @property
    def state_key(self) -> str:
        """Name of this callback's state in a checkpoint; a run may be resumed with another budget."""
        return self._generate_state_key(privacy=sorted(self.budgets), utility=self.utility, mode=self.mode)

    # Names

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Find the folder, and look for names that no monitor will ever log."""
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        for other in trainer.checkpoint_callbacks:
            if other is not self and isinstance(other, PrivacyCheckpoint) and other.dirpath == self.dirpath:
                raise ValueError(f"Expected a `dirpath` for each PrivacyCheckpoint, but got {self.dirpath} twice.")
        promised = _names_of_monitors(trainer)
        for name in (*self.budgets, self.utility):
            plain = _plain(name)
            if plain not in promised and _meant_for_monitor(trainer, plain, promised):
                raise ValueError(
                    f"PrivacyCheckpoint watches {name!r}, but no PrivacyMonitor logs it. {closest(plain, promised)}"
                )

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Save after a validation; after the sanity check, refuse or warn of names nobody has logged."""
        if trainer.sanity_checking:
            logged = {*trainer.callback_metrics, *_names_of_monitors(trainer)}
            for name in (*self.budgets, self.utility):
                if _plain(name) in logged or name in logged or name.startswith("train"):
                    continue
                text = f"PrivacyCheckpoint watches {name!r}, but the sanity check has not logged it. "
                text += closest(name, logged) + _forgotten(trainer, name)
                # A training step may log it, and some steps and callbacks log nothing during the sanity check.
                if _monitors(trainer) and _is_misspelt(name, trainer.callback_metrics):
                    raise ValueError(text)
                rank_zero_warn(text, UserWarning)
        super().on_validation_end(trainer, pl_module)

    # Saving

    def _save_topk_checkpoint(self, trainer: Any, monitor_candidates: dict[str, Tensor]) -> None:
        if not self._weights_are_measured(trainer):
            return
        for name in (*self.budgets, self.utility):
            if name not in monitor_candidates:
                logged = set(monitor_candidates) - {"epoch", "step"}
                text = f"PrivacyCheckpoint watches {name!r}, but nothing has logged it. {closest(name, logged)}"
                raise ValueError(text + _forgotten(trainer, name))
        point = self._point(trainer, monitor_candidates)
        if not is_finite(point):
            values = ", ".join(f"{name} is {value}" for name, value in self._values(point).items())
            rank_zero_warn(f"PrivacyCheckpoint saves nothing of epoch {point.epoch}: {values}.", UserWarning)
            return
        self._measured.append(point)
        if point in front_with(self.pareto_front, point, self.mode):
            self._keep(trainer, monitor_candidates, point)

    def _weights_are_measured(self, trainer: Any) -> bool:
        """Whether what monitors have logged is of the weights as they are now, not of an earlier epoch."""
        watched = (*self.budgets, self.utility)
        for monitor in _monitors(trainer):
            if any(name.startswith(f"{monitor.prefix}/") for name in watched):
                last = monitor.history[-1] if monitor.history else None
                if last is None or last["step"] != trainer.global_step:
                    return False
        return True

    def _point(self, trainer: Any, candidates: Mapping[str, Tensor]) -> ParetoPoint:
        # The processes must agree on what to save, also where one of them has logged a value of its own.
        utility, *disclosures = trainer.strategy.broadcast(
            [float(candidates[name]) for name in (self.utility, *self.budgets)]
        )
        disclosure = dict(zip(self.budgets, disclosures, strict=True))
        return ParetoPoint(int(candidates["epoch"]), int(candidates["step"]), disclosure, utility, path="")

    def _values(self, point: ParetoPoint) -> dict[str, float]:
        return {**point.disclosure, self.utility: point.utility}

    def _keep(self, trainer: Any, candidates: dict[str, Tensor], point: ParetoPoint) -> None:
        path = self._get_metric_interpolated_filepath_name(candidates, trainer)
        point = point._replace(path=path)
        before, self.pareto_front = self.pareto_front, front_with(self.pareto_front, point, self.mode)
        # Before saving, because the file holds this state too.
        self._choose()
        self.current_score = torch.tensor(point.utility)
        self._save_checkpoint(trainer, path)
        for other in before:
            if other not in self.pareto_front and self._should_remove_checkpoint(trainer, other.path, path):
                self._remove_checkpoint(trainer, other.path)
        self._write(trainer)
        self._draw(trainer)

    def _choose(self) -> None:
        chosen = choose(self.pareto_front, self.budgets, self.mode)
        self.best_k_models = {point.path: torch.tensor(point.utility) for point in self.pareto_front}
        self.best_model_path = "" if chosen is None else chosen.path
        self.best_model_score = None if chosen is None else torch.tensor(chosen.utility)
        self.within_budget = chosen is not None and meets(chosen, self.budgets)

    # Telling

    def _write(self, trainer: Any) -> None:
        if not trainer.is_global_zero:
            return
        front = {
            "privacy": self.budgets,
            "utility": self.utility,
            "mode": self.mode,
            "chosen": self._beside_front(self.best_model_path),
            "within_budget": self.within_budget,
            "points": [
                {**point._asdict(), "path": self._beside_front(point.path), "within_budget": meets(point, self.budgets)}
                for point in self.pareto_front
            ],
        }
        with self._fs.open(f"{self.dirpath}/{FRONT_FILE}", "w") as file:
            json.dump(front, file, indent=2)

    def _beside_front(self, path: str) -> str:
        """Path of a checkpoint as seen from the file of the front, so that the folder may be moved."""
        return path.removeprefix(f"{self.dirpath}/")

    def _draw(self, trainer: Any) -> None:
        loggers = list(tensorboard_loggers(trainer))
        if not loggers:
            return
        try:
            from vpmetrics._plot import draw_pareto_front
        except ModuleNotFoundError:  # of matplotlib; a monitor has said so
            return
        for name, budget in self.budgets.items():
            front, others = (
                [(point.disclosure[name], point.utility) for point in points]
                for points in (self.pareto_front, self._measured)
            )
            chosen = next(
                (at for at, point in zip(front, self.pareto_front, strict=True) if point.path == self.best_model_path),
                None,
            )
            figure, _ = draw_pareto_front(front, others, chosen, budget, (name + _unit(name), self.utility), None)
            for logger in loggers:
                logger.experiment.add_figure(f"{name}/pareto_front", figure, logging_step(trainer), close=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Say so if no checkpoint is private enough, or if there is none."""
        super().on_train_end(trainer, pl_module)
        if not self.pareto_front and not trainer.fast_dev_run:
            rank_zero_warn("PrivacyCheckpoint has saved nothing: no epoch was measured in all it watches.", UserWarning)
        elif self.pareto_front and not self.within_budget:
            rank_zero_warn(
                f"No checkpoint meets the budget {self.budgets}; `best_model_path` is the one that discloses least.",
                UserWarning,
            )

    # From one run to the next

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on from."""
        front, measured = ([point._asdict() for point in points] for points in (self.pareto_front, self._measured))
        return {**super().state_dict(), "pareto_front": front, "measured": measured}

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Weights loaded for a test do not undo what has been kept since they were saved."""
        self._resuming = is_fitting(trainer) or not self.pareto_front

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from where a run stopped; checkpoints it left in another folder stay in the front."""
        if self._resuming:
            self.pareto_front, self._measured = (
                [ParetoPoint(**point) for point in state_dict[name]] for name in ("pareto_front", "measured")
            )
            if state_dict["dirpath"] == self.dirpath:
                self.last_model_path = state_dict["last_model_path"]
            self._choose()
        self._resuming = True

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Forget checkpoints of a resumed run that have been removed since its state was saved."""
        super().on_train_start(trainer, pl_module)
        self.pareto_front = [point for point in self.pareto_front if self.file_exists(point.path, trainer)]
        self._choose()


def _unit(name: str) -> str:
    """What the axis of a disclosure says behind its name."""
    if re.search(r"(d_ece|d_ece_reversed|max_d|mean_d)$", _plain(name)):
        return ", bit"
    return ", log$_{10}$" if _plain(name).endswith("l_w") else ""


def _plain(name: str) -> str:
    """A name without the number of a loader."""
    return re.sub(r"/dataloader_idx_\d+$", "", name)


def _monitors(trainer: Any) -> list[PrivacyMonitor]:
    return [callback for callback in trainer.callbacks if isinstance(callback, PrivacyMonitor)]


def _names_of_monitors(trainer: Any) -> set[str]:
    return {name for monitor in _monitors(trainer) for name in monitor.logged_names}


def _meant_for_monitor(trainer: Any, name: str, promised: set[str]) -> bool:
    """Whether a name is under the prefix of a monitor, ends as one that a monitor logs, or all but equals it."""
    under = any(name.startswith(f"{monitor.prefix}/") for monitor in _monitors(trainer))
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


def _forgotten(trainer: Any, name: str) -> str:
    """The likeliest reason why a scalar of this library is missing."""
    if _monitors(trainer) or last_component(_plain(name)) not in scalar_names():
        return ""
    return " No PrivacyMonitor is among the callbacks of the Trainer."
