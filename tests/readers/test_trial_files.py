"""Score files: their numbers against the functions', and what is wrong with them."""

import gzip
import math
import re

import polars as pl
import pytest
import reference
from cli.cases import (
    assert_scalars,
    expected_scalars,
    run,
    tensors_of,
    trials_of,
    write_conditions,
    write_key,
    write_scores,
    write_utt2spk,
)

from vpmetrics._scores.registry import CI_SUFFIXES
from vpmetrics._util.inputs import InputError
from vpmetrics.functional import calibration_distortion
from vpmetrics.readers.trial_files import read_key, read_map, read_scores


@pytest.mark.parametrize("name", ["scores", "scores.gz"])
@pytest.mark.parametrize("fourth", [False, True])
def test_score_files_match_the_reference_measures(tmp_path, evaluate_scores, voices, name, fourth):
    trials = trials_of(voices, "OP")
    files = [write_scores(tmp_path / name, voices, trials, fourth)]
    files += [] if fourth else ["--key", write_key(tmp_path / "key", voices)]
    (system,) = evaluate_scores(*files, "--intervals", "0")
    assert system["utterances"] == 60
    measures = reference.verification.score_measures(
        *(values.numpy() for values in tensors_of(voices, trials))
    )
    expected = {**measures, "disclosure": max(measures["d_ece"], measures["d_ece_reversed"])}
    assert 0 <= system["scalars"].pop("found_in_100") <= 1
    assert_scalars(system["scalars"], expected, atol=1e-12)


def test_score_files_of_all_conditions_match_the_embeddings(tmp_path, evaluate_scores, voices):
    """The matrices of score files are those of the suite, formed another way."""
    options = [*write_conditions(tmp_path, voices), "--utt2spk", write_utt2spk(tmp_path, voices)]
    got = evaluate_scores(*options)[0]["scalars"]
    expected = expected_scalars(voices, attacks=None)
    (sigmoid,) = evaluate_scores(*options, "--similarity", "sigmoid")
    assert abs(got["deid"] - sigmoid["scalars"]["deid"]) > 1e-3
    # Scores were spread by 8 for the files, which changes what is not a matter of order.
    shared = {key for key in got if "cllr" not in key or "min_cllr" in key} - {
        "cllr_op_oo",
        "g_cllr",
        "disclosure",
    }
    # Bins feel the last digit.
    shared = {key for key in shared if "_linkability" not in key and not key.endswith(CI_SUFFIXES)}
    assert {"deid", "gvd", "op_d_ece", "g_d_ece", "pp_d_diag_log"} <= shared
    assert_scalars(
        {key: got[key] for key in shared}, {key: expected[key] for key in shared}, atol=2e-5
    )


def test_enrolment_may_be_called_by_its_speaker(tmp_path, evaluate_scores):
    (tmp_path / "scores").write_text(
        "anna u1 2 target\nanna u2 0 nontarget\nben u1 0.5 nontarget\nben u2 3 target\n"
    )
    (tmp_path / "utt2spk").write_text("u1 anna\nu2 ben\n")
    options = [
        "--oo",
        tmp_path / "scores",
        "--op",
        tmp_path / "scores",
        "--utt2spk",
        tmp_path / "utt2spk",
    ]
    assert evaluate_scores(*options)[0]["scalars"]["deid"] == pytest.approx(0, abs=1e-12)


@pytest.mark.usefixtures("all_figures")
def test_fit_reports_calibration_distortion(tmp_path, evaluate_scores, voices):
    attacked = trials_of(voices, "OP", "B2r0")
    learnt = trials_of(voices, "OP", "B2r1")
    key = write_key(tmp_path / "key", voices)
    attacked_file = write_scores(tmp_path / "run1", voices, attacked)
    learnt_file = write_scores(tmp_path / "run0", voices, learnt)
    (system,) = evaluate_scores(
        attacked_file, "--key", key, "--fit", learnt_file, key, "--out", tmp_path / "out"
    )
    for kind in ("linear", "isotonic"):
        expected = calibration_distortion(
            *tensors_of(voices, attacked), *tensors_of(voices, learnt), kind
        )
        assert system["scalars"][f"c_ece_{kind}"] == pytest.approx(float(expected), abs=1e-9)
    assert (tmp_path / "out" / "calibration.png").exists()


def test_unmatched_scores_and_key_trials_are_noted_or_raise(tmp_path, evaluate_scores, capsys):
    (tmp_path / "scores").write_text("a b 1\n\na c 2\nx y 3\na d 4\n")
    (tmp_path / "key").write_text("a b target\na c nontarget\na d nontarget\na e target\n")
    (system,) = evaluate_scores(tmp_path / "scores", "--key", tmp_path / "key")
    notes = " ".join(system["notes"])
    assert "1 of 4 scores left out" in notes
    assert "(first x y)" in notes
    assert "1 trials of" in notes
    capsys.readouterr()
    run("scores", tmp_path / "scores", "--key", tmp_path / "key", "--strict", expect=2)
    assert "1 of 4 scores left out" in capsys.readouterr().err


TRIALS = [("a", "b", 1.5, True), ("a", "c", -2.0, False), ("b", "c", 0.25, False)]
LABELS = {True: "target", False: "nontarget"}
NUMBERS = {True: "1", False: "0"}


def lines_of(columns, separator=" ", labels=LABELS):
    fields = {
        "e": lambda t: t[0],
        "t": lambda t: t[1],
        "s": lambda t: repr(t[2]),
        "l": lambda t: labels[t[3]],
    }
    return "".join(
        separator.join(fields[column](trial) for column in columns) + "\n" for trial in TRIALS
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x", lines_of("ets")),
        ("x", lines_of("etsl")),
        ("x", lines_of("ets", "\t")),
        ("x", lines_of("ets", " \t  ")),
        ("x", "\n  " + lines_of("ets").replace("\n", " \n\n") + "\n"),
        ("x", "\ufeff" + lines_of("ets").replace("\n", "\r\n")),
        ("x", "enroll_id trial_id score\n" + lines_of("ets")),  # of the challenge from 2024 on
        ("x.csv", lines_of("ets", ",")),
        ("x.csv", "label,score,enrol,trial\n" + lines_of("lset", ", ")),
        ("x.csv", "enrol,trial,score,further\n" + lines_of("ets", ",").replace("\n", ',"1,2"\n')),
        ("x.tsv", "model\ttest\tllr\tlabel\n" + lines_of("etsl", "\t", NUMBERS)),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_lists_of_scores_are_read(tmp_path, name, text, packed):
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    frame = read_scores(path).frame
    assert frame.rows() == [trial[: frame.width] for trial in TRIALS]


@pytest.mark.parametrize(
    ("columns", "order", "labels"),
    [
        ("enrol,trial,label,score", "etls", NUMBERS),  # of SpeechBrain
        ("label,enrol,trial,score", "lets", LABELS),
        ("_,score,label", "tsl", LABELS),
    ],
)
def test_score_columns_option_sets_the_column_order(
    tmp_path, evaluate_scores, columns, order, labels
):
    (tmp_path / "x").write_text(lines_of(order, labels=labels))
    assert evaluate_scores(tmp_path / "x", "--score-columns", columns)[0]["scalars"]["eer"] == 0
    (tmp_path / "scores").write_text(lines_of("ets"))
    (tmp_path / "key").write_text(lines_of("let", labels=NUMBERS))  # as of VoxCeleb
    options = ["--key-columns", "label,enrol,trial"]
    assert (
        evaluate_scores(tmp_path / "scores", "--key", tmp_path / "key", *options)[0]["scalars"][
            "eer"
        ]
        == 0
    )


@pytest.mark.parametrize(
    "labels", [["target", "nontarget", "nontarget"], [True, False, False], [1, 0, 0]]
)
def test_lists_in_parquet_are_read_by_the_names_of_columns(tmp_path, evaluate_scores, labels):
    enrol, trial, scores, _ = zip(*TRIALS, strict=True)
    columns = {
        "enrol": pl.Series(enrol, dtype=pl.Categorical),
        "trial": trial,
        "score": scores,
        "label": labels,
    }
    pl.DataFrame(columns).write_parquet(tmp_path / "x.parquet")
    assert read_scores(tmp_path / "x.parquet").frame.rows() == TRIALS
    assert read_key(tmp_path / "x.parquet").frame["is_target"].to_list() == [
        trial[3] for trial in TRIALS
    ]
    assert evaluate_scores(tmp_path / "x.parquet")[0]["scalars"]["eer"] == 0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"enrol": ["a", "a"], "trial": ["b", "c"], "score": [1.0, None]},
            ":2: expected a number as score, but got",
        ),
        (
            {"enrol": ["a", "a"], "trial": ["b", "c"], "score": [1.0, math.nan]},
            ":2: expected a number as score",
        ),
        (
            {"enrol": ["a", "a"], "trial": [None, None], "score": [1.0, 2.0]},
            ":1: expected a name, but got nothing (2 of 2 lines)",
        ),
        (
            {"enrol": ["a"], "trial": ["b"], "score": [1.0], "label": ["maybe"]},
            ":1: expected target or nontarget",
        ),
        (
            {"enrol": ["a"], "trial": ["b"]},
            "expected `enrol trial score [target|nontarget]`, but got columns enrol",
        ),
        (
            {"enrol": [], "trial": [], "score": []},
            "expected lines `enrol trial score [target|nontarget]`, but got no",
        ),
    ],
)
def test_invalid_parquet_error_names_the_row(tmp_path, columns, message):
    pl.DataFrame(columns).write_parquet(tmp_path / "x.parquet")
    with pytest.raises(InputError, match=rf"x\.parquet.*{re.escape(message)}"):
        read_scores(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    ("name", "text", "key", "message"),
    [
        ("x", "a b\n", "a b target\n", "x:1: expected a number as score, but got 'a'"),
        (
            "x",
            "a b 1\na c 1\na b 2\n",
            "a b target\n",
            "once, but 1 of 3 lines repeat an earlier trial, first a b",
        ),
        (
            "x",
            "a b 1\n",
            "a b target\na c maybe\n",
            "key:2: expected target or nontarget, but got 'maybe'",
        ),
        (
            "x",
            "a b 1\n",
            "a b target\nc d target\na b nontarget\n",
            "key: expected one label per trial, but a b is",
        ),
        ("x", "b a 1\n", "a b target\n", "x: none of its 1 trials is in the key"),
        (
            "x",
            "b a 1\n",
            "a b target\n",
            "; 1 would be in it if its first two columns were swapped",
        ),
        ("x", "a b 1\n", None, "both speakers (enrol_speaker,trial_speaker), or a key (--key KEY)"),
        ("x", "a b 1\na c 0x1\n", None, "x:2: expected a number as score, but got '0x1'"),
        (
            "x",
            "enrol trial score\na b 1\n\na c nan\n",
            None,
            "x:4: expected a number as score, but got 'nan'",
        ),
        (
            "x",
            "a b 1\na c 2 3\n",
            None,
            "x:2: expected 3 columns as in the lines before, but got 4",
        ),
        (
            "x",
            "a,b,1\na,c,2\n",
            None,
            "x:1: expected `enrol trial score [target|nontarget]`, but got 1 columns; a table",
        ),
        (
            "x.csv",
            "a,b,1\na,c\n",
            None,
            "x.csv:2: expected 3 columns as in the lines before, but got 2",
        ),
        ("x.csv", "a,b,1\na,,2\n", None, "x.csv:2: expected a name, but got nothing"),
        (
            "x",
            "enrol trial score\n",
            None,
            "x: expected lines `enrol trial score [target|nontarget]`, but got none",
        ),
        ("x", "", None, "x: expected lines"),
        ("x", "a b 1\na c " + 10**6 * "x", None, "x:2: expected a number as score, but got 'xxx"),
        (
            "x",
            2 * (10**6 * "x" + " b 1\n"),
            None,
            "x: expected every trial once, but 1 of 2 lines repeat an earlier trial, first xx",
        ),
        (
            "x",
            10**6 * "a b ",
            None,
            "x:1: expected lines `enrol trial score [target|nontarget]`, but got 2,000,000 columns",
        ),
    ],
)
def test_invalid_score_file_error_names_the_line(tmp_path, capsys, name, text, key, message):
    (tmp_path / name).write_text(text)
    (tmp_path / "key").write_text(key or "")
    run(
        "scores",
        "--op",
        tmp_path / name,
        *([] if key is None else ["--key", tmp_path / "key"]),
        expect=2,
    )
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err) < 500
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    ("content", "line"), [(b"a b 1\n\xe9 c 2\n", 2), ("a b 1\n".encode("utf-16"), None)]
)
def test_text_of_another_encoding_raises(tmp_path, content, line):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(
        InputError, match=f"x:{line}: expected text in UTF-8" if line else "x: expected text"
    ):
        read_scores(tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x", "u1 anna\nu2 ben\n"),
        ("x.csv", "utterance,speaker\nu1,anna\nu2,ben\n"),
        ("x.tsv", "u1\tanna\nu2\tben\n"),
    ],
)
def test_utt2spk_may_have_a_header(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_map(tmp_path / name) == {"u1": "anna", "u2": "ben"}


SPEAKER_TRIALS = [
    ("anna", "anna", "u1", 2.0),
    ("anna", "ben", "u2", -1.0),
    ("ben", "anna", "u1", -2.0),
]


@pytest.mark.parametrize(
    "header",
    [
        "enroll_spk,trial_spk,trial_id,score",
        "enrolment_speaker,test_speaker,test_utterance,llr",
        "EnrollSpeaker,TrialSpeaker,TrialID,Cosine",
        "speaker1,speaker2,utt2,similarity",
    ],
)
def test_tables_with_both_speakers_need_no_labels(tmp_path, header):
    path = tmp_path / "x.csv"
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in SPEAKER_TRIALS), ""]))
    trials = read_scores(path)
    expected = [
        (enrol, name, score, enrol == trial) for enrol, trial, name, score in SPEAKER_TRIALS
    ]
    assert trials.frame.select("enrol", "trial", "score", "is_target").rows() == expected
    assert trials.speaker_of == {"anna": "anna", "ben": "ben", "u1": "anna", "u2": "ben"}
    assert read_key(path).frame["is_target"].to_list() == [row[3] for row in expected]


def test_scores_of_speakers_are_evaluated_with_intervals(tmp_path, evaluate_scores, voices):
    trials = trials_of(voices, "PP")
    names = voices.names
    lines = [
        f"{names[enrol]},{names[trial]},{enrol}-{trial},{score}"
        for enrol, trial, score, *_ in trials
    ]
    (tmp_path / "x.csv").write_text("\n".join(["enroll_spk,trial_spk,trial_id,score", *lines, ""]))
    (system,) = evaluate_scores("--pp", tmp_path / "x.csv")
    (labelled,) = evaluate_scores(
        "--pp",
        write_scores(tmp_path / "scores", voices, trials),
        "--key",
        write_key(tmp_path / "key", voices),
    )
    assert system["scalars"]["pp_d_ece"] == pytest.approx(labelled["scalars"]["pp_d_ece"])
    assert system["scalars"]["pp_d_ece_high"] > system["scalars"]["pp_d_ece"]


def test_numbers_of_utterances_that_begin_anew_with_every_speaker(tmp_path):
    lines = "enroll_spk,trial_spk,trial_id,score\nanna,anna,1,2\nanna,ben,1,0\nben,ben,1,3\n"
    (tmp_path / "x.csv").write_text(lines)
    trials = read_scores(tmp_path / "x.csv")
    assert trials.frame["trial"].to_list() == ["anna/1", "ben/1", "ben/1"]
    (tmp_path / "y.csv").write_text("spk1,spk2,score\nanna,anna,2\nanna,anna,1\nanna,ben,0\n")
    assert read_scores(tmp_path / "y.csv").frame["trial"].to_list() == ["1", "2", "3"]


@pytest.mark.parametrize(
    "text",
    [
        "utterance_id,speaker_id\nu1,anna\nu2,ben\n",
        "speaker_id,utterance_id\nanna,u1\nben,u2\n",
        "utterance_id,gender,speaker_id,duration\nu1,f,anna,3.5\nu2,m,ben,2\n",
        "u1,anna\nu2,ben\n",
    ],
)
def test_speakers_are_found_by_the_names_of_columns(tmp_path, text):
    (tmp_path / "x.csv").write_text(text)
    assert read_map(tmp_path / "x.csv") == {"u1": "anna", "u2": "ben"}


def test_errors_name_the_columns_and_the_option(tmp_path):
    (tmp_path / "x.csv").write_text("who,enrol,number,extra\na,b,1,2\n")
    with pytest.raises(
        InputError, match=r"but got columns who, enrol, number, extra; --score-columns names"
    ):
        read_scores(tmp_path / "x.csv")
    with pytest.raises(
        InputError, match=r"but got columns who, enrol, number, extra; --key-columns names"
    ):
        read_key(tmp_path / "x.csv")
    (tmp_path / "y.csv").write_text("a,b,target\na,c,nontarget\n")
    assert read_key(tmp_path / "y.csv").frame["is_target"].to_list() == [True, False]
