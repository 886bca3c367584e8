"""A callback that measures in every validation how much a voice anonymiser discloses."""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from vpmetrics._scores.registry import (
    CI_SUFFIXES,
    add_interval_keys,
    required_families,
    scalar,
    scalar_keys,
)
from vpmetrics._util.distributed import raise_on_all_ranks
from vpmetrics._util.dtypes import read_numbers
from vpmetrics._util.scalar import check_scalar_names, strip_loader_suffix
from vpmetrics._util.validation import check_whole_number
from vpmetrics._utterances.conditions import CONDITIONS
from vpmetrics.attributes import AttributeDisclosure
from vpmetrics.lightning.step_outputs import (
    SIDES,
    Keys,
    freeze_encoders,
    read_unskipped_outputs,
    resolve_keys,
)
from vpmetrics.lightning.trainers import (
    CallbackBase,
    figure_writers,
    loader_suffixes,
    logging_step,
    rank_zero_loggers,
    suffix_first_component,
    warn_of_spawned_processes,
)
from vpmetrics.report.checks import FAILED
from vpmetrics.report.privacy_report import EvaluatedSystem, PrivacyReport
from vpmetrics.suite import VoicePrivacy

_VALIDATION = re.compile(r"^(val|valid|validation)(?=[/_]|$)")
_OBSERVED = ("original", "protected", "speakers", "sessions")  # arguments of VoicePrivacy.observe
CONDITIONS_SUFFIX = "_conditions"  # of the prefix, for the numbers of one condition
# Families of the registry that need attacks or conversations.
_EXPENSIVE_FAMILIES = frozenset(
    {"attack", "attack_limit", "attacked_population", "conversation", "found", "headline", "worst"}
)


@dataclass
class _LoaderData:
    """What one validation has accumulated of one dataloader."""

    suite: VoicePrivacy
    attributes: AttributeDisclosure | None
    row_counts: Tensor
    """All rows, and those that are not finite on each side, ``(3,)``; on the device."""


class PrivacyMonitor(CallbackBase):
    r"""Measure privacy in every validation of a ``Trainer``, log it, and draw it.

    ``validation_step`` (and ``test_step``) returns a dictionary that holds, besides anything else,
    the embeddings of a batch before and after protection, and the speakers. The monitor accumulates
    them in a :class:`vpmetrics.VoicePrivacy` and logs its scalars, so that the progress bar,
    ``EarlyStopping`` and ``ModelCheckpoint(monitor="val/privacy/disclosure")`` see them: as
    ``<prefix>/<key>`` those of the whole system, and as ``<prefix>_conditions/<key>`` those of one
    condition, such as ``op_d_ece``. In ``trainer.test`` a prefix that begins with ``val`` begins
    with ``test`` instead; any other gets ``test/`` before it. Several dataloaders are measured one
    by one; each name then ends in ``/dataloader_idx_<k>``, as Lightning's own do. TensorBoard,
    Weights & Biases, MLflow and Comet get figures, as ``val_figures/privacy/<figure>``.

    Works with the Trainer of ``pytorch_lightning`` and with that of ``lightning.pytorch``. Under a
    distributed strategy every process logs the value of all processes together; strategies that
    spawn are not supported. A distributed sampler repeats utterances to fill its last batch: return
    ``utterances``, so that they count once. The sanity check finds mistakes in what a step returns,
    and is neither logged nor kept.

    In an epoch that is not measured nothing is logged, and former values are removed from
    ``trainer.callback_metrics``. ``EarlyStopping`` and :class:`PrivacyCheckpoint` pass over such an
    epoch. ``ModelCheckpoint`` and a scheduler that monitor one of these names need the same
    frequency. The Trainer's profiler shows the time as ``[Callback]PrivacyMonitor.embed``,
    ``.compute`` and ``.figures``.

    Args:
        prefix: First part of the names of the logged scalars.
        keys: Keys of ``original``, ``protected``, ``speakers`` and, if returned, ``utterances``,
            ``sessions`` and ``groups`` in a step's dictionary: three to six names in this order. Or
            a dictionary from these, from ``is_reference`` and from ``lengths`` to their keys. Or a
            function from what the step returned to a tuple of these values, to a dictionary of the
            arguments of ``VoicePrivacy.update``, or to None for a batch that does not count.
        metrics: ``"headline"``, ``"all"`` or the keys to log, as in
            :class:`vpmetrics.VoicePrivacy`. Other keys are neither computed nor drawn.
        suite: The :class:`vpmetrics.VoicePrivacy` to measure with, in place of the default one. It
            has its own ``metrics`` and ``intervals``.
        intervals: Confidence level, such as 0.95: also logs ``<key>_low`` and ``<key>_high``.
        every_n_epochs: Epochs from one measurement to the next.
        report_every_n_epochs: Epochs from one measurement of everything to the next. Between them
            only the cheap keys are logged: those that need neither an attack nor conversations.
            Attributes and figures belong to reports.
        figures_every_n_epochs: Epochs from one set of figures to the next, besides the first and
            the last report; None for none.
        encoder: The attacker's speaker encoder, see :func:`vpmetrics.audio.as_encoder`. With it,
            ``original`` and ``protected`` are audio: tensors ``(B, ..., T)``, or lists of tensors
            ``(..., T)`` that are each as long as their utterance. Padded tensors need ``lengths``
            in ``keys``, integers ``(B,)``. The encoder is frozen, kept in evaluation mode, and
            moved to the device of the module. Original speech of the validation before is not
            embedded again. A dictionary ``{name: encoder}`` gives one attacker all of them.
        sample_rate: Samples per second of that audio; required for an encoder that knows its own,
            for which the audio is resampled.
        encoder_dtype: Type the encoder runs in under autocast; None runs it in the type of its
            weights, for any precision of the Trainer.
        watch_training: Let attackers also learn from what ``training_step`` returns under the same
            keys; see :meth:`vpmetrics.VoicePrivacy.observe`. They forget it at the start of every
            epoch, because the anonymiser changes.
        attributes: Names of attributes such as ``"sex"`` and their keys in a step's dictionary;
            logs ``<prefix>/<name>_disclosure`` and ``<name>_chance``, see
            :class:`vpmetrics.AttributeDisclosure`.
        prog_bar: Keys in the progress bar.

    Attributes:
        history: One row per measurement in ``trainer.fit``: ``epoch``, ``step``,
            ``dataloader_idx``, ``seconds`` and the scalars.

    Example:
        >>> import pytorch_lightning as pl
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from vpmetrics.data import demo_voices
        >>> class Anonymiser(pl.LightningModule):
        ...     def validation_step(self, batch):
        ...         original, protected, speakers = batch
        ...         return {"original": original, "protected": protected, "speakers": speakers}
        >>> voices = demo_voices()
        >>> loader = DataLoader(
        ...     TensorDataset(voices.original, voices.protected["B2"], voices.speakers), 518
        ... )
        >>> monitor = PrivacyMonitor(metrics=["deid", "gvd"])
        >>> quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
        >>> trainer = pl.Trainer(accelerator="cpu", callbacks=[monitor], **quiet)
        >>> results = trainer.validate(Anonymiser(), loader, verbose=False)
        >>> round(results[0]["val/privacy/deid"], 3)
        0.375
    """

    def __init__(
        self,
        prefix: str = "val/privacy",
        keys: Keys = ("original", "protected", "speakers"),
        metrics: str | Sequence[str] = "headline",
        *,
        suite: VoicePrivacy | None = None,
        intervals: float | None = None,
        every_n_epochs: int = 1,
        report_every_n_epochs: int = 1,
        figures_every_n_epochs: int | None = 5,
        encoder: Any = None,
        sample_rate: int | None = None,
        encoder_dtype: torch.dtype | None = None,
        watch_training: bool = False,
        attributes: Mapping[str, str] | None = None,
        prog_bar: Sequence[str] = ("disclosure", "deid"),
    ) -> None:
        super().__init__()
        _check_prefix(prefix)
        check_whole_number("every_n_epochs", every_n_epochs, least=1)
        check_whole_number("report_every_n_epochs", report_every_n_epochs, least=1)
        if figures_every_n_epochs is not None:
            check_whole_number("figures_every_n_epochs", figures_every_n_epochs, least=1)
        if suite is None:
            suite = VoicePrivacy(metrics=metrics, intervals=intervals)
        elif not isinstance(suite, VoicePrivacy):
            raise TypeError(
                f"Expected `suite` to be a VoicePrivacy or None, but got {type(suite).__name__}."
            )
        elif metrics != "headline" or intervals is not None:
            raise ValueError(
                "Expected neither `metrics` nor `intervals` with `suite`, which has its own."
            )
        self.prefix = prefix
        self.suite = suite
        self.intervals = suite.intervals
        self.every_n_epochs = every_n_epochs
        self.report_every_n_epochs = report_every_n_epochs
        self.figures_every_n_epochs = figures_every_n_epochs
        self.watch_training = watch_training
        self.attributes = dict(attributes or {})
        self._keys = resolve_keys(keys, encoder is not None)
        if encoder is None:
            self._encoder = None
        else:
            self._encoder = freeze_encoders(encoder, sample_rate, encoder_dtype)
        test_prefix = _VALIDATION.sub("test", prefix)
        if test_prefix == prefix:
            self._test_prefix = f"test/{prefix}"
        else:
            self._test_prefix = test_prefix
        self.metrics = self._list_logged_keys()
        """Keys of the suite that are logged where they are defined."""
        known_keys = scalar_keys(
            tuple(CONDITIONS), has_attacks=True, has_sessions=True, sizes=suite.sizes
        )
        self.prog_bar = check_scalar_names("prog_bar", prog_bar, known_keys)
        self.history: list[dict[str, float]] = []
        # By stage and dataloader; kept, as attackers keep what they observed.
        self._suites: dict[tuple[str, int], VoicePrivacy] = {}
        self._loader_data: dict[int, _LoaderData] = {}  # by dataloader, of this validation
        self._pending_figures: dict[int, Callable[[], None]] = {}  # by dataloader
        self._due_keys: tuple[str, ...] = ()
        self._measured_at_step = -1
        self._num_measurements = 0
        self._held_error: Exception | None = None
        self._given_warnings: set[str] = set()
        self._can_draw = False
        self._has_observed = False
        self._is_resuming = True

    def _list_logged_keys(self) -> tuple[str, ...]:
        """Return the keys of the suite; those with and without sessions if there may be either."""
        keys: dict[str, None] = {}
        if callable(self._keys) or "sessions" not in self._keys:
            keys |= dict.fromkeys(self.suite._requested_keys(has_sessions=False))
        if callable(self._keys) or "sessions" in self._keys:
            keys |= dict.fromkeys(self.suite._requested_keys(has_sessions=True))
        if self.intervals is None:
            return tuple(keys)
        return tuple(add_interval_keys(keys))

    @property
    def state_key(self) -> str:
        """Name of this callback's state in a checkpoint."""
        return self._generate_state_key(prefix=self.prefix)

    # Names of what is logged

    @property
    def logged_names(self) -> tuple[str, ...]:
        """Names of the scalars of a validation; with several dataloaders, without their suffix."""
        return tuple(name_of_key(self.prefix, key) for key in self.metrics)

    def owns_name(self, name: str) -> bool:
        """Return whether a logged name begins with the prefix of this monitor."""
        return name.startswith((f"{self.prefix}/", f"{self.prefix}{CONDITIONS_SUFFIX}/"))

    def count_epochs_between(self, name: str) -> int:
        """Return how many epochs lie between two measurements of a logged name."""
        cheap_names = [name_of_key(self.prefix, key) for key in select_cheap_keys(self.metrics)]
        if name in cheap_names:
            return self.every_n_epochs
        return math.lcm(self.every_n_epochs, self.report_every_n_epochs)

    def was_due(self, trainer: Any, name: str) -> bool:
        """Return whether the validation of the current weights had to measure a logged name."""
        due_names = [name_of_key(self.prefix, key) for key in self._due_keys]
        return name in due_names and self._measured_at_step == trainer.global_step

    # Start of a run

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Check the encoder, the loggers, the checkpoints, and how long the training is."""
        warn_of_spawned_processes(
            trainer, "PrivacyMonitor", "`history` and what attackers observed"
        )
        self._given_warnings.clear()
        self._num_measurements = 0
        self._held_error = None
        if self._encoder is not None:
            self._encoder.check_is_untrained(pl_module.parameters())
        if stage != "predict" and self.figures_every_n_epochs is not None:
            reason = _explain_missing_figures(trainer)
            self._can_draw = not reason
            if reason:
                self._warn_once(f"PrivacyMonitor draws no figures: {reason}.")
            elif figure_writers(trainer):
                # Imported now, so that the first epoch takes no longer than others.
                importlib.import_module("vpmetrics.report.figures")
        if stage == "fit":
            self._check_model_checkpoints(trainer)
            self._warn_if_training_is_too_short(trainer)
        # Where it is strict, early stopping raises in the epochs that are not measured.
        for stopping in trainer.early_stopping_callbacks:
            name = strip_loader_suffix(stopping.monitor)
            if name in self.logged_names and self.count_epochs_between(name) > 1:
                stopping.strict = False
        # Every process logs the value of all processes, which Lightning cannot know.
        prefixes = "|".join(map(re.escape, (self.prefix, self._test_prefix)))
        message = rf"It is recommended to use `self.log\('(?:{prefixes})(?:{CONDITIONS_SUFFIX})?/"
        warnings.filterwarnings("ignore", message=message)

    def _check_model_checkpoints(self, trainer: Any) -> None:
        """Raise for a checkpoint that looks for a value in an epoch that does not measure it."""
        for checkpoint in trainer.checkpoint_callbacks:
            name = strip_loader_suffix(checkpoint.monitor or "")
            passes_over = getattr(checkpoint, "passes_over_unmeasured_epochs", False)
            if name not in self.logged_names or passes_over:
                continue
            epochs = self.count_epochs_between(name)
            epochs_between_looks = math.lcm(
                trainer.check_val_every_n_epoch or 1, checkpoint._every_n_epochs or 1
            )
            if epochs_between_looks % epochs:
                raise ValueError(
                    f"{type(checkpoint).__name__} monitors {name!r}, which PrivacyMonitor measures"
                    f" every {epochs} epochs only; it would raise in the first epoch. Give it"
                    f" `every_n_epochs={epochs}`, give `check_val_every_n_epoch={epochs}` to the"
                    " Trainer, or use PrivacyCheckpoint, which passes over epochs that are not"
                    " measured."
                )

    def _warn_if_training_is_too_short(self, trainer: Any) -> None:
        """Warn if no epoch of the training will be measured."""
        if not trainer.max_epochs or trainer.max_epochs < 0:
            return
        measured_by_option = {"every_n_epochs": (self.every_n_epochs, "nothing")}
        if len(select_cheap_keys(self.metrics)) < len(self.metrics):
            epochs_between_reports = math.lcm(self.every_n_epochs, self.report_every_n_epochs)
            what = "neither attacks nor conversations"
            measured_by_option["report_every_n_epochs"] = (epochs_between_reports, what)
        for option, (epochs, what) in measured_by_option.items():
            first_epoch = math.lcm(epochs, trainer.check_val_every_n_epoch or 1)
            if first_epoch > trainer.max_epochs:
                self._warn_once(
                    f"PrivacyMonitor will measure {what}: with `{option}={getattr(self, option)}`"
                    f" the first time is after epoch {first_epoch}, and the training has"
                    f" {trainer.max_epochs} epochs."
                )
                return

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Let attackers forget what they observed of earlier weights."""
        if self.watch_training:
            if self._encoder is not None:
                self._encoder.freeze_and_rotate_cache(pl_module.device)
            for suite in self._suites.values():
                suite.reset(observed=True)

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Remove logged values of an earlier epoch; start a measurement if one is due."""
        for name in list(trainer.callback_metrics):
            if self.owns_name(name):
                del trainer.callback_metrics[name]
        self._due_keys = self._choose_due_keys(trainer)
        if not self._due_keys:
            return
        self._pending_figures.clear()
        self._loader_data.clear()
        for stage_and_loader, suite in list(self._suites.items()):
            if suite.device == pl_module.device:
                suite.reset()  # drop rows that an interrupted validation may have left
            else:
                del self._suites[stage_and_loader]  # the module has moved
        if self._encoder is not None:
            self._encoder.freeze_and_rotate_cache(pl_module.device)

    on_test_epoch_start = on_validation_epoch_start

    def _choose_due_keys(self, trainer: Any) -> tuple[str, ...]:
        """Return the keys that this validation measures."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return self.metrics
        epoch_number = trainer.current_epoch + 1
        if epoch_number % self.every_n_epochs:
            return ()
        if epoch_number % self.report_every_n_epochs:
            return select_cheap_keys(self.metrics)
        return self.metrics

    @property
    def _is_report_due(self) -> bool:
        return self._due_keys == self.metrics

    # Every batch

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Let attackers learn from what a training step returned."""
        if not self.watch_training or self._held_error is not None:
            return
        with self._hold_error_if_distributed(trainer):
            arguments = self._read_arguments(trainer, pl_module, outputs, "training_step")
            if arguments is None:
                return
            observed = {name: arguments[name] for name in _OBSERVED if name in arguments}
            with self._explain_errors("training_step"):
                for loader in loader_suffixes(trainer) or (0,):
                    self._suite_of_loader("val", loader, pl_module).observe(**observed)
            self._has_observed = True

    def on_validation_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Accumulate what a step returned."""
        if not self._due_keys or self._held_error is not None:
            return
        step_name = "test_step" if trainer.testing else "validation_step"
        with self._hold_error_if_distributed(trainer):
            arguments = self._read_arguments(trainer, pl_module, outputs, step_name)
            if arguments is None:
                return
            data = self._data_of_loader(trainer, pl_module, dataloader_idx)
            with self._explain_errors(step_name):
                data.suite.update(**arguments)
                if data.attributes is not None:
                    labels = self._read_attributes(outputs)
                    sides = (arguments["original"], arguments["protected"])
                    data.attributes.update(*sides, arguments["speakers"], labels)
            data.row_counts = data.row_counts + _count_rows(arguments, pl_module.device)

    on_test_batch_end = on_validation_batch_end

    @contextmanager
    def _hold_error_if_distributed(self, trainer: Any) -> Iterator[None]:
        """Keep an error of one of several ranks, which would leave the others waiting."""
        try:
            yield
        except Exception as error:
            if trainer.world_size == 1:
                raise
            self._held_error = error

    def _raise_held_errors(self, trainer: Any) -> None:
        """Raise on all ranks if one of them holds an error; called before the next collective."""
        held_error = self._held_error
        self._held_error = None
        raise_on_all_ranks(held_error)

    def _read_attributes(self, outputs: Any) -> dict[str, Any]:
        """Return the labels of each attribute that a step returned."""
        labels = {}
        for name, key in self.attributes.items():
            if not isinstance(outputs, Mapping) or key not in outputs:
                raise ValueError(
                    f"Expected the step to return {key!r}, a label of each row, for `attributes`."
                )
            labels[name] = outputs[key]
        return labels

    @contextmanager
    def _explain_errors(self, step_name: str) -> Iterator[None]:
        """Add to an error of the metric where its arguments came from."""
        try:
            yield
        except (TypeError, ValueError) as error:
            source = ""
            if not callable(self._keys):
                source = f" `keys` reads them from {tuple(self._keys.values())} of the dictionary."
            message = f"PrivacyMonitor cannot use what `{step_name}` returned. {error}{source}"
            raise type(error)(message) from error

    def _read_arguments(
        self, trainer: Any, pl_module: Any, outputs: Any, step_name: str
    ) -> dict[str, Any] | None:
        """Return the arguments of ``update``, audio embedded; None for a batch that is skipped."""
        arguments = read_unskipped_outputs(outputs, self._keys, step_name)
        if arguments is None:
            return None
        if self._encoder is not None:
            with trainer.profiler.profile("[Callback]PrivacyMonitor.embed"):
                arguments = self._encoder.embed(
                    arguments, pl_module.device, is_training=step_name == "training_step"
                )
        for name, value in arguments.items():
            if name in SIDES and isinstance(value, Mapping):
                embeddings_by_encoder: dict[str, Tensor] = {}
                for encoder, rows in value.items():
                    embeddings_by_encoder[encoder] = torch.as_tensor(rows).to(pl_module.device)
                arguments[name] = embeddings_by_encoder
            elif isinstance(value, Tensor) or (name in SIDES and value is not None):
                arguments[name] = torch.as_tensor(value).to(pl_module.device)
        return arguments

    def _suite_of_loader(self, stage: str, loader: int, pl_module: Any) -> VoicePrivacy:
        """Return the metric of a dataloader, the same in every epoch."""
        if (stage, loader) not in self._suites:
            suite = self.suite
            if self.watch_training and ("val", 0) in self._suites:
                # In a test, attackers keep what they observed during training.
                suite = self._suites["val", 0]
            suite = deepcopy(suite)
            suite.reset()
            suite.validate_args = False  # it would force a GPU sync for every batch
            self._suites[stage, loader] = suite.to(pl_module.device)
        return self._suites[stage, loader]

    def _data_of_loader(self, trainer: Any, pl_module: Any, loader: int) -> _LoaderData:
        """Return what this validation accumulates of a dataloader; at first without rows."""
        if loader in self._loader_data:
            return self._loader_data[loader]
        attributes = None
        if self._is_report_due:
            suite = self._suite_of_loader(_stage(trainer), loader, pl_module)
            if self.attributes:
                attributes = AttributeDisclosure(tuple(self.attributes), validate_args=False)
                attributes = attributes.to(pl_module.device)
        else:
            suite = deepcopy(self.suite)
            suite.reset(observed=True)
            suite.attacks = None
            suite.metrics = tuple(key for key in self._due_keys if not key.endswith(CI_SUFFIXES))
            suite.validate_args = False
            suite = suite.to(pl_module.device)
        row_counts = torch.zeros(1 + len(SIDES), dtype=torch.long, device=pl_module.device)
        self._loader_data[loader] = _LoaderData(suite, attributes, row_counts)
        return self._loader_data[loader]

    # After the last batch

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure, log and draw."""
        self._raise_held_errors(trainer)
        if not self._due_keys:
            return
        if not trainer.sanity_checking:
            self._measured_at_step = trainer.global_step
            for loader, suffix in loader_suffixes(trainer).items():
                self._measure_loader(trainer, pl_module, loader, suffix)
        for suite in self._suites.values():
            suite.reset()
        self._loader_data.clear()

    on_test_epoch_end = on_validation_epoch_end

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Raise on all ranks what went wrong on one of them in a training step."""
        if self.watch_training:
            self._raise_held_errors(trainer)

    def _measure_loader(self, trainer: Any, pl_module: Any, loader: int, suffix: str) -> None:
        """Measure one dataloader, log and draw it."""
        prefix = self._test_prefix if trainer.testing else self.prefix
        name_of_loader = f"{prefix}{suffix}"
        data = self._data_of_loader(trainer, pl_module, loader)  # also on a rank without rows
        counts_of_all_ranks = trainer.strategy.reduce(data.row_counts, reduce_op="sum")
        num_rows, *num_broken = counts_of_all_ranks.tolist()
        if num_rows == 0:
            return
        for side, count in zip(SIDES, num_broken, strict=True):
            if count:
                rank_zero_warn(
                    f"{count} of {num_rows} rows of `{side}` are not finite ({name_of_loader},"
                    f" epoch {trainer.current_epoch}). Numbers that need them are NaN.",
                    UserWarning,
                )
        start = time.perf_counter()
        with trainer.profiler.profile("[Callback]PrivacyMonitor.compute"):
            with self._warn_once_per_cause(name_of_loader, is_nan_explained=any(num_broken)):
                report, scalars = self._compute(data)
            value_of_key = read_numbers(scalars)
        self._num_measurements += 1
        if trainer.state.fn == "fit":
            row = {
                "epoch": trainer.current_epoch,
                "step": trainer.global_step,
                "dataloader_idx": loader,
            }
            self.history.append({**row, "seconds": time.perf_counter() - start, **value_of_key})
        for key, value in scalars.items():
            name = f"{name_of_key(prefix, key)}{suffix}"
            pl_module.log(
                name,
                value,
                prog_bar=key in self.prog_bar,
                add_dataloader_idx=False,
                sync_dist=False,
            )
        if report is not None:
            self._draw_if_due(trainer, EvaluatedSystem(prefix, report), loader, suffix)

    def _compute(self, data: _LoaderData) -> tuple[PrivacyReport | None, dict[str, Tensor]]:
        """Return the report where one is due, and the scalars to log; warn of failed checks."""
        if not self._is_report_due:
            return None, data.suite.compute()
        report = data.suite.report()
        scalars = {key: report.scalars[key] for key in self.metrics if key in report.scalars}
        if data.attributes is not None:
            disclosed = data.attributes.compute()
            logged_keys = [key for key in disclosed if key.endswith(("_disclosure", "_chance"))]
            scalars.update({key: disclosed[key] for key in logged_keys})
        for check in report.checks:
            if check.status == FAILED:
                warnings.warn(check.message, UserWarning, stacklevel=1)
        return report, scalars

    def _draw_if_due(self, trainer: Any, system: EvaluatedSystem, loader: int, suffix: str) -> None:
        if not (self._can_draw and figure_writers(trainer)):
            return
        draw = partial(_write_figures, trainer, system, suffix, logging_step(trainer))
        if trainer.state.fn != "fit" or self._are_figures_due(loader):
            draw()
        else:
            self._pending_figures[loader] = draw  # drawn if this is the last report

    def _are_figures_due(self, loader: int) -> bool:
        """Return whether this report is the first one, or the first of a period of figures."""
        epoch_numbers = []  # of reports, from 1
        for row in self.history:
            epoch_number = int(row["epoch"]) + 1
            is_report = epoch_number % self.report_every_n_epochs == 0
            if is_report and row["dataloader_idx"] == loader:
                epoch_numbers.append(epoch_number)
        if len(epoch_numbers) < 2:
            return True
        epochs = self.figures_every_n_epochs or 1
        return epoch_numbers[-1] // epochs > epoch_numbers[-2] // epochs

    @contextmanager
    def _warn_once_per_cause(self, name_of_loader: str, is_nan_explained: bool) -> Iterator[None]:
        """Give new warnings of the body once; of several for one cause only the longest."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        messages = list(dict.fromkeys(str(warning.message) for warning in caught))
        for message in messages:
            is_told_by_another = any(message in longer for longer in messages if longer != message)
            is_told_by_rows = is_nan_explained and message.endswith("The result is NaN.")
            if not is_told_by_another and not is_told_by_rows:
                self._warn_once(f"PrivacyMonitor, {name_of_loader}: {message}")

    def _warn_once(self, message: str) -> None:
        if message not in self._given_warnings:
            self._given_warnings.add(message)
            rank_zero_warn(message, UserWarning)

    # After training, and resumed runs

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Draw the last measurement; warn if nothing was measured, or nothing observed."""
        while self._pending_figures:
            _, draw = self._pending_figures.popitem()
            draw()
        if trainer.fast_dev_run:
            return
        is_explained = any("will measure" in text for text in self._given_warnings)
        if self._num_measurements == 0 and not is_explained:
            self._warn_once(
                "PrivacyMonitor measured nothing in this training:"
                f" {self._explain_no_measurement(trainer)}"
            )
        if self.watch_training and not self._has_observed:
            if callable(self._keys):
                missing = ""
            else:
                missing = f" without {', '.join(map(repr, self._keys.values()))}"
            self._warn_once(
                "PrivacyMonitor(watch_training=True) observed nothing: `training_step` returned a"
                f" value{missing}."
            )

    def _explain_no_measurement(self, trainer: Any) -> str:
        if not trainer.enable_validation:
            return "the Trainer has no validation data, or the module no `validation_step`."
        if self._measured_at_step >= 0:
            return "no dataloader had a row that `keys` did not leave out."
        return f"no validation was in an epoch that `every_n_epochs={self.every_n_epochs}` counts."

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run continues from."""
        return {"history": [dict(row) for row in self.history]}

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Decide whether to load the history: not for a test after a training."""
        self._is_resuming = trainer.state.fn == "fit" or not self.history

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from where a run stopped."""
        if self._is_resuming:
            self.history = [dict(row) for row in state_dict["history"]]
        self._is_resuming = True


def find_monitors(trainer: Any) -> list[PrivacyMonitor]:
    """Return every monitor among the callbacks."""
    return [callback for callback in trainer.callbacks if isinstance(callback, PrivacyMonitor)]


def name_of_key(prefix: str, key: str) -> str:
    """Return the name a key is logged under: numbers of one condition have a group of their own.

    Example:
        >>> name_of_key("val/privacy", "disclosure"), name_of_key("val/privacy", "op_eer")
        ('val/privacy/disclosure', 'val/privacy_conditions/op_eer')
    """
    try:
        condition = scalar(key).condition
    except KeyError:  # an attribute
        condition = ""
    if condition:
        return f"{prefix}{CONDITIONS_SUFFIX}/{key}"
    return f"{prefix}/{key}"


def select_cheap_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """Return those keys that need neither an attack nor conversations.

    Example:
        >>> select_cheap_keys(
        ...     ["disclosure", "deid", "op_d_ece", "op_d_ece_strongest", "op_eer_low"]
        ... )
        ('deid', 'op_d_ece', 'op_eer_low')
    """
    cheap = []
    for key in keys:
        plain_key = key.removesuffix(CI_SUFFIXES[0]).removesuffix(CI_SUFFIXES[1])
        families = {family for _, family in required_families([plain_key])}
        if families.isdisjoint(_EXPENSIVE_FAMILIES):
            cheap.append(key)
    return tuple(cheap)


def _stage(trainer: Any) -> str:
    return "test" if trainer.testing else "val"


def _check_prefix(prefix: Any) -> None:
    if not isinstance(prefix, str):
        raise TypeError(f"Expected `prefix` to be a string, but got {type(prefix).__name__}.")
    if not prefix or prefix != prefix.strip("/ ") or "/dataloader_idx_" in prefix:
        raise ValueError(
            f"Expected `prefix` to be a name such as 'val/privacy', but got {prefix!r}."
        )


def _count_rows(arguments: Mapping[str, Any], device: torch.device) -> Tensor:
    """Return the number of rows, and of those that are not finite on each side, ``(3,)``."""
    counts = [torch.tensor(len(arguments["speakers"]), device=device)]
    for side in SIDES:
        embeddings = arguments.get(side)
        if not isinstance(embeddings, Mapping):
            embeddings = {} if embeddings is None else {"": embeddings}
        is_broken = torch.zeros(1, dtype=torch.bool, device=device)
        for rows in embeddings.values():
            is_broken = is_broken | (~rows.isfinite()).flatten(1).any(dim=1)
        counts.append(is_broken.sum())
    return torch.stack(counts)


def _explain_missing_figures(trainer: Any) -> str:
    """Return why figures cannot be logged; empty where they can, or where nothing is logged."""
    if importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed"
    if rank_zero_loggers(trainer) and not figure_writers(trainer):
        names = ", ".join(type(logger).__name__ for logger in trainer.loggers)
        return f"{names} cannot take figures"
    return ""


def _write_figures(trainer: Any, system: EvaluatedSystem, suffix: str, step: int) -> None:
    from vpmetrics.report.figures import CARD, draw_all_figures

    group = suffix_first_component(system.name, "_figures")
    with trainer.profiler.profile("[Callback]PrivacyMonitor.figures"):
        for key, figure in draw_all_figures([system], CARD).items():
            for write in figure_writers(trainer):
                write(f"{group}/{key}{suffix}", figure, step)
