"""Which recordings are found, who speaks in them, and which belong together."""

import unicodedata

import pytest
from audio.conftest import write

from vpmetrics.audio import AudioError, list_recordings, pair_recordings


def touch(folder, *names: str):
    """Files by name alone: pairing reads none."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return folder


def speakers_of(found) -> dict[str, str | None]:
    return {recording.utterance: recording.speaker for recording in found.items}


@pytest.mark.parametrize(
    ("names", "speakers", "assumption"),
    [
        (
            ["p225/a.wav", "p225/b.wav", "p226/a.wav"],
            ["p225", "p225", "p226"],
            "level 1 of the path",
        ),
        (
            ["1/9/1-9-00.flac", "1/8/1-8-00.flac", "2/7/2-7-00.flac"],
            ["1", "1", "2"],
            "level 1 of the path",
        ),
        (
            ["x/p1/p1_1.wav", "x/p1/p1_2.wav", "y/p2/p2_1.wav"],
            ["p1", "p1", "p2"],
            "level 2 of the path",
        ),
        (
            ["wav/p1/1.wav", "wav/p1/2.wav", "wav/p2/1.wav"],
            ["p1", "p1", "p2"],
            "level 2 of the path",
        ),
        (
            ["1272-128-00.ogg", "1272-128-01.ogg", "84-1-00.ogg"],
            ["1272", "1272", "84"],
            "first part of file names",
        ),
        (
            ["日本_1.wav", "日本_2.wav", "Zoë_1.wav"],
            ["Zoë", "日本", "日本"],
            "first part of file names",
        ),
    ],
)
def test_speakers_by_folder_or_name(tmp_path, names, speakers, assumption):
    found = list_recordings(touch(tmp_path, *names))
    assert [recording.speaker for recording in found.items] == (
        speakers if "Zoë" in speakers else sorted(speakers)
    )
    (text,) = found.assumptions
    assert assumption in text
    assert "2 speakers, 3 recordings" in text
    assert repr(found.items[0].utterance) in text


def test_unknown_speakers_are_none(tmp_path):
    found = list_recordings(touch(tmp_path, "1.wav", "2.wav"))
    assert speakers_of(found) == {"1": None, "2": None}
    assert found.assumptions == ()


@pytest.mark.parametrize(
    ("pattern", "speakers"),
    [("[A-Z]+", ["AB", "CD"]), (r"^\d(\w)", ["A", "C"]), (r"(\d)(?P<speaker>..)$", ["AB", "CD"])],
)
def test_speakers_by_pattern(tmp_path, pattern, speakers):
    found = list_recordings(touch(tmp_path, "1AB.wav", "2CD.wav"), speaker_pattern=pattern)
    assert [recording.speaker for recording in found.items] == speakers
    assert "2 speakers" in found.assumptions[0]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "Expected `speaker_pattern` to be a regular expression"),
        ("^1", "1 of 2 have none, first '2'"),
    ],
)
def test_speaker_patterns_without_match_raise(tmp_path, pattern, message):
    with pytest.raises(AudioError, match=message):
        list_recordings(touch(tmp_path, "1.wav", "2.wav"), speaker_pattern=pattern)


def test_speakers_by_a_file_of_utterances_or_of_names(tmp_path):
    touch(tmp_path / "wavs", "x/1.wav", "x/2.wav")
    (tmp_path / "utt2spk").write_text("x/1 ann\n\n2 bob\n", encoding="utf-8-sig")
    found = list_recordings(tmp_path / "wavs", utt2spk=tmp_path / "utt2spk")
    assert speakers_of(found) == {"x/1": "ann", "x/2": "bob"}
    (tmp_path / "utt2spk").write_text("x/1 ann\nx/2 bob b\n")
    with pytest.raises(
        AudioError, match=r"utt2spk:2: expected `utterance speaker`, but got 3 words"
    ):
        list_recordings(tmp_path / "wavs", utt2spk=tmp_path / "utt2spk")


def test_kaldi_folder(tmp_path):
    touch(tmp_path, "wav/1.flac", "wav/2.flac")
    (tmp_path / "wav.scp").write_text(f"u1 wav/1.flac\nu2 {tmp_path}/wav/2.flac\n")
    (tmp_path / "utt2spk").write_text("u1 s1\nu2 s2\n")
    found = list_recordings(tmp_path)
    assert speakers_of(found) == {"u1": "s1", "u2": "s2"}
    assert all(recording.path.is_file() for recording in found.items)
    assert "wav.scp was taken" in found.assumptions[0]
    # What a user asks for comes before what lies beside the list.
    asked = list_recordings(tmp_path, speaker_pattern="u")
    assert speakers_of(asked) == {"u1": "u", "u2": "u"}


@pytest.mark.parametrize("separator", [",", "\t"])
def test_manifest(tmp_path, separator):
    path = tmp_path / ("a.csv" if separator == "," else "a.tsv")
    rows = ["path speaker group session", "x/1.wav ann f 0", "x/2.wav bob m 1"]
    path.write_text("\n".join(row.replace(" ", separator) for row in rows), encoding="utf-8-sig")
    first, second = list_recordings(path).items
    assert first == ("x/1", tmp_path / "x/1.wav", "ann", "0", "f")
    assert (second.utterance, second.group) == ("x/2", "m")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("wav.scp", "u1 sox a.wav -t wav - |\n", r"wav.scp:1: .* a command, which is not run"),
        ("wav.scp", "u1\n", r"wav.scp:1: expected `utterance path`, but got one column"),
        ("wav.scp", "\n", r"Expected recordings \(\.wav, .*\) in .*wav\.scp, but there are none"),
        (
            "a.csv",
            "file,who\n",
            "to begin with column names such as `path,speaker`, but got .'file', 'who'.",
        ),
        ("a.csv", "path,speaker\na.wav\n", r"a.csv:2: expected 2 columns, but got 1"),
        ("a.csv", "path\n", r"in .*a\.csv, but there are none"),
        ("a.csv", "path,utterance\n1.wav,u\n2.wav,u\n", r"1.wav and .*2.wav are both 'u'"),
        ("a.txt", "", "Expected a folder, wav.scp, .csv or .tsv"),
    ],
)
def test_lists_that_cannot_be_read(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(AudioError, match=message):
        list_recordings(tmp_path / name)


def test_empty_folders_and_duplicate_names_raise(tmp_path):
    touch(tmp_path, "a.m4a", "._b.wav", ".hidden.wav")
    with pytest.raises(
        AudioError, match=r"Expected recordings \(\.wav, .*\) in .*, but there are none"
    ):
        list_recordings(tmp_path)
    with pytest.raises(AudioError, match=r"but there is none at .*nowhere"):
        list_recordings(tmp_path / "nowhere")
    with pytest.raises(
        AudioError, match=r"a\.flac and .*a\.wav are both 'a' \(1 names occur twice\)"
    ):
        list_recordings(touch(tmp_path, "a.wav", "a.flac", "b.wav"))


@pytest.mark.parametrize(
    ("original", "protected", "way"),
    [
        (["p1/1.wav", "p2/1.wav"], ["p1/1.flac", "p2/1.flac"], "relative path: "),
        (["p1/1.wav", "p2/1.wav"], ["p1/1_anon.wav", "p2/1_anon.wav"], "relative path and '_anon'"),
        (["p1/p1_1.wav", "p2/p2_1.wav"], ["p1_1.wav", "p2_1.wav"], "file name: "),
        (["p1/p1_1.wav", "p2/p2_1.wav"], ["x/p1_1-B2.mp3", "x/p2_1-B2.mp3"], "file name and '-B2'"),
        (
            ["p_1.wav", "p_10.wav", "q_1.wav"],
            ["p_1x.wav", "p_10x.wav", "q_1x.wav"],
            "relative path and 'x'",
        ),
    ],
)
def test_pairs_by_path_or_name_and_suffix(tmp_path, original, protected, way):
    options = {"speaker_pattern": r"([pq])\d?"}
    pairs = pair_recordings(
        touch(tmp_path / "o", *original), touch(tmp_path / "p", *protected), **options
    )
    found = [
        (
            recording.path.relative_to(tmp_path / "o"),
            protected_recording.path.relative_to(tmp_path / "p"),
        )
        for recording, protected_recording in zip(pairs.original, pairs.protected, strict=True)
    ]
    assert [tuple(map(str, pair)) for pair in found] == list(zip(original, protected, strict=True))
    assert f"Pairs are recordings of the same {way}" in pairs.assumptions[-1]
    assert [recording.speaker for recording in pairs.protected] == [
        recording.speaker for recording in pairs.original
    ]
    assert [recording.utterance for recording in pairs.protected] == [
        recording.utterance for recording in pairs.original
    ]


def test_strip_suffix_pairs_recordings(tmp_path):
    touch(
        tmp_path,
        "o/p1_1.wav",
        "o/p1_2.wav",
        "o/p2_1.wav",
        "p/p1_1.v2.wav",
        "p/p1_2.wav",
        "p/p2_1.wav",
    )
    with pytest.raises(
        AudioError, match=r"1 of 3 original recordings have no protected one, first .*p1_1.wav"
    ):
        pair_recordings(tmp_path / "o", tmp_path / "p")
    assert len(pair_recordings(tmp_path / "o", tmp_path / "p", strip_suffix=".v2").original) == 3


def test_unpaired_recordings_raise_unless_partial_is_set(tmp_path):
    touch(
        tmp_path, "o/p1/1.wav", "o/p1/2.wav", "o/p2/1.wav", "p/p1/1.wav", "p/p2/1.wav", "p/p3/1.wav"
    )
    with pytest.raises(
        AudioError, match=r"1 of 3 original recordings have no protected one.*`partial=True`"
    ):
        pair_recordings(tmp_path / "o", tmp_path / "p")
    pairs = pair_recordings(tmp_path / "o", tmp_path / "p", partial=True)
    assert [recording.utterance for recording in pairs.original] == ["p1/1", "p2/1"]
    assert [text.split(" ", 6)[:6] for text in pairs.assumptions[-2:]] == [
        ["1", "of", "3", side, "recordings", "have"] for side in ("original", "protected")
    ]


NAMES = "o/p1_1.wav", "o/p1_2.wav", "o/p2_1.wav"


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (
            (*NAMES, "p/x.wav"),
            {"partial": True},
            r"first .*p1_1\.wav; names on the other side .* 'x'.*`strip_suffix`",
        ),
        (("p/p1_1.wav",), {}, "are both"),
        (
            ("o/1.wav", "o/2.wav", "p/1.wav"),
            {},
            r"who speaks in .*1\.wav .*`utt2spk`.*`speaker_pattern`",
        ),
        (
            (*NAMES, "p/x/p1_1.wav", "p/y/p1_1.wav"),
            {},
            r"x/p1_1\.wav and .*y/p1_1\.wav are both 'p1_1'",
        ),
        (
            ("o/x/p1_1.wav", "o/y/p1_1.wav", "p/p1_1.wav"),
            {"speaker_pattern": "."},
            r"x/p1_1\.wav and .* both 'p1_1'",
        ),
    ],
)
def test_recordings_that_cannot_be_paired(tmp_path, names, options, message):
    touch(tmp_path, *names)
    original = tmp_path / ("o" if (tmp_path / "o").exists() else "p/../p")
    with pytest.raises(AudioError, match=message):
        pair_recordings(original, tmp_path / "p", **options)


def test_accents_in_either_form(tmp_path):
    names = ["Zoë_1.wav", "Zoë_2.wav", "Bo_1.wav"]
    touch(tmp_path / "o", *(unicodedata.normalize("NFC", name) for name in names))
    touch(tmp_path / "p", *(unicodedata.normalize("NFD", name) for name in names))
    assert len(pair_recordings(tmp_path / "o", tmp_path / "p").original) == 3
    (tmp_path / "utt2spk").write_text(unicodedata.normalize("NFD", "Zoë_1 z\nZoë_2 z\nBo_1 b\n"))
    assert set(
        speakers_of(list_recordings(tmp_path / "o", utt2spk=tmp_path / "utt2spk")).values()
    ) == {"z", "b"}


def test_sessions_are_those_of_the_protected_manifest(tmp_path):
    write(tmp_path / "x.wav")
    (tmp_path / "o.csv").write_text(
        "path,utterance,speaker,session,group\nx.wav,1,ann,,f\nx.wav,2,bob,,m\n"
    )
    (tmp_path / "p.csv").write_text("path,utterance,session\nx.wav,1,day\nx.wav,2,night\n")
    protected = pair_recordings(tmp_path / "o.csv", tmp_path / "p.csv").protected
    assert [(recording.speaker, recording.session, recording.group) for recording in protected] == [
        ("ann", "day", "f"),
        ("bob", "night", "m"),
    ]


@pytest.mark.parametrize(
    "names", [["128104/1272-128104-0000", "128104/1272-128104-0001", "135031/1272-135031-0000"]]
)
def test_chapters_of_a_speaker_of_librispeech_are_no_speakers(tmp_path, names):
    for name in names:
        path = tmp_path / f"{name}.flac"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    recordings = list_recordings(tmp_path)
    assert {recording.speaker for recording in recordings.items} == {"1272"}
    assert "(1 speakers, 3 recordings)" in recordings.assumptions[0]
