"""Audio through an attacker's encoder: no padding is embedded, and no original speech twice."""

import pytest
import torch
from torch.utils.data import DataLoader
from training import anonymiser, fit, watch

from vpmetrics.suite import VoicePrivacy

SPEAKERS, EACH, LONGEST = 6, 4, 40
KEYS = {"original": "x", "protected": "y", "speakers": "who"}


class Encoder(torch.nn.Module):
    """Averages every eighth sample: padding changes its embeddings as it changes those of a speech encoder."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 6, bias=False)
        self.dropout = torch.nn.Dropout(0.5)
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(6, 8, generator=torch.Generator().manual_seed(0)))
        self.calls, self.modes = [], set()

    def forward(self, audio):
        projected = self.layer(audio.unflatten(1, (-1, 8)).mean(1) + 1)
        self.calls.append(tuple(audio.shape))
        self.modes.add((self.training, torch.is_grad_enabled(), self.layer(audio[:, :8]).dtype))
        return self.dropout(projected) + 0.2 * audio.std(1, keepdim=True)


def recordings():
    """Original and protected waveforms of different lengths, their speakers and lengths."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(SPEAKERS, 8, generator=draw)
    names = torch.arange(SPEAKERS).repeat(EACH)
    lengths = 8 * torch.randint(1, LONGEST // 8 + 1, (len(names),), generator=draw)
    waves = [
        centres[name].repeat(int(length) // 8) + 0.3 * torch.randn(int(length), generator=draw)
        for name, length in zip(names, lengths, strict=True)
    ]
    return waves, [0.7 * wave + 0.3 * torch.randn(len(wave), generator=draw) for wave in waves], names, lengths


def pad(waves):
    return torch.stack([torch.nn.functional.pad(wave, (0, LONGEST - len(wave))) for wave in waves])


def short(waves):
    return torch.stack([wave[:8] for wave in waves])


def run(pl, original, protected, names, epochs=1, encoder=None, lengths=None, **options):
    """Validate on rows of lists or tensors of audio; either may be a function of the epoch."""

    def rows_of(audio, rows, epoch):
        audio = audio(epoch) if callable(audio) else audio
        return [audio[row] for row in rows] if isinstance(audio, list) else audio[rows]

    def step(self, rows, _):
        sides = {name: rows_of(side, rows, self.current_epoch) for name, side in (("x", original), ("y", protected))}
        return {**sides, "who": names[rows], **({} if lengths is None else {"n": lengths[rows]})}

    keys = KEYS if lengths is None else {**KEYS, "lengths": "n"}
    monitor = watch(encoder=encoder or Encoder(), keys=keys, figures_every_n_epochs=None, **options)
    module = anonymiser(pl, validation_step=step)
    val = DataLoader(torch.arange(SPEAKERS * EACH), 5)
    fit(pl, [monitor], module, val=val, epochs=epochs, num_sanity_val_steps=0)
    return monitor


def expected_values(original, protected, names):
    encoder, metric = Encoder().eval(), VoicePrivacy(attacks=None)
    with torch.no_grad():
        sides = [torch.cat([encoder(wave[None]) for wave in waves]) for waves in (original, protected)]
    metric.update(*sides, names)
    return {
        key: pytest.approx(float(value), rel=1e-5, abs=1e-5, nan_ok=True) for key, value in metric.compute().items()
    }


@pytest.mark.parametrize("form", ["lists", "lengths", "a function"])
def test_padded_and_listed_audio_match_single_utterances(pl, form):
    original, protected, names, lengths = recordings()
    encoder = Encoder()
    if form == "lengths":
        monitor = run(pl, pad(original), pad(protected), names, encoder=encoder, lengths=lengths)
    else:
        used = encoder.eval().forward if form == "a function" else encoder
        monitor = run(pl, original, protected, names, encoder=used)
    expected = expected_values(original, protected, names)
    assert {key: monitor.history[-1][key] for key in expected} == expected
    assert form == "a function" or encoder.modes == {(False, False, torch.float32)}
    assert form == "a function" or not any(weight.requires_grad for weight in encoder.parameters())


def test_the_encoder_has_a_precision_of_its_own(pl):
    original, protected, names, _ = recordings()
    encoder = Encoder()
    monitor = run(pl, original, protected, names, encoder=encoder, encoder_dtype=torch.bfloat16)
    assert encoder.modes == {(False, False, torch.bfloat16)}
    # Three digits of bfloat16 move some scores past their neighbours.
    expected = expected_values(original, protected, names)["op_d_ece"].expected
    assert monitor.history[-1]["op_d_ece"] == pytest.approx(expected, abs=0.05)


def test_padding_raises_for_original_and_warns_for_protected(pl):
    original, protected, names, _ = recordings()
    with pytest.raises(
        ValueError, match="Expected `original` to hold whole utterances, but a row ends in 32 zeros of 40"
    ):
        run(pl, pad(original), pad(protected), names)
    noise = torch.randn(len(names), LONGEST, generator=torch.Generator().manual_seed(1))
    with pytest.warns(UserWarning, match="Expected `protected` to hold whole utterances") as caught:
        run(pl, noise, noise * (torch.arange(LONGEST) < 30), names, epochs=2)
    assert sum("whole utterances" in str(warning.message) for warning in caught) == 1


@pytest.mark.parametrize("wrong", [torch.ones(24), torch.ones(24, 2).long(), torch.zeros(24).long()])
def test_wrong_lengths(pl, wrong):
    names = recordings()[2]
    with pytest.raises(ValueError, match="Expected `lengths` to be"):
        run(pl, torch.ones(24, 8), torch.ones(24, 8), names, lengths=wrong)


def test_audio_must_be_tensors(pl):
    with pytest.raises(TypeError, match=r"Expected `original` to be a tensor .* or a list of tensors"):
        run(pl, [[0.0] * 8] * 24, [[0.0] * 8] * 24, recordings()[2])


def test_original_speech_is_embedded_once_and_protected_in_every_epoch(pl):
    original, protected, names, _ = recordings()
    encoder, batches = Encoder(), 5
    run(pl, short(original), short(protected), names, epochs=4, encoder=encoder)
    assert len(encoder.calls) == batches + 4 * batches


def test_changed_original_speech_is_embedded_again_without_cache_growth(pl):
    original, protected, names, _ = recordings()
    original, protected = short(original), short(protected)
    encoder = Encoder()
    monitor = run(pl, lambda epoch: original + epoch, protected, names, epochs=3, encoder=encoder)
    expected = expected_values(original + 2, protected, names)
    assert {key: monitor.history[-1][key] for key in expected} == expected
    assert len(encoder.calls) == 3 * 2 * 5
    assert len(monitor._encoder._cache) == len(names)


def test_time_is_the_last_dimension(pl):
    draw = torch.Generator().manual_seed(0)
    spectrograms, names = torch.randn(24, 3, 16, generator=draw), recordings()[2]
    lengths = torch.full((24,), 9)
    monitor = run(pl, spectrograms, spectrograms, names, encoder=lambda audio: audio.mean(-1), lengths=lengths)
    metric = VoicePrivacy(attacks=None)
    metric.update(spectrograms[..., :9].mean(-1), spectrograms[..., :9].mean(-1), names)
    assert monitor.history[-1]["op_eer"] == pytest.approx(float(metric.compute()["op_eer"]), abs=1e-6)


def test_encoder_of_the_trained_module_raises(pl):
    module = anonymiser(pl)
    module.encoder = Encoder()
    with pytest.raises(ValueError, match="Expected `encoder` to be an attacker of its own"):
        fit(pl, [watch(encoder=module.encoder)], module)


def test_sample_rate_is_required_and_audio_is_resampled(pl):
    encoder = Encoder()
    encoder.sample_rate = 16_000
    with pytest.raises(ValueError, match=r"the `sample_rate` of the audio: .* takes 16000 Hz"):
        watch(encoder=encoder)
    original, protected, names, _ = recordings()
    slow, fast = (
        run(pl, *sides, names, encoder=encoder, sample_rate=rate).history[-1]
        for rate, sides in (
            (16_000, (short(original), short(protected))),
            (32_000, (short(original).repeat_interleave(2, 1), short(protected).repeat_interleave(2, 1))),
        )
    )
    assert (16, 8) not in encoder.calls[-10:]
    assert {shape[1] for shape in encoder.calls[-10:]} == {8}
    assert fast["op_d_ece"] == pytest.approx(slow["op_d_ece"], abs=0.2)
