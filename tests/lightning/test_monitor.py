"""What a monitor measures, when, and where it leaves it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from torch.testing import assert_close
from training import (
    FIGURES,
    HEADLINE,
    QUIET,
    anonymiser,
    assert_same,
    both_packages,
    by_hand,
    events,
    fit,
    keeper,
    loader,
    protect,
    tensorboard,
    voices,
    watch,
)

from vpmetrics import suite
from vpmetrics.lightning.monitor import PrivacyMonitor
from vpmetrics.suite import VoicePrivacy


@both_packages
def test_tensorboard_holds_every_scalar_and_figure_at_its_step(pl, tmp_path):
    logger = tensorboard(pl, tmp_path, default_hp_metric=False)
    monitor = watch(figures_every_n_epochs=2)
    trainer = fit(pl, [monitor], logger=logger)
    found = events(logger)
    steps = [event.step for event in found.Scalars("val/loss")]
    assert len(steps) == 4
    expected = [by_hand(share) for share in (0.9, 0.6, 0.3, 0.1)]
    for name in expected[0]:
        group = "val" if name in HEADLINE else "val_details"
        scalars = found.Scalars(f"{group}/privacy/{name}")
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
    assert {tag.partition("/")[2] for tag in found.Tags()["scalars"] if tag.startswith("val/")} == {
        "loss", *(f"privacy/{name}" for name in HEADLINE)
    }  # fmt: skip
    assert_same(monitor.summary, {f"hp/val/privacy/{name}": expected[3][name] for name in HEADLINE})
    assert "_hparams_/session_start_info" in found.summary_metadata
    assert found.Scalars("hp/val/privacy/deid")[0].value == pytest.approx(expected[3]["deid"])


@both_packages
def test_csv_has_the_scalars_and_no_figures(pl, tmp_path):
    logger = importlib.import_module(f"{pl.__name__}.loggers").CSVLogger(tmp_path)
    with pytest.warns(UserWarning, match="draws no figures: of CSVLogger, no logger takes them") as said:
        fit(pl, [watch()], logger=logger, epochs=2)
    assert sum("draws no figures" in str(one.message) for one in said) == 1
    header, *rows = Path(logger.log_dir, "metrics.csv").read_text().splitlines()
    column = header.split(",").index("val/privacy/op_d_ece")
    values = [float(row.split(",")[column]) for row in rows if row.split(",")[column]]
    assert values == pytest.approx([by_hand(share)["op_d_ece"] for share in (0.9, 0.6)])


@both_packages
def test_validate_and_test_without_a_fit(pl):
    monitor = watch()
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
    trainer = pl.Trainer(logger=False, callbacks=[watch(prefix=prefix)], enable_checkpointing=False, **QUIET)
    (found,) = trainer.test(anonymiser(pl), loader(), verbose=False)
    assert f"{expected}/deid" in found


def test_a_test_has_figures_without_a_path(pl, tmp_path):
    logger = tensorboard(pl, tmp_path)
    trainer = pl.Trainer(logger=logger, callbacks=[watch()], enable_checkpointing=False, **QUIET)
    trainer.test(anonymiser(pl), loader(), verbose=False)
    assert set(events(logger).Tags()["images"]) == {
        f"test/privacy/{figure}" for figure in FIGURES - {"path"} | {"deid_gvd"}
    }


def test_several_loaders_are_measured_one_by_one(pl, tmp_path):
    logger = tensorboard(pl, tmp_path)
    monitor = watch(figures_every_n_epochs=1)
    trainer = fit(pl, [monitor], val=[loader(), loader(seed=1, speakers=5)], epochs=1, logger=logger)
    for number, data in enumerate(({}, {"seed": 1, "speakers": 5})):
        expected = by_hand(0.9, **data)
        suffix = f"/dataloader_idx_{number}"
        assert_same({key: trainer.callback_metrics[f"val/privacy/{key}{suffix}"] for key in expected}, expected)
        assert len(events(logger).Images(f"val/privacy/path{suffix}")) == 1
    assert "val/privacy/deid" not in trainer.callback_metrics
    assert set(monitor.summary) == {
        f"hp/val/privacy/{name}/dataloader_idx_{number}" for name in HEADLINE for number in (0, 1)
    }


def test_loaders_combined_into_one_have_no_suffix(pl):
    combined = importlib.import_module(f"{pl.__name__}.utilities").CombinedLoader([loader(), loader()], "max_size")

    def step(self, batch, batch_idx):
        return dict(zip(("original", "protected", "speakers"), batch[0], strict=True))

    trainer = fit(pl, [watch()], anonymiser(pl, validation_step=step), val=combined, epochs=1)
    assert_same({"deid": trainer.callback_metrics["val/privacy/deid"]}, {"deid": by_hand(0.0)["deid"]})


@pytest.mark.usefixtures("one_small_figure")
def test_epochs_between_measurements_and_figures(pl, tmp_path):
    logger = tensorboard(pl, tmp_path)
    monitor = watch(every_n_epochs=2, figures_every_n_epochs=3)
    fit(pl, [monitor], logger=logger, epochs=7)
    assert [row["epoch"] for row in monitor.history] == [1, 3, 5]
    found = events(logger)
    steps = [event.step for event in found.Scalars("val/privacy/deid")]
    # The first; the third epoch is over at the second measurement, the sixth at the third, which is the last as well.
    assert [image.step for image in found.Images("val/privacy/zoo")] == steps


@pytest.mark.usefixtures("one_small_figure")
def test_validations_between_epochs_and_within_one(pl, tmp_path):
    logger = tensorboard(pl, tmp_path / "sparse")
    fit(pl, [watch(figures_every_n_epochs=3)], logger=logger, epochs=8, check_val_every_n_epoch=2)
    found = events(logger)
    steps = [event.step for event in found.Scalars("val/privacy/deid")]
    # After 2, 4, 6 and 8 epochs: the first; the third is over at the second, the sixth at the third; and the last.
    assert [image.step for image in found.Images("val/privacy/zoo")] == steps
    checkpoint = keeper(budget=1.0, dirpath=tmp_path, filename="{epoch}-{step}")
    monitor = watch()
    fit(pl, [monitor, checkpoint], epochs=2, val_check_interval=0.5)
    assert [(row["epoch"], row["step"]) for row in monitor.history] == [(0, 2), (0, 4), (1, 7), (1, 9)]
    assert [point.step for point in checkpoint.pareto_front] == [7]


def test_original_speech_is_scored_once(pl, monkeypatch):
    walked = []
    original = suite.report_condition
    monitor = watch()
    monkeypatch.setattr(suite, "report_condition", lambda *which: walked.append(which) or original(*which))
    fit(pl, [monitor])
    assert len(walked) == 1 + 4 * 2


def test_a_metric_of_ones_own_and_a_choice_of_scalars(pl):
    suite = VoicePrivacy(scoring="dot", similarity="sigmoid", attacks=None)
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
    trainer = fit(pl, [watch(), stop, best], enable_checkpointing=True)
    values = [by_hand(share)["op_d_ece"] for share in (0.9, 0.6, 0.3, 0.1)]
    assert trainer.current_epoch == 1 + next(epoch for epoch, value in enumerate(values) if value < 0.3)
    assert best.best_model_score == pytest.approx(min(values[: trainer.current_epoch]))
