"""Privacy in the training loop: Trainer runs end to end, and what they leave behind."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from vpmetrics import _figures as figures
from vpmetrics._plot import draw_pareto_front, draw_path, draw_zoo
from vpmetrics.lightning.checkpoint import PrivacyCheckpoint
from vpmetrics.lightning.monitor import PrivacyMonitor
from vpmetrics.lightning.pareto import ParetoPoint
from vpmetrics.suite import VoicePrivacy

PACKAGES = ("pytorch_lightning", "lightning.pytorch")
both_packages = pytest.mark.parametrize("pl", [importlib.import_module(name) for name in PACKAGES], ids=PACKAGES)
FIGURES = {"quadrants", "ece_profile", "zoo", "ranks", "path"}
QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}

# Lightning's own remarks: few workers, few batches, a logger or a folder that is or is not there.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:.*lightning.*", "ignore::FutureWarning")


@pytest.fixture
def pl():
    return importlib.import_module(PACKAGES[0])


@pytest.fixture
def one_small_figure(monkeypatch):
    """For tests of when figures are drawn, not of what is on them."""
    monkeypatch.setattr(figures, "figures_of", lambda *_: {"zoo": Figure((0.3, 0.3))})


def voices(speakers=6, utterances=4, seed=0):
    """Embeddings ``(N, 8)`` that tell speakers apart, noise that does not, and who speaks."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(speakers, 8, generator=generator)
    names = torch.arange(speakers).repeat(utterances)
    original = centres[names] + 0.4 * torch.randn(len(names), 8, generator=generator)
    return original, torch.randn(len(names), 8, generator=generator), names


def loader(batch_size=5, **kwargs):
    return DataLoader(TensorDataset(*voices(**kwargs)), batch_size)


def numbered(**kwargs):
    """A number of utterances that two processes share evenly only with a copy; each has a number of its own."""
    parts = [part[:21] for part in voices(speakers=7, utterances=3, **kwargs)]
    return DataLoader(TensorDataset(*parts, torch.arange(21)), 4)


def protect(original, noise, share):
    return share * original + (1 - share) * noise


def anonymiser(pl, shares=(0.9, 0.6, 0.3, 0.1), losses=(4.0, 3.0, 2.0, 1.0), **changes):
    """A module that leaks a given share of a voice in each epoch, at a given loss; it learns its epoch's number."""

    class Anonymiser(pl.LightningModule):
        def __init__(self, width=8):
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(width, 1)
            self.register_buffer("trained", torch.zeros(()))

        def training_step(self, batch, batch_idx):
            self.trained.fill_(self.current_epoch + 1)
            return self.layer(batch[0]).square().mean()

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            original, noise, speakers, *utterances = batch
            epoch = min(self.current_epoch, len(shares) - 1)
            self.log("val/loss", losses[epoch])
            return {
                "original": original,
                "protected": protect(original, noise, shares[epoch]),
                "speakers": speakers,
                "loss": torch.tensor(losses[epoch]),
                **({"utterances": utterances[0]} if utterances else {}),
            }

        test_step = validation_step

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    for name, value in changes.items():
        setattr(Anonymiser, name, value)
    return Anonymiser()


def by_hand(share, **kwargs):
    original, noise, speakers = voices(**kwargs)
    metric = VoicePrivacy()
    metric.update(original, protect(original, noise, share), speakers)
    return {name: float(value) for name, value in metric.compute().items()}


def fit(pl, callbacks, module=None, val=None, epochs=4, ckpt_path=None, **kwargs):
    options = {"logger": False, "enable_checkpointing": any(isinstance(c, PrivacyCheckpoint) for c in callbacks)}
    trainer = pl.Trainer(max_epochs=epochs, callbacks=callbacks, **{**QUIET, **options, **kwargs})
    trainer.fit(module or anonymiser(pl), loader(), loader() if val is None else val, ckpt_path=ckpt_path)
    return trainer


def tensorboard(pl, folder, **kwargs):
    return importlib.import_module(f"{pl.__name__}.loggers").TensorBoardLogger(folder, **kwargs)


def events(logger):
    accumulator = EventAccumulator(logger.log_dir, size_guidance={"images": 0, "scalars": 0})
    accumulator.Reload()
    return accumulator


def assert_same(found, expected):
    expected, found = ([value[key] for key in sorted(expected)] for value in (expected, found))
    # Processes add float32 in another order.
    assert_close(torch.tensor(found), torch.tensor(expected), atol=1e-6, rtol=1e-5, equal_nan=True)


# PrivacyMonitor: values


@both_packages
def test_tensorboard_holds_every_scalar_and_figure_at_its_step(pl, tmp_path):
    logger = tensorboard(pl, tmp_path, default_hp_metric=False)
    monitor = PrivacyMonitor(figures_every_n_epochs=2)
    trainer = fit(pl, [monitor], logger=logger)
    found = events(logger)
    steps = [event.step for event in found.Scalars("val/loss")]
    assert len(steps) == 4
    expected = [by_hand(share) for share in (0.9, 0.6, 0.3, 0.1)]
    for name in expected[0]:
        scalars = found.Scalars(f"val/privacy/{name}")
        assert [event.step for event in scalars] == steps
        assert_same(dict(enumerate(event.value for event in scalars)), dict(enumerate(row[name] for row in expected)))
    assert set(found.Tags()["images"]) == {f"val/privacy/{figure}" for figure in FIGURES}
    for tag in found.Tags()["images"]:
        images = found.Images(tag)
        assert [image.step for image in images] == [steps[0], steps[1], steps[3]]
        assert all(image.width > 300 and image.encoded_image_string.startswith(b"\x89PNG") for image in images)
    assert_same({name: trainer.callback_metrics[f"val/privacy/{name}"].item() for name in expected[3]}, expected[3])
    for row, values in zip(monitor.history, expected, strict=True):
        assert_same({name: row[name] for name in values}, values)
    assert_same(monitor.summary, {f"hp/val/privacy/{name}": value for name, value in expected[3].items()})
    assert "_hparams_/session_start_info" in found.summary_metadata
    assert found.Scalars("hp/val/privacy/deid")[0].value == pytest.approx(expected[3]["deid"])


@both_packages
def test_csv_has_the_scalars_and_no_figures(pl, tmp_path):
    logger = importlib.import_module(f"{pl.__name__}.loggers").CSVLogger(tmp_path)
    fit(pl, [PrivacyMonitor()], logger=logger, epochs=2)
    header, *rows = Path(logger.log_dir, "metrics.csv").read_text().splitlines()
    column = header.split(",").index("val/privacy/op_d_ece")
    values = [float(row.split(",")[column]) for row in rows if row.split(",")[column]]
    assert values == pytest.approx([by_hand(share)["op_d_ece"] for share in (0.9, 0.6)])


@both_packages
def test_validate_and_test_without_a_fit(pl):
    monitor = PrivacyMonitor()
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, callbacks=[monitor], **QUIET)
    expected = by_hand(0.9)
    for run, prefix in ((trainer.validate, "val/privacy/"), (trainer.test, "test/privacy/")):
        (found,) = run(anonymiser(pl), loader(), verbose=False)
        assert_same({name: found[prefix + name] for name in expected}, expected)
    assert monitor.history == []
    # What was kept in inference mode serves a training, too.
    trainer.fit_loop.max_epochs = 1
    trainer.fit(anonymiser(pl), loader(), loader())
    assert_same({name: trainer.callback_metrics["val/privacy/" + name] for name in expected}, expected)


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("val/p", "test/p"),
        ("valid", "test"),
        ("validation_p", "test_p"),
        ("valley/p", "test/valley/p"),
        ("p", "test/p"),
    ],
)
def test_prefix_in_a_test(pl, prefix, expected):
    trainer = pl.Trainer(logger=False, callbacks=[PrivacyMonitor(prefix)], enable_checkpointing=False, **QUIET)
    (found,) = trainer.test(anonymiser(pl), loader(), verbose=False)
    assert f"{expected}/deid" in found


def test_a_test_has_figures_without_a_path(pl, tmp_path):
    logger = tensorboard(pl, tmp_path)
    trainer = pl.Trainer(logger=logger, callbacks=[PrivacyMonitor()], enable_checkpointing=False, **QUIET)
    trainer.test(anonymiser(pl), loader(), verbose=False)
    assert set(events(logger).Tags()["images"]) == {f"test/privacy/{figure}" for figure in FIGURES - {"path"}}


def test_several_loaders_are_measured_one_by_one(pl, tmp_path):
    logger = tensorboard(pl, tmp_path)
    monitor = PrivacyMonitor(figures_every_n_epochs=1)
    trainer = fit(pl, [monitor], val=[loader(), loader(seed=1, speakers=5)], epochs=1, logger=logger)
    for number, data in enumerate(({}, {"seed": 1, "speakers": 5})):
        expected = by_hand(0.9, **data)
        suffix = f"/dataloader_idx_{number}"
        assert_same({key: trainer.callback_metrics[f"val/privacy/{key}{suffix}"] for key in expected}, expected)
        assert len(events(logger).Images(f"val/privacy/path{suffix}")) == 1
    assert "val/privacy/deid" not in trainer.callback_metrics
    assert set(monitor.summary) == {
        f"hp/{name}/dataloader_idx_{number}" for name in monitor.logged_names for number in (0, 1)
    }


def test_loaders_combined_into_one_have_no_suffix(pl):
    combined = importlib.import_module(f"{pl.__name__}.utilities").CombinedLoader([loader(), loader()], "max_size")

    def step(self, batch, batch_idx):
        return dict(zip(("original", "protected", "speakers"), batch[0], strict=True))

    trainer = fit(pl, [PrivacyMonitor()], anonymiser(pl, validation_step=step), val=combined, epochs=1)
    assert_same({"deid": trainer.callback_metrics["val/privacy/deid"]}, {"deid": by_hand(0.0)["deid"]})


@pytest.mark.usefixtures("one_small_figure")
def test_epochs_between_measurements_and_figures(pl, tmp_path):
    logger = tensorboard(pl, tmp_path)
    monitor = PrivacyMonitor(every_n_epochs=2, figures_every_n_epochs=3)
    fit(pl, [monitor], logger=logger, epochs=7)
    assert [row["epoch"] for row in monitor.history] == [1, 3, 5]
    found = events(logger)
    steps = [event.step for event in found.Scalars("val/privacy/deid")]
    # The first; the third epoch is over at the second measurement, the sixth at the third, which is the last as well.
    assert [image.step for image in found.Images("val/privacy/zoo")] == steps


@pytest.mark.usefixtures("one_small_figure")
def test_validations_between_epochs_and_within_one(pl, tmp_path):
    logger = tensorboard(pl, tmp_path / "sparse")
    fit(pl, [PrivacyMonitor(figures_every_n_epochs=3)], logger=logger, epochs=8, check_val_every_n_epoch=2)
    found = events(logger)
    steps = [event.step for event in found.Scalars("val/privacy/deid")]
    # After 2, 4, 6 and 8 epochs: the first; the third is over at the second, the sixth at the third; and the last.
    assert [image.step for image in found.Images("val/privacy/zoo")] == steps
    checkpoint = PrivacyCheckpoint(budget=1.0, dirpath=tmp_path, filename="{epoch}-{step}")
    monitor = PrivacyMonitor()
    fit(pl, [monitor, checkpoint], epochs=2, val_check_interval=0.5)
    assert [(row["epoch"], row["step"]) for row in monitor.history] == [(0, 2), (0, 4), (1, 7), (1, 9)]
    assert [point.step for point in checkpoint.pareto_front] == [7]


def test_original_speech_is_scored_once(pl, monkeypatch):
    walked = []
    original = VoicePrivacy._report_of
    monitor = PrivacyMonitor()
    monkeypatch.setattr(VoicePrivacy, "_report_of", lambda self, *which: walked.append(which) or original(self, *which))
    fit(pl, [monitor])
    assert len(walked) == 1 + 4 * 2


def test_a_metric_of_ones_own_and_a_choice_of_scalars(pl):
    suite = VoicePrivacy(scoring="dot", similarity="sigmoid")
    trainer = fit(pl, [PrivacyMonitor(suite=suite, metrics=["gvd"], prog_bar=["gvd"])], epochs=1)
    assert [name for name in trainer.callback_metrics if "privacy" in name] == ["val/privacy/gvd"]
    original, noise, speakers = voices()
    suite.update(original, protect(original, noise, 0.9), speakers)
    assert_close(trainer.callback_metrics["val/privacy/gvd"], suite.compute()["gvd"])
    assert list(trainer.progress_bar_metrics) == ["val/privacy/gvd"]


def test_early_stopping_and_model_checkpoint_see_the_scalars(pl, tmp_path):
    callbacks = importlib.import_module(f"{pl.__name__}.callbacks")
    stop = callbacks.EarlyStopping("val/privacy/op_d_ece", stopping_threshold=0.3, patience=9)
    best = callbacks.ModelCheckpoint(tmp_path, monitor="val/privacy/op_d_ece")
    trainer = fit(pl, [PrivacyMonitor(), stop, best], enable_checkpointing=True)
    values = [by_hand(share)["op_d_ece"] for share in (0.9, 0.6, 0.3, 0.1)]
    assert trainer.current_epoch == 1 + next(epoch for epoch, value in enumerate(values) if value < 0.3)
    assert best.best_model_score == pytest.approx(min(values[: trainer.current_epoch]))


# PrivacyMonitor: what a step returns


def test_names_of_keys_and_utterances(pl):
    def step(self, batch, batch_idx):
        original, noise, speakers = batch
        # Copies, as a sampler makes that fills up its last batch.
        x, y, who = (torch.cat([part, part[:2]]) for part in (original, protect(original, noise, 0.9), speakers))
        utterances = 5 * batch_idx + torch.arange(len(original))
        return {"x": x, "y": y, "who": who, "file": torch.cat([utterances, utterances[:2]])}

    module = anonymiser(pl, validation_step=step)
    trainer = fit(pl, [PrivacyMonitor(keys=("x", "y", "who", "file"))], module, epochs=1)
    expected = by_hand(0.9)
    assert_same({name: trainer.callback_metrics[f"val/privacy/{name}"] for name in expected}, expected)


def test_a_function_for_keys(pl):
    calls = []

    def read(outputs):
        calls.append(outputs)
        if len(outputs["original"]) < 5:
            return None
        row = {name: outputs[name] for name in ("original", "protected", "speakers")}
        return row if len(calls) % 2 else tuple(row.values())

    trainer = fit(pl, [PrivacyMonitor(keys=read)], epochs=1, num_sanity_val_steps=0)
    metric = VoicePrivacy()
    original, noise, speakers = (part[:20] for part in voices())
    metric.update(original, protect(original, noise, 0.9), speakers)
    expected = metric.compute()
    assert_same({name: trainer.callback_metrics[f"val/privacy/{name}"] for name in expected}, expected)


def test_a_loader_without_voices_is_left_out(pl):
    def read(outputs):
        return (
            None
            if (outputs["speakers"] == 99).any()
            else tuple(outputs[name] for name in ("original", "protected", "speakers"))
        )

    silent = DataLoader(TensorDataset(*voices()[:2], torch.full((24,), 99)), 5)
    trainer = fit(pl, [PrivacyMonitor(keys=read)], val=[loader(), silent], epochs=1)
    assert "val/privacy/deid/dataloader_idx_0" in trainer.callback_metrics
    assert "val/privacy/deid/dataloader_idx_1" not in trainer.callback_metrics


class Encoder(torch.nn.Module):
    """An attacker's encoder of sorts; whether it was used as it should is in ``seen``."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 6, bias=False)
        self.dropout = torch.nn.Dropout(0.5)
        self.seen = set()

    def forward(self, audio):
        out = self.dropout(self.layer(audio))
        self.seen.add((self.training, torch.is_grad_enabled(), out.dtype))
        return out


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_an_encoder_embeds_audio(pl, dtype, precision):
    torch.manual_seed(0)
    encoder = Encoder()
    trainer = fit(pl, [PrivacyMonitor(encoder=encoder, encoder_dtype=dtype)], epochs=1, precision=precision)
    assert encoder.seen == {(False, False, dtype or torch.float32)}
    assert not any(weight.requires_grad for weight in encoder.parameters())
    original, noise, speakers = voices()
    if precision == "bf16-true":
        original, noise = original.bfloat16(), noise.bfloat16()
    metric = VoicePrivacy()
    with torch.no_grad():
        sides = [encoder.layer(side.float()) for side in (original, protect(original, noise, 0.9))]
    metric.update(*sides, speakers)
    exact = dtype is None
    assert_close(
        trainer.callback_metrics["val/privacy/op_d_ece"],
        metric.compute()["op_d_ece"],
        atol=1e-6 if exact else 0.03,  # three digits of bfloat16 move some scores past their neighbours
        rtol=0,
    )


def test_an_encoder_that_is_being_trained_is_no_attacker(pl):
    module = anonymiser(pl)
    module.encoder = Encoder()
    with pytest.raises(ValueError, match="Expected `encoder` to be an attacker of its own"):
        fit(pl, [PrivacyMonitor(encoder=module.encoder)], module)


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "bf16-true"])
def test_half_precision(pl, precision):
    trainer = fit(pl, [PrivacyMonitor()], precision=precision, epochs=1)
    original, noise, speakers = voices()
    if precision == "bf16-true":
        original, noise = original.bfloat16(), noise.bfloat16()
    metric = VoicePrivacy()
    metric.update(original, protect(original, noise, 0.9), speakers)
    expected = metric.compute()
    assert_same({name: trainer.callback_metrics[f"val/privacy/{name}"] for name in expected}, expected)


# PrivacyMonitor: when there is little to measure


@pytest.mark.usefixtures("one_small_figure")
def test_a_sanity_check_is_neither_logged_nor_kept(pl, tmp_path):
    logger = tensorboard(pl, tmp_path)
    seen = []

    def at_start(self):
        seen.append(dict(self.trainer.callback_metrics))

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", module=".*lightning.*")
        warnings.filterwarnings("ignore", module="torch")
        fit(pl, [PrivacyMonitor()], anonymiser(pl, on_train_start=at_start), epochs=1, logger=logger)
    assert seen == [{}]
    assert len(events(logger).Scalars("val/privacy/deid")) == 1
    assert_same({"deid": events(logger).Scalars("val/privacy/deid")[0].value}, {"deid": by_hand(0.9)["deid"]})


@both_packages
def test_fast_dev_run_with_a_lone_speaker(pl, tmp_path):
    data = DataLoader(TensorDataset(*(part[:3] for part in voices(speakers=1))), 3)
    checkpoint = PrivacyCheckpoint(dirpath=tmp_path)
    with pytest.warns(UserWarning, match="The result is NaN"):
        trainer = fit(pl, [PrivacyMonitor(), checkpoint], val=data, fast_dev_run=True)
    assert trainer.callback_metrics["val/privacy/deid"].isnan()
    assert list(tmp_path.iterdir()) == []


def test_figures_of_a_lone_speaker(pl, tmp_path):
    logger = tensorboard(pl, tmp_path)
    data = DataLoader(TensorDataset(*(part[:3] for part in voices(speakers=1))), 3)
    with pytest.warns(UserWarning, match="The result is NaN"):
        fit(pl, [PrivacyMonitor(figures_every_n_epochs=1)], val=data, epochs=1, logger=logger)
    assert {f"val/privacy/{figure}" for figure in FIGURES} == set(events(logger).Tags()["images"])


def test_a_fit_without_validation(pl):
    trainer = pl.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, callbacks=[PrivacyMonitor()], **QUIET)
    trainer.fit(anonymiser(pl), loader())
    assert trainer.callbacks[0].history == []


def test_without_matplotlib_there_are_scalars(pl, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    logger = tensorboard(pl, tmp_path)
    with pytest.warns(UserWarning, match="draws no figures: matplotlib is not installed"):
        fit(pl, [PrivacyMonitor()], logger=logger, epochs=1)
    assert events(logger).Tags()["images"] == []
    assert len(events(logger).Scalars("val/privacy/deid")) == 1


def test_the_profiler_shows_the_cost(pl):
    trainer = fit(pl, [PrivacyMonitor()], profiler="simple", epochs=2)
    assert len(trainer.profiler.recorded_durations["[Callback]PrivacyMonitor.compute"]) == 2


# PrivacyMonitor: mistakes


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (
            lambda outputs: None,
            TypeError,
            "Expected `validation_step` to return a dictionary.* but got None.*`return {'original'",
        ),
        (lambda outputs: outputs["loss"], TypeError, "but got a tensor of shape"),
        (
            lambda outputs: {"original": 0, "protectd": 0, "speakers": 0},
            ValueError,
            "'protected' is missing; it holds 'original', 'protectd', 'speakers'. Closest: 'protectd'",
        ),
        (
            lambda outputs: {**outputs, "protected": outputs["protected"][:, :3]},
            ValueError,
            r"what `validation_step` returned. Expected `protected` to have shape \(5, 8\), the shape of `original`, "
            r"but got \(5, 3\)",
        ),
        (
            lambda outputs: {**outputs, "speakers": ["anna"]},
            TypeError,
            r"Expected `speakers` to be a tensor, but got list.*`keys` reads them from \('original', ",
        ),
    ],
)
def test_what_a_step_must_return(pl, returned, error, message):
    step = type(anonymiser(pl)).validation_step
    module = anonymiser(pl, validation_step=lambda *args: returned(step(*args)))
    steps = []
    module.on_train_start = lambda: steps.append("too late")
    with pytest.raises(error, match=message):
        fit(pl, [PrivacyMonitor()], module)
    assert steps == []


def test_what_a_function_must_return(pl):
    with pytest.raises(TypeError, match=r"Expected the function `keys` to return \(original, .* but got 2 values"):
        fit(pl, [PrivacyMonitor(keys=lambda outputs: (1, 2))])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prefix": 3}, TypeError, "Expected `prefix` to be a string, but got int"),
        ({"prefix": "val/"}, ValueError, "Expected `prefix` to be a name such as"),
        ({"keys": "original"}, TypeError, "Expected `keys` to be the names of"),
        ({"keys": ("original", "protected")}, ValueError, "Expected `keys` to be the names of"),
        ({"every_n_epochs": 0}, ValueError, "Expected `every_n_epochs` to be at least 1"),
        ({"figures_every_n_epochs": 2.0}, TypeError, "Expected `figures_every_n_epochs` to be a whole number"),
        ({"metrics": ["op_dece"]}, ValueError, "but got 'op_dece'. Closest: 'op_d_ece'"),
        ({"metrics": "deid"}, TypeError, "Expected `metrics` to be a sequence of names"),
        ({"prog_bar": ["did"]}, ValueError, "Expected `prog_bar` to name .* Closest: 'deid'"),
        ({"suite": VoicePrivacy}, TypeError, "Expected `suite` to be a VoicePrivacy or None, but got ABCMeta"),
        ({"encoder": abs}, TypeError, "Expected `encoder` to be a Module or None"),
    ],
)
def test_arguments_of_a_monitor(arguments, error, message):
    with pytest.raises(error, match=message):
        PrivacyMonitor(**arguments)


# PrivacyCheckpoint: the choice


SHARES, LOSSES = (1.0, 0.02, 0.6, 0.3, 0.45), (1.0, 3.5, 2.0, 2.5, 2.6)


def names_in(folder):
    return sorted(path.name for path in folder.glob("*.ckpt"))


@pytest.mark.parametrize(
    ("pl", "mode"),
    [(importlib.import_module(PACKAGES[0]), "min"), (importlib.import_module(PACKAGES[1]), "max")],
    ids=["pytorch_lightning-min", "lightning.pytorch-max"],
)
def test_best_utility_within_the_budget(pl, tmp_path, mode):
    logger = tensorboard(pl, tmp_path / "log")
    checkpoint = PrivacyCheckpoint(budget=0.4, mode=mode, dirpath=tmp_path / "kept", filename="{epoch}")
    losses = LOSSES if mode == "min" else [-loss for loss in LOSSES]
    module = anonymiser(pl, SHARES, losses)
    monitor = PrivacyMonitor(figures_every_n_epochs=None)
    trainer = fit(pl, [checkpoint, monitor], module, epochs=5, logger=logger)
    leaks = [by_hand(share)["op_d_ece"] for share in SHARES]
    # The last leaks more than the fourth and is worth less; of the others, each leaks less where it is worth less.
    assert leaks[1] < leaks[3] < 0.4 < leaks[2] < leaks[0]
    assert leaks[3] < leaks[4]
    assert names_in(tmp_path / "kept") == ["epoch=0.ckpt", "epoch=1.ckpt", "epoch=2.ckpt", "epoch=3.ckpt"]
    assert checkpoint.best_model_path == str(tmp_path / "kept" / "epoch=3.ckpt")
    assert checkpoint.best_model_score == losses[3]
    assert checkpoint.within_budget
    assert [point.epoch for point in checkpoint.pareto_front] == [1, 3, 2, 0]
    assert [point.utility for point in checkpoint.pareto_front] == [losses[epoch] for epoch in (1, 3, 2, 0)]
    found = [point.disclosure["val/privacy/op_d_ece"] for point in checkpoint.pareto_front]
    assert found == pytest.approx([leaks[epoch] for epoch in (1, 3, 2, 0)])
    # It reloads, and is the one meant.
    assert type(module).load_from_checkpoint(checkpoint.best_model_path).trained == 4
    trainer.test(module, loader(), ckpt_path="best", verbose=False)
    assert module.trained == 4
    # Loading it for a test has not taken the callbacks back to the epoch it was saved in.
    assert len(monitor.history) == 5
    assert len(checkpoint.pareto_front) == 4
    assert torch.load(checkpoint.best_model_path, weights_only=True)["epoch"] == 3
    images = events(logger).Images("val/privacy/op_d_ece/pareto_front")
    assert len(images) == 4
    written = json.loads((tmp_path / "kept" / "pareto_front.json").read_text())
    assert written["chosen"] == "epoch=3.ckpt"
    assert written["privacy"] == {"val/privacy/op_d_ece": 0.4}
    assert [(point["path"], point["within_budget"]) for point in written["points"]] == [
        ("epoch=1.ckpt", True), ("epoch=3.ckpt", True), ("epoch=2.ckpt", False), ("epoch=0.ckpt", False),
    ]  # fmt: skip


def test_dominated_files_are_removed(pl, tmp_path):
    checkpoint = PrivacyCheckpoint(budget=0.4, dirpath=tmp_path, filename="{epoch}")
    fit(pl, [PrivacyMonitor(), checkpoint], anonymiser(pl, (0.9, 0.6, 0.3), (3.0, 2.0, 1.0)), epochs=3)
    assert names_in(tmp_path) == ["epoch=2.ckpt"]
    assert [point.epoch for point in checkpoint.pareto_front] == [2]


def test_least_disclosure_where_none_meets_the_budget(pl, tmp_path):
    checkpoint = PrivacyCheckpoint(budget=0.0, dirpath=tmp_path, filename="{epoch}")
    with pytest.warns(UserWarning, match="No checkpoint meets the budget"):
        fit(pl, [PrivacyMonitor(), checkpoint], anonymiser(pl, SHARES[::2], LOSSES[::2]), epochs=3)
    leaks = [by_hand(share)["op_d_ece"] for share in SHARES[::2]]
    assert Path(checkpoint.best_model_path).stem == f"epoch={leaks.index(min(leaks))}"
    assert not checkpoint.within_budget
    assert json.loads((tmp_path / "pareto_front.json").read_text())["within_budget"] is False


def test_several_budgets(pl, tmp_path):
    rows = [by_hand(share) for share in SHARES]
    budgets = {"val/privacy/op_d_ece": 0.5, "val/privacy/op_l_w": 1.6}
    checkpoint = PrivacyCheckpoint(list(budgets), list(budgets.values()), dirpath=tmp_path, filename="{epoch}")
    fit(pl, [PrivacyMonitor(), checkpoint], anonymiser(pl, SHARES, LOSSES), epochs=5)
    within = [e for e, row in enumerate(rows) if all(row[name[12:]] <= limit for name, limit in budgets.items())]
    assert within == [1, 3]
    assert rows[2]["op_d_ece"] < 0.5
    assert Path(checkpoint.best_model_path).stem == f"epoch={min(within, key=lambda epoch: LOSSES[epoch])}"


def test_only_measured_weights_are_saved(pl, tmp_path):
    checkpoint = PrivacyCheckpoint(budget=1.0, dirpath=tmp_path, filename="{epoch}")
    # A better loss in the epochs between must not be paired with the disclosure of the epoch before.
    module = anonymiser(pl, (0.9, 0.6, 0.9, 0.3), (0.1, 2.0, 0.1, 3.0))
    fit(pl, [PrivacyMonitor(every_n_epochs=2), checkpoint], module)
    assert names_in(tmp_path) == ["epoch=1.ckpt", "epoch=3.ckpt"]


def test_nothing_measured_nothing_saved(pl, tmp_path):
    with pytest.warns(UserWarning, match="PrivacyCheckpoint has saved nothing"):
        fit(pl, [PrivacyMonitor(every_n_epochs=3), PrivacyCheckpoint(dirpath=tmp_path)], epochs=2)
    assert names_in(tmp_path) == []


def test_what_is_not_finite_is_not_saved(pl, tmp_path):
    checkpoint = PrivacyCheckpoint(budget=1.0, dirpath=tmp_path, filename="{epoch}")
    module = anonymiser(pl, (0.6, 0.3), (float("nan"), 1.0))
    with pytest.warns(UserWarning, match="saves nothing of epoch 0: .*val/loss is nan"):
        fit(pl, [PrivacyMonitor(), checkpoint], module, epochs=2)
    assert names_in(tmp_path) == ["epoch=1.ckpt"]


def test_scalars_of_another_source_and_of_a_training_step(pl, tmp_path):
    def step(self, batch, batch_idx):
        self.log("train/loss", float(self.current_epoch), on_epoch=True, on_step=False)
        return self.layer(batch[0]).square().mean()

    checkpoint = PrivacyCheckpoint("val/loss", 2.5, "train/loss", dirpath=tmp_path, filename="{epoch}")
    fit(pl, [checkpoint], anonymiser(pl, training_step=step))
    assert Path(checkpoint.best_model_path).stem == "epoch=2"


@both_packages
def test_resumed_in_mid_run(pl, tmp_path):
    def run(folder, epochs, ckpt_path=None):
        checkpoint = PrivacyCheckpoint(budget=0.4, dirpath=folder, filename="{epoch}", save_last=True)
        monitor = PrivacyMonitor()
        fit(pl, [monitor, checkpoint], anonymiser(pl, SHARES, LOSSES), epochs=epochs, ckpt_path=ckpt_path)
        return monitor, checkpoint

    whole, expected = run(tmp_path / "whole", 5)
    run(tmp_path / "parts", 2)
    monitor, checkpoint = run(tmp_path / "parts", 5, tmp_path / "parts" / "last.ckpt")
    assert [row["epoch"] for row in monitor.history] == [0, 1, 2, 3, 4]
    for row, other in zip(monitor.history, whole.history, strict=True):
        assert_same({**row, "seconds": 0}, {**other, "seconds": 0})
    assert [point._replace(path="") for point in checkpoint.pareto_front] == [
        point._replace(path="") for point in expected.pareto_front
    ]
    assert Path(checkpoint.best_model_path).name == Path(expected.best_model_path).name
    assert all(Path(point.path).exists() for point in checkpoint.pareto_front)


def test_resumed_in_another_folder_with_another_budget(pl, tmp_path):
    first = PrivacyCheckpoint(budget=0.4, dirpath=tmp_path / "a", filename="{epoch}", save_last=True)
    fit(pl, [PrivacyMonitor(), first], anonymiser(pl, SHARES, LOSSES))
    (tmp_path / "a" / "epoch=2.ckpt").unlink()
    second = PrivacyCheckpoint(budget=0.7, dirpath=tmp_path / "b", filename="{epoch}")
    module = anonymiser(pl, SHARES, LOSSES)
    fit(pl, [PrivacyMonitor(), second], module, epochs=5, ckpt_path=tmp_path / "a" / "last.ckpt")
    # The fifth epoch is on the front now that the third, which dominated it, has been removed by hand.
    front = {point.epoch: Path(point.path) for point in second.pareto_front}
    assert sorted(front) == [0, 1, 3]
    assert all(path.exists() for path in front.values())


# PrivacyCheckpoint: mistakes


@both_packages
@pytest.mark.parametrize(
    ("privacy", "closest"),
    [
        ("val/privacy/op_dece", "val/privacy/op_d_ece"),
        ("val/privcy/op_l_w", "val/privacy/op_l_w"),
        ("op_d_ece", "val/privacy/op_d_ece"),
        ("privacy/op_l_w", "val/privacy/op_l_w"),
    ],
)
def test_a_name_no_monitor_logs_is_found_at_setup(pl, tmp_path, privacy, closest):
    steps = []
    module = anonymiser(pl, validation_step=lambda *_: steps.append("too late"))
    with pytest.raises(ValueError, match=f"PrivacyCheckpoint watches '{privacy}'.* Closest: '{closest}'"):
        fit(pl, [PrivacyMonitor(), PrivacyCheckpoint(privacy, dirpath=tmp_path)], module)
    assert steps == []


def test_a_scalar_the_monitor_leaves_out_is_found_at_setup(pl, tmp_path):
    monitor = PrivacyMonitor(metrics=["deid", "op_eer"])
    with pytest.raises(ValueError, match="watches 'val/privacy/op_d_ece', but no PrivacyMonitor logs it"):
        fit(pl, [monitor, PrivacyCheckpoint(dirpath=tmp_path)])


def test_a_name_nobody_logs_is_found_in_the_first_validation(pl, tmp_path):
    checkpoint = PrivacyCheckpoint(utility="val/lost", dirpath=tmp_path)
    said = "PrivacyCheckpoint watches 'val/lost', but {} has.* logged it. Closest: 'val/loss'"
    with pytest.raises(ValueError, match=said.format("the sanity check")):
        fit(pl, [PrivacyMonitor(), checkpoint])
    assert names_in(tmp_path) == []


def test_a_name_unlike_any_is_refused_when_it_is_needed(pl, tmp_path):
    """Before, some callback may still log it; a long list of names would hide the message."""
    checkpoint = PrivacyCheckpoint(utility="val/quality", dirpath=tmp_path)
    said = "PrivacyCheckpoint watches 'val/quality', but {} has.* logged it. (Known|Closest): .{{,300}}$"
    with (
        pytest.warns(UserWarning, match=said.format("the sanity check")),
        pytest.raises(ValueError, match=said.format("nothing")),
    ):
        fit(pl, [PrivacyMonitor(), checkpoint])


def test_a_forgotten_monitor_is_named(pl, tmp_path):
    said = "watches 'val/privacy/op_d_ece'.* No PrivacyMonitor is among the callbacks"
    with pytest.warns(UserWarning, match=said), pytest.raises(ValueError, match=said):
        fit(pl, [PrivacyCheckpoint(dirpath=tmp_path)])


def test_a_utility_only_a_training_step_or_a_later_validation_logs_is_waited_for(pl, tmp_path):
    class Wer(pl.Callback):
        def on_validation_epoch_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                pl_module.log("val/later", 1.0)

    checkpoint = PrivacyCheckpoint(utility="val/later", budget=1.0, dirpath=tmp_path)
    with pytest.warns(UserWarning, match="watches 'val/later', but the sanity check has not logged it"):
        fit(pl, [PrivacyMonitor(), Wer(), checkpoint])
    assert checkpoint.pareto_front


def test_two_checkpoints_in_one_folder(pl, tmp_path):
    pair = [PrivacyCheckpoint(utility=name, dirpath=tmp_path) for name in ("val/loss", "val/wer")]
    with pytest.raises(ValueError, match="Expected a `dirpath` for each PrivacyCheckpoint"):
        fit(pl, [PrivacyMonitor(), *pair])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"budget": -0.1}, ValueError, "Expected `budget` to be finite and not negative"),
        ({"budget": "low"}, TypeError, "Expected `budget` to be a number"),
        ({"privacy": ["a", "b"], "budget": 0.1}, ValueError, "Expected one `budget` for each name"),
        ({"privacy": {"a": 0.1}, "budget": 0.1}, ValueError, "Expected no `budget` beside a dictionary"),
        ({"privacy": {}}, ValueError, "Expected one `budget` for each name"),
        ({"privacy": 3}, TypeError, "Expected `privacy` to be a name"),
        ({"privacy": "val/privacy/deid"}, ValueError, "is large where little is"),
        ({"privacy": "val/privacy/op_eer"}, ValueError, "is large where little is"),
        ({"utility": None}, TypeError, "Expected `utility` to be a name"),
        ({"monitor": "val/loss"}, TypeError, "Expected no `monitor`"),
        ({"mode": "up"}, Exception, "mode"),
    ],
)
def test_arguments_of_a_checkpoint(arguments, error, message):
    with pytest.raises(error, match=message):
        PrivacyCheckpoint(**arguments)


# Both packages, and each alone; processes


@both_packages
def test_every_trainer_takes_them_for_its_own(pl, tmp_path):
    callbacks = importlib.import_module(f"{pl.__name__}.callbacks")
    monitor, checkpoint = PrivacyMonitor(), PrivacyCheckpoint(dirpath=tmp_path)
    assert isinstance(monitor, callbacks.Callback)
    assert isinstance(checkpoint, callbacks.ModelCheckpoint)
    trainer = pl.Trainer(callbacks=monitor, logger=False, enable_checkpointing=False, **QUIET)
    assert monitor in trainer.callbacks
    trainer = pl.Trainer(callbacks=[checkpoint, monitor], logger=False, **QUIET)
    assert trainer.checkpoint_callbacks == [checkpoint]
    assert trainer.callbacks[-1] is checkpoint


def test_they_reach_spawned_processes(tmp_path):
    for callback in (PrivacyMonitor(), PrivacyCheckpoint(dirpath=tmp_path)):
        assert pickle.loads(pickle.dumps(callback)).state_key == callback.state_key


def run_script(folder, text, *arguments):
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    paths = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_one_package_is_enough_and_none_is_not(tmp_path):
    script = """
        import importlib, os, sys
        import torch, vpmetrics.suite

        def alone(present):
            from vpmetrics.lightning import PrivacyCheckpoint, PrivacyMonitor
            Callback = importlib.import_module(f"{present}.callbacks").Callback
            assert isinstance(PrivacyMonitor(), Callback) and isinstance(PrivacyCheckpoint(), Callback)

        def without():
            try:
                import vpmetrics.lightning
            except ImportError as error:
                assert "pip install vpmetrics[lightning]" in str(error)
            else:
                raise AssertionError

        for absent, check in (
            (["lightning"], lambda: alone("pytorch_lightning")),
            (["pytorch_lightning"], lambda: alone("lightning.pytorch")),
            (["lightning", "pytorch_lightning"], without),
        ):
            child = os.fork()
            if child == 0:
                sys.modules.update(dict.fromkeys(absent))
                check()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    """
    run_script(tmp_path, script)


def test_two_processes_log_what_one_does(tmp_path):
    script = """
        import json, sys, warnings
        from pathlib import Path
        import pytorch_lightning as pl
        from test_lightning import LOSSES, QUIET, SHARES, anonymiser, loader, numbered, tensorboard
        from vpmetrics.lightning import PrivacyCheckpoint, PrivacyMonitor

        if __name__ == "__main__":
            said = []
            warnings.showwarning = lambda message, *_: said.append(str(message))
            warnings.simplefilter("always")
            folder = Path(sys.argv[1])
            monitor = PrivacyMonitor(
                keys=("original", "protected", "speakers", "utterances"), figures_every_n_epochs=2
            )
            checkpoint = PrivacyCheckpoint(budget=0.4, dirpath=folder / "kept", filename="{epoch}")
            trainer = pl.Trainer(
                strategy="ddp", devices=2, max_epochs=3, callbacks=[monitor, checkpoint],
                logger=tensorboard(pl, folder, version=0), **QUIET,
            )
            trainer.fit(anonymiser(pl, SHARES, LOSSES), loader(), numbered())
            assert not any("sync_dist" in text and "privacy" in text for text in said), said
            found = {name: value.item() for name, value in trainer.callback_metrics.items()}
            best = checkpoint.best_model_path
            (folder / f"{trainer.global_rank}.json").write_text(json.dumps([found, best, monitor.history]))
    """
    run_script(tmp_path, script, tmp_path)
    rows = [by_hand(share, speakers=7, utterances=3) for share in SHARES[:3]]
    chosen = min((epoch for epoch in range(3) if rows[epoch]["op_d_ece"] <= 0.4), key=lambda epoch: LOSSES[epoch])
    for rank in (0, 1):
        found, best, history = json.loads((tmp_path / f"{rank}.json").read_text())
        assert_same({name: found[f"val/privacy/{name}"] for name in rows[2]}, rows[2])
        assert Path(best).name == f"epoch={chosen}.ckpt"
        for row, expected in zip(history, rows, strict=True):
            assert_same({name: row[name] for name in expected}, expected)
    scalars = EventAccumulator(str(tmp_path / "lightning_logs" / "version_0")).Reload()
    for name in rows[0]:
        values = (event.value for event in scalars.Scalars(f"val/privacy/{name}"))
        assert_same(dict(enumerate(values)), dict(enumerate(row[name] for row in rows)))
    assert len(scalars.Images("val/privacy/quadrants")) == 3


# Figures


def test_zoo_plot_places_speakers():
    matrix = torch.tensor([[0.9, 0.2, 0.4], [0.2, 0.8, 0.1], [0.4, 0.1, torch.nan]])
    _, ax = draw_zoo(matrix, None, "OP")
    x, y = ax.lines[-1].get_data()
    assert_close(torch.tensor(x), torch.tensor([0.9, 0.8], dtype=torch.float64), check_dtype=False)
    assert_close(torch.tensor(y), torch.tensor([0.3, 0.15], dtype=torch.float64), check_dtype=False)


def test_zoo_plot_counts_animals():
    own, others = torch.tensor([0.1, 0.9, 0.2, 0.8, 0.5, 0.5, 0.5]), torch.tensor([0.1, 0.9, 0.8, 0.2, 0.5, 0.5, 0.5])
    matrix = others[:, None].expand(7, 7).clone()
    matrix.fill_diagonal_(0)
    matrix += torch.diag(own)
    _, ax = draw_zoo(matrix, None)
    assert {text.get_text() for text in ax.texts} == {"worms: 1", "chameleons: 1", "phantoms: 1", "doves: 1"}


def test_zoo_plot_of_speakers_all_alike_has_no_animals():
    _, ax = draw_zoo(torch.full((6, 6), 0.5), None)
    assert not ax.texts


def test_path_leaves_out_what_is_not_finite():
    _, ax = draw_path([0.1, 0.2, float("nan")], [-1.0, float("-inf"), 0.0], [0, 1, 2], None)
    assert ax.lines[0].get_data()[0].tolist() == [10.0]
    draw_path([], [], [], None)


def test_pareto_front_shows_budget_and_choice():
    _, ax = draw_pareto_front([(0.1, 3.0), (0.3, 1.0)], [(0.3, 4.0)], (0.1, 3.0), 0.2, ("privacy", "loss"), None)
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {
        "measured", "Pareto front", "chosen", "budget 0.2",
    }  # fmt: skip
    draw_pareto_front([], [], None, 0.2, ("privacy", "loss"), None)


def test_a_point_is_plain():
    point = ParetoPoint(epoch=0, step=10, disclosure={"d": 0.1}, utility=1.0, path="a.ckpt")
    assert json.loads(json.dumps(point._asdict())) == point._asdict()
