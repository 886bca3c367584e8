"""A callback that keeps the checkpoint of best utility within a budget of disclosure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from vpmetrics._scores.registry import CI_SUFFIXES, Scalar, scalar
from vpmetrics._util.scalar import (
    PERCENT,
    closest_or_known_names,
    last_component,
    strip_loader_suffix,
)
from vpmetrics._util.validation import check_confidence
from vpmetrics.lightning.monitor import PrivacyMonitor, find_monitors
from vpmetrics.lightning.trainers import (
    ModelCheckpointBase,
    figure_writers,
    loader_suffixes,
    logging_step,
    suffix_first_component,
    warn_of_spawned_processes,
)

_REJECTED = (
    "monitor",
    "save_top_k",
    "every_n_train_steps",
    "train_time_interval",
    "enable_version_counter",
)
_FAMILIES_AFTER_ATTACKS = (
    "headline",
    "attack",
    "attack_limit",
    "attacked_population",
    "conversation",
    "found",
)


@dataclass(frozen=True)
class Validation:
    """What one validation measured of a set of weights.

    Args:
        epoch: Number of the epoch, from 0.
        step: Number of training steps so far.
        privacy: The disclosure that has a budget.
        low: Lower end of its confidence interval, NaN where none is logged.
        high: Upper end of its confidence interval, NaN where none is logged.
        utility: The utility.
        is_within_budget: Whether the disclosure, or the upper end, is within the budget.

    Example:
        >>> row = Validation(
        ...     epoch=3,
        ...     step=400,
        ...     privacy=0.04,
        ...     low=0.02,
        ...     high=0.06,
        ...     utility=1.5,
        ...     is_within_budget=True,
        ... )
        >>> row.privacy
        0.04
    """

    epoch: int
    step: int
    privacy: float
    low: float
    high: float
    utility: float
    is_within_budget: bool


class PrivacyCheckpoint(ModelCheckpointBase):
    r"""Save the last checkpoint, and the one of best utility within a budget of disclosure.

    After every validation a logged disclosure is compared with ``budget``. Of the epochs within the
    budget the one of best utility is on disk, at ``best_model_path``;
    ``trainer.test(ckpt_path="best")`` loads it. Where no epoch is within the budget, there is no
    best one, and the end of the training warns. The weights of the last validation are in
    ``last.ckpt``. Loggers get a figure of utility over disclosure,
    ``val_figures/privacy/disclosure/utility``.

    An estimate from few speakers may be within the budget by luck; the best of many estimates
    usually is. With ``confidence`` the upper end of the interval is compared instead, which
    ``PrivacyMonitor(intervals=confidence)`` logs. Name a disclosure to attackers, ``disclosure`` or
    ``found_in_100``; for a disclosure to plain comparison a warning is given.

    An epoch is chosen only if its own weights were measured: not after further training steps, and
    not where :class:`PrivacyMonitor` measured nothing. Where the disclosure or the utility is not
    finite, the epoch is not eligible, and the first time a warning is given.

    Works with the Trainer of ``pytorch_lightning`` and with that of ``lightning.pytorch``; to both
    it is a ``ModelCheckpoint``. Strategies that spawn processes are not supported.

    Args:
        privacy: Name of the logged disclosure, of which less is better.
        budget: Largest value allowed, in the unit of ``privacy``: bits for ``disclosure``, a share
            for ``found_in_100`` (0.05 for 5 %).
        utility: Name of the logged utility.
        mode: ``"min"`` or ``"max"``, which utility is better.
        dirpath: Folder of the checkpoints, as in ``ModelCheckpoint``.
        filename: Name of the best one, as in ``ModelCheckpoint``.
        confidence: Confidence level of the interval whose upper end is compared, such as 0.95; None
            compares the estimate.
        kwargs: Those of ``ModelCheckpoint``, but for ``monitor``, ``save_top_k``,
            ``every_n_train_steps``, ``train_time_interval`` and ``enable_version_counter``.
            ``save_last`` is True unless it is given.

    Attributes:
        history: One :class:`Validation` for every validation that measured the disclosure.
        chosen: The one that ``best_model_path`` holds, or None.

    Example:
        >>> checkpoint = PrivacyCheckpoint(
        ...     privacy="val/privacy/found_in_100", budget=0.05, utility="val/wer"
        ... )
        >>> checkpoint.budget, checkpoint.chosen
        (0.05, None)
    """

    passes_over_unmeasured_epochs = True

    def __init__(
        self,
        privacy: str = "val/privacy/disclosure",
        budget: float = 0.05,
        utility: str = "val/loss",
        mode: str = "min",
        dirpath: str | Path | None = None,
        filename: str | None = None,
        confidence: float | None = None,
        **kwargs: Any,
    ) -> None:
        for name in _REJECTED:
            if kwargs.get(name) is not None:
                raise TypeError(
                    f"Expected no `{name}`: PrivacyCheckpoint saves the best and the last of what"
                    " validations measured, `privacy` and `utility`."
                    " `Trainer(val_check_interval=...)` sets how often."
                )
        _check_name("privacy", privacy)
        _check_name("utility", utility)
        _check_budget(privacy, budget)
        if confidence is not None:
            check_confidence("confidence", confidence)
        kwargs.setdefault("save_last", True)
        super().__init__(dirpath, filename, monitor=utility, mode=mode, save_top_k=1, **kwargs)
        self.privacy = privacy
        self.budget = float(budget)
        self.utility = utility
        self.confidence = confidence
        self.history: list[Validation] = []
        self.chosen: Validation | None = None
        self._low_name = insert_before_loader_suffix(privacy, CI_SUFFIXES[0])
        self._high_name = insert_before_loader_suffix(privacy, CI_SUFFIXES[1])
        # The logged name that must stay within the budget.
        if confidence is None:
            self._limited_name = privacy
        else:
            self._limited_name = self._high_name
        self._required_names = tuple(dict.fromkeys((privacy, self._limited_name, utility)))
        self._validated_at_step = -1
        self._logged_at_step = -1
        self._has_new_points = False
        self._has_warned_of_nan = False
        self._is_resuming = True

    @property
    def state_key(self) -> str:
        """Name of this callback's state in a checkpoint, another one for each of two callbacks."""
        return self._generate_state_key(
            privacy=self.privacy,
            budget=self.budget,
            utility=self.utility,
            mode=self.mode,
            confidence=self.confidence,
        )

    # Validation of names

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Check the names; warn if the budget is for an attacker who is not fitted on anything."""
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        warn_of_spawned_processes(trainer, "PrivacyCheckpoint", "`chosen` and `history`")
        for monitor in find_monitors(trainer):
            self._check_monitor(monitor)
        entry = _find_scalar(self.privacy)
        if entry is not None and entry.family not in _FAMILIES_AFTER_ATTACKS:
            rank_zero_warn(
                f"PrivacyCheckpoint limits {self.privacy!r}: disclosure to an attacker who compares"
                " untransformed embeddings. An attacker who transforms them may learn far more:"
                " limit 'val/privacy/disclosure'.",
                UserWarning,
            )

    def _check_monitor(self, monitor: PrivacyMonitor) -> None:
        """Raise where the monitor would log a name this needs, but does not.

        Raise also where its intervals have another confidence level than this callback.
        """
        for name in map(strip_loader_suffix, self._required_names):
            if monitor.owns_name(name) and name not in monitor.logged_names:
                raise ValueError(
                    f"PrivacyCheckpoint monitors {name!r}, but PrivacyMonitor does not log it."
                    f" {self._advise_on_missing_name(name, monitor)}"
                )
        is_privacy_logged = strip_loader_suffix(self.privacy) in monitor.logged_names
        if self.confidence is None or not is_privacy_logged:
            return
        if monitor.intervals != self.confidence:
            raise ValueError(
                "Expected `confidence` to be that of the intervals PrivacyMonitor logs,"
                f" {monitor.intervals}, but got {self.confidence}."
            )

    def _advise_on_missing_name(self, name: str, monitor: PrivacyMonitor) -> str:
        """Return what to do about a name that the monitor does not log."""
        is_end_of_interval = name == strip_loader_suffix(self._high_name)
        if self.confidence is not None and is_end_of_interval:
            return f"It needs `intervals={self.confidence}`, and some scalars have no interval."
        return closest_or_known_names(name, monitor.logged_names)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Save after a validation; after the sanity check only look for names not logged."""
        if trainer.sanity_checking:
            self._check_names_in_sanity_check(trainer)
        else:
            self._validated_at_step = trainer.global_step
            self._logged_at_step = logging_step(trainer)
        super().on_validation_end(trainer, pl_module)

    def _check_names_in_sanity_check(self, trainer: Any) -> None:
        names_of_monitors: set[str] = set()
        for monitor in find_monitors(trainer):
            names_of_monitors.update(monitor.logged_names)
        suffixes = loader_suffixes(trainer).values()
        logged = set(trainer.callback_metrics)
        for suffix in suffixes:
            logged.update(f"{name}{suffix}" for name in names_of_monitors)
        for name in self._required_names:
            if name in logged:
                continue
            if strip_loader_suffix(name) in names_of_monitors:
                raise ValueError(self._describe_missing(trainer, name, logged))
            # With several dataloaders, or in a training step, it may be logged later.
            if len(suffixes) == 1 and not name.startswith("train"):
                rank_zero_warn(self._describe_missing(trainer, name, logged), UserWarning)

    def _describe_missing(self, trainer: Any, name: str, logged: set[str]) -> str:
        if _find_scalar(name) is not None and not find_monitors(trainer):
            hint = "No PrivacyMonitor is among the callbacks."
        else:
            hint = closest_or_known_names(name, logged - {"epoch", "step"})
        return f"PrivacyCheckpoint monitors {name!r}, but it was not logged. {hint}"

    # Saving

    def _save_topk_checkpoint(self, trainer: Any, monitor_candidates: dict[str, Tensor]) -> None:
        """Record a validation, and save its weights if they are the best within the budget."""
        if self._are_weights_measured(trainer):
            for name in self._required_names:
                if name not in monitor_candidates:
                    raise ValueError(self._describe_missing(trainer, name, set(monitor_candidates)))
            validation = self._read_validation(monitor_candidates)
            # All processes must choose the same one, also where one of them has logged a value of
            # its own.
            validation = trainer.strategy.broadcast(validation)
            self.history.append(validation)
            self._has_new_points = True
            self._warn_if_not_finite(validation)
            self._forget_chosen_if_missing(trainer)
            if validation.is_within_budget and math.isfinite(validation.utility):
                monitor_candidates[self.utility] = torch.tensor(validation.utility)
                super()._save_topk_checkpoint(trainer, monitor_candidates)
        # Lightning writes the last checkpoint only after a step of which something was saved. It is
        # due in any case.
        self._last_global_step_saved = trainer.global_step

    def _update_best_and_save(
        self, current: Tensor, trainer: Any, monitor_candidates: dict[str, Tensor]
    ) -> None:
        # Before saving, because the file also holds this state.
        self.chosen = self.history[-1]
        super()._update_best_and_save(current, trainer, monitor_candidates)
        self._draw_history(trainer)

    def _are_weights_measured(self, trainer: Any) -> bool:
        """Return whether the logged values belong to the current weights."""
        if trainer.enable_validation and self._validated_at_step != trainer.global_step:
            return False
        for monitor in find_monitors(trainer):
            for name in map(strip_loader_suffix, self._required_names):
                if name in monitor.logged_names and not monitor.was_due(trainer, name):
                    return False
        return True

    def _read_validation(self, logged: Mapping[str, Tensor]) -> Validation:
        missing = torch.tensor(math.nan)
        privacy = float(logged[self.privacy])
        limited = float(logged[self._limited_name])
        return Validation(
            epoch=int(logged["epoch"]),
            step=int(logged["step"]),
            privacy=privacy,
            low=float(logged.get(self._low_name, missing)),
            high=float(logged.get(self._high_name, missing)),
            utility=float(logged[self.utility]),
            is_within_budget=math.isfinite(privacy) and limited <= self.budget,
        )

    def _warn_if_not_finite(self, validation: Validation) -> None:
        value_of_name = {self.privacy: validation.privacy, self.utility: validation.utility}
        if self.confidence is not None:
            value_of_name[self._high_name] = validation.high
        is_finite = all(math.isfinite(value) for value in value_of_name.values())
        if is_finite or self._has_warned_of_nan:
            return
        self._has_warned_of_nan = True
        described = ", ".join(f"{name} is {value:.3g}" for name, value in value_of_name.items())
        rank_zero_warn(
            f"PrivacyCheckpoint cannot choose epoch {validation.epoch}: {described}. Further epochs"
            " of this kind are left out without a warning.",
            UserWarning,
        )

    def _forget_chosen_if_missing(self, trainer: Any) -> None:
        """Forget the chosen checkpoint, and warn, where its file was removed."""
        if self.chosen is None or self.file_exists(self.best_model_path, trainer):
            return
        rank_zero_warn(
            f"PrivacyCheckpoint no longer finds its best checkpoint, {self.best_model_path}, of"
            f" epoch {self.chosen.epoch}. It chooses among later epochs only.",
            UserWarning,
        )
        self.chosen = None
        self.best_k_models = {}
        self.best_model_path = ""
        self.best_model_score = None
        self.kth_best_model_path = ""

    # Start and end of a training

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Forget a checkpoint of a resumed run that is no longer on disk."""
        super().on_train_start(trainer, pl_module)
        self._forget_chosen_if_missing(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Draw the history; warn if no checkpoint is within the budget."""
        super().on_train_end(trainer, pl_module)
        if trainer.fast_dev_run:
            return
        self._forget_chosen_if_missing(trainer)
        self._draw_history(trainer)
        if not self.history:
            rank_zero_warn(
                "PrivacyCheckpoint chose nothing: no epoch has all the values it monitors.",
                UserWarning,
            )
        elif not any(validation.is_within_budget for validation in self.history):
            finite = [row for row in self.history if math.isfinite(row.privacy)]
            closest = min(finite, key=lambda row: row.privacy, default=self.history[-1])
            rank_zero_warn(
                f"No epoch is within the budget of {self.budget:g} for {self._limited_name}, so"
                f" there is no best checkpoint. The least {self.privacy} was {closest.privacy:.3g},"
                f" in epoch {closest.epoch}.",
                UserWarning,
            )

    def _draw_history(self, trainer: Any) -> None:
        """Write the figure of utility over disclosure, if a validation was added to it."""
        writers = []
        if self._has_new_points and find_spec("matplotlib"):  # or a monitor has warned
            writers = figure_writers(trainer)
        self._has_new_points = False
        if not writers:
            return
        from vpmetrics.plotting.system_plots import draw_utility
        from vpmetrics.report.figures import CARD

        entry = _find_scalar(self.privacy)
        key = last_component(self.privacy) if entry is None else entry.key
        labelled = [("validation", validation) for validation in self.history]
        if self.chosen is not None:
            labelled.append((f"chosen, epoch {self.chosen.epoch}", self.chosen))
        points = []
        for label, validation in labelled:
            scalars = {
                key: validation.privacy,
                f"{key}{CI_SUFFIXES[0]}": validation.low,
                f"{key}{CI_SUFFIXES[1]}": validation.high,
            }
            points.append((label, scalars, validation.utility))
        (ax,) = CARD.make_axes()
        figure, _ = draw_utility(
            points, self.utility, self.mode == "min", ax, key=key, budget=self.budget
        )
        # The step of the scalars of the last validation: at the end of an epoch the Trainer has
        # counted further.
        tag = f"{suffix_first_component(self.privacy, '_figures')}/utility"
        for write in writers:
            write(tag, figure, self._logged_at_step)

    # Resumed runs

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run continues from."""
        return {
            **super().state_dict(),
            "history": [asdict(validation) for validation in self.history],
            "chosen": None if self.chosen is None else asdict(self.chosen),
        }

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Decide whether to load the state: not for a test after a training."""
        self._is_resuming = trainer.state.fn == "fit" or not self.history

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from where a run stopped."""
        if self._is_resuming:
            super().load_state_dict(state_dict)
            self.history = [Validation(**row) for row in state_dict["history"]]
            if state_dict["chosen"] is None:
                self.chosen = None
            else:
                self.chosen = Validation(**state_dict["chosen"])
            if self.chosen is not None:
                # Also from another folder, where Lightning would let any later epoch replace it.
                self.best_model_score = torch.tensor(self.chosen.utility)
                self.best_k_models = {self.best_model_path: self.best_model_score}
                self.kth_best_model_path = self.best_model_path
        self._is_resuming = True


def insert_before_loader_suffix(name: str, suffix: str) -> str:
    """Return a logged name with a suffix after its key, and before the suffix of its dataloader."""
    plain = strip_loader_suffix(name)
    return f"{plain}{suffix}{name.removeprefix(plain)}"


def _find_scalar(name: str) -> Scalar | None:
    """Return the entry of the registry for a logged name, or None."""
    try:
        return scalar(last_component(name))
    except KeyError:
        return None


def _check_name(argument: str, name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(
            f"Expected `{argument}` to be the name of a logged value, but got {name!r}."
        )


def _check_budget(privacy: str, budget: Any) -> None:
    """Raise where a budget is no number, or limits a value of which less is not better."""
    is_number = isinstance(budget, (int, float)) and not isinstance(budget, bool)
    if not is_number or not 0 <= budget < math.inf:
        raise ValueError(
            f"Expected `budget` to be a finite number of at least 0, but got {budget!r}."
        )
    entry = _find_scalar(privacy)
    if entry is None:
        return
    if entry.direction != "low":
        raise ValueError(
            "Expected `privacy` to name a disclosure, of which less is better, such as"
            f" 'val/privacy/disclosure', but got {privacy!r}."
        )
    if entry.unit == PERCENT and budget > 1:
        raise ValueError(
            f"Expected `budget` to be a share, such as 0.05 for 5 %, but got {budget!r} for"
            f" {privacy!r}."
        )
