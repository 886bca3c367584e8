"""A callback that says after every validation how much a voice anonymiser leaks."""

from __future__ import annotations

import importlib.util
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchmetrics.utilities import rank_zero_warn

from vpmetrics._checks import check_epochs, warn_once
from vpmetrics._report import PrivacyReport, System, numbers_of
from vpmetrics.lightning.arguments import check_kind, check_prefix, scalar_names, selection
from vpmetrics.lightning.handover import register, send_home
from vpmetrics.lightning.names import without_loader
from vpmetrics.lightning.pareto import ParetoPoint
from vpmetrics.lightning.step_outputs import Keys, check_keys, tensors_of_step
from vpmetrics.lightning.trainers import (
    CallbackBase,
    is_fitting,
    loaders_in_turn,
    logging_step,
    tensorboard_loggers,
)
from vpmetrics.suite import VoicePrivacy

_VALIDATION = re.compile(r"^(val|valid|validation)(?=[/_]|$)")


class PrivacyMonitor(CallbackBase):
    r"""Measures privacy in every validation of a ``Trainer``, logs it, and draws it into TensorBoard.

    ``validation_step`` (and ``test_step``) returns a dictionary that holds, besides whatever else it does, the
    embeddings of a batch before and after protection, and who speaks. The monitor gathers them in a
    :class:`vpmetrics.VoicePrivacy` and logs each of its scalars as ``<prefix>/<name>``, so that the progress bar,
    loggers, ``EarlyStopping`` and ``ModelCheckpoint(monitor="val/privacy/op_d_ece")`` see them. In ``trainer.test`` a
    prefix that begins with ``val`` begins with ``test`` instead; any other gets ``test/`` before it. Several loaders
    are measured one by one; each name then ends in ``/dataloader_idx_<k>``, as Lightning's own do.

    Works with the Trainer of ``pytorch_lightning`` and with that of ``lightning.pytorch``. Under a distributed
    strategy every process logs the value of all processes together. A sampler that repeats utterances to fill up its
    last batch should be given away by a fourth key, the numbers of the utterances. The sanity check is looked at for
    mistakes in what a step returns, but neither logged nor kept. Original speech that does not change is scored once.

    With a logger for TensorBoard there are figures: the similarity matrices (``quadrants``), the ECE profile, the zoo
    of speakers, their ranks, and the path of DeID and G_VD over the epochs. After the last epoch :attr:`summary` goes
    to its HParams tab if the module has saved hyperparameters; give the logger ``default_hp_metric=False`` for that.

    The profiler of the Trainer shows the time as ``[Callback]PrivacyMonitor.embed``, ``.compute`` and ``.figures``.

    Args:
        prefix: What the names of the logged scalars begin with.
        every_n_epochs: Epochs from one measurement to the next.
        figures_every_n_epochs: Epochs from one set of figures to the next, besides first and last; None for none.
        keys: Where a step's dictionary has ``original``, ``protected``, ``speakers`` and, if given, ``utterances``:
            three or four names. Or a function of what the step returned to a tuple of these tensors, to a dictionary
            of the arguments of ``VoicePrivacy.update``, or to None for a batch that is not to be counted.
        metrics: Names of the scalars to log; all by default.
        suite: The :class:`vpmetrics.VoicePrivacy` to measure with, when it is not the default one.
        encoder: The attacker's speaker encoder, from audio to embeddings ``(B, D)``. With it, ``original`` and
            ``protected`` are audio. It is frozen, kept in evaluation mode, and moved to the device of the module.
        encoder_dtype: Type the encoder runs in under autocast; None runs it in the type of its weights, whatever the
            precision of the Trainer.
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
        >>> monitor = PrivacyMonitor()
        >>> quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
        >>> trainer = pl.Trainer(accelerator="cpu", callbacks=[monitor], **quiet)
        >>> results = trainer.validate(Anonymiser(), loader, verbose=False)
        >>> round(results[0]["val/privacy/deid"], 4)
        0.3748
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
        encoder: nn.Module | None = None,
        encoder_dtype: torch.dtype | None = None,
        prog_bar: Sequence[str] = ("deid", "gvd"),
    ) -> None:
        super().__init__()
        check_prefix(prefix)
        check_epochs("every_n_epochs", every_n_epochs)
        if figures_every_n_epochs is not None:
            check_epochs("figures_every_n_epochs", figures_every_n_epochs)
        check_keys(keys)
        check_kind("suite", suite, VoicePrivacy)
        check_kind("encoder", encoder, nn.Module)
        self.prefix, self.keys = prefix, keys
        self.every_n_epochs, self.figures_every_n_epochs = every_n_epochs, figures_every_n_epochs
        known = scalar_names(suite)
        self.metrics = selection("metrics", known if metrics is None else metrics, known)
        self.prog_bar = selection("prog_bar", prog_bar, known)
        self.suite, self.encoder, self.encoder_dtype = suite, encoder, encoder_dtype
        self.history: list[dict[str, float]] = []
        """One row per measurement in ``trainer.fit``: ``epoch``, ``step``, ``dataloader_idx``, ``seconds``, scalars."""
        self._suites: dict[tuple[str, int], VoicePrivacy] = {}
        self._active = self._resuming = True
        self._undrawn: dict[int, _Measurement] = {}
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
        """The last measurement as a flat dictionary, as ``SummaryWriter.add_hparams`` takes it."""
        return self._summary_of(self.history[-1]["step"]) if self.history else {}

    def _summary_of(self, step: float) -> dict[str, float]:
        rows = [row for row in self.history if row["step"] == step]
        suffixes = [f"/dataloader_idx_{int(row['dataloader_idx'])}" if len(rows) > 1 else "" for row in rows]
        pairs = list(zip(rows, suffixes, strict=True))
        return {f"hp/{self.prefix}/{name}{suffix}": row[name] for row, suffix in pairs for name in self.metrics}

    # Before the first batch

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Look for what can be known to be wrong before anything runs."""
        if self.encoder is not None:
            own = {id(weight) for weight in pl_module.parameters() if weight.requires_grad}
            if any(id(weight) in own for weight in self.encoder.parameters()):
                raise ValueError(
                    "Expected `encoder` to be an attacker of its own, but the module trains its weights. "
                    "Freeze them in the module, or pass a copy."
                )
            self.encoder.requires_grad_(False)
        if self._draws and stage != "predict" and importlib.util.find_spec("matplotlib") is None:
            rank_zero_warn("PrivacyMonitor draws no figures: matplotlib is not installed.", UserWarning)
            self.figures_every_n_epochs = None
        self._let_others_wait(trainer)
        # What every process logs is the value of all, which Lightning cannot know.
        own_names = "|".join(map(re.escape, (self.prefix, self._test_prefix)))
        warnings.filterwarnings("ignore", message=rf"It is recommended to use `self.log\('(?:{own_names})/")

    def _let_others_wait(self, trainer: Any) -> None:
        """Let early stopping pass over the epochs that are not measured, instead of refusing them."""
        for stopping in trainer.early_stopping_callbacks:
            if self.every_n_epochs > 1 and without_loader(stopping.monitor) in self.logged_names:
                stopping.strict = False

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
        # What a suite remembers of original speech lies where the module was then.
        self._suites = {place: suite for place, suite in self._suites.items() if suite.device == pl_module.device}
        for suite in self._suites.values():
            suite.reset()
        if active:
            self._undrawn.clear()
        if self.encoder is not None and active:
            self.encoder.to(pl_module.device).eval()

    # Every batch

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
        embed: Callable[[Any], Any] | None = None
        if self.encoder is not None:
            embed = lambda audio: self._embed(trainer, audio, pl_module.device)  # noqa: E731
        arguments = tensors_of_step(outputs, self.keys, step, pl_module.device, embed)
        if arguments is None:
            return
        try:
            self._suite(trainer, dataloader_idx, pl_module.device).update(**arguments)
        except (TypeError, ValueError) as error:
            source = "" if callable(self.keys) else f" `keys` reads them from {tuple(self.keys)} of the dictionary."
            raise type(error)(f"PrivacyMonitor cannot use what `{step}` returned. {error}{source}") from error

    def _embed(self, trainer: Any, audio: Any, device: torch.device) -> Any:
        assert self.encoder is not None
        weight = next(self.encoder.parameters(), None)
        if isinstance(audio, Tensor):
            audio = audio.to(device)
            if weight is not None and audio.is_floating_point():
                audio = audio.to(weight.dtype)
        autocast = torch.autocast(device.type, dtype=self.encoder_dtype, enabled=self.encoder_dtype is not None)
        with trainer.profiler.profile("[Callback]PrivacyMonitor.embed"), torch.no_grad(), autocast:
            return self.encoder(audio)

    def _suite(self, trainer: Any, loader: int, device: torch.device) -> VoicePrivacy:
        """The metric of one loader; the same one every epoch, because it remembers its original speech."""
        place = "test" if trainer.testing else "val", loader
        if place not in self._suites:
            suite = VoicePrivacy() if self.suite is None else deepcopy(self.suite)
            suite.reset()
            suite.validate_args = False  # which would stall an accelerator at every batch
            self._suites[place] = suite.to(device)
        return self._suites[place]

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
                report = _report_of_all_processes(self._suite(trainer, loader, pl_module.device))
                values = {} if report is None else numbers_of(report.scalars)
            if report is None:
                continue
            if is_fitting(trainer):
                row = {"epoch": trainer.current_epoch, "step": trainer.global_step, "dataloader_idx": loader}
                self.history.append({**row, "seconds": time.perf_counter() - start, **values})
            self._log(trainer, pl_module, report.scalars, suffix)
            measurement = _Measurement(report, f"{self._prefix(trainer)}/{{}}{suffix}", logging_step(trainer))
            if self._figures_due(trainer, loader):
                self._draw(trainer, measurement, loader)
            elif self._draws:
                self._undrawn[loader] = measurement

    def _log(self, trainer: Any, pl_module: Any, scalars: Mapping[str, Tensor], suffix: str) -> None:
        prefix = self._prefix(trainer)
        for name in self.metrics:
            value = scalars[name]
            pl_module.log(
                f"{prefix}/{name}{suffix}",
                value if value.is_floating_point() else value.float(),
                prog_bar=name in self.prog_bar,
                add_dataloader_idx=False,
                sync_dist=False,
            )

    def _draw(self, trainer: Any, measurement: _Measurement, loader: int) -> None:
        loggers = list(tensorboard_loggers(trainer))
        if not loggers:
            return
        from vpmetrics._figures import CARD, figures_of

        history = [row for row in self.history if row["dataloader_idx"] == loader] if is_fitting(trainer) else []
        system = System(measurement.tag.partition("/{}")[0], measurement.report, history=history)
        with trainer.profiler.profile("[Callback]PrivacyMonitor.figures"):
            for name, figure in figures_of([system], CARD).items():
                for logger in loggers:
                    logger.experiment.add_figure(measurement.tag.format(name), figure, measurement.step, close=False)

    def _figures_due(self, trainer: Any, loader: int) -> bool:
        interval = self.figures_every_n_epochs
        if interval is None or not is_fitting(trainer):
            return self._draws
        # Epochs over at the measurement before and at this one, which need not be neighbours; the first is the start.
        *earlier, now = [row["epoch"] + 1 for row in self.history if row["dataloader_idx"] == loader]
        return not earlier or now // interval > earlier[-1] // interval

    @property
    def _draws(self) -> bool:
        return self.figures_every_n_epochs is not None

    def _prefix(self, trainer: Any) -> str:
        return self._test_prefix if trainer.testing else self.prefix

    @property
    def _test_prefix(self) -> str:
        renamed, count = _VALIDATION.subn("test", self.prefix)
        return renamed if count else f"test/{self.prefix}"

    # At the end, and from one run to the next

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Draw the last measurement, which nobody could know to be the last."""
        while self._undrawn:
            loader, measurement = self._undrawn.popitem()
            self._draw(trainer, measurement, loader)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Put the measurement of the chosen checkpoint beside the hyperparameters, or else the last."""
        chosen = next((point for callback in trainer.checkpoint_callbacks if (point := _chosen_by(callback))), None)
        summary = (self._summary_of(chosen.step) if chosen else {}) or self.summary
        if not summary or not pl_module.hparams:
            return
        for logger in tensorboard_loggers(trainer):
            logger.log_hyperparams(dict(pl_module.hparams), metrics=summary, step=logging_step(trainer))

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


class _Measurement(NamedTuple):
    """What figures are drawn of, and where they belong."""

    report: PrivacyReport
    tag: str
    step: int


def _chosen_by(callback: Any) -> ParetoPoint | None:
    return getattr(callback, "chosen", None)


def _report_of_all_processes(metric: VoicePrivacy) -> PrivacyReport | None:
    """What all processes gathered together, on each; None where none of them gathered anything."""
    with warn_once():
        metric.sync()
        try:
            rows = metric.metric_state["speakers"]
            count = sum(len(part) for part in ([rows] if isinstance(rows, Tensor) else rows))
            return metric.report() if count else None
        finally:
            if metric._is_synced:
                metric.unsync()
