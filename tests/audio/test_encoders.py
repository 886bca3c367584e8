"""Encoders of every kind behind one interface.

With the libraries' own classes and small random weights.
"""

import csv
import ctypes
import importlib.machinery
import os
import re
import shlex
import sys
import time
import types
import zipfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import soundfile
import torch
from audio.conftest import describe
from extras import import_or_skip, needs_weights
from torch import nn

from vpmetrics.audio import AudioError, SpeakerEncoder, as_encoder, encoders, load_encoder, resample
from vpmetrics.audio import resemblyzer as ours

VOICES = Path(__file__).parents[2] / "notebooks" / "voices"


class Pooled(nn.Module):
    """A small network with a window of 400 samples; statistics of what is speech."""

    def __init__(self, dimension: int = 6) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, dimension, 400, 160)

    def forward(self, waveforms: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        frames = self.convolution(waveforms[:, None])
        count = (lengths - 400) // 160 + 1
        is_speech = torch.arange(frames.shape[2]) < count[:, None]
        return (frames * is_speech[:, None]).sum(2) / count[:, None]


class Unmasked(Pooled):
    def forward(self, waveforms: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.convolution(waveforms[:, None]).mean(2)


@pytest.fixture
def pooled():
    torch.manual_seed(0)
    return Pooled().eval()


def waves(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise in rows, and noise where there should be padding."""
    draw = torch.Generator().manual_seed(1)
    return 0.1 * torch.randn(len(lengths), max(lengths), generator=draw), torch.tensor(lengths)


def assert_padding_is_ignored(encoder: SpeakerEncoder, *lengths: int, atol: float = 1e-5) -> None:
    padded, sizes = waves(*lengths)
    together = encoder(padded, sizes)
    alone = torch.cat(
        [encoder(row[None, :size]) for row, size in zip(padded, lengths, strict=True)]
    )
    assert together.shape == (len(lengths), encoder.dimension)
    torch.testing.assert_close(together, alone, atol=atol, rtol=1e-4)


def speech() -> list[np.ndarray]:
    """Voices, quiet and loud, shorter than a partial utterance, as long as one, and much longer."""
    samples, _ = soundfile.read(VOICES / "voices.ogg", dtype="float32")
    rows = list(csv.DictReader((VOICES / "voices.csv").open()))[:8]
    own = [samples[int(row["start"]) : int(row["end"])] for row in rows]
    return [
        *own,
        0.01 * own[0],
        3 * own[1],
        own[2][:500],
        own[3][:25600],
        own[3][:25601],
        np.concatenate(own),
    ]


@needs_weights
def test_resemblyzer_is_that_of_its_package(monkeypatch):
    """The package imports webrtcvad, for silences that neither side removes here.

    Webrtcvad needs `pkg_resources`.
    """
    monkeypatch.setitem(sys.modules, "webrtcvad", types.ModuleType("webrtcvad"))
    package = import_or_skip("resemblyzer")
    theirs = package.VoiceEncoder("cpu", verbose=False)
    loud = [package.normalize_volume(wave, -30, increase_only=True) for wave in speech()]
    expected = np.stack([theirs.embed_utterance(wave) for wave in loud])
    encoder = load_encoder("resemblyzer")
    rows = nn.utils.rnn.pad_sequence(
        [torch.from_numpy(wave) for wave in speech()], batch_first=True
    )
    with torch.no_grad():
        embeddings = encoder(rows, torch.tensor([len(wave) for wave in speech()]))
    np.testing.assert_allclose(embeddings.numpy(), expected, atol=2e-6)


@needs_weights
def test_resemblyzer_has_its_published_weights():
    encoder = load_encoder("resemblyzer")
    assert encoder.can_pad
    assert encoder.identity == "resemblyzer-27116e42a029c434"  # of the published weights
    assert not any(weight.requires_grad for weight in encoder.parameters())


@needs_weights
def test_resemblyzer_downloads_its_weights_where_the_package_is_absent(monkeypatch, tmp_path):
    installed = Path(ours.find_spec("resemblyzer").origin).with_name("pretrained.pt")
    hashes = []

    def download(_url, path, hash_prefix, progress):  # noqa: ARG001
        hashes.append(hash_prefix)
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.write(installed, "resemblyzer/pretrained.pt")

    monkeypatch.setattr(ours, "find_spec", lambda _: None)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    assert load_encoder("resemblyzer").identity == load_encoder("resemblyzer").identity
    assert list(map(len, hashes)) == [64]  # once
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "elsewhere"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", Mock(side_effect=OSError("no network")))
    with pytest.raises(
        AudioError,
        match=r"could not be downloaded .*no network.*`pip install --no-deps resemblyzer`",
    ):
        load_encoder("resemblyzer")


def xvector(folder: Path, norm: str, kind: str = "WavLM") -> str:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    config = getattr(transformers, f"{kind}Config")(
        **sizes,
        conv_dim=(8, 8),
        conv_stride=(80, 4),
        conv_kernel=(160, 4),
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        tdnn_dim=(8, 8, 8),
        tdnn_kernel=(3, 1, 1),
        tdnn_dilation=(1, 1, 1),
        xvector_output_dim=5,
        feat_extract_norm=norm,
    )
    getattr(transformers, f"{kind}ForXVector")(config).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(
        do_normalize=True, return_attention_mask=True
    ).save_pretrained(folder)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "norm"), [("WavLM", "layer"), ("WavLM", "group"), ("Wav2Vec2", "layer")]
)
def test_transformers(tmp_path, kind, norm):
    folder = xvector(tmp_path, norm, kind)
    transformers = sys.modules["transformers"]
    encoder = load_encoder(f"transformers:{folder}")
    assert (encoder.dimension, encoder.sample_rate) == (5, 16000)
    assert (encoder.is_differentiable, encoder.is_weak) == (True, False)
    extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
    model = transformers.AutoModelForAudioXVector.from_pretrained(folder).eval()
    padded, sizes = waves(8000, 12000)
    rows = [row[:size].numpy() for row, size in zip(padded, sizes, strict=True)]
    with torch.no_grad():
        expected = [
            model(**extractor(row, sampling_rate=16000, return_tensors="pt")).embeddings
            for row in rows
        ]
        torch.testing.assert_close(
            encoder(padded, sizes), torch.cat(expected), atol=1e-5, rtol=1e-4
        )
        if encoder.can_pad:
            batch = extractor(rows, sampling_rate=16000, padding=True, return_tensors="pt")
            torch.testing.assert_close(
                encoder(padded, sizes), model(**batch).embeddings, atol=1e-5, rtol=1e-4
            )


@pytest.fixture
def speechbrain(monkeypatch):
    """SpeechBrain's real classes.

    Replaced: the module `torchaudio`, of which loading an encoder uses nothing.
    """
    if "torchaudio" not in sys.modules:
        stand_in = types.ModuleType("torchaudio")
        stand_in.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
        monkeypatch.setitem(sys.modules, "torchaudio", stand_in)
    return pytest.importorskip("speechbrain.inference.classifiers", exc_type=ImportError)


HYPERPARAMETERS = """
sample_rate: 16000
compute_features: !new:speechbrain.lobes.features.Fbank
    n_mels: 8
mean_var_norm: !new:speechbrain.processing.features.InputNormalization
    norm_type: sentence
    std_norm: False
embedding_model: !new:speechbrain.lobes.models.ECAPA_TDNN.ECAPA_TDNN
    input_size: 8
    channels: [16, 16, 16, 16, 48]
    kernel_sizes: [5, 3, 3, 3, 1]
    dilations: [1, 2, 3, 4, 1]
    groups: [1, 1, 1, 1, 1]
    attention_channels: 8
    lin_neurons: 12
classifier: !new:speechbrain.lobes.models.ECAPA_TDNN.Classifier
    input_size: 12
    out_neurons: 3
pretrainer: !new:speechbrain.utils.parameter_transfer.Pretrainer
    loadables: {embedding_model: !ref <embedding_model>}
    paths: {embedding_model: FOLDER/embedding_model.ckpt}
modules:
    compute_features: !ref <compute_features>
    mean_var_norm: !ref <mean_var_norm>
    embedding_model: !ref <embedding_model>
    classifier: !ref <classifier>
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_speechbrain(tmp_path, speechbrain):
    (tmp_path / "hyperparams.yaml").write_text(HYPERPARAMETERS.replace("FOLDER", str(tmp_path)))
    torch.manual_seed(0)
    load = sys.modules["hyperpyyaml"].load_hyperpyyaml
    torch.save(
        load(HYPERPARAMETERS)["embedding_model"].state_dict(), tmp_path / "embedding_model.ckpt"
    )
    encoder = load_encoder(f"speechbrain:{tmp_path}")
    assert (encoder.dimension, encoder.sample_rate) == (12, 16000)
    assert encoder.is_differentiable
    padded, _ = waves(8000, 8000)
    model = encoder.model
    assert isinstance(model, speechbrain.EncoderClassifier)
    with torch.no_grad():
        torch.testing.assert_close(encoder(padded), model.encode_batch(padded).squeeze(1))
        assert_padding_is_ignored(encoder, 8000, 12000)
        # A bound method is a callable as any other; it takes no `lengths`, so that nothing is
        # padded.
        method = load_encoder(model.encode_batch, sample_rate=16000)
        torch.testing.assert_close(method(padded), encoder(padded))
        assert_padding_is_ignored(method, 8000, 12000)
    assert sum(1 for _ in method.parameters()) > 0


def test_libraries_that_are_absent_or_offline(monkeypatch, tmp_path):
    model = tmp_path / "model.onnx"
    model.touch()
    for module, encoder, package, extra in (
        ("onnxruntime", str(model), "onnxruntime", "onnxruntime"),
        ("librosa", "f0", "librosa", "vpmetrics[f0]"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        message = f"Expected {package} to be installed: `pip install {shlex.quote(extra)}`"
        with pytest.raises(AudioError, match=re.escape(message)):
            load_encoder(encoder)
    with monkeypatch.context() as patch:
        patch.setattr(encoders, "import_module", lambda _: ctypes.CDLL("/nowhere/_torchaudio.so"))
        with pytest.raises(
            AudioError, match=r"Expected speechbrain and what it imports to fit torch .*_torchaudio"
        ):
            load_encoder("speechbrain:x")


def hide_the_hub(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://localhost:1")
    for variable in ("HTTPS_PROXY", "https_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)


def test_a_model_that_is_nowhere_fails_at_once_without_a_network(monkeypatch):
    """A library is told to look into its cache alone.

    Otherwise it would try for most of a minute to reach the hub.
    """
    told = []

    def load(source, _device):
        told.append((source, os.environ["HF_HUB_OFFLINE"]))
        raise OSError("not in the cache")

    hide_the_hub(monkeypatch)
    monkeypatch.setitem(encoders._LIBRARIES, "transformers", load)
    advice = (
        r"could not be loaded: not in the cache .*give its folder as 'transformers:FOLDER', or use"
        r" 'resemblyzer'"
    )
    start = time.monotonic()
    with pytest.raises(AudioError, match=f"Encoder 'transformers:some/model' {advice}"):
        load_encoder("transformers:some/model")
    assert time.monotonic() - start < 6
    assert told == [("some/model", "1")]
    assert "HF_HUB_OFFLINE" not in os.environ


@pytest.mark.slow
def test_transformers_without_a_network(monkeypatch):
    pytest.importorskip("transformers")
    hide_the_hub(monkeypatch)
    start = time.monotonic()
    with pytest.raises(
        AudioError, match=r"Encoder 'transformers:some/model' could not be loaded: .*need a network"
    ):
        load_encoder("transformers:some/model")
    assert time.monotonic() - start < 20


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("masked", [True, False])
def test_torchscript(tmp_path, pooled, masked):
    network = pooled if masked else Unmasked().eval()
    torch.jit.script(network).save(tmp_path / "model.ts")
    encoder = load_encoder(tmp_path / "model.ts", sample_rate=16000)
    assert (encoder.name, encoder.dimension) == ("model.ts", 6)
    assert encoder.is_differentiable
    assert encoder.can_pad is masked
    assert_padding_is_ignored(encoder, 8000, 12000)


def write_onnx(path: Path, network: Pooled, lengths: str | None, batch: int | str = "B") -> None:
    """The small network by hand: convolution, mask if there are lengths, mean."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper = onnx.helper
    floating = onnx.TensorProto.FLOAT
    integer = onnx.TensorProto.INT64
    weights = {"w": network.convolution.weight, "b": network.convolution.bias}
    constants = [
        onnx.numpy_helper.from_array(value.detach().numpy(), name)
        for name, value in weights.items()
    ]
    constants.append(onnx.numpy_helper.from_array(np.array([1]), "axis"))
    nodes = [
        helper.make_node("Unsqueeze", ["waveforms", "axis"], ["x"]),
        helper.make_node("Conv", ["x", "w", "b"], ["frames"], strides=[160]),
        helper.make_node("ReduceMean", ["frames"], ["embeddings"], axes=[2], keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info("waveforms", floating, [batch, "T"])]
    if lengths is not None:
        inputs.append(
            helper.make_tensor_value_info(
                "lengths", integer if lengths == "samples" else floating, [batch]
            )
        )
        nodes.append(helper.make_node("Cast", ["lengths"], ["told"], to=floating))
    outputs = [helper.make_tensor_value_info("embeddings", floating, [batch, 6])]
    if lengths is not None:
        outputs.append(helper.make_tensor_value_info("told", floating, [batch]))
    graph = helper.make_graph(nodes, "encoder", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    helper.set_model_props(model, {"sample_rate": "16000"})
    onnx.save(model, path)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [None, "samples", "shares"])
@pytest.mark.parametrize("batch", ["B", 1])
def test_onnx(tmp_path, pooled, lengths, batch):
    write_onnx(tmp_path / "model.onnx", pooled, lengths, batch)
    encoder = load_encoder(str(tmp_path / "model.onnx"))
    assert (encoder.name, encoder.sample_rate, encoder.dimension) == ("model.onnx", 16000, 6)
    assert not encoder.is_differentiable
    padded, sizes = waves(8000, 8000)
    torch.testing.assert_close(encoder(padded), pooled(padded, sizes), atol=1e-5, rtol=1e-4)
    if lengths is None:
        assert_padding_is_ignored(encoder, 8000, 12000)


@pytest.mark.slow
def test_files_of_one_name_differ_by_content(tmp_path, pooled):
    for folder, network in (("a", pooled), ("b", Pooled())):
        (tmp_path / folder).mkdir()
        write_onnx(tmp_path / folder / "model.onnx", network, None)
    identities = {load_encoder(tmp_path / folder / "model.onnx").identity for folder in "ab"}
    assert len(identities) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_files_that_are_no_encoders(tmp_path, pooled):
    torch.save(pooled.state_dict(), tmp_path / "weights.pt")
    torch.jit.script(pooled).save(tmp_path / "model.pt")
    for encoder, rate, message in (
        (tmp_path / "weights.pt", 16000, r"Encoder '.*weights\.pt' could not be loaded"),
        (tmp_path / "model.pt", None, r"Expected `sample_rate`: .*model\.pt does not state"),
        (tmp_path / "nowhere.onnx", None, r"there is none at .*nowhere.onnx"),
        ("ecapa", None, r"one of resemblyzer, f0, speechbrain:<model>, .*but got 'ecapa'"),
    ):
        with pytest.raises(AudioError, match=message):
            load_encoder(encoder, sample_rate=rate)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: x.numpy(),
        lambda x: x[:, None],
        lambda x: (x, None),
        lambda x: {"logits": x[:, :1], "embeddings": x},
        lambda x: types.SimpleNamespace(logits=x[:, :1], embeddings=x),
        lambda x: x.double(),
        lambda x: x.half(),
    ],
    ids=["tensor", "numpy", "channel", "tuple", "mapping", "output", "double", "half"],
)
def test_outputs_of_any_form(wrap):
    encoder = load_encoder(lambda waveforms: wrap(describe(waveforms.detach())), sample_rate=16000)
    padded, _ = waves(8000, 8000)
    torch.testing.assert_close(
        encoder(padded), describe(padded), check_dtype=False, atol=1e-3, rtol=0
    )
    assert encoder(padded).dtype in (torch.float32, torch.float64)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.sum(), r"shape \(1, D\), one row per waveform, but got \(\)"),
        (lambda x: x[:, None].expand(-1, 5, -1), r"but got \(1, 5, 64000\)"),
        (lambda x: x.argmax(1), r"floating embeddings of shape \(B, D\), but got torch.int64"),
        (lambda _: None, "but got NoneType"),
        (lambda _: 1 / 0, "it failed: ZeroDivisionError"),
    ],
)
def test_callables_that_are_no_encoders(function, message):
    with pytest.raises(
        AudioError, match=rf"Expected the encoder to take waveforms of shape \(B, T\) .*{message}"
    ):
        load_encoder(function, sample_rate=16000)


@pytest.mark.parametrize(
    ("load", "encoder", "rate", "error", "message"),
    [
        (
            load_encoder,
            describe,
            None,
            AudioError,
            "Expected `sample_rate`: the callable does not state",
        ),
        (
            load_encoder,
            "resemblyzer",
            24000,
            AudioError,
            "that of encoder 'resemblyzer', 16000, but got .*as_encoder",
        ),
        (
            as_encoder,
            "resemblyzer",
            None,
            AudioError,
            "the `sample_rate` of the audio: .* 'resemblyzer' takes 16000",
        ),
        (
            load_encoder,
            3,
            None,
            TypeError,
            "Expected `encoder` to be a name, a path or a callable, but got int",
        ),
    ],
)
def test_missing_or_conflicting_sample_rate_raises(load, encoder, rate, error, message):
    with pytest.raises(error, match=message):
        load(encoder, sample_rate=rate)


def test_sample_rates_that_are_stated(pooled):
    pooled.sample_rate = 8000
    assert load_encoder(pooled).sample_rate == 8000
    assert as_encoder(load_encoder("resemblyzer"), 16000).sample_rate == 16000


def test_only_callables_with_lengths_get_padding(pooled):
    encoder = load_encoder(pooled, sample_rate=16000)
    assert encoder.can_pad
    padded, sizes = waves(8000, 6000)
    padded[1, 6000:] = torch.nan
    assert encoder(padded, sizes).isfinite().all()
    assert_padding_is_ignored(encoder, 3000, 8000, 500)
    assert all(weight.requires_grad for weight in encoder.parameters()), "they are the caller's"
    without_lengths = load_encoder(describe, sample_rate=16000)
    assert not without_lengths.can_pad
    assert_padding_is_ignored(without_lengths, 300, 8000, 300, 500)


@pytest.mark.parametrize(
    ("waveforms", "lengths", "error", "message"),
    [
        (
            torch.ones(8000),
            None,
            ValueError,
            r"`waveforms` to have shape \(B, T\), but got \(8000,\)",
        ),
        (torch.ones(2, 2, 8000), None, ValueError, r"but got \(2, 2, 8000\)"),
        (torch.ones(2, 0), None, ValueError, r"but got \(2, 0\)"),
        (
            torch.ones(2, 8000).long(),
            None,
            TypeError,
            "`waveforms` to have a floating dtype, but got torch.int64",
        ),
        (torch.ones(2, 8000), torch.tensor([1]), ValueError, r"`lengths` to have shape \(2,\)"),
        (
            torch.ones(2, 8000),
            torch.tensor([0.5, 1]),
            TypeError,
            "`lengths` to have an integer dtype",
        ),
        (
            torch.ones(2, 8000),
            torch.tensor([0, 8001]),
            ValueError,
            "`lengths` from 1 to 8000, but got 0 to 8001",
        ),
    ],
)
def test_waveforms_and_lengths_are_checked(waveforms, lengths, error, message):
    encoder = load_encoder("resemblyzer")
    with pytest.raises(error, match=message):
        encoder(waveforms, lengths)


@needs_weights
def test_audio_of_another_rate_is_resampled():
    encoder = as_encoder("resemblyzer", sample_rate=24000)
    inner = load_encoder("resemblyzer")
    audio = 0.1 * torch.randn(2, 36000, generator=torch.Generator().manual_seed(0))
    assert (encoder.sample_rate, encoder.name, encoder.is_weak) == (24000, "resemblyzer", True)
    torch.testing.assert_close(encoder(audio), inner(resample(audio, 24000, 16000)))
    lengths = torch.tensor([36000, 24001])
    torch.testing.assert_close(
        encoder(audio, lengths)[1:], encoder(audio[1:, :24001]), atol=1e-5, rtol=1e-4
    )
    audio.requires_grad_()
    assert torch.autograd.grad(encoder(audio).sum(), audio)[0].abs().max() > 0


def test_as_encoder_accepts_modules_for_other_input():
    encoder = as_encoder(lambda rows: (torch.stack(list(rows)).mean(-1), "more"))
    spectrograms = torch.ones(4, 3, 16)
    assert encoder(spectrograms).shape == encoder(list(spectrograms)).shape == (4, 3)
