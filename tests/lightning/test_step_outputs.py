"""What a step returns, and what a monitor makes of it."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset
from training import anonymiser, assert_same, by_hand, fit, loader, protect, voices, watch

from vpmetrics.suite import VoicePrivacy


def test_names_of_keys_and_utterances(pl):
    def step(self, batch, batch_idx):
        original, noise, speakers = batch
        # Copies, as a sampler makes that fills up its last batch.
        x, y, who = (torch.cat([part, part[:2]]) for part in (original, protect(original, noise, 0.9), speakers))
        utterances = 5 * batch_idx + torch.arange(len(original))
        return {"x": x, "y": y, "who": who, "file": torch.cat([utterances, utterances[:2]])}

    module = anonymiser(pl, validation_step=step)
    trainer = fit(pl, [watch(keys=("x", "y", "who", "file"))], module, epochs=1)
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

    trainer = fit(pl, [watch(keys=read)], epochs=1, num_sanity_val_steps=0)
    metric = VoicePrivacy(attacks=None)
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
    trainer = fit(pl, [watch(keys=read)], val=[loader(), silent], epochs=1)
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
    trainer = fit(pl, [watch(encoder=encoder, encoder_dtype=dtype)], epochs=1, precision=precision)
    assert encoder.seen == {(False, False, dtype or torch.float32)}
    assert not any(weight.requires_grad for weight in encoder.parameters())
    original, noise, speakers = voices()
    if precision == "bf16-true":
        original, noise = original.bfloat16(), noise.bfloat16()
    metric = VoicePrivacy(attacks=None)
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
        fit(pl, [watch(encoder=module.encoder)], module)


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "bf16-true"])
def test_half_precision(pl, precision):
    trainer = fit(pl, [watch()], precision=precision, epochs=1)
    original, noise, speakers = voices()
    if precision == "bf16-true":
        original, noise = original.bfloat16(), noise.bfloat16()
    metric = VoicePrivacy(attacks=None)
    metric.update(original, protect(original, noise, 0.9), speakers)
    expected = metric.compute()
    assert_same({name: trainer.callback_metrics[f"val/privacy/{name}"] for name in expected}, expected)
