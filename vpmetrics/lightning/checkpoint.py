"""A callback that keeps the checkpoints on the Pareto front of disclosure and utility."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from vpmetrics._scores.registry import CI_SUFFIXES, Scalar, scalar
from vpmetrics._util.scalar import closest_or_known_names, last_component, strip_loader_suffix
from vpmetrics._util.validation import check_confidence
from vpmetrics.lightning.monitor import PrivacyMonitor, find_monitors
from vpmetrics.lightning.pareto import ParetoFront, ParetoPoint, relative_path
from vpmetrics.lightning.trainers import (
    ModelCheckpointBase,
    figure_writers,
    loader_suffixes,
    log_scalars,
    logging_step,
    suffix_first_component,
    warn_of_spawned_processes,
)

FRONT_FILE = "pareto_front"
_REJECTED = {"monitor", "every_n_train_steps", "train_time_interval", "enable_version_counter"}


class PrivacyCheckpoint(ModelCheckpointBase):
    r"""Save the checkpoints on the Pareto front of disclosure and utility, and choose one within a budget.

    A checkpoint is on the Pareto front while no other kept one is at least as good in utility and in every disclosure.
    At most ``save_top_k`` of the front stay on disk: always the chosen one, then those that lie farthest apart. The
    chosen one is that of best utility within all budgets, or that of least disclosure if there is none;
    ``trainer.test(ckpt_path="best")`` loads it. ``pareto_front.json`` lists every measurement, kept or not, and never
    names a checkpoint that is not on disk. Loggers get the values of the chosen checkpoint as ``val_chosen/<name>``,
    and a figure of the front as ``val_figures/<name>/pareto_front`` whenever it changes.

    A disclosure that is logged in both directions, such as ``op_d_ece`` and ``op_d_ece_reversed``, counts by the
    larger of the two: ``protected = -original`` deceives an attacker only until they flip the sign. Budgets should
    include ``disclosure`` or a disclosure to the strongest attack; otherwise a warning is given.

    An estimate from few speakers may be within the budget by luck; the best of many estimates usually is. With
    ``confidence``, the upper end of the interval is compared instead, which
    ``PrivacyMonitor(intervals=confidence)`` logs.

    A checkpoint is saved only if its own weights were measured and all values are finite: not after further training
    steps, and not in epochs that :class:`PrivacyMonitor` skips. A resumed run keeps the front, even if the folder was
    moved or ``dirpath`` changed.

    Works with the Trainer of ``pytorch_lightning`` and with that of ``lightning.pytorch``; to both it is a
    ``ModelCheckpoint``. Strategies that spawn processes are not supported.

    Args:
        privacy: Name of the logged disclosure (lower is better); a sequence for several; or a dictionary from names to
            budgets.
        budget: Largest disclosure allowed; one per name. Not with a dictionary.
        utility: Name of the logged utility.
        mode: ``"min"`` or ``"max"``, which utility is better.
        dirpath: Folder of the checkpoints, as in ``ModelCheckpoint``.
        filename: Their names, as in ``ModelCheckpoint``.
        save_top_k: Largest number of checkpoints on disk; -1 for the whole front.
        confidence: Confidence level of the intervals whose upper ends are compared, such as 0.95; None compares
            estimates.
        kwargs: Those of ``ModelCheckpoint``, but for ``monitor``, ``every_n_train_steps``, ``train_time_interval`` and
            ``enable_version_counter``.

    Attributes:
        chosen: The chosen one, or None: ``epoch``, ``step``, ``disclosure`` (a dictionary), ``utility``, ``path``.
        within_budget: Whether that one meets all budgets.
        pareto_front: All that are kept, least disclosure first.
        best_model_path: Path of the chosen one.

    Example:
        >>> checkpoint = PrivacyCheckpoint(
        ...     {"val/privacy/disclosure": 0.05, "val/privacy/op_l_w": 1.0}, utility="val/wer"
        ... )
        >>> checkpoint.budgets
        {'val/privacy/disclosure': 0.05, 'val/privacy/op_l_w': 1.0}
    """

    def __init__(
        self,
        privacy: str | Sequence[str] | Mapping[str, float] = "val/privacy/disclosure",
        budget: float | Sequence[float] | None = None,
        utility: str = "val/loss",
        mode: str = "min",
        dirpath: str | Path | None = None,
        filename: str | None = None,
        save_top_k: int = 5,
        confidence: float | None = None,
        **kwargs: Any,
    ) -> None:
        for name in _REJECTED & {name for name, value in kwargs.items() if value is not None}:
            raise TypeError(
                f"Expected no `{name}`: PrivacyCheckpoint saves what a validation measured, `privacy` and `utility`, "
                "into new files. `Trainer(val_check_interval=...)` sets how often."
            )
        if not isinstance(utility, str):
            raise TypeError(f"Expected `utility` to be a name, but got {type(utility).__name__}.")
        if isinstance(save_top_k, bool) or not isinstance(save_top_k, int):
            raise TypeError(f"Expected `save_top_k` to be an integer, but got {save_top_k!r}.")
        if save_top_k < 1 and save_top_k != -1:
            raise ValueError(
                f"Expected `save_top_k` to be at least 1, or -1 for the whole front, but got {save_top_k}."
            )
        if confidence is not None:
            check_confidence("confidence", confidence)
        self.budgets = _resolve_budgets(privacy, budget)
        self.utility, self.confidence = utility, confidence
        super().__init__(dirpath, filename, monitor=utility, mode=mode, save_top_k=save_top_k, **kwargs)
        # What a run must share with another to continue its front; folder and budgets may differ.
        self._settings_to_match = [sorted(self.budgets), utility, mode, confidence]
        self._front = ParetoFront(self.budgets, mode, save_top_k)
        # What is compared with a budget: the estimate, or the upper end of its interval.
        self._compared_suffix = "" if confidence is None else CI_SUFFIXES[1]
        compared = (insert_before_loader_suffix(name, self._compared_suffix) for name in self.budgets)
        self._required_names = tuple(dict.fromkeys([*self.budgets, *compared, utility]))
        self._given_dirpath = None if dirpath is None else str(dirpath)
        self._front_file, self._validated_at, self._logged_at = FRONT_FILE, -1, -1
        self._is_resuming, self._resumed_folder = True, ""

    @property
    def pareto_front(self) -> list[ParetoPoint]:
        """All checkpoints that are kept, least disclosure first."""
        return list(self._front.kept)

    @property
    def chosen(self) -> ParetoPoint | None:
        """The checkpoint of best utility within all budgets, or that of least disclosure if there is none."""
        return self._front.chosen

    @property
    def within_budget(self) -> bool:
        """Whether the chosen checkpoint meets all budgets."""
        return self._front.meets_budgets(self.chosen)

    @property
    def chosen_value_tags(self) -> list[str]:
        """Names under which loggers get the disclosures and the utility of the chosen checkpoint."""
        names = (*self.budgets, self.utility) if self.chosen else ()
        return [suffix_first_component(name, "_chosen") for name in names]

    @property
    def state_key(self) -> str:
        """Name of this callback's state in a checkpoint; two in one Trainer differ in one of these."""
        return self._generate_state_key(
            privacy=sorted(self.budgets.items()),
            utility=self.utility,
            mode=self.mode,
            dirpath=self._given_dirpath,
            confidence=self.confidence,
        )

    # Validation of names

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Check the monitored names; warn if all are disclosures to an attacker without a fitted map."""
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        warn_of_spawned_processes(trainer, "PrivacyCheckpoint", "`chosen` and `pareto_front`")
        before = trainer.checkpoint_callbacks[: trainer.checkpoint_callbacks.index(self)]
        same_folder = sum(isinstance(other, PrivacyCheckpoint) and other.dirpath == self.dirpath for other in before)
        self._front_file = f"{FRONT_FILE}-v{same_folder}" if same_folder else FRONT_FILE
        for monitor in find_monitors(trainer):
            self._check_monitor(monitor)
        entries = list(filter(None, map(_find_scalar, self.budgets)))
        if entries and not any(entry.family == "attack" or entry.key == "disclosure" for entry in entries):
            rank_zero_warn(
                f"PrivacyCheckpoint monitors {', '.join(map(repr, self.budgets))}: disclosure to an attacker who "
                "compares untransformed embeddings. An attacker who transforms them may learn far more: add a name "
                "that ends in 'disclosure'.",
                UserWarning,
            )

    def _check_monitor(self, monitor: PrivacyMonitor) -> None:
        """Raise where the monitor does not log a name with its prefix, or logs intervals of another confidence."""
        for name in map(strip_loader_suffix, self._required_names):
            estimate = name.removesuffix(self._compared_suffix)
            has_estimate = self.confidence is not None and estimate in monitor.logged_names
            if name.startswith(f"{monitor.prefix}/") and name not in monitor.logged_names:
                hint = f"It needs `intervals={self.confidence}`, and some scalars have no interval."
                raise ValueError(
                    f"PrivacyCheckpoint monitors {name!r}, but PrivacyMonitor does not log it. "
                    f"{hint if has_estimate else closest_or_known_names(name, monitor.logged_names)}"
                )
            if has_estimate and monitor.intervals not in (None, self.confidence):
                raise ValueError(
                    f"Expected `confidence` to be that of the intervals PrivacyMonitor logs, {monitor.intervals}, but "
                    f"got {self.confidence}."
                )

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Save after a validation; in the sanity check only raise, or warn, on names that are not logged."""
        if trainer.sanity_checking:
            measured = {name for monitor in find_monitors(trainer) for name in monitor.logged_names}
            suffixes = loader_suffixes(trainer).values()
            logged = {name + suffix for name in measured for suffix in suffixes} | set(trainer.callback_metrics)
            for name in set(self._required_names) - logged:
                if strip_loader_suffix(name) in measured:
                    raise ValueError(self._describe_missing(trainer, name, logged))
                # Others may be logged later, and those of several dataloaders are not known here.
                if name == strip_loader_suffix(name) and not name.startswith("train"):
                    rank_zero_warn(self._describe_missing(trainer, name, logged), UserWarning)
        else:
            self._validated_at, self._logged_at = trainer.global_step, logging_step(trainer)
        super().on_validation_end(trainer, pl_module)

    def _describe_missing(self, trainer: Any, name: str, logged: set[str]) -> str:
        if _find_scalar(name) is not None and not find_monitors(trainer):
            hint = "No PrivacyMonitor is among the callbacks."
        else:
            hint = closest_or_known_names(name, logged - {"epoch", "step"})
        return f"PrivacyCheckpoint monitors {name!r}, but it was not logged. {hint}"

    # Saving

    def _save_topk_checkpoint(self, trainer: Any, monitor_candidates: dict[str, Tensor]) -> None:
        if not self._are_weights_measured(trainer):
            return
        for name in self._required_names:
            if name not in monitor_candidates:
                raise ValueError(self._describe_missing(trainer, name, set(monitor_candidates)))
        point = self._make_point(trainer, monitor_candidates)
        values = {**point.disclosure, self.utility: point.utility}
        if not all(map(math.isfinite, values.values())):
            described = ", ".join(f"{name} is {value}" for name, value in values.items())
            rank_zero_warn(f"PrivacyCheckpoint saves nothing of epoch {point.epoch}: {described}.", UserWarning)
            return
        old_front = self.pareto_front
        self._front.record(point)
        is_new = point in self.pareto_front
        # Before saving, because the file also holds this state.
        self._set_kept_points(self.pareto_front)
        if is_new:
            self.current_score = torch.tensor(point.utility)
            self._save_checkpoint(trainer, point.path)
        # The order matters: if the process dies here, the front must not name a file that was removed.
        if trainer.is_global_zero:
            self._fs.makedirs(self.dirpath, exist_ok=True)  # the folder may not exist before the first save
            path = f"{self.dirpath}/{self._front_file}.json"
            with self._fs.open(f"{path}.tmp", "w") as file:
                file.write(self._front.to_json(str(self.dirpath), self.utility))
            self._fs.mv(f"{path}.tmp", path)
        for other in old_front:
            if other not in self.pareto_front and self._should_remove_checkpoint(trainer, other.path, point.path):
                self._remove_checkpoint(trainer, other.path)
        self._log_front(trainer, is_new)

    def _are_weights_measured(self, trainer: Any) -> bool:
        """Return whether the logged values belong to the current weights."""
        if trainer.enable_validation and self._validated_at != trainer.global_step:
            return False
        return all(
            monitor.history and monitor.history[-1]["step"] == trainer.global_step
            for monitor in find_monitors(trainer)
            if any(name.startswith(f"{monitor.prefix}/") for name in self._required_names)
        )

    def _make_point(self, trainer: Any, candidates: dict[str, Tensor]) -> ParetoPoint:
        disclosure = {name: _max_with_reversed(name, self._compared_suffix, candidates) for name in self.budgets}
        intervals = {
            name: [_max_with_reversed(name, end, candidates) for end in CI_SUFFIXES]
            for name in self.budgets
            if all(insert_before_loader_suffix(name, end) in candidates for end in CI_SUFFIXES)
        }
        epoch, step, utility = int(candidates["epoch"]), int(candidates["step"]), float(candidates[self.utility])
        path = self._get_metric_interpolated_filepath_name(candidates, trainer)
        # All processes must save the same point, also where one of them has logged a value of its own.
        point: ParetoPoint = trainer.strategy.broadcast(ParetoPoint(epoch, step, disclosure, utility, path, intervals))
        return point

    def _log_front(self, trainer: Any, has_changed: bool) -> None:
        # The step of the scalars of the last validation; at the end of an epoch the Trainer has counted further.
        step = self._logged_at if self._validated_at == trainer.global_step else logging_step(trainer)
        if (chosen := self.chosen) is not None:
            values = (*chosen.disclosure.values(), chosen.utility)
            log_scalars(trainer, dict(zip(self.chosen_value_tags, values, strict=True)), step)
        # A monitor has warned of a missing matplotlib.
        writers = figure_writers(trainer) if has_changed and find_spec("matplotlib") else []
        if not writers:
            return
        from vpmetrics.plotting.system_plots import draw_pareto_front
        from vpmetrics.report.figures import CARD

        for name, budget in self.budgets.items():
            kept, measured, choice = (
                [(point.disclosure[name], point.utility) for point in points]
                for points in (self._front.kept, self._front.measured, [chosen] if chosen else [])
            )
            entry, label = _find_scalar(name), insert_before_loader_suffix(name, self._compared_suffix)
            labels = f"{label}, {entry.unit.name}" if entry and entry.unit.name else label, self.utility
            ends = [(point.intervals[name], point.utility) for point in self._front.measured if name in point.intervals]
            figure, _ = draw_pareto_front(kept, measured, choice, budget, labels, CARD.make_axes()[0], ends)
            for write in writers:
                write(f"{suffix_first_component(name, '_figures')}/pareto_front", figure, step)

    def _set_kept_points(self, points: Sequence[ParetoPoint]) -> None:
        """Replace the kept points, and set the attributes of ``ModelCheckpoint`` accordingly."""
        self._front.kept = list(points)
        chosen = self.chosen
        self.best_k_models = {point.path: torch.tensor(point.utility) for point in points}
        self.best_model_path = "" if chosen is None else chosen.path
        self.best_model_score = None if chosen is None else torch.tensor(chosen.utility)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Warn if no checkpoint is within the budget, or if there is none."""
        super().on_train_end(trainer, pl_module)
        if not self.pareto_front and not trainer.fast_dev_run:
            rank_zero_warn("PrivacyCheckpoint saved nothing: no epoch has all the values it monitors.", UserWarning)
        elif self.pareto_front and not self.within_budget:
            rank_zero_warn(
                f"No checkpoint is within the budget {self.budgets}; `best_model_path` is that of least disclosure.",
                UserWarning,
            )

    # Resumed runs

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run continues from; paths are relative to the folder, which may be moved."""
        folder = str(self.dirpath)
        return {
            **super().state_dict(),
            "monitored": self._settings_to_match,
            "pareto_front": [
                {**point._asdict(), "path": relative_path(folder, point.path)} for point in self._front.kept
            ],
            "measured": [point._replace(path="")._asdict() for point in self._front.measured],
            "dirpath": folder,
            "last_model_path": relative_path(folder, self.last_model_path),
        }

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Load the state of a checkpoint whose folder or budgets differ; Lightning loads only that of the same key."""
        # Loading weights for a test keeps the front of the training after these weights.
        self._is_resuming = trainer.state.fn == "fit" or not self.pareto_front
        # Not `Path`, which would change the address of a bucket.
        self._resumed_folder = posixpath.dirname(str(trainer.ckpt_path or ""))
        states = checkpoint.get("callbacks", {})
        if self.state_key in states:
            return
        others = {callback.state_key for callback in trainer.checkpoint_callbacks}
        resumable = [
            state
            for key, state in states.items()
            if key not in others and isinstance(state, dict) and state.get("monitored") == self._settings_to_match
        ]
        if len(resumable) == 1:
            self.load_state_dict(resumable[0])
        elif resumable:
            rank_zero_warn(
                f"The checkpoint holds the states of {len(resumable)} PrivacyCheckpoints, none with these budgets and "
                "this folder; the front starts empty.",
                UserWarning,
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from where a run stopped; checkpoints in another folder stay in the front."""
        if self._is_resuming:
            folders = [folder for folder in (self.dirpath, self._resumed_folder, state_dict["dirpath"]) if folder]
            self._front.measured = [ParetoPoint(**point) for point in state_dict["measured"]]
            kept = [ParetoPoint(**point) for point in state_dict["pareto_front"]]
            self._set_kept_points([point._replace(path=self._resolve_path(point.path, folders)) for point in kept])
            last = self._resolve_path(state_dict["last_model_path"], folders)
            if posixpath.dirname(last) == self.dirpath:  # in another folder it must not be overwritten
                self.last_model_path = last
        self._is_resuming = True

    def _resolve_path(self, path: str, folders: Sequence[Any]) -> str:
        """Return the path in the first of the folders that holds such a file, else the path as it is."""
        # The path of a file in another folder is absolute.
        candidates = [*(f"{folder}/{path}" for folder in folders), path]
        return next((candidate for candidate in candidates if self._fs.exists(candidate)), path)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Drop from the front the checkpoints that are no longer on disk."""
        super().on_train_start(trainer, pl_module)
        existing = [point for point in self.pareto_front if self.file_exists(point.path, trainer)]
        if len(existing) < len(self.pareto_front):
            rank_zero_warn(
                f"PrivacyCheckpoint finds {len(existing)} of the {len(self.pareto_front)} checkpoints it kept, in "
                f"{self.dirpath} and elsewhere; the others leave the front.",
                UserWarning,
            )
        self._set_kept_points(existing)


def insert_before_loader_suffix(name: str, suffix: str) -> str:
    """Return a logged name with a suffix after its key, and before the suffix of its dataloader."""
    plain = strip_loader_suffix(name)
    return f"{plain}{suffix}{name.removeprefix(plain)}"


def _max_with_reversed(name: str, suffix: str, candidates: Mapping[str, Tensor]) -> float:
    """Return a disclosure, or an end of its interval: the larger one where both directions of scores are logged."""
    names = [insert_before_loader_suffix(name, end) for end in (suffix, f"_reversed{suffix}")]
    both = [float(candidates[each]) for each in names if each in candidates]
    return torch.tensor(both, dtype=torch.float64).max().item()  # the built-in `max` would hide NaN


def _find_scalar(name: str) -> Scalar | None:
    """Return the entry of the registry for a logged name; None where this package has no scalar of that name."""
    try:
        return scalar(last_component(name))
    except KeyError:
        return None


def _resolve_budgets(privacy: Any, budget: Any) -> dict[str, float]:
    """Return the budget of each name, from the arguments of :class:`PrivacyCheckpoint`."""
    if isinstance(privacy, Mapping):
        if budget is not None:
            raise ValueError("Expected no `budget` with a dictionary `privacy`, which holds the budgets.")
        names, values = list(privacy), list(privacy.values())
    else:
        names = [privacy] if isinstance(privacy, str) else privacy
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"Expected `privacy` to be a name, several, or names with budgets, but got {privacy!r}.")
        budget = 0.05 if budget is None and len(names) == 1 else budget
        values = list(budget) if isinstance(budget, Sequence) else [budget]
    if not names or len(names) != len(values) or len(set(names)) != len(names):
        raise ValueError(f"Expected one `budget` for each name in `privacy`, but got {values} for {list(names)}.")
    for name, value in zip(names, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ValueError(f"Expected `budget` to be a finite number of at least 0, but got {value!r} for {name!r}.")
        entry = _find_scalar(name)
        if entry is not None and entry.direction != "low":
            raise ValueError(
                f"Expected `privacy` to name a disclosure, of which less is better, such as 'disclosure', but "
                f"got {name!r}."
            )
    return {name: float(value) for name, value in zip(names, values, strict=True)}
