"""A callback that keeps the checkpoints worth keeping when privacy and utility disagree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from vpmetrics._checks import check_confidence
from vpmetrics._names import closest
from vpmetrics._scalars import ENDS
from vpmetrics.lightning.arguments import budgets_of, check_number_kept
from vpmetrics.lightning.front import Front, beside
from vpmetrics.lightning.handover import register, send_home
from vpmetrics.lightning.names import reversed_twin, with_end
from vpmetrics.lightning.pareto import ParetoPoint, is_finite
from vpmetrics.lightning.trainers import ModelCheckpointBase, is_fitting, logging_step
from vpmetrics.lightning.watched import (
    monitors_of,
    refuse_unlogged,
    refuse_unpromised,
    refuse_without_intervals,
    refuse_wrong_loaders,
    warn_of_forgotten_monitor,
    warn_of_weak_attackers,
    why_unlogged,
)

FRONT_FILE = "pareto_front"
_NOT_TAKEN = {
    "monitor": "it watches `privacy` and `utility`",
    "enable_version_counter": "no file of the front may be overwritten",
    "every_n_train_steps": "it saves what was measured; `Trainer(val_check_interval=...)` measures by steps",
    "train_time_interval": "it saves what was measured; `Trainer(val_check_interval=...)` measures by time",
}


class PrivacyCheckpoint(ModelCheckpointBase):
    r"""Saves the checkpoints of best utility for what they disclose, and chooses one under a budget of disclosure.

    A checkpoint is on the Pareto front while no other that is kept is at least as good in utility and in every
    disclosure. At most ``save_top_k`` of the front stay on disk: always the chosen one, then those that lie farthest
    apart. The chosen one is that of best utility within all budgets, or the one of least disclosure while there is
    none; ``trainer.test(ckpt_path="best")`` takes it. ``pareto_front.json`` beside the files lists every measurement,
    kept or not, and figures show them as ``<privacy>/pareto_front`` whenever the front changes.

    A disclosure that is logged in both directions, such as ``op_d_ece`` with ``op_d_ece_reversed``, counts by the
    larger of the two: ``protected = -original`` deceives an attacker only until they flip the sign. Budgets should
    include one of the strongest attack, as the default does; there is a warning where none does.

    An estimate from few speakers may be within the budget by luck, and the best of many is: with ``confidence``, what
    is compared is the upper end of the interval, which ``PrivacyMonitor(intervals=confidence)`` logs.

    What is saved is what was measured: weights that have been trained since the last validation, or that
    :class:`PrivacyMonitor` left out, are not saved. Values that are not finite are not compared, and so not saved.
    The folder may be moved between runs; what a resumed run finds of the front in ``dirpath``, beside the checkpoint
    it resumes from, or where it was, stays in the front.

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
        save_top_k: How many checkpoints stay on disk at most; -1 for the whole front.
        confidence: That of the intervals whose upper ends are compared, such as 0.95; None compares estimates.
        kwargs: Those of ``ModelCheckpoint``, but for ``monitor``, ``every_n_train_steps``, ``train_time_interval`` and
            ``enable_version_counter``.

    Attributes:
        chosen: The chosen one, or None: ``epoch``, ``step``, ``disclosure`` (a dictionary), ``utility``, ``path``.
        pareto_front: All that are kept, least disclosure first.
        best_model_path: Path of the chosen one.
        within_budget: Whether that one meets all budgets.

    Example:
        >>> checkpoint = PrivacyCheckpoint(
        ...     {"val/privacy/op_d_ece_strongest": 0.05, "val/privacy/op_l_w": 1.0}, utility="val/wer"
        ... )
        >>> checkpoint.budgets
        {'val/privacy/op_d_ece_strongest': 0.05, 'val/privacy/op_l_w': 1.0}
    """

    def __init__(
        self,
        privacy: str | Sequence[str] | Mapping[str, float] = "val/privacy/op_d_ece_strongest",
        budget: float | Sequence[float] | None = None,
        utility: str = "val/loss",
        mode: str = "min",
        dirpath: str | Path | None = None,
        filename: str | None = None,
        save_top_k: int = 5,
        confidence: float | None = None,
        **kwargs: Any,
    ) -> None:
        for name, reason in _NOT_TAKEN.items():
            if kwargs.get(name) is not None:
                raise TypeError(f"Expected no `{name}`: PrivacyCheckpoint takes none, because {reason}.")
        if not isinstance(utility, str):
            raise TypeError(f"Expected `utility` to be a name, but got {type(utility).__name__}.")
        check_number_kept(save_top_k)
        if confidence is not None:
            check_confidence("confidence", confidence)
        self.budgets = budgets_of(privacy, budget)
        self.utility, self.confidence = utility, confidence
        super().__init__(
            dirpath=dirpath, filename=filename, monitor=utility, mode=mode, save_top_k=save_top_k, **kwargs
        )
        self._front = Front(self.budgets, mode, save_top_k)
        self._given_dirpath = None if dirpath is None else str(dirpath)
        self._number_in_folder = 0
        self._validated_at = self._logged_at = -1
        self._resuming, self._folder_of_resumed = True, ""
        self.address = register(self)

    @property
    def pareto_front(self) -> list[ParetoPoint]:
        """All checkpoints that are kept, least disclosure first."""
        return list(self._front.kept)

    @property
    def chosen(self) -> ParetoPoint | None:
        """The checkpoint of best utility within all budgets, or that of least disclosure while there is none."""
        return self._front.chosen

    @property
    def within_budget(self) -> bool:
        """Whether the chosen checkpoint meets all budgets."""
        return self._front.within_budget

    @property
    def state_key(self) -> str:
        """Name of this callback's state in a checkpoint; two in one Trainer differ in something of it."""
        return self._generate_state_key(
            privacy=sorted(self.budgets.items()),
            utility=self.utility,
            mode=self.mode,
            dirpath=self._given_dirpath,
            confidence=self.confidence,
        )

    @property
    def _names(self) -> tuple[str, ...]:
        ends = [with_end(name, self._compared) for name in self.budgets] if self._compared else []
        return (*self.budgets, *ends, self.utility)

    @property
    def _compared(self) -> str:
        """How the name of what is compared ends, behind that of the disclosure."""
        return "" if self.confidence is None else ENDS[1]

    # Names

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Find the folder, and look for names that no monitor will ever log."""
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        before = trainer.checkpoint_callbacks[: trainer.checkpoint_callbacks.index(self)]
        self._number_in_folder = sum(
            isinstance(other, PrivacyCheckpoint) and other.dirpath == self.dirpath for other in before
        )
        if self.confidence is not None:
            refuse_without_intervals(trainer, self.budgets, self.confidence)
        refuse_unpromised(trainer, self._names)
        warn_of_forgotten_monitor(trainer, pl_module, self._names)
        warn_of_weak_attackers(trainer, self.budgets)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """As soon as it is known how many loaders there are, refuse names that this number makes wrong."""
        if is_fitting(trainer):
            refuse_wrong_loaders(trainer, self._names)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse wrong names where there was no sanity check, and forget checkpoints that are nowhere to be found."""
        super().on_train_start(trainer, pl_module)
        if trainer.val_dataloaders is not None:
            refuse_wrong_loaders(trainer, self._names)
        there = [point for point in self.pareto_front if self.file_exists(point.path, trainer)]
        if len(there) < len(self.pareto_front):
            rank_zero_warn(
                f"PrivacyCheckpoint finds {len(there)} of the {len(self.pareto_front)} checkpoints it had kept, "
                f"in {self.dirpath} and elsewhere; the others leave the front.",
                UserWarning,
            )
        self._take(there)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Save after a validation; after the sanity check, refuse or warn of names nobody has logged."""
        if trainer.sanity_checking:
            refuse_unlogged(trainer, pl_module, self._names)
        else:
            self._validated_at, self._logged_at = trainer.global_step, logging_step(trainer)
        super().on_validation_end(trainer, pl_module)

    # Saving

    def _save_topk_checkpoint(self, trainer: Any, monitor_candidates: dict[str, Tensor]) -> None:
        if not self._weights_are_measured(trainer):
            return
        for name in self._names:
            if name not in monitor_candidates:
                logged = set(monitor_candidates) - {"epoch", "step"}
                text = f"PrivacyCheckpoint watches {name!r}, but nothing has logged it. {closest(name, logged)}"
                raise ValueError(text + why_unlogged(trainer, name))
        point = self._point(trainer, monitor_candidates)
        if not is_finite(point):
            values = {**point.disclosure, self.utility: point.utility}
            said = ", ".join(f"{name} is {value}" for name, value in values.items())
            rank_zero_warn(f"PrivacyCheckpoint saves nothing of epoch {point.epoch}: {said}.", UserWarning)
            return
        front = self._front.extended(point)
        if point in front:
            self._keep(trainer, monitor_candidates, point, front)
        self._write(trainer)

    def _weights_are_measured(self, trainer: Any) -> bool:
        """Whether what has been logged is of the weights as they are now, not of earlier ones."""
        if trainer.enable_validation and self._validated_at != trainer.global_step:
            return False
        for monitor in monitors_of(trainer):
            if any(name.startswith(f"{monitor.prefix}/") for name in self._names):
                last = monitor.history[-1] if monitor.history else None
                if last is None or last["step"] != trainer.global_step:
                    return False
        return True

    def _point(self, trainer: Any, candidates: Mapping[str, Tensor]) -> ParetoPoint:
        disclosure = {name: _larger_direction(name, self._compared, candidates) for name in self.budgets}
        intervals = {
            name: [_larger_direction(name, end, candidates) for end in ENDS]
            for name in self.budgets
            if all(with_end(name, end) in candidates for end in ENDS)
        }
        place, utility = (int(candidates["epoch"]), int(candidates["step"])), float(candidates[self.utility])
        point = ParetoPoint(*place, disclosure, utility, path="", intervals=intervals)
        # The processes must agree on what to save, also where one of them has logged a value of its own.
        agreed: ParetoPoint = trainer.strategy.broadcast(point)
        return agreed

    def _keep(
        self, trainer: Any, candidates: dict[str, Tensor], point: ParetoPoint, front: Sequence[ParetoPoint]
    ) -> None:
        path = self._get_metric_interpolated_filepath_name(candidates, trainer)
        before = self.pareto_front
        # Before saving, because the file holds this state too.
        self._take([other._replace(path=path) if other == point else other for other in front])
        self.current_score = torch.tensor(point.utility)
        self._save_checkpoint(trainer, path)
        for other in before:
            if other not in self.pareto_front and self._should_remove_checkpoint(trainer, other.path, path):
                self._remove_checkpoint(trainer, other.path)
        # Where the scalars of the last validation stand, which the Trainer has counted past at the end of an epoch.
        step = self._logged_at if self._validated_at == trainer.global_step else logging_step(trainer)
        self._front.draw(trainer, self.utility, step, self._compared)

    def _write(self, trainer: Any) -> None:
        if not trainer.is_global_zero:
            return
        name = f"{FRONT_FILE}-v{self._number_in_folder}" if self._number_in_folder else FRONT_FILE
        self._fs.makedirs(self.dirpath, exist_ok=True)  # nothing need be saved there so far
        with self._fs.open(f"{self.dirpath}/{name}.json", "w") as file:
            file.write(self._front.as_json(self._folder, self.utility))

    def _take(self, front: Sequence[ParetoPoint]) -> None:
        """Keep these, and say so in the words of ``ModelCheckpoint``, too."""
        self._front.take(front)
        self._announce()

    def _announce(self) -> None:
        chosen = self.chosen
        self.best_k_models = {point.path: torch.tensor(point.utility) for point in self.pareto_front}
        self.best_model_path = "" if chosen is None else chosen.path
        self.best_model_score = None if chosen is None else torch.tensor(chosen.utility)

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
        """What a resumed run goes on from, wherever the folder is then."""
        return {
            **super().state_dict(),
            "budgets": self.budgets,
            "mode": self.mode,
            "confidence": self.confidence,
            **self._gathered(),
        }

    def _gathered(self) -> dict[str, Any]:
        return {**self._front.state(self._folder), "last_model_path": beside(self._folder, self.last_model_path)}

    @property
    def _folder(self) -> str:
        return str(self.dirpath)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Find the state that is meant, also where the folder or the budgets have changed.

        Weights loaded for a test do not undo what has been kept since they were saved.
        """
        self._resuming = is_fitting(trainer) or not self.pareto_front
        self._folder_of_resumed = _folder_of(trainer.ckpt_path or "")
        states = checkpoint.get("callbacks", {})
        if self.state_key in states:
            return
        others = {callback.state_key for callback in trainer.checkpoint_callbacks}
        kin = [state for key, state in states.items() if key not in others and self._is_alike(state)]
        if len(kin) == 1:
            self.load_state_dict(kin[0])
        elif kin:
            rank_zero_warn(
                f"{len(kin)} PrivacyCheckpoints have left their state in the checkpoint, none with these budgets and "
                "this folder; the front begins anew.",
                UserWarning,
            )

    def _is_alike(self, state: Any) -> bool:
        """Whether a state is that of a PrivacyCheckpoint that watched the same."""
        if not isinstance(state, dict) or "budgets" not in state:
            return False
        theirs = set(state["budgets"]), state["monitor"], state["mode"], state.get("confidence")
        return theirs == (set(self.budgets), self.utility, self.mode, self.confidence)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from where a run stopped; checkpoints it left in another folder stay in the front."""
        if self._resuming:
            folders = [folder for folder in (self.dirpath, self._folder_of_resumed, state_dict["dirpath"]) if folder]
            self._front.resume(state_dict, lambda path: self._found(path, folders))
            self._announce()
            last = self._found(state_dict["last_model_path"], folders)
            if _folder_of(last) == self.dirpath:  # anywhere else it is not ours to overwrite
                self.last_model_path = last
        self._resuming = True

    def _found(self, path: str, folders: Sequence[Any]) -> str:
        # One that lay elsewhere already has its whole path.
        places = [*(f"{folder}/{path}" for folder in folders), path]
        return next((place for place in places if self._fs.exists(place)), path)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the front where the process that started this one finds it."""
        if stage == "fit":
            send_home(trainer, self, self._gathered())

    def receive(self, state: dict[str, Any]) -> None:
        """Take the front a spawned process has sent home."""
        self.dirpath, self._resuming = state["dirpath"], True
        self.load_state_dict(state)


def _folder_of(path: str | Path) -> str:
    """Not by ``Path``, which would take a bucket's address for a folder."""
    return str(path).rpartition("/")[0]


def _larger_direction(name: str, end: str, candidates: Mapping[str, Tensor]) -> float:
    """A disclosure, or an end of its interval, in the direction that gives more away, where both are logged."""
    names = (with_end(one, end) for one in (name, reversed_twin(name)))
    both = [float(candidates[one]) for one in names if one in candidates]
    return torch.tensor(both, dtype=torch.float64).max().item()  # Python's own would hide NaN
