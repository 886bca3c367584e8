"""Audio through an attacker's encoder: no padding is embedded, and no original speech twice."""

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from training import anonymiser, fit, watch

from vpmetrics.suite import VoicePrivacy

KEYS = {"original": "x", "protected": "y", "speakers": "who"}
NAMES = torch.arange(6).repeat(4)


class Encoder(torch.nn.Module):
    """Averages every eighth sample.

    Padding changes its embeddings as it changes those of a speech encoder.
    """

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 6, bias=False)
        self.dropout = torch.nn.Dropout(0.5)
        torch.nn.init.normal_(self.layer.weight, generator=torch.Generator().manual_seed(0))
        self.calls = []
        self.modes = set()

    def forward(self, audio):
        projected = self.layer(audio.unflatten(1, (-1, 8)).mean(1) + 1)
        self.calls.append(tuple(audio.shape))
        self.modes.add((self.training, torch.is_grad_enabled(), self.layer(audio[:, :8]).dtype))
        embeddings = self.dropout(projected) + 0.2 * audio.std(1, keepdim=True)
        # On a grid: padding rounds otherwise, and the order of utterances depends on every bit.
        return (embeddings * 256).round() / 256


def recordings(longest=40):
    """Original and protected waveforms of different lengths."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(6, 8, generator=draw)
    lengths = 8 * torch.randint(1, longest // 8 + 1, (len(NAMES),), generator=draw)
    pairs = [
        (centres[name].repeat(length // 8), length)
        for name, length in zip(NAMES, lengths.tolist(), strict=True)
    ]
    waves = [centre + 0.3 * torch.randn(length, generator=draw) for centre, length in pairs]
    return waves, [0.7 * wave + 0.3 * torch.randn(len(wave), generator=draw) for wave in waves]


def short():
    """The first eight samples of each, original and protected, as tensors."""
    return tuple(torch.stack([wave[:8] for wave in side]) for side in recordings())


def run(pl, original, protected, epochs=1, encoder=None, lengths=None, **options):
    """Validate on rows of lists or tensors of audio, which ``original`` may return for an epoch."""

    def rows_of(audio, rows):
        if isinstance(audio, list):
            return [audio[row] for row in rows]
        return audio[rows]

    def step(self, rows, _):
        if callable(original):
            given = original(self.current_epoch)
        else:
            given = original
        numbers = {} if lengths is None else {"n": lengths[rows]}
        return {
            "x": rows_of(given, rows),
            "y": rows_of(protected, rows),
            "who": NAMES[rows],
            **numbers,
        }

    keys = KEYS if lengths is None else {**KEYS, "lengths": "n"}
    monitor = watch(encoder=encoder or Encoder(), keys=keys, figures_every_n_epochs=None, **options)
    val = DataLoader(torch.arange(len(NAMES)), 5)
    fit(
        pl,
        [monitor],
        anonymiser(pl, validation_step=step),
        val=val,
        epochs=epochs,
        num_sanity_val_steps=0,
    )
    return monitor


def assert_measured(monitor, original, protected):
    encoder = Encoder().eval()
    metric = VoicePrivacy(attacks=None, conversations=0)
    with torch.no_grad():
        sides = [
            torch.cat([encoder(wave[None]) for wave in waves]) for waves in (original, protected)
        ]
    metric.update(*sides, NAMES)
    expected = {key: float(value) for key, value in metric.compute().items()}
    measured = {key: monitor.history[-1][key] for key in expected}
    assert measured == pytest.approx(expected, rel=1e-5, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize("form", ["lists", "lengths", "a function"])
def test_padded_and_listed_audio_match_single_utterances(pl, form):
    sides = recordings()
    encoder = Encoder()
    if form == "lengths":
        lengths = torch.tensor(list(map(len, sides[0])))
        monitor = run(
            pl, *(pad_sequence(side, True) for side in sides), encoder=encoder, lengths=lengths
        )
    else:
        monitor = run(
            pl, *sides, encoder=encoder.eval().forward if form == "a function" else encoder
        )
    assert_measured(monitor, *sides)
    assert form == "a function" or encoder.modes == {(False, False, torch.float32)}
    assert form == "a function" or not any(weight.requires_grad for weight in encoder.parameters())


def test_the_encoder_has_a_precision_of_its_own(pl):
    sides = recordings()
    encoder = Encoder()
    half, whole = (
        run(pl, *sides, **options)
        for options in ({"encoder": encoder, "encoder_dtype": torch.bfloat16}, {})
    )
    assert encoder.modes == {(False, False, torch.bfloat16)}
    # Three digits of bfloat16 move some scores past their neighbours.
    assert half.history[-1]["op_d_ece"] == pytest.approx(whole.history[-1]["op_d_ece"], abs=0.05)


@pytest.mark.filterwarnings("ignore:.*hardly tells them apart")
def test_padding_raises_for_original_and_warns_for_protected(pl):
    message = "Expected `original` to hold whole utterances, but a row ends in 32 zeros of 40"
    with pytest.raises(ValueError, match=message):
        run(pl, *(pad_sequence(side, True) for side in recordings()))
    noise = torch.randn(len(NAMES), 40, generator=torch.Generator().manual_seed(1))
    with pytest.warns(UserWarning, match="Expected `protected` to hold whole utterances") as caught:
        run(pl, noise, noise * (torch.arange(40) < 30), epochs=2)
    assert sum("whole utterances" in str(warning.message) for warning in caught) == 1


@pytest.mark.parametrize(
    ("audio", "lengths", "error", "message"),
    [
        (
            torch.ones(24, 8),
            torch.ones(24),
            ValueError,
            "Expected `lengths` to be integers of shape",
        ),
        (
            torch.ones(24, 8),
            torch.ones(24, 2).long(),
            ValueError,
            "Expected `lengths` to be integers of shape",
        ),
        (
            torch.ones(24, 8),
            torch.zeros(24).long(),
            ValueError,
            "Expected `lengths` to be from 1 to 8",
        ),
        (
            [[0.0] * 8] * 24,
            None,
            TypeError,
            r"Expected `original` to be a tensor .* or a list of tensors",
        ),
    ],
)
def test_wrong_audio_and_lengths(pl, audio, lengths, error, message):
    with pytest.raises(error, match=message):
        run(pl, audio, audio, lengths=lengths)


def test_original_speech_is_embedded_once_and_protected_in_every_epoch(pl):
    encoder = Encoder()
    batches = 5
    run(pl, *short(), epochs=4, encoder=encoder)
    assert len(encoder.calls) == batches + 4 * batches


def test_changed_original_speech_is_embedded_again_without_cache_growth(pl):
    (original, protected) = short()
    encoder = Encoder()
    monitor = run(pl, lambda epoch: original + epoch, protected, epochs=3, encoder=encoder)
    assert_measured(monitor, original + 2, protected)
    assert len(encoder.calls) == 3 * 2 * 5
    assert len(monitor._encoder._cache) == len(NAMES)


@pytest.mark.filterwarnings("ignore:.*hardly tells them apart")
def test_time_is_the_last_dimension(pl):
    spectrograms = torch.randn(24, 3, 16, generator=torch.Generator().manual_seed(0))
    lengths = torch.full((24,), 9)

    def encode(audio):
        return audio.mean(-1)

    monitor = run(pl, spectrograms, spectrograms, encoder=encode, lengths=lengths)
    metric = VoicePrivacy(attacks=None, conversations=0)
    metric.update(spectrograms[..., :9].mean(-1), spectrograms[..., :9].mean(-1), NAMES)
    assert monitor.history[-1]["op_eer"] == pytest.approx(
        float(metric.compute()["op_eer"]), abs=1e-6
    )


def test_several_encoders_are_one_attacker(pl):
    sides = recordings()
    first = Encoder().eval()

    def second(audio):
        return audio.unflatten(1, (-1, 8))[:, 0]

    lengths = torch.tensor(list(map(len, sides[0])))
    padded = [pad_sequence(side, batch_first=True) for side in sides]
    monitor = run(pl, *padded, encoder={"mean": first, "first": second}, lengths=lengths)
    metric = VoicePrivacy(attacks=None, conversations=0)
    with torch.no_grad():
        embeddings = [
            {
                name: torch.cat([encode(wave[None]) for wave in side])
                for name, encode in encoders.items()
            }
            for side, encoders in ((side, {"mean": first, "first": second}) for side in sides)
        ]
    metric.update(*embeddings, NAMES)
    expected = {key: float(value) for key, value in metric.compute().items()}
    measured = {key: monitor.history[-1][key] for key in expected}
    assert measured == pytest.approx(expected, rel=1e-5, abs=1e-5, nan_ok=True)


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
    slow = run(pl, *short(), encoder=encoder, sample_rate=16_000)
    fast = run(
        pl, *(side.repeat_interleave(2, 1) for side in short()), encoder=encoder, sample_rate=32_000
    )
    assert {shape[1] for shape in encoder.calls[-10:]} == {8}
    assert fast.history[-1]["op_d_ece"] == pytest.approx(slow.history[-1]["op_d_ece"], abs=0.2)
