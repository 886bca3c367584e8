"""A callback that says after every validation how much a voice anonymiser leaks."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics.utilities import rank_zero_warn

from vpmetrics._checks import check_epochs
from vpmetrics._names import selection, without_loader
from vpmetrics._report import numbers_of
from vpmetrics._scalars import names_with_ends
from vpmetrics.lightning.arguments import check_kind, check_prefix, headline_of, scalar_names
from vpmetrics.lightning.audio import FrozenEncoder
from vpmetrics.lightning.gallery import Gallery, Measurement
from vpmetrics.lightning.handover import register, send_home
from vpmetrics.lightning.loggers import log_apart, log_hyperparameters
from vpmetrics.lightning.step_outputs import Keys, arguments_of_step, has_keys, may_have, resolve_keys
from vpmetrics.lightning.suites import Suites, report_of_all_processes
from vpmetrics.lightning.trainers import CallbackBase, is_fitting, loaders_in_turn, logging_step
from vpmetrics.suite import VoicePrivacy

_VALIDATION = re.compile(r"^(val|valid|validation)(?=[/_]|$)")


class PrivacyMonitor(CallbackBase):
    r"""Measures privacy in every validation of a ``Trainer``, logs it, and draws it.

    ``validation_step`` (and ``test_step``) returns a dictionary that holds, besides whatever else it does, the
    embeddings of a batch before and after protection, and who speaks. The monitor gathers them in a
    :class:`vpmetrics.VoicePrivacy` and logs each of its scalars as ``<prefix>/<name>``, so that the progress bar,
    ``EarlyStopping`` and ``ModelCheckpoint(monitor="val/privacy/op_d_ece_strongest")`` see them. In ``trainer.test``
    a prefix that begins with ``val`` begins with ``test`` instead; any other gets ``test/`` before it. Several loaders
    are measured one by one; each name then ends in ``/dataloader_idx_<k>``, as Lightning's own do.

    Loggers show the few numbers that are looked at first under these names, DeID, G_VD and D_ECE, the strongest
    attack's beside it. All others stand in a group of their own, ``val_details/privacy/<name>`` for
    ``val/privacy/<name>``; a choice of ``metrics`` is shown as chosen.

    Works with the Trainer of ``pytorch_lightning`` and with that of ``lightning.pytorch``. Under a distributed
    strategy every process logs the value of all processes together. A sampler that repeats utterances to fill up its
    last batch should be given away by the numbers of the utterances. The sanity check is looked at for mistakes in
    what a step returns, but neither logged nor kept. Original speech that does not change is scored once.

    In epochs that ``every_n_epochs`` leaves out nothing is logged, and what was logged before is withdrawn from
    ``trainer.callback_metrics``; ``EarlyStopping`` passes over them. A scheduler that watches one of these names
    needs the same ``frequency``.

    TensorBoard, Weights & Biases, MLflow and Comet get figures: the similarity matrices (``quadrants``), the ECE
    profile, the zoo of speakers, their ranks, and the path of DeID and G_VD over the epochs. After training the
    numbers of the checkpoint that a :class:`PrivacyCheckpoint` has chosen, or else the last, go to TensorBoard's
    table of hyperparameters if the module has saved any; give the logger ``default_hp_metric=False`` for that.

    The profiler of the Trainer shows the time as ``[Callback]PrivacyMonitor.embed``, ``.compute`` and ``.figures``.

    Args:
        prefix: What the names of the logged scalars begin with.
        every_n_epochs: Epochs from one measurement to the next.
        figures_every_n_epochs: Epochs from one set of figures to the next, besides first and last; None for none.
        keys: Where a step's dictionary has ``original``, ``protected``, ``speakers`` and, if given, ``utterances``,
            ``sessions`` and ``groups``: three to six names in this order. Or a dictionary from these, from
            ``is_reference`` and from ``lengths`` to their keys. Or a function of what the step returned to a tuple of
            these tensors, to a dictionary of the arguments of ``VoicePrivacy.update``, or to None for a batch that is
            not to be counted.
        metrics: Names of the scalars to log; all those of the suite by default. What these do not need is neither
            calculated nor drawn.
        suite: The :class:`vpmetrics.VoicePrivacy` to measure with, when it is not the default one.
        intervals: How often an interval is to hold the truth, such as 0.95: also logs ``<name>_low`` and
            ``<name>_high``. A ``suite`` has its own.
        encoder: The attacker's speaker encoder, from audio to embeddings ``(B, D)``. With it, ``original`` and
            ``protected`` are audio: tensors ``(B, ..., T)``, lists of tensors ``(..., T)`` that are each as long as
            their utterance, or anything else the encoder takes. Tensors of a list are never padded: those of one
            length share a batch. Padded tensors need ``lengths`` in ``keys``, integers ``(B,)`` of both sides; rows
            that end in zeros are refused without. The encoder is frozen, kept in evaluation mode, and moved to the
            device of the module. Original speech that is the same as in the validation before is not embedded again.
        encoder_dtype: Type the encoder runs in under autocast; None runs it in the type of its weights, whatever the
            precision of the Trainer.
        watch_training: Show attackers what ``training_step`` returns under the same keys, too, of other speakers than
            are validated on; see :meth:`vpmetrics.VoicePrivacy.observe`. What they have seen is forgotten at the start
            of every epoch, for the anonymiser is another one then.
        prog_bar: Names of the scalars in the progress bar.

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
        >>> monitor = PrivacyMonitor(suite=VoicePrivacy(attacks=None))  # a quick look, in which no attacker tries hard
        >>> quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
        >>> trainer = pl.Trainer(accelerator="cpu", callbacks=[monitor], **quiet)
        >>> results = trainer.validate(Anonymiser(), loader, verbose=False)
        >>> round(results[0]["val/privacy/deid"], 3)
        0.375
    """

    def __init__(
        self,
        prefix: str = "val/privacy",
        every_n_epochs: int = 1,
        figures_every_n_epochs: int | None = 5,
        keys: Keys = ("original", "protected", "speakers"),
        metrics: Sequence[str] | None = None,
        *,
        suite: VoicePrivacy | None = None,
        intervals: float | None = None,
        encoder: nn.Module | None = None,
        encoder_dtype: torch.dtype | None = None,
        watch_training: bool = False,
        prog_bar: Sequence[str] = ("deid", "gvd"),
    ) -> None:
        super().__init__()
        check_prefix(prefix)
        check_epochs("every_n_epochs", every_n_epochs)
        if figures_every_n_epochs is not None:
            check_epochs("figures_every_n_epochs", figures_every_n_epochs)
        check_kind("suite", suite, VoicePrivacy)
        check_kind("encoder", encoder, nn.Module)
        if suite is not None and intervals is not None:
            raise ValueError("Expected no `intervals` beside `suite`, which has its own.")
        suite = VoicePrivacy(intervals=intervals) if suite is None else suite
        self.prefix, self.keys, self.every_n_epochs = prefix, keys, every_n_epochs
        self.suite, self.encoder, self.watch_training = suite, encoder, watch_training
        self.intervals = suite.intervals
        self._keys = resolve_keys(keys, encoder is not None)
        known = scalar_names(suite, sessions=may_have(self._keys, "sessions"))
        chosen = suite.metrics if metrics is None else metrics
        plain = selection("metrics", known if chosen is None else chosen, known)
        self.metrics = plain if suite.intervals is None else tuple(names_with_ends(plain))
        self.prog_bar = selection("prog_bar", prog_bar, (*known, *self.metrics))
        self.headline = headline_of(plain) if chosen is None else plain
        self.history: list[dict[str, float]] = []
        """One row per measurement in ``trainer.fit``: ``epoch``, ``step``, ``dataloader_idx``, ``seconds``, scalars."""
        self._encoder = None if encoder is None else FrozenEncoder(encoder, encoder_dtype)
        self._gallery = Gallery(figures_every_n_epochs)
        self._suites = Suites(suite, watch_training, None if chosen is None else plain)
        self._active = self._resuming = True
        self.address = register(self)

    @property
    def state_key(self) -> str:
        """Name of this callback's state in a checkpoint."""
        return self._generate_state_key(prefix=self.prefix)

    @property
    def logged_names(self) -> tuple[str, ...]:
        """Names under which scalars of a validation are logged; of several loaders, without their suffix."""
        return tuple(f"{self.prefix}/{name}" for name in self.metrics)

    @property
    def summary(self) -> dict[str, float]:
        """The headline of the last measurement as a flat dictionary, as ``SummaryWriter.add_hparams`` takes it."""
        return self._summary_of(self.history[-1]["step"]) if self.history else {}

    def _summary_of(self, step: float) -> dict[str, float]:
        rows = [row for row in self.history if row["step"] == step]
        suffixes = [f"/dataloader_idx_{int(row['dataloader_idx'])}" if len(rows) > 1 else "" for row in rows]
        return {
            f"hp/{self.prefix}/{name}{suffix}": row[name]
            for row, suffix in zip(rows, suffixes, strict=True)
            for name in self.headline
            if name in row
        }

    # Before the first batch

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Look for what can be known to be wrong before anything runs."""
        if self._encoder is not None:
            self._encoder.freeze(pl_module.parameters())
        if stage != "predict":
            self._gallery.setup(trainer)
        # Early stopping is to pass over the epochs that are not measured, instead of refusing them.
        for stopping in trainer.early_stopping_callbacks:
            if self.every_n_epochs > 1 and without_loader(stopping.monitor) in self.logged_names:
                stopping.strict = False
        # What every process logs is the value of all, which Lightning cannot know.
        own_names = "|".join(map(re.escape, (self.prefix, self._test_prefix)))
        warnings.filterwarnings("ignore", message=rf"It is recommended to use `self.log\('(?:{own_names})/")

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Let attackers forget what an earlier anonymiser has made."""
        if self.watch_training:
            if self._encoder is not None:
                self._encoder.begin(pl_module.device)
            self._suites.forget_training()

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin anew."""
        due = (trainer.current_epoch + 1) % self.every_n_epochs == 0
        # What an earlier epoch has logged is not true of this one, and nobody should count it again.
        for name in [name for name in trainer.callback_metrics if without_loader(name) in self.logged_names]:
            del trainer.callback_metrics[name]
        self._begin(pl_module, active=due or trainer.sanity_checking or not is_fitting(trainer))

    def on_test_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin anew."""
        self._begin(pl_module, active=True)

    def _begin(self, pl_module: Any, active: bool) -> None:
        self._active = active
        self._suites.begin(pl_module.device)
        if active:
            self._gallery.forget()
            if self._encoder is not None:
                self._encoder.begin(pl_module.device)

    # Every batch

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Show attackers what a training step returned, if it did."""
        if not self.watch_training or not has_keys(outputs, self._keys):
            return
        arguments = self._arguments(trainer, pl_module, outputs, "training_step", remember=False)
        if arguments is not None:
            with self._explaining("training_step"):
                self._suites.observe(arguments, loaders_in_turn(trainer) or (0,), pl_module.device)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Gather what a step returned."""
        self._gather(trainer, pl_module, outputs, dataloader_idx)

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Gather what a step returned."""
        self._gather(trainer, pl_module, outputs, dataloader_idx)

    def _gather(self, trainer: Any, pl_module: Any, outputs: Any, dataloader_idx: int) -> None:
        if not self._active:
            return
        step = "test_step" if trainer.testing else "validation_step"
        arguments = self._arguments(trainer, pl_module, outputs, step)
        if arguments is not None:
            with self._explaining(step):
                self._suite(trainer, dataloader_idx, pl_module).update(**arguments)

    @contextmanager
    def _explaining(self, step: str) -> Iterator[None]:
        """Say where the metric's arguments came from, if it refuses them."""
        try:
            yield
        except (TypeError, ValueError) as error:
            keys = self._keys
            source = "" if callable(keys) else f" `keys` reads them from {tuple(keys.values())} of the dictionary."
            raise type(error)(f"PrivacyMonitor cannot use what `{step}` returned. {error}{source}") from error

    def _arguments(
        self, trainer: Any, pl_module: Any, outputs: Any, step: str, remember: bool = True
    ) -> dict[str, Any] | None:
        arguments = arguments_of_step(outputs, self._keys, step, pl_module.device)
        if arguments is None or self._encoder is None:
            return arguments
        with trainer.profiler.profile("[Callback]PrivacyMonitor.embed"):
            return self._encoder.embed(arguments, pl_module.device, remember)

    def _suite(self, trainer: Any, loader: int, pl_module: Any) -> VoicePrivacy:
        return self._suites.at("test" if trainer.testing else "val", loader, pl_module.device)

    # After the last batch

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure, log and draw."""
        if self._active and not trainer.sanity_checking:
            self._measure_all(trainer, pl_module)
        self._begin(pl_module, active=False)

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure, log and draw."""
        self._measure_all(trainer, pl_module)
        self._begin(pl_module, active=False)

    def _measure_all(self, trainer: Any, pl_module: Any) -> None:
        for loader, suffix in loaders_in_turn(trainer).items():
            start = time.perf_counter()
            with trainer.profiler.profile("[Callback]PrivacyMonitor.compute"):
                report = report_of_all_processes(self._suite(trainer, loader, pl_module))
                values = {} if report is None else numbers_of(report.scalars)
            if report is None:
                continue
            if is_fitting(trainer):
                row = {"epoch": trainer.current_epoch, "step": trainer.global_step, "dataloader_idx": loader}
                self.history.append({**row, "seconds": time.perf_counter() - start, **values})
            self._log(trainer, pl_module, report.scalars, values, suffix)
            measurement = Measurement(report, self._prefix(trainer), suffix, logging_step(trainer))
            self._gallery.show(trainer, measurement, loader, self._history_of(loader))

    def _log(
        self, trainer: Any, pl_module: Any, scalars: dict[str, Tensor], values: dict[str, float], suffix: str
    ) -> None:
        # A test has few numbers, and returns those it logs itself.
        shown = self.headline if is_fitting(trainer) else self.metrics
        names = {name: f"{self._prefix(trainer)}/{name}{suffix}" for name in self.metrics if name in scalars}
        for name, logged in names.items():
            pl_module.log(
                logged,
                scalars[name],
                prog_bar=name in self.prog_bar,
                logger=None if name in shown else False,
                add_dataloader_idx=False,
                sync_dist=False,
            )
        minor = {logged: values[name] for name, logged in names.items() if name not in shown}
        log_apart(trainer, minor, logging_step(trainer))

    def _history_of(self, loader: int) -> list[dict[str, float]]:
        return [row for row in self.history if row["dataloader_idx"] == loader]

    def _prefix(self, trainer: Any) -> str:
        return self._test_prefix if trainer.testing else self.prefix

    @property
    def _test_prefix(self) -> str:
        renamed, count = _VALIDATION.subn("test", self.prefix)
        return renamed if count else f"test/{self.prefix}"

    # At the end, and from one run to the next

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Draw the last measurement; say so if there was nothing to watch."""
        self._gallery.show_last(trainer, self._history_of)
        if self.watch_training and not self._suites.has_seen_training:
            wanted = "" if callable(self._keys) else f", no dictionary with {', '.join(map(repr, self._keys.values()))}"
            text = f"PrivacyMonitor found nothing to watch in what `training_step` returned{wanted}."
            rank_zero_warn(text, UserWarning)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Put the measurement of the chosen checkpoint beside the hyperparameters, or else the last."""
        chosen = [point for callback in trainer.checkpoint_callbacks if (point := getattr(callback, "chosen", None))]
        summary = (self._summary_of(chosen[0].step) if chosen else {}) or self.summary
        log_hyperparameters(trainer, pl_module.hparams, summary)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on from."""
        return {"history": [dict(row) for row in self.history]}

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Weights loaded for a test do not undo what has been measured since they were saved."""
        self._resuming = is_fitting(trainer) or not self.history

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from where a run stopped."""
        if self._resuming:
            self.history = [dict(row) for row in state_dict["history"]]
        self._resuming = True

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the history where the process that started this one finds it."""
        if stage == "fit":
            send_home(trainer, self, self.state_dict())

    def receive(self, state: dict[str, Any]) -> None:
        """Take the history a spawned process has sent home."""
        self.load_state_dict(state)
