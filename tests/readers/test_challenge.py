"""Folders as the recipes of the VoicePrivacy challenges leave them."""

import shutil

import numpy as np
import pytest
import torch
from cli.cases import run
from cli.libri import CONDITIONS, SETS, expected_scores
from reference.verification import equal_error_rate

from vpmetrics import VoicePrivacy


def write_data(recipe, libri, base="libri_test"):
    """``data`` of the recipe: the lists of each set in a folder of its own."""
    for name, kind in zip(SETS, ("enrolls", "trials", "trials"), strict=True):
        folder = recipe / "data" / f"{base}_{name}"
        folder.mkdir(parents=True)
        shutil.copy(libri.folder / name, folder / kind)
        shutil.copy(libri.folder / "utt2spk", folder / "utt2spk")


def write_vectors(folder, libri, *sides, level="utt-level", base="libri_test"):
    """Vectors of original speech for the side "", and of protected speech for all others."""
    sets = {"enrolls": libri.enrolled}
    for sex in "fm":
        sets[f"trials_{sex}"] = sorted({utterance for _, utterance, _ in libri.trials[sex]})
    for side in sides:
        draw = np.random.default_rng(len(side))
        vectors = libri.vectors["_anon" if side else ""]
        for name in SETS:
            order = draw.permutation(sets[name]).tolist()
            write_set(folder / f"{base}_{name}{side}" / level, vectors, order)


def write_set(folder, vectors, order):
    """Rows in the order of a set, as the toolkit of 2024 has them, with their index."""
    folder.mkdir(parents=True)
    rows = np.stack([vectors[utterance] for utterance in order])
    torch.save(torch.from_numpy(rows), folder / "speaker_vectors.pt")
    index_lines = [f"{utterance} {row}\n" for row, utterance in enumerate(order)]
    speaker_lines = [f"{row} {utterance.split('-')[0]}\n" for row, utterance in enumerate(order)]
    (folder / "id2idx").write_text("".join(index_lines))
    (folder / "idx2spk").write_text("".join(speaker_lines))


def write_scores(folder, libri, side):
    """Write lines ``enrol trial score`` of each condition and sex.

    As the recipes of 2020 and 2022 do.
    """
    for condition, (enrol, probe) in CONDITIONS.items():
        for sex in "fm":
            enrol_set = f"libri_test_enrolls{side if enrol else ''}"
            name = f"ASV-{enrol_set}-libri_test_trials_{sex}{side if probe else ''}"
            (folder / name).mkdir(parents=True)
            scores, _ = expected_scores(libri, sex, condition)
            rows = zip(libri.trials[sex], scores.tolist(), strict=True)
            (folder / name / "scores").write_text(
                "".join(f"{s} {u} {score!r}\n" for (s, u, _), score in rows)
            )


def assert_expected(system, measures):
    assert set(system["groups"]) == {"libri_test_f", "libri_test_m"}
    for (sex, condition), values in measures.items():
        got = system["groups"][f"libri_test_{sex}"]["scalars"]
        for name, value in values.items():
            assert got[f"{condition}_{name}"] == pytest.approx(value, abs=1e-9), (
                sex,
                condition,
                name,
            )
    mean = (measures["f", "op"]["eer"] + measures["m", "op"]["eer"]) / 2
    assert system["average"]["scalars"]["op_eer"] == pytest.approx(mean, abs=1e-9)


def test_attacks_on_vectors_of_2024_match_the_suite(tmp_path, evaluate_challenge, libri):
    write_data(tmp_path, libri)
    write_vectors(tmp_path / "exp", libri, "", "_anon")
    (system,) = evaluate_challenge(tmp_path)
    used = [*libri.enrolled, *sorted({u for rows in libri.trials.values() for _, u, _ in rows})][
        ::-1
    ]
    sides = [
        torch.tensor(np.stack([libri.vectors[side][u] for u in used])).double()
        for side in ("", "_anon")
    ]
    speakers = torch.tensor([int(u.split("-")[0]) for u in used])
    metric = VoicePrivacy(metrics=["op_d_ece_strongest", "op_eer_strongest"], enrolment="speaker")
    metric.update(
        *sides,
        speakers,
        torch.tensor([u in set(libri.enrolled) for u in used]),
        groups=speakers // 1000,
    )
    found = metric.compute()
    assert found["op_d_ece_strongest"] > 0.1
    for key, value in found.items():
        assert system["scalars"][key] == pytest.approx(float(value), abs=1e-6), key
    assert "attacks" not in [check["name"] for check in system["checks"]]
    for group in system["groups"].values():
        assert group["scalars"]["op_d_ece_strongest"] >= group["scalars"]["op_d_ece"]


def test_extractors_are_never_mixed_and_protected_vectors_alone_give_only_pp(
    tmp_path, evaluate_challenge, libri, libri_measures
):
    """As 2024's attacker has it, whose extractor was trained on protected speech."""
    write_data(tmp_path, libri)
    for place, sides in (("orig", ("", "_anon")), ("anon", ("_anon",))):
        write_vectors(tmp_path / "exp" / place, libri, *sides)
    alone, both = evaluate_challenge(tmp_path / "exp")
    assert (alone["name"], set(alone["trials"])) == ("anon, anon", {"PP"})
    assert (both["name"], set(both["trials"])) == ("anon, orig", {"OO", "OP", "PP"})
    assert_expected(both, libri_measures)
    for sex in "fm":
        got = alone["groups"][f"libri_test_{sex}"]["scalars"]
        assert got["pp_eer"] == pytest.approx(libri_measures[sex, "pp"]["eer"], abs=1e-9)
        assert got["pp_d_ece_strongest"] > 0.1


def test_trial_lists_next_to_vectors_are_read(tmp_path, evaluate_challenge, libri, libri_measures):
    write_vectors(tmp_path, libri, "", "_anon")
    for name in ("trials_f", "trials_m", "enrolls"):
        shutil.copy(libri.folder / name, tmp_path / name)
    assert_expected(evaluate_challenge(tmp_path, "--no-attacks")[0], libri_measures)


RATES = """\
ASR-libri_dev_asr_anon\n  %WER 1.0 [ 1 / 100 ] tgsmall\n  %WER 2.0 [ 2 / 100 ] tglarge
ASR-libri_test_asr\n  %WER 3.0 [ 3 / 100 ] tglarge
ASR-libri_test_asr_anon\n  %WER 6.20 [ 6 / 100 ] tgsmall/wer_13_0.0
  %WER 4.58 [ 4 / 100 ] tglarge/wer_12
ASR-vctk_test_asr_anon\n  %WER 9.0 [ 9 / 100 ] tgsmall\n  %WER 8.0 [ 8 / 100 ] tglarge
"""


def test_the_scores_of_2020_and_2022_are_found_labelled_and_grouped(
    tmp_path, evaluate_challenge, libri, libri_measures
):
    write_data(tmp_path, libri)
    for side in ("_anon", "_mcadams"):
        write_scores(tmp_path / "exp/results-2022" / side, libri, side)
    (tmp_path / "exp/results-2022/_anon/results.txt").write_text(RATES)
    systems = evaluate_challenge(tmp_path)
    assert [system["name"] for system in systems] == ["anon", "mcadams"]
    # That of the large language model, averaged over sets.
    assert [system["utility"] for system in systems] == [
        {"WER": pytest.approx((4.58 + 8.0) / 2)},
        {},
    ]
    for system in systems:
        assert_expected(system, libri_measures)
        assert system["unattacked"].startswith("scores give an attacker nothing to learn from")
        assert (
            "no DeID and no G_VD: they need embeddings, and the folder has only scores"
            in system["notes"]
        )
        assert system["speakers"] == 40  # of whom 11 are never enrolled: by lists of the recipe
        assert (
            system["scalars"]["op_eer_low"]
            < system["groups"]["libri_test_f"]["scalars"]["op_eer_low"] + 0.1
        )


def test_folder_without_results_or_trial_lists_raises(tmp_path, libri, capsys):
    run("challenge", tmp_path, expect=2)
    assert f"{tmp_path}: expected results of a VoicePrivacy challenge" in capsys.readouterr().err
    write_scores(tmp_path, libri, "_anon")
    run("challenge", tmp_path, expect=2)
    assert "expected the trials of libri_test_trials_f, but found no" in capsys.readouterr().err
    write_data(tmp_path, libri)
    for option in (["--no-attacks"], ["--scoring", "dot"]):
        run("challenge", tmp_path, *option, expect=2)
        assert (
            f"Expected no {option[0]} with a folder of scores: it would do nothing"
            in capsys.readouterr().err
        )


SUMMARY = """\
---- SER results ----
   dataset split       ser      UAR  ACC_sad
                               mean     mean
0  IEMOCAP   dev      anon  55.6146  32.9580
2  IEMOCAP  test      anon  53.4914  32.7760
3  IEMOCAP  test  original  71.0618  72.5706

---- ASR results ----
  dataset split       asr     WER
0   libri   dev  original   1.807
4   libri   dev      anon  10.482
5   libri  test      anon   9.994
"""


def write_recipe_of_2024(recipe, libri, systems):
    """Two datasets, two encoders of each system, and the summaries that participants send."""
    for base in ("libri_dev", "libri_test"):
        write_data(recipe, libri, base=base)
        for suffix in systems:
            for encoder in ("asv_orig", f"asv_anon{suffix}"):
                place = recipe / "exp" / encoder / "cosine_out/emb_xvect"
                for side in ("", suffix):
                    if not (place / f"{base}_enrolls{side}").exists():
                        write_vectors(place, libri, side, base=base)
                        # means, which are not read
                        write_vectors(place, libri, side, level="spk-level", base=base)
    for suffix in systems:
        path = recipe / "exp/results_summary" / f"result_for_rank{suffix}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(SUMMARY)


def evaluated_of(monkeypatch, *arguments):
    """The systems that a command forms, before they are written."""
    from vpmetrics.cli import terminal

    systems = []
    monkeypatch.setattr(terminal, "publish", lambda content, *_: systems.extend(content.systems))
    run(*arguments)
    return systems


def test_datasets_and_attackers_of_2024_have_a_row_each(
    tmp_path, libri, libri_measures, monkeypatch
):
    write_recipe_of_2024(tmp_path, libri, ["_mcadams"])
    systems = evaluated_of(monkeypatch, "challenge", tmp_path, "--no-attacks", "--intervals", "0")
    names = {
        result.name: tuple(map(result.challenge_condition_names.get, ("OP", "PP")))
        for result in systems
    }
    for dataset in ("dev", "test"):
        encoders = [
            names[f"mcadams {dataset}, {encoder}"] for encoder in ("ASV_eval", "ASV_eval^anon")
        ]
        assert encoders == [("OA, ignorant", "AA, lazy-informed"), ("OA", "AA, semi-informed")]
        assert names[f"mcadams {dataset}"] in encoders
    assert [result.dataset for result in systems] == ["dev"] * 3 + ["test"] * 3
    for system in systems:
        wer, uar = (10.482, 55.6146) if system.dataset == "dev" else (9.994, 53.4914)
        assert system.utility == {"WER": wer, "UAR": uar}
        assert system.weights == {f"libri_{system.dataset}_{sex}": 0.25 for sex in "fm"}
        assert 0 < system.get_or_nan("deid") < 1
        assert system.get_or_nan("gvd") < 0
        assert set(system.groups) == set(system.weights)
        for (sex, condition), values in libri_measures.items():
            group = system.groups[f"libri_{system.dataset}_{sex}"]
            for name, value in values.items():
                assert group.get_or_nan(name, condition.upper()) == pytest.approx(
                    value, abs=1e-9
                ), (name, condition)


def test_results_folders_are_compared(tmp_path, libri, monkeypatch):
    write_recipe_of_2024(tmp_path, libri, ["_mcadams", "_nac"])
    folders = [f"{name}={tmp_path}/exp/asv_anon_{name}" for name in ("mcadams", "nac")]
    (tmp_path / "utility.csv").write_text("system,MOS,WER\nnac test,3.5,\n")
    options = ["--no-attacks", "--intervals", "0", "--utility", tmp_path / "utility.csv"]
    systems = evaluated_of(monkeypatch, "challenge", *folders, *options)
    assert [system.name for system in systems] == [
        "mcadams dev",
        "mcadams test",
        "nac dev",
        "nac test",
    ]
    assert {system.utility["WER"] for system in systems if system.dataset == "test"} == {9.994}
    assert [system.utility.get("MOS") for system in systems] == [None, None, None, 3.5]


def test_average_of_2026_covers_languages_of_mixed_sex(tmp_path, libri, monkeypatch):
    trials = "".join((libri.folder / f"trials_{sex}").read_text() for sex in "fm")
    names = sorted({line.split()[1] for line in trials.splitlines()})
    for language in ("de", "fr"):
        base = f"{language}_test"
        write_data(tmp_path, libri, base=base)
        mixed = tmp_path / "data" / f"{base}_trials_mixed"
        mixed.mkdir()
        (mixed / "trials").write_text(trials)
        place = tmp_path / f"exp/asv_anon_track2_10_{language}_ssl/cosine_out/emb_xvect"
        write_vectors(place, libri, "", "_ssl", base=base)
        for side, vectors in zip(("", "_ssl"), libri.vectors.values(), strict=True):
            write_set(place / f"{base}_trials_mixed{side}" / "utt-level", vectors, names)
    (system,) = evaluated_of(
        monkeypatch, "challenge", tmp_path / "exp", "--no-attacks", "--intervals", "0"
    )
    assert system.weights == {"de_test_mixed": 0.5, "fr_test_mixed": 0.5}
    assert set(system.groups) == {
        f"{name}_test_{kind}" for name in ("de", "fr") for kind in ("f", "m", "mixed")
    }
    assert sum(system.report.conditions["PP"].num_trials) == 2 * trials.count("\n")
    scores = [expected_scores(libri, sex, "pp") for sex in "fm"]
    expected = equal_error_rate(*(np.concatenate(part) for part in zip(*scores, strict=True)))
    for language in ("de", "fr"):
        assert system.groups[f"{language}_test_mixed"].get_or_nan("eer", "PP") == pytest.approx(
            expected, abs=1e-9
        )
    assert any("compared by 2 encoders" in note for note in system.notes)


def test_speakers_of_librispeech_are_inferred_and_said_once(
    tmp_path, evaluate_challenge, libri, libri_measures
):
    write_data(tmp_path, libri)
    write_vectors(tmp_path / "exp", libri, "", "_anon")
    for path in [*tmp_path.rglob("utt2spk"), *tmp_path.rglob("idx2spk")]:
        path.unlink()
    (system,) = evaluate_challenge(tmp_path, "--no-attacks")
    assert_expected(system, libri_measures)
    notes = [note for note in system["notes"] if "speakers are the first part of names" in note]
    assert len(notes) == 1
    assert not any("utt2spk" in note for note in system["notes"])
    assert system["scalars"]["op_eer_high"] > system["scalars"]["op_eer"]
    assert system["scalars"]["deid"] > 0


def test_speakers_of_scores_are_inferred_from_names(
    tmp_path, evaluate_challenge, libri, libri_measures
):
    write_data(tmp_path, libri)
    write_scores(tmp_path / "exp", libri, "_anon")
    for path in tmp_path.rglob("utt2spk"):
        path.unlink()
    (system,) = evaluate_challenge(tmp_path)
    assert_expected(system, libri_measures)
    assert sum("speakers are the first part of names" in note for note in system["notes"]) == 1
    assert not any("utt2spk" in note for note in system["notes"])
