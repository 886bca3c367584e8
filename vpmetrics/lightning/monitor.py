"""A callback that measures in every validation how much a voice anonymiser discloses."""

from __future__ import annotations

import importlib
import importlib.util
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from vpmetrics._scores.registry import add_interval_keys, headline_keys, scalar_keys
from vpmetrics._util.dtypes import read_numbers
from vpmetrics._util.scalar import check_scalar_names, strip_loader_suffix
from vpmetrics._util.validation import check_whole_number
from vpmetrics._utterances.conditions import CONDITIONS
from vpmetrics.attributes import AttributeDisclosure
from vpmetrics.lightning.step_outputs import SIDES, FrozenEncoder, Keys, read_unskipped_outputs, resolve_keys
from vpmetrics.lightning.trainers import (
    CallbackBase,
    chart_layout,
    figure_writers,
    loader_suffixes,
    log_scalars,
    logging_step,
    rank_zero_loggers,
    suffix_first_component,
    warn_of_spawned_processes,
    write_charts,
    write_hyperparameters,
)
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.report.verdict import FAILED
from vpmetrics.suite import VoicePrivacy

_VALIDATION = re.compile(r"^(val|valid|validation)(?=[/_]|$)")
_OBSERVED = ("original", "protected", "speakers", "sessions")  # arguments of VoicePrivacy.observe


class PrivacyMonitor(CallbackBase):
    r"""Measure privacy in every validation of a ``Trainer``, log it, and draw it.

    ``validation_step`` (and ``test_step``) returns a dictionary that holds, besides anything else, the embeddings of a
    batch before and after protection, and the speakers. The monitor accumulates them in a
    :class:`vpmetrics.VoicePrivacy` and logs its scalars as ``<prefix>/<key>``, so that the progress bar,
    ``EarlyStopping`` and ``ModelCheckpoint(monitor="val/privacy/disclosure")`` see them. In ``trainer.test``
    a prefix that begins with ``val`` begins with ``test`` instead; any other gets ``test/`` before it. Several
    dataloaders are measured one by one; each name then ends in ``/dataloader_idx_<k>``, as Lightning's own do.

    Loggers show at most 25 scalars under these names, and all others as ``val_details/privacy/<key>``. TensorBoard's
    custom scalars join attacks, conditions, and values with their intervals. TensorBoard, Weights & Biases, MLflow and
    Comet get figures, as ``val_figures/privacy/<figure>``. TensorBoard's table of saved hyperparameters shows the
    logged scalars; give the logger ``default_hp_metric=False`` for that.

    Works with the Trainer of ``pytorch_lightning`` and with that of ``lightning.pytorch``. Under a distributed
    strategy every process logs the value of all processes together; strategies that spawn are not supported. A
    distributed sampler repeats utterances to fill its last batch: return ``utterances``, so that they count once. The
    sanity check finds mistakes in what a step returns, and is neither logged nor kept.

    In epochs that ``every_n_epochs`` leaves out nothing is logged, and former values are removed from
    ``trainer.callback_metrics``; ``EarlyStopping`` passes over these epochs. A scheduler that monitors one of these
    names needs the same ``frequency``. The Trainer's profiler shows the time as ``[Callback]PrivacyMonitor.embed``,
    ``.compute`` and ``.figures``.

    Args:
        prefix: First part of the names of the logged scalars.
        keys: Keys of ``original``, ``protected``, ``speakers`` and, if returned, ``utterances``, ``sessions`` and
            ``groups`` in a step's dictionary: three to six names in this order. Or a dictionary from these, from
            ``is_reference`` and from ``lengths`` to their keys. Or a function from what the step returned to a tuple
            of these values, to a dictionary of the arguments of ``VoicePrivacy.update``, or to None for a batch that
            does not count.
        metrics: ``"headline"``, ``"all"`` or the keys to log, as in :class:`vpmetrics.VoicePrivacy`. Other keys are
            neither computed nor drawn.
        suite: The :class:`vpmetrics.VoicePrivacy` to measure with, in place of the default one. It has its own
            ``metrics`` and ``intervals``.
        intervals: Confidence level, such as 0.95: also logs ``<key>_low`` and ``<key>_high``.
        every_n_epochs: Epochs from one measurement to the next.
        figures_every_n_epochs: Epochs from one set of figures to the next, besides first and last; None for none.
        encoder: The attacker's speaker encoder, see :func:`vpmetrics.audio.as_encoder`. With it, ``original`` and
            ``protected`` are audio: tensors ``(B, ..., T)``, or lists of tensors ``(..., T)`` that are each as long as
            their utterance. Padded tensors need ``lengths`` in ``keys``, integers ``(B,)``. The encoder is frozen, kept
            in evaluation mode, and moved to the device of the module. Original speech of the validation before is not
            embedded again.
        sample_rate: Samples per second of that audio; required for an encoder that knows its own, for which the audio
            is resampled.
        encoder_dtype: Type the encoder runs in under autocast; None runs it in the type of its weights, for any
            precision of the Trainer.
        watch_training: Let attackers also learn from what ``training_step`` returns under the same keys; see
            :meth:`vpmetrics.VoicePrivacy.observe`. They forget it at the start of every epoch, because the anonymiser
            changes.
        attributes: Names of attributes such as ``"sex"`` and their keys in a step's dictionary; logs
            ``<prefix>/<name>_disclosure`` and ``<name>_chance``, see :class:`vpmetrics.AttributeDisclosure`.
        prog_bar: Keys in the progress bar.

    Attributes:
        history: One row per measurement in ``trainer.fit``: ``epoch``, ``step``, ``dataloader_idx``, ``seconds`` and
            the scalars.

    Example:
        >>> import pytorch_lightning as pl
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from vpmetrics.data import demo_voices
        >>> class Anonymiser(pl.LightningModule):
        ...     def validation_step(self, batch):
        ...         original, protected, speakers = batch
        ...         return {"original": original, "protected": protected, "speakers": speakers}
        >>> voices = demo_voices()
        >>> loader = DataLoader(TensorDataset(voices.original, voices.protected["B2"], voices.speakers), 518)
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
        figures_every_n_epochs: int | None = 5,
        encoder: Any = None,
        sample_rate: int | None = None,
        encoder_dtype: torch.dtype | None = None,
        watch_training: bool = False,
        attributes: Mapping[str, str] | None = None,
        prog_bar: Sequence[str] = ("disclosure", "deid"),
    ) -> None:
        super().__init__()
        if not isinstance(prefix, str):
            raise TypeError(f"Expected `prefix` to be a string, but got {type(prefix).__name__}.")
        if not prefix or prefix != prefix.strip("/ ") or "/dataloader_idx_" in prefix:
            raise ValueError(f"Expected `prefix` to be a name such as 'val/privacy', but got {prefix!r}.")
        check_whole_number("every_n_epochs", every_n_epochs, least=1)
        if figures_every_n_epochs is not None:
            check_whole_number("figures_every_n_epochs", figures_every_n_epochs, least=1)
        if suite is None:
            suite = VoicePrivacy(metrics=metrics, intervals=intervals)
        elif not isinstance(suite, VoicePrivacy):
            raise TypeError(f"Expected `suite` to be a VoicePrivacy or None, but got {type(suite).__name__}.")
        elif metrics != "headline" or intervals is not None:
            raise ValueError("Expected neither `metrics` nor `intervals` with `suite`, which has its own.")
        self.prefix, self.suite, self.intervals = prefix, suite, suite.intervals
        test_prefix = _VALIDATION.sub("test", prefix)
        self._test_prefix = f"test/{prefix}" if test_prefix == prefix else test_prefix
        self.every_n_epochs, self.figures_every_n_epochs = every_n_epochs, figures_every_n_epochs
        self.watch_training = watch_training
        self._keys = resolve_keys(keys, encoder is not None)
        self._encoder = None if encoder is None else FrozenEncoder(encoder, sample_rate, encoder_dtype)
        # Whether a function returns sessions is not known before the first batch.
        may_have_sessions = (False, True) if callable(self._keys) else ("sessions" in self._keys,)
        logged = dict.fromkeys(key for has_sessions in may_have_sessions for key in suite._requested_keys(has_sessions))
        self.metrics = tuple(logged) if self.intervals is None else tuple(add_interval_keys(logged))
        """Keys of the suite that are logged where they are defined."""
        headline = {key for has_sessions in may_have_sessions for key in headline_keys(True, has_sessions)}
        self.main_metrics = tuple(key for key in logged if not isinstance(suite.metrics, str) or key in headline)
        """Those of them that loggers show first."""
        known_keys = scalar_keys(tuple(CONDITIONS), has_attacks=True, has_sessions=True, sizes=suite.sizes)
        self.prog_bar = check_scalar_names("prog_bar", prog_bar, known_keys)
        self.history: list[dict[str, float]] = []
        self.attributes = dict(attributes or {})
        # By stage and dataloader, or by dataloader alone.
        self._suites: dict[tuple[str, int], VoicePrivacy] = {}
        self._attribute_metrics: dict[int, AttributeDisclosure] = {}
        self._row_counts: dict[int, Tensor] = {}  # all rows, and those that are not finite on each side
        self._pending_figures: dict[int, Callable[[], None]] = {}
        self._tags: dict[str, dict[str, str]] = {}  # of each key in loggers, by the suffix of a dataloader
        self._warned_checks: set[tuple[str, str]] = set()
        self._can_draw = self._has_charts = self._has_observed = False
        self._is_measuring = self._is_resuming = True

    @property
    def state_key(self) -> str:
        """Name of this callback's state in a checkpoint."""
        return self._generate_state_key(prefix=self.prefix)

    @property
    def logged_names(self) -> tuple[str, ...]:
        """Names of the scalars of a validation; with several dataloaders, without their suffix."""
        return tuple(f"{self.prefix}/{key}" for key in self.metrics)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Raise if the module trains the encoder; prepare figures; let early stopping skip unmeasured epochs."""
        warn_of_spawned_processes(trainer, "PrivacyMonitor", "`history` and what attackers observed")
        self._tags, self._has_charts = {}, False
        self._warned_checks.clear()
        if self._encoder is not None:
            self._encoder.check_is_untrained(pl_module.parameters())
        if stage != "predict" and self.figures_every_n_epochs is not None:
            missing = _find_what_figures_lack(trainer)
            self._can_draw = not missing
            if missing:
                rank_zero_warn(f"PrivacyMonitor draws no figures: {missing}.", UserWarning)
        # Where it is strict, early stopping raises in the epochs that are not measured.
        for stopping in trainer.early_stopping_callbacks:
            if self.every_n_epochs > 1 and strip_loader_suffix(stopping.monitor) in self.logged_names:
                stopping.strict = False
        # Every process logs the value of all processes, which Lightning cannot know.
        prefixes = "|".join(map(re.escape, (self.prefix, self._test_prefix)))
        warnings.filterwarnings("ignore", message=rf"It is recommended to use `self.log\('(?:{prefixes})/")

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Let attackers forget what they observed of earlier weights."""
        if self.watch_training:
            if self._encoder is not None:
                self._encoder.freeze_and_rotate_cache(pl_module.device)
            for suite in self._suites.values():
                suite.reset(observed=True)

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Remove logged values of an earlier epoch, which must not count again; start a measurement if one is due."""
        for name in [name for name in trainer.callback_metrics if strip_loader_suffix(name) in self.logged_names]:
            del trainer.callback_metrics[name]
        is_due = (trainer.current_epoch + 1) % self.every_n_epochs == 0
        self._is_measuring = is_due or trainer.sanity_checking or trainer.state.fn != "fit"
        if not self._is_measuring:
            return
        for of_last_measurement in (self._pending_figures, self._row_counts, self._attribute_metrics):
            of_last_measurement.clear()
        # The module may have moved to another device.
        self._suites = {place: suite for place, suite in self._suites.items() if suite.device == pl_module.device}
        for suite in self._suites.values():
            suite.reset()  # drop rows that an interrupted validation may have left
        if self._encoder is not None:
            self._encoder.freeze_and_rotate_cache(pl_module.device)

    on_test_epoch_start = on_validation_epoch_start

    # Every batch

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Let attackers learn from what a training step returned."""
        if not self.watch_training:
            return
        arguments = self._read_arguments(trainer, pl_module, outputs, "training_step")
        if arguments is not None:
            observed = {name: arguments[name] for name in _OBSERVED if name in arguments}
            with self._explain_errors("training_step"):
                for loader in loader_suffixes(trainer) or (0,):
                    self._suite_of_loader("val", loader, pl_module).observe(**observed)
            self._has_observed = True

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Accumulate what a step returned."""
        if not self._is_measuring:
            return
        stage, step_name = ("test", "test_step") if trainer.testing else ("val", "validation_step")
        arguments = self._read_arguments(trainer, pl_module, outputs, step_name)
        if arguments is None:
            return
        with self._explain_errors(step_name):
            self._suite_of_loader(stage, dataloader_idx, pl_module).update(**arguments)
            if self.attributes:
                self._update_attributes(dataloader_idx, pl_module, arguments, outputs)
        # Kept on the device: only the total is read after the last batch, because each reading forces a GPU sync.
        rows = torch.tensor(len(arguments["speakers"]), device=pl_module.device)
        sides = [arguments.get(side) for side in SIDES]
        broken = [rows * 0 if side is None else (~side.isfinite()).flatten(1).any(1).sum() for side in sides]
        self._row_counts[dataloader_idx] = torch.stack([rows, *broken]) + self._row_counts.get(dataloader_idx, 0)

    on_test_batch_end = on_validation_batch_end

    def _update_attributes(self, loader: int, pl_module: Any, arguments: dict[str, Any], outputs: Any) -> None:
        missing = [key for key in self.attributes.values() if not isinstance(outputs, Mapping) or key not in outputs]
        if missing:
            raise ValueError(f"Expected the step to return {missing[0]!r}, a label of each row, for `attributes`.")
        if loader not in self._attribute_metrics:
            metric = AttributeDisclosure(tuple(self.attributes), validate_args=False)
            self._attribute_metrics[loader] = metric.to(pl_module.device)
        labels = {name: outputs[key] for name, key in self.attributes.items()}
        sides = arguments["original"], arguments["protected"]
        self._attribute_metrics[loader].update(*sides, arguments["speakers"], labels)

    @contextmanager
    def _explain_errors(self, step_name: str) -> Iterator[None]:
        """Add to an error of the metric where its arguments came from."""
        try:
            yield
        except (TypeError, ValueError) as error:
            keys = "" if callable(self._keys) else tuple(self._keys.values())
            source = f" `keys` reads them from {keys} of the dictionary." if keys else ""
            raise type(error)(f"PrivacyMonitor cannot use what `{step_name}` returned. {error}{source}") from error

    def _read_arguments(self, trainer: Any, pl_module: Any, outputs: Any, step_name: str) -> dict[str, Any] | None:
        """Return the arguments of ``update``, audio embedded; None if a function ``keys`` skips the batch."""
        arguments = read_unskipped_outputs(outputs, self._keys, step_name)
        if arguments is None:
            return None
        if self._encoder is not None:
            with trainer.profiler.profile("[Callback]PrivacyMonitor.embed"):
                arguments = self._encoder.embed(arguments, pl_module.device, is_training=step_name == "training_step")
        for name, value in arguments.items():
            if isinstance(value, Tensor) or (name in SIDES and value is not None):
                arguments[name] = torch.as_tensor(value).to(pl_module.device)
        return arguments

    def _suite_of_loader(self, stage: str, loader: int, pl_module: Any) -> VoicePrivacy:
        """Return the metric of a dataloader: the same in every epoch, because it keeps its original speech."""
        if (stage, loader) not in self._suites:
            # In a test, attackers keep what they observed during training.
            observed = self._suites.get(("val", 0)) if self.watch_training else None
            suite = deepcopy(self.suite if observed is None else observed)
            suite.reset()
            suite.validate_args = False  # it would force a GPU sync for every batch
            self._suites[stage, loader] = suite.to(pl_module.device)
        return self._suites[stage, loader]

    # After the last batch

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure, log and draw."""
        if not self._is_measuring:
            return
        if not trainer.sanity_checking:
            for loader, suffix in loader_suffixes(trainer).items():
                self._measure_loader(trainer, pl_module, loader, suffix)
            monitors = find_monitors(trainer)
            # A log takes charts only once: the last monitor to measure writes those of all.
            if trainer.state.fn == "fit" and not self._has_charts and all(monitor._tags for monitor in monitors):
                charts: dict[str, Any] = {}
                for monitor in monitors:
                    for suffix, tags in monitor._tags.items():
                        charts |= chart_layout(f"{monitor.prefix}{suffix}", tags, monitor.main_metrics)
                    monitor._has_charts = True
                write_charts(trainer, charts)
        for suite in self._suites.values():
            suite.reset()

    on_test_epoch_end = on_validation_epoch_end

    def _measure_loader(self, trainer: Any, pl_module: Any, loader: int, suffix: str) -> None:
        """Measure one dataloader, log and draw it."""
        stage, prefix = ("test", self._test_prefix) if trainer.testing else ("val", self.prefix)
        counts = self._row_counts.get(loader, torch.zeros(3, dtype=torch.long, device=pl_module.device))
        rows, *broken = trainer.strategy.reduce(counts, reduce_op="sum").tolist()
        if rows == 0:
            return
        for side, count in zip(SIDES, broken, strict=True):
            if count:
                rank_zero_warn(
                    f"{count} of {rows} rows of `{side}` are not finite ({prefix}{suffix}, epoch "
                    f"{trainer.current_epoch}). Numbers that need them are NaN.",
                    UserWarning,
                )
        start = time.perf_counter()
        with trainer.profiler.profile("[Callback]PrivacyMonitor.compute"):
            report = self._suite_of_loader(stage, loader, pl_module).report()
            scalars = {key: report.scalars[key] for key in self.metrics if key in report.scalars}
            if loader in self._attribute_metrics:
                disclosed = self._attribute_metrics[loader].compute()
                scalars |= {key: value for key, value in disclosed.items() if key.endswith(("_disclosure", "_chance"))}
            floats = read_numbers(scalars)
        for check in report.checks:
            if check.status == FAILED and (check.name, suffix) not in self._warned_checks:
                self._warned_checks.add((check.name, suffix))
                rank_zero_warn(f"PrivacyMonitor, {prefix}{suffix}: {check.message}", UserWarning)
        if is_fit := trainer.state.fn == "fit":
            place = {"epoch": trainer.current_epoch, "step": trainer.global_step, "dataloader_idx": loader}
            self.history.append({**place, "seconds": time.perf_counter() - start, **floats})
        tags = {key: f"{prefix}/{key}{suffix}" for key in scalars}
        self._tags[suffix] = self._log(trainer, pl_module, tags, scalars, floats)
        if self._can_draw and figure_writers(trainer):
            history = [row for row in self.history if row["dataloader_idx"] == loader] if is_fit else []
            system = EvaluatedSystem(prefix, report)
            draw = partial(_write_figures, trainer, system, suffix, logging_step(trainer))
            # The epoch of a figure need not be measured: the first measurement after it draws the figure.
            figure_epochs = [(row["epoch"] + 1) // (self.figures_every_n_epochs or 1) for row in history]
            if len(history) < 2 or figure_epochs[-1] > figure_epochs[-2]:
                draw()
            else:
                self._pending_figures[loader] = draw  # drawn if this is the last measurement

    def _log(
        self, trainer: Any, pl_module: Any, tags: dict[str, str], scalars: dict[str, Tensor], floats: dict[str, float]
    ) -> dict[str, str]:
        """Log scalars, details in a separate group; return the tag of each. ``floats``: the scalars on the host."""
        # A test has one value of each, and returns those that are logged.
        in_details = set(self.metrics) - set(self.main_metrics) if trainer.state.fn == "fit" else set()
        for key, tag in tags.items():
            options = {"prog_bar": key in self.prog_bar, "logger": False if key in in_details else None}
            pl_module.log(tag, scalars[key], **options, add_dataloader_idx=False, sync_dist=False)
        details = {key: suffix_first_component(tags[key], "_details") for key in tags if key in in_details}
        log_scalars(trainer, {tag: floats[key] for key, tag in details.items()}, logging_step(trainer))
        return tags | details

    # After training, and resumed runs

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Draw the last measurement, write hyperparameters, and warn if attackers had nothing to learn from."""
        while self._pending_figures:
            self._pending_figures.popitem()[1]()
        if self.watch_training and not self._has_observed:
            missing = "" if callable(self._keys) else f" without {', '.join(map(repr, self._keys.values()))}"
            rank_zero_warn(
                f"PrivacyMonitor(watch_training=True) observed nothing: `training_step` returned a value{missing}.",
                UserWarning,
            )
        monitors = find_monitors(trainer)
        if self is monitors[0]:
            tags = [tag for each in trainer.checkpoint_callbacks for tag in getattr(each, "chosen_value_tags", ())]
            names = [f"{monitor.prefix}/{key}" for monitor in monitors for key in monitor.main_metrics]
            tags += [name for name in trainer.callback_metrics if strip_loader_suffix(name) in names]
            write_hyperparameters(trainer, pl_module.hparams, tags)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run continues from."""
        return {"history": [dict(row) for row in self.history]}

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Decide whether to load the history: not where weights are loaded only for a test after a training."""
        self._is_resuming = trainer.state.fn == "fit" or not self.history

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from where a run stopped."""
        if self._is_resuming:
            self.history = [dict(row) for row in state_dict["history"]]
        self._is_resuming = True


def find_monitors(trainer: Any) -> list[PrivacyMonitor]:
    """Return every monitor among the callbacks."""
    return [callback for callback in trainer.callbacks if isinstance(callback, PrivacyMonitor)]


def _find_what_figures_lack(trainer: Any) -> str:
    """Return why no figures can be drawn, or nothing if they can."""
    if importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed"
    if figure_writers(trainer):
        importlib.import_module("vpmetrics.report.figures")  # now, so that the first epoch takes no longer than others
    elif rank_zero_loggers(trainer):
        return f"{', '.join(type(logger).__name__ for logger in trainer.loggers)} cannot take figures"
    return ""


def _write_figures(trainer: Any, system: EvaluatedSystem, suffix: str, step: int) -> None:
    from vpmetrics.report.figures import CARD, draw_all_figures

    with trainer.profiler.profile("[Callback]PrivacyMonitor.figures"):
        for key, figure in draw_all_figures([system], CARD).items():
            for write in figure_writers(trainer):
                write(f"{suffix_first_component(system.name, '_figures')}/{key}{suffix}", figure, step)
