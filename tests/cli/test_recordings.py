"""From folders of recordings to numbers: one command each."""

import numpy as np
import pytest
import soundfile
import torch
from cli.cases import run, scalars_of, systems_of
from extras import needs, needs_weights

from vpmetrics import VoicePrivacy
from vpmetrics.audio import embed_pairs, pair_recordings

RATE = 16000


def write_voices(folder, end, pitch):
    """Four recordings of each of four speakers.

    Harmonics of a pitch under noise, half a second each.
    """
    draw = np.random.default_rng(0)
    time = np.arange(RATE // 2) / RATE
    for speaker in range(4):
        for number in range(4):
            f0 = pitch * (90 + 30 * speaker + 2 * draw.normal())
            tone = sum(np.sin(2 * np.pi * k * f0 * time) / k for k in range(1, 9 + speaker))
            path = folder / f"p{speaker}" / f"p{speaker}_{number}{end}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(
                path, (0.1 * tone + 0.01 * draw.normal(size=len(time))).astype("f"), RATE
            )
    return folder


class Bands(torch.nn.Module):
    """Energies of bands, as an embedding without training."""

    def __init__(self) -> None:
        super().__init__()
        self.sample_rate = RATE

    def forward(self, waveforms: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(waveforms, n=8000).abs().add(1e-3).log()
        return spectrum[:, :2000].unflatten(1, (50, 40)).mean(2)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    path = tmp_path_factory.mktemp("encoder") / "bands.pt"
    torch.jit.script(Bands()).save(str(path))
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("voices")
    for name, end, pitch in (("o", "", 1.0), ("a", "_anon", 1.3), ("b", "_anon", 0.8)):
        write_voices(folder / name, end, pitch)
    return folder


def assert_results_of(voices, got, is_reference=None, **settings):
    """Compare with what the suite computes on the same embeddings."""
    metric = VoicePrivacy(attacks=None, metrics="all", **settings)
    speakers = torch.tensor([int(name[1]) for name in voices.speakers])
    metric.update(voices.original, voices.protected, speakers, is_reference)
    expected = metric.compute()
    for key in (
        "oo_d_ece",
        "op_d_ece",
        "op_mean_d",
        "pp_mean_d",
        *(["deid"] if is_reference is None else []),
    ):
        assert got[key] == pytest.approx(float(expected[key]), abs=1e-6), key


@needs_weights
def test_evaluate_accepts_two_folders_of_recordings(tmp_path, folders, capsys):
    options = ["--no-attacks", "--out", tmp_path / "report"]
    run("evaluate", folders / "o", folders / "a", *options)
    said = capsys.readouterr()
    assert "note: Speakers are folders" in said.out
    assert "resemblyzer is a weak encoder" in " ".join(said.out.split())
    got = scalars_of(tmp_path / "report/results.json")
    assert_results_of(embed_pairs(pair_recordings(folders / "o", folders / "a")), got)
    page = (tmp_path / "report/report.html").read_text(encoding="utf-8")
    assert page.count("data:audio/wav") == 6
    assert (tmp_path / "report-embeddings").is_dir()
    (tmp_path / "report-embeddings").rename(tmp_path / "again-embeddings")
    run(
        "evaluate",
        folders / "o",
        folders / "a",
        "--no-attacks",
        "--no-audio",
        "--out",
        tmp_path / "again",
    )
    assert "<audio" not in (tmp_path / "again/report.html").read_text(encoding="utf-8")
    assert scalars_of(tmp_path / "again/results.json") == got


@needs_weights
def test_several_encoders_are_used_together_and_listed_alone(evaluate, folders, encoder):
    options = ["--no-attacks", "--intervals", "0"]
    systems = evaluate(
        folders / "o", folders / "a", "--encoder", encoder, "--encoder", "resemblyzer", *options
    )
    assert [system["name"] for system in systems] == ["a", "a, bands", "a, resemblyzer"]
    alone = [
        evaluate(folders / "o", folders / "a", "--encoder", name, *options)[0]["scalars"]
        for name in (encoder, "resemblyzer")
    ]
    for key in ("deid", "op_d_ece", "pp_mean_d"):
        # Plain comparison is by the first encoder.
        assert systems[0]["scalars"][key] == pytest.approx(alone[0][key], abs=1e-6)
        assert systems[1]["scalars"][key] == pytest.approx(alone[0][key], abs=1e-6)
        assert systems[2]["scalars"][key] == pytest.approx(alone[1][key], abs=1e-6)
    assert {"name": "encoders", "status": "ok"}.items() <= systems[0]["checks"][-1].items()


def test_a_feature_is_added_to_the_encoders(evaluate, folders, encoder):
    options = ["--encoder", encoder, "--no-attacks", "--intervals", "0"]
    (alone,) = evaluate(folders / "o", folders / "a", *options)
    together, *parts = evaluate(folders / "o", folders / "a", *options, "--feature", "f0")
    assert [part["name"] for part in parts] == ["a, bands", "a, f0"]
    assert together["scalars"]["deid"] == pytest.approx(alone["scalars"]["deid"], abs=1e-6)


def test_systems_share_the_originals(tmp_path, folders, encoder, capsys):
    options = [
        "--encoder",
        encoder,
        "--no-attacks",
        "--intervals",
        "0",
        "--json",
        tmp_path / "r.json",
    ]
    run(
        "compare", "--original", folders / "o", f"A={folders / 'a'}", f"B={folders / 'b'}", *options
    )
    systems = systems_of(tmp_path / "r.json")
    assert [system["name"] for system in systems] == ["A", "B"]
    assert systems[0]["scalars"]["oo_d_ece"] == systems[1]["scalars"]["oo_d_ece"]
    assert "original embeddings are not those" not in capsys.readouterr().out


def test_a_file_of_embeddings_gives_the_same(tmp_path, evaluate, folders, encoder, capsys):
    for side in "oa":
        run(
            "embed", folders / side, "--encoder", encoder, "--out", tmp_path / "new" / f"{side}.npz"
        )
    assert "o.npz: 16 x 50" in capsys.readouterr().out
    options = ["--no-attacks", "--intervals", "0"]
    files = [tmp_path / "new" / f"{side}.npz" for side in "oa"]
    (expected,) = evaluate(folders / "o", folders / "a", "--encoder", encoder, *options)
    (system,) = evaluate(*files, "--strip-suffix", "_anon", *options)
    for key, value in system["scalars"].items():
        assert value == pytest.approx(expected["scalars"][key], abs=1e-6), key
    assert (system["headline"]["encoder"], expected["headline"]["encoder"]) == ("bands.pt", "bands")
    arrays = dict(np.load(files[1]))
    np.savez(files[1], **{**arrays, "encoder": "another"})
    run("evaluate", *files, "--strip-suffix", "_anon", expect=2)
    assert (
        "Expected both sides by the same encoder, but got another and bands.pt."
        in capsys.readouterr().err
    )


@pytest.mark.filterwarnings(
    "ignore:4 of 16 original embeddings equal", "ignore:Linkability needs 10 target trials"
)
@pytest.mark.parametrize("name", ["encoder", pytest.param("f0", marks=needs("librosa", "f0"))])
def test_enrolment_lists_apply(tmp_path, evaluate, folders, encoder, name):
    enrolled = [f"p{speaker}/p{speaker}_{number}" for speaker in range(4) for number in (0, 1)]
    (tmp_path / "list").write_text("\n".join(enrolled))
    used_encoder = encoder
    scoring = "cosine"
    if name == "f0":
        used_encoder = "f0"
        scoring = "euclidean"
    options = ["--enrolls", tmp_path / "list", "--no-attacks", "--intervals", "0"]
    (system,) = evaluate(folders / "o", folders / "a", "--encoder", used_encoder, *options)
    voices = embed_pairs(pair_recordings(folders / "o", folders / "a"), used_encoder)
    is_reference = torch.tensor([utterance in enrolled for utterance in voices.utterances])
    assert_results_of(voices, system["scalars"], is_reference, scoring=scoring, enrolment="speaker")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["o", "o"], "Expected two places, but"),
        (["o", "less"], "--partial leaves them out"),
        (["o", "a", "--encoder", "unheard"], "unheard"),
        (
            ["o", "a", "--format", "npz"],
            "Expected no --format with recordings: it would do nothing",
        ),
        (["o", "a", "--utt2spk", "nowhere"], "nowhere cannot be read"),
        (["o", "a", "--enrolls", "nowhere", "--encoder", "unheard"], "nowhere: cannot be read"),
        (["o", "empty"], "Expected recordings ("),
        (
            ["empty", "empty"],
            "expected recordings (.wav, .flac, .ogg, .mp3), or one .npy or .pt file",
        ),
        (
            ["o", "a", "--enrolls", "list"],
            "of all 2 utterances, but 1 are missing, first 'nobody'; --partial",
        ),
        (
            ["--original", "o", "a", "--protected", "a"],
            "Expected two folders of recordings, original and protected",
        ),
        (["e.npz", "--encoder", "resemblyzer"], "Expected no --encoder with embeddings"),
    ],
)
def test_invalid_recordings_raise(tmp_path, folders, monkeypatch, capsys, options, message):
    # of a busy machine
    monkeypatch.setattr("vpmetrics.readers.progress._SECONDS_BETWEEN_LINES", 1e9)
    for name in "oa":
        (tmp_path / name).symlink_to(folders / name)
    write_voices(tmp_path / "less", "_anon", 1.3)
    (tmp_path / "less/p0/p0_0_anon.wav").unlink()
    (tmp_path / "empty").mkdir()
    (tmp_path / "list").write_text("p0/p0_0\nnobody\n")
    np.savez(
        tmp_path / "e.npz", original=np.eye(4), protected=np.eye(4), speakers=np.arange(4) // 2
    )
    monkeypatch.chdir(tmp_path)
    run("evaluate", *options, expect=2)
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_partial_skips_and_counts_missing_recordings(tmp_path, evaluate, folders, encoder):
    protected = write_voices(tmp_path / "p", "_anon", 1.3)
    (protected / "p0/p0_0_anon.wav").unlink()
    (protected / "p1/p1_0_anon.wav").write_bytes(b"RIFF")
    (tmp_path / "list").write_text("p0/p0_0\np0/p0_1\np2/p2_1\nnobody")
    options = [
        "--encoder",
        encoder,
        "--enrolls",
        tmp_path / "list",
        "--no-attacks",
        "--intervals",
        "0",
    ]
    (system,) = evaluate(folders / "o", protected, *options, "--partial")
    notes = " ".join(system["notes"])
    assert "1 of 16 original recordings have no protected one" in notes
    assert "p1_0_anon.wav is cut off" in notes
    assert "list: 2 of 4 utterances have no embeddings, first 'nobody'; they are left out" in notes
    assert system["utterances"] == 14
