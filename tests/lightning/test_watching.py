"""Attackers that watch a training, and the further keys of a step: sessions, groups, utterances."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from training import QUIET, anonymiser, fit, loader, voices, watch

from vpmetrics.attacks import Plain, RidgeToOriginal
from vpmetrics.lightning import PrivacyMonitor
from vpmetrics.suite import VoicePrivacy


class Watching(VoicePrivacy):
    """A suite that writes down what it is given."""

    def __init__(self, attacks=None):
        super().__init__(attacks=attacks)
        self.calls = []

    def observe(self, original, protected, speakers, sessions=None):
        self.calls.append(("observe", len(original), sessions is not None))

    def update(self, *args, sessions=None, groups=None, **kwargs):
        given = [name for name, value in (("sessions", sessions), ("groups", groups)) if value is not None]
        self.calls.append(("update", *given))
        super().update(*args, **kwargs)

    def reset(self, observed=False):
        if observed:
            self.calls.append(("forget",))
        super().reset()


def training_step(self, batch, batch_idx):
    loss = self.layer(batch[0]).square().mean()
    return {"loss": loss, "original": batch[0], "protected": batch[1].requires_grad_(), "speakers": batch[2]}


def calls_of(monitor, loader_number=0):
    return monitor._suites.at("val", loader_number, torch.device("cpu")).calls


def test_attackers_see_the_batches_of_an_epoch_and_forget_them_with_it(pl):
    monitor = PrivacyMonitor(suite=Watching(), watch_training=True, figures_every_n_epochs=None)
    fit(pl, [monitor], anonymiser(pl, training_step=training_step), val=loader(batch_size=24), epochs=2)
    epoch = [("forget",), *[("observe", size, False) for size in (5, 5, 5, 5, 4)], ("update",)]
    assert calls_of(monitor) == [("update",), *epoch, *epoch]  # the sanity check is first


def test_every_loader_has_attackers_that_watched(pl):
    monitor = PrivacyMonitor(suite=Watching(), watch_training=True, figures_every_n_epochs=None)
    trainer = fit(pl, [monitor], anonymiser(pl, training_step=training_step), val=[loader(), loader(seed=1)], epochs=1)
    for number in (0, 1):
        assert sum(call[0] == "observe" for call in calls_of(monitor, number)) == 5
    trainer.test(anonymiser(pl), loader(), verbose=False)
    assert ("observe", 5, False) in monitor._suites.at("test", 0, torch.device("cpu")).calls


@pytest.mark.parametrize("keys", [("original", "protected", "speakers"), ("original", "protected", "missing")])
def test_nothing_is_watched_unless_asked_for_and_returned(pl, keys):
    data = DataLoader(TensorDataset(*voices()), 24)
    monitor = PrivacyMonitor(
        suite=Watching(), watch_training=keys[2] == "missing", keys=keys, figures_every_n_epochs=None
    )

    def step(self, batch, batch_idx):
        return dict(zip(keys, (batch[0], batch[1], batch[2]), strict=True))

    module = anonymiser(pl, training_step=training_step, validation_step=step)
    if keys[2] == "missing":
        with pytest.warns(UserWarning, match="found nothing to watch in what `training_step` returned, no dictionary"):
            fit(pl, [monitor], module, val=data, epochs=1)
    else:
        fit(pl, [monitor], module, val=data, epochs=1)
    assert {call[0] for call in calls_of(monitor)} == {"update"} | ({"forget"} if keys[2] == "missing" else set())


@pytest.mark.parametrize(
    ("keys", "given"),
    [
        (("original", "protected", "speakers", "file", "draw"), ("sessions",)),
        (("original", "protected", "speakers", "file", "draw", "sex"), ("sessions", "groups")),
        ({"original": "original", "protected": "protected", "speakers": "speakers", "groups": "sex"}, ("groups",)),
        (lambda outputs: {name: outputs[name] for name in ("original", "protected", "speakers")}, ()),
        (
            lambda outputs: tuple(outputs[name] for name in ("original", "protected", "speakers", "file", "draw")),
            ("sessions",),
        ),
    ],
    ids=["five", "six", "named", "function", "function of five"],
)
def test_sessions_and_groups_by_further_keys(pl, keys, given):
    def step(self, batch, batch_idx):
        rows = torch.arange(len(batch[0])) + 5 * batch_idx
        one = dict(zip(("original", "protected", "speakers"), batch, strict=True))
        return {**one, "file": rows, "draw": rows % 2, "sex": rows % 3}

    monitor = PrivacyMonitor(suite=Watching(), keys=keys, figures_every_n_epochs=None)
    fit(pl, [monitor], anonymiser(pl, validation_step=step), epochs=1)
    assert set(calls_of(monitor)) == {("update", *given)}


def test_names_of_sessions_are_known_where_there_are_some(pl):
    keys = ("original", "protected", "speakers", "utterances", "sessions")
    names = set(PrivacyMonitor(suite=Watching("standard"), keys=keys).metrics)
    assert {"within_d_ece", "across_d_ece_strongest", "op_c_ece"} <= names
    assert "within_d_ece" not in PrivacyMonitor(suite=Watching()).metrics


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"original": "x", "speakers": "y"}, "Expected `keys` to say where original, protected, speakers are"),
        ({"original": "x", "protected": "y", "speakers": "z", "sexes": "s"}, r"but got \['original', .*'sexes'\]"),
        (tuple("abcdefg"), "Expected `keys` to be the names of original, protected, speakers and, if any, utterances"),
    ],
)
def test_keys_that_lead_nowhere(keys, message):
    with pytest.raises(ValueError, match=message):
        PrivacyMonitor(keys=keys)


def test_sessions_of_a_step_are_measured_within_and_across(pl):
    """Against the same suite, filled by hand."""
    original, noise, speakers = voices(speakers=8, utterances=6)
    draws = torch.arange(len(speakers)) // 8 % 2

    def step(self, batch, batch_idx):
        x, y, who, draw = batch
        return {"x": x, "y": y, "who": who, "draw": draw}

    keys = {"original": "x", "protected": "y", "speakers": "who", "sessions": "draw"}
    monitor = watch(keys=keys, figures_every_n_epochs=None)
    data = DataLoader(TensorDataset(original, original + noise, speakers, draws), 7)
    trainer = fit(pl, [monitor], anonymiser(pl, validation_step=step), val=data, epochs=1, num_sanity_val_steps=0)
    metric = VoicePrivacy(attacks=None)
    metric.update(original, original + noise, speakers, sessions=draws)
    for name, value in metric.compute().items():
        logged = trainer.callback_metrics[f"val/privacy/{name}"]
        assert float(logged) == pytest.approx(float(value), abs=1e-5, nan_ok=True), name
    assert {"within_d_ece", "across_d_ece", "op_c_ece"} <= set(metric.compute())


def test_who_has_watched_the_training_undoes_a_rotation(pl):
    """Eight speakers are too few to learn the rotation from in folds, the others of the training are not."""
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(4)))[0]

    def protect_batch(self, batch, batch_idx):
        original, _, speakers = batch
        shared = {"original": original, "protected": original @ rotation, "speakers": speakers}
        return {**shared, "loss": self.layer(original).square().mean()} if self.training else shared

    found = {}
    for watching in (False, True):
        suite = VoicePrivacy(attacks=[Plain(), RidgeToOriginal()])
        monitor = PrivacyMonitor(suite=suite, watch_training=watching, figures_every_n_epochs=None)
        module = anonymiser(pl, training_step=protect_batch, validation_step=protect_batch)
        trainer = pl.Trainer(max_epochs=1, callbacks=[monitor], logger=False, num_sanity_val_steps=0, **QUIET)
        trainer.fit(module, loader(speakers=40, utterances=6, seed=5), loader(speakers=8, utterances=3, batch_size=24))
        found[watching] = monitor.history[-1]["op_d_ece_strongest"]
    assert found[True] > found[False] + 0.02
