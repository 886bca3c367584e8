"""Audio through an attacker's encoder: each utterance as long as it is, and none heard twice for nothing."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import DataLoader
from training import anonymiser, by_hand, fit, watch

from vpmetrics.suite import VoicePrivacy

SPEAKERS, EACH, WIDTH = 6, 4, 40


class Encoder(torch.nn.Module):
    """Hears the average of every eighth sample: padding moves it as it moves an encoder of speech."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 6, bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(6, 8, generator=torch.Generator().manual_seed(0)))
        self.heard = []

    def forward(self, audio):
        self.heard.append(tuple(audio.shape))
        return self.layer(audio.unflatten(1, (-1, 8)).mean(1) + 1) + 0.2 * audio.std(1, keepdim=True)


def utterances():
    """Original and protected waveforms of unlike lengths, and their speakers."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(SPEAKERS, 8, generator=draw)
    names = torch.arange(SPEAKERS).repeat(EACH)
    lengths = 8 * torch.randint(1, WIDTH // 8 + 1, (len(names),), generator=draw)
    waves = [
        centres[name].repeat(int(length) // 8) + 0.3 * torch.randn(int(length), generator=draw)
        for name, length in zip(names, lengths, strict=True)
    ]
    return waves, [0.7 * wave + 0.3 * torch.randn(len(wave), generator=draw) for wave in waves], names, lengths


def padded(waves):
    return torch.stack([torch.nn.functional.pad(wave, (0, WIDTH - len(wave))) for wave in waves])


def expected_values():
    original, protected, names, _ = utterances()
    encoder, metric = Encoder(), VoicePrivacy(attacks=None)
    with torch.no_grad():
        sides = [torch.cat([encoder(wave[None]) for wave in waves]) for waves in (original, protected)]
    metric.update(*sides, names)
    return metric.compute()


def run(pl, step_output, epochs=2, encoder=None, keys=("original", "protected", "speakers"), **options):
    """Validate on what ``step_output(rows)`` gives for the rows of a batch."""
    monitor = watch(encoder=encoder or Encoder(), keys=keys, figures_every_n_epochs=None, **options)
    module = anonymiser(pl, validation_step=lambda self, rows, _: step_output(rows))
    fit(pl, [monitor], module, val=DataLoader(torch.arange(SPEAKERS * EACH), 5), epochs=epochs, num_sanity_val_steps=0)
    return monitor


@pytest.mark.parametrize("form", ["lists", "lengths"])
def test_utterances_of_unlike_lengths_count_as_each_by_itself(pl, form):
    original, protected, names, lengths = utterances()

    def lists(rows):
        return {"original": [original[row] for row in rows], "protected": [protected[row] for row in rows]}

    def tensors(rows):
        return {"original": padded(original)[rows], "protected": padded(protected)[rows], "length": lengths[rows]}

    keys = {"original": "original", "protected": "protected", "speakers": "speakers"}
    if form == "lengths":
        keys["lengths"] = "length"
    give = lists if form == "lists" else tensors
    monitor = run(pl, lambda rows: {**give(rows), "speakers": names[rows]}, keys=keys)
    for name, value in expected_values().items():
        assert monitor.history[-1][name] == pytest.approx(float(value), abs=1e-5, nan_ok=True), name


def test_padding_without_lengths_is_refused(pl):
    original, protected, names, _ = utterances()
    with pytest.raises(
        ValueError, match="Expected `original` to hold whole utterances, but a row ends in 32 zeros of 40"
    ):
        run(
            pl,
            lambda rows: {
                "original": padded(original)[rows],
                "protected": padded(protected)[rows],
                "speakers": names[rows],
            },
        )


def test_silence_a_model_has_made_is_warned_of_once(pl):
    _, _, names, _ = utterances()
    original = torch.randn(len(names), WIDTH, generator=torch.Generator().manual_seed(1))
    protected = original * (torch.arange(WIDTH) < 30)
    with pytest.warns(UserWarning, match="Expected `protected` to hold whole utterances") as said:
        run(pl, lambda rows: {"original": original[rows], "protected": protected[rows], "speakers": names[rows]})
    assert sum("whole utterances" in str(one.message) for one in said) == 1


@pytest.mark.parametrize("wrong", [torch.ones(5), torch.tensor([1, 2]), torch.tensor([0, 1, 1, 1, 1]), "lengths"])
def test_lengths_that_cannot_be(pl, wrong):
    _, _, names, _ = utterances()
    audio = torch.ones(5, 8)
    keys = {"original": "x", "protected": "x", "speakers": "who", "lengths": "n"}
    with pytest.raises(ValueError, match="Expected `lengths` to be"):
        run(pl, lambda rows: {"x": audio, "who": names[rows], "n": wrong}, keys=keys)


def test_original_speech_is_embedded_once_and_protected_in_every_epoch(pl):
    original, protected, names, _ = utterances()
    original, protected = (torch.stack([wave[:8] for wave in waves]) for waves in (original, protected))
    encoder = Encoder()
    run(
        pl,
        lambda rows: {"original": original[rows], "protected": protected[rows], "speakers": names[rows]},
        epochs=4,
        encoder=encoder,
    )
    batches = 5
    assert len(encoder.heard) == batches + 4 * batches


def test_speech_and_weights_that_change_are_embedded_anew(pl):
    original, protected, names, _ = utterances()
    original, protected = (torch.stack([wave[:8] for wave in waves]) for waves in (original, protected))
    encoder, epochs = Encoder(), []

    def changing(rows):
        if rows[0] == 0:
            epochs.append(rows)
            if len(epochs) == 3:
                encoder.layer.weight.data.mul_(2)  # in place, but not where torch counts it
                with torch.no_grad():
                    encoder.layer.weight.add_(1)
        louder = original + (len(epochs) == 2)  # another recording in the second epoch
        return {"original": louder[rows], "protected": protected[rows], "speakers": names[rows]}

    monitor = run(pl, changing, epochs=2, encoder=encoder)
    metric = VoicePrivacy(attacks=None)
    with torch.no_grad():
        metric.update(encoder(original + 1), encoder(protected), names)
    assert monitor.history[-1]["oo_d_ece"] == pytest.approx(float(metric.compute()["oo_d_ece"]), abs=1e-6)
    assert len(encoder.heard) == 2 * 2 * 5 + 2


def test_what_is_remembered_does_not_grow(pl):
    names = torch.arange(SPEAKERS).repeat(EACH)
    draw = torch.Generator().manual_seed(3)

    def new_every_time(rows):
        audio = torch.randn(len(rows), 8, generator=draw)
        return {"original": audio, "protected": audio, "speakers": names[rows]}

    monitor = run(pl, new_every_time, epochs=4)
    remembered = monitor._encoder._remembered
    assert len(remembered._numbers) == len(names)
    assert sum(len(numbers) for numbers, _ in remembered._heard) == len(names)


def test_audio_in_a_form_only_the_encoder_knows_is_left_to_it(pl):
    original, protected, names, _ = utterances()

    class OfLists(Encoder):
        def forward(self, audio):
            return torch.cat([super(OfLists, self).forward(torch.tensor(wave)[None]) for wave in audio])

    def lists(rows):
        sides = ([waves[row].tolist() for row in rows] for waves in (original, protected))
        return dict(zip(("original", "protected", "speakers"), (*sides, names[rows]), strict=True))

    monitor = run(pl, lists, encoder=OfLists())
    assert monitor.history[-1]["op_d_ece"] == pytest.approx(float(expected_values()["op_d_ece"]), abs=1e-5)


def test_lengths_without_an_encoder_are_refused():
    keys = {"original": "x", "protected": "y", "speakers": "who", "lengths": "n"}
    with pytest.raises(ValueError, match="Expected no 'lengths' in `keys` without an `encoder`"):
        watch(keys=keys)


def test_spectrograms_are_as_long_as_their_frames(pl):
    """Time is the last dimension, whatever comes before."""
    draw = torch.Generator().manual_seed(0)
    original = torch.randn(24, 3, 16, generator=draw)
    names = torch.arange(6).repeat(4)

    class Mean(torch.nn.Module):
        def forward(self, audio):
            return audio.mean(-1)

    keys = {"original": "x", "protected": "x", "speakers": "who", "lengths": "n"}
    lengths = torch.full((24,), 9)
    monitor = run(
        pl, lambda rows: {"x": original[rows], "who": names[rows], "n": lengths[rows]}, encoder=Mean(), keys=keys
    )
    metric = VoicePrivacy(attacks=None)
    metric.update(original[..., :9].mean(-1), original[..., :9].mean(-1), names)
    assert_close(torch.tensor(monitor.history[-1]["oo_eer"]), metric.compute()["oo_eer"], atol=1e-6, rtol=0)
    assert by_hand(0.9)["oo_eer"] != monitor.history[-1]["oo_eer"]
