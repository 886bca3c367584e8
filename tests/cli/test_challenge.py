"""Folders as the recipes of the VoicePrivacy challenges leave them."""

import json
import shutil

import numpy as np
import pytest
import torch
from cli.cases import run
from cli.libri import CONDITIONS, SETS, expected_scores, write_libri_test
from reference.verification import equal_error_rate, min_cllr

from vpmetrics import VoicePrivacy


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    return tmp_path_factory.mktemp("lists")


@pytest.fixture(scope="module")
def libri(lists):
    return write_libri_test(lists)


@pytest.fixture(scope="module")
def expected(libri):
    values = {}
    for sex in "fm":
        for condition in CONDITIONS:
            scores, labels = expected_scores(libri, sex, condition)
            values[sex, condition] = equal_error_rate(scores, labels), min_cllr(scores, labels)
    return values


def write_data(recipe, lists, side="", base="libri_test"):
    """``data`` of the recipe: the lists of each set in a folder of its own."""
    for name, kind in zip(SETS, ("enrolls", "trials", "trials"), strict=True):
        folder = recipe / "data" / f"{base}_{name}{side}"
        folder.mkdir(parents=True)
        shutil.copy(lists / name, folder / kind)
        shutil.copy(lists / "utt2spk", folder / "utt2spk")


def write_vectors(folder, libri, side, level="utt-level", base="libri_test"):
    """Rows in the order of a set, as the toolkit of 2024 has them, with their index."""
    draw = np.random.default_rng(len(side))
    sets = {"enrolls": libri.enrolled, **{f"trials_{s}": sorted({u for _, u, _ in libri.trials[s]}) for s in "fm"}}
    for name in SETS:
        place = folder / f"{base}_{name}{side}" / level
        place.mkdir(parents=True)
        order = draw.permutation(sets[name]).tolist()
        torch.save(
            torch.from_numpy(np.stack([libri.vectors[side or ""][u] for u in order])), place / "speaker_vectors.pt"
        )
        (place / "id2idx").write_text("".join(f"{u} {row}\n" for row, u in enumerate(order)))
        (place / "idx2spk").write_text("".join(f"{row} {u.split('-')[0]}\n" for row, u in enumerate(order)))


def write_scores(folder, libri, side, split="test"):
    """Lines ``enrol trial score`` of each condition and sex, as 2020's and 2022's recipes write them."""
    for condition, (enrol, probe) in CONDITIONS.items():
        for sex in "fm":
            enrol_set = f"libri_{split}_enrolls{side if enrol else ''}"
            name = f"ASV-{enrol_set}-libri_{split}_trials_{sex}{side if probe else ''}"
            (folder / name).mkdir(parents=True)
            scores, _ = expected_scores(libri, sex, condition)
            rows = zip(libri.trials[sex], scores.tolist(), strict=True)
            (folder / name / "scores").write_text("".join(f"{s} {u} {score!r}\n" for (s, u, _), score in rows))


def assert_expected(system, expected):
    assert set(system["groups"]) == {"libri_test_f", "libri_test_m"}
    for (sex, condition), (eer, least) in expected.items():
        got = system["groups"][f"libri_test_{sex}"]["scalars"]
        assert got[f"{condition}_eer"] == pytest.approx(eer, abs=1e-9)
        assert got[f"{condition}_min_cllr"] == pytest.approx(least, abs=1e-9)
    mean = (expected["f", "op"][0] + expected["m", "op"][0]) / 2
    assert system["average"]["scalars"]["op_eer"] == pytest.approx(mean, abs=1e-9)


def systems_of(path):
    return json.loads(path.read_text())["systems"]


@pytest.mark.parametrize("given", ["exp/asv/cosine_out", "exp", "."])
def test_the_vectors_of_2024_are_found_scored_and_grouped(tmp_path, libri, lists, expected, given):
    write_data(tmp_path, lists)
    for side in ("", "_anon"):
        write_vectors(tmp_path / "exp/asv/cosine_out/emb_xvect", libri, side)
    write_vectors(tmp_path / "exp/asv/cosine_out/emb_xvect", libri, "", "spk-level")  # means, which are not wanted
    run("evaluate", tmp_path / given, "--json", tmp_path / "r.json", "--no-attacks")
    (system,) = systems_of(tmp_path / "r.json")
    assert_expected(system, expected)


def test_attacks_are_tried_on_the_vectors_of_2024_set_by_set_and_together(tmp_path, libri, lists):
    write_data(tmp_path, lists)
    for side in ("", "_anon"):
        write_vectors(tmp_path / "exp", libri, side)
    run("evaluate", tmp_path, "--json", tmp_path / "r.json")
    (system,) = systems_of(tmp_path / "r.json")
    used = [*libri.enrolled, *sorted({u for rows in libri.trials.values() for _, u, _ in rows})][::-1]
    sides = [torch.tensor(np.stack([libri.vectors[side][u] for u in used])).double() for side in ("", "_anon")]
    speakers = torch.tensor([int(u.split("-")[0]) for u in used])
    metric = VoicePrivacy(metrics=["op_d_ece_strongest", "op_eer_strongest"], enrolment="speaker")
    metric.update(*sides, speakers, torch.tensor([u in set(libri.enrolled) for u in used]), groups=speakers // 1000)
    found = metric.compute()
    assert found["op_d_ece_strongest"] > 0.1
    for key, value in found.items():
        assert system["scalars"][key] == pytest.approx(float(value), abs=1e-6), key
    assert "attacks" not in [check["name"] for check in system["checks"]]
    for group in system["groups"].values():
        assert group["scalars"]["op_d_ece_strongest"] >= group["scalars"]["op_d_ece"]


def test_protected_speech_alone_is_scored_and_attacked_by_who_protects_the_same_way(tmp_path, libri, lists, expected):
    """As 2024's attacker has it, whose extractor was trained on protected speech."""
    write_data(tmp_path, lists)
    write_vectors(tmp_path / "exp/asv_anon", libri, "_anon")
    run("evaluate", tmp_path, "--json", tmp_path / "r.json")
    (system,) = systems_of(tmp_path / "r.json")
    assert set(system["trials"]) == {"PP"}
    for sex in "fm":
        got = system["groups"][f"libri_test_{sex}"]["scalars"]
        assert got["pp_eer"] == pytest.approx(expected[sex, "pp"][0], abs=1e-9)
        assert got["pp_d_ece_strongest"] > 0.1


def test_extractors_are_never_mixed(tmp_path, libri, lists, expected):
    write_data(tmp_path, lists)
    for place, sides in (("orig", ("", "_anon")), ("anon", ("_anon",))):
        for side in sides:
            write_vectors(tmp_path / "exp" / place, libri, side)
    run("evaluate", tmp_path / "exp", "--json", tmp_path / "r.json", "--no-attacks")
    alone, both = systems_of(tmp_path / "r.json")
    assert (alone["name"], set(alone["trials"])) == ("anon, anon", {"PP"})
    assert (both["name"], set(both["trials"])) == ("anon, orig", {"OO", "OP", "PP"})
    assert_expected(both, expected)


def test_lists_beside_the_vectors_will_do(tmp_path, libri, lists, expected):
    for side in ("", "_anon"):
        write_vectors(tmp_path, libri, side)
    for name in ("trials_f", "trials_m", "enrolls"):
        shutil.copy(lists / name, tmp_path / name)
    run("evaluate", tmp_path, "--json", tmp_path / "r.json", "--no-attacks")
    assert_expected(systems_of(tmp_path / "r.json")[0], expected)


@pytest.mark.parametrize("given", ["exp/results-2022", "."])
def test_the_scores_of_2020_and_2022_are_found_labelled_and_grouped(tmp_path, libri, lists, expected, given):
    write_data(tmp_path, lists)
    write_scores(tmp_path / "exp/results-2022", libri, "_anon")
    run("evaluate", tmp_path / given, "--json", tmp_path / "r.json")
    (system,) = systems_of(tmp_path / "r.json")
    assert_expected(system, expected)
    assert system["unattacked"].startswith("scores give an attacker nothing to learn from")
    assert system["speakers"] == 40  # of whom 11 are never enrolled: by lists of the recipe
    assert system["scalars"]["op_eer_low"] < system["groups"]["libri_test_f"]["scalars"]["op_eer_low"] + 0.1
    for option in (["--no-attacks"], ["--scoring", "dot"]):
        run("evaluate", tmp_path / given, *option, expect=2)


def test_several_anonymisers_stand_side_by_side(tmp_path, libri, lists, capsys):
    write_data(tmp_path, lists)
    for side in ("_anon", "_mcadams"):
        write_scores(tmp_path / "results" / side, libri, side)
    run("evaluate", tmp_path, "--json", tmp_path / "r.json")
    assert [system["name"] for system in systems_of(tmp_path / "r.json")] == ["anon", "mcadams"]
    assert "mcadams" in capsys.readouterr().out


def test_a_folder_without_results_or_lists_is_refused(tmp_path, libri, lists, capsys):
    run("evaluate", tmp_path, expect=2)
    assert f"{tmp_path}: expected results of a VoicePrivacy challenge" in capsys.readouterr().err
    write_scores(tmp_path, libri, "_anon")
    run("evaluate", tmp_path, expect=2)
    assert "expected the trials of libri_test_trials_f, but found no" in capsys.readouterr().err
    write_data(tmp_path, lists)
    run("evaluate", tmp_path, "--similarity", "sigmoid", expect=2)
    assert "Expected no --similarity with a folder of scores: it would do nothing" in capsys.readouterr().err


SUMMARY = """\
---- Time: 28-03-24_19:00 ----

---- SER results ----
   dataset split       ser      UAR  ACC_sad
                               mean     mean
0  IEMOCAP   dev      anon  55.6146  32.9580
1  IEMOCAP   dev  original  69.0796  63.6292
2  IEMOCAP  test      anon  53.4914  32.7760
3  IEMOCAP  test  original  71.0618  72.5706

---- ASR results ----
  dataset split       asr     WER
0   libri   dev  original   1.807
4   libri   dev      anon  10.482
1   libri  test  original   1.844
5   libri  test      anon   9.994
"""


def write_recipe_of_2024(recipe, libri, lists, systems):
    """Two datasets, two encoders of each system, and the summaries that participants send."""
    for base in ("libri_dev", "libri_test"):
        write_data(recipe, lists, base=base)
        for suffix in systems:
            for encoder in ("asv_orig", f"asv_anon{suffix}"):
                place = recipe / "exp" / encoder / "cosine_out/emb_xvect"
                for side in ("", suffix):
                    if not (place / f"{base}_enrolls{side}").exists():
                        vectors = libri._replace(vectors={"": libri.vectors[""], suffix: libri.vectors["_anon"]})
                        write_vectors(place, vectors, side, base=base)
    for suffix in systems:
        path = recipe / "exp/results_summary" / f"result_for_rank{suffix}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(SUMMARY)


def evaluated_of(monkeypatch, *arguments):
    """The systems that a command forms, before they are written."""
    from vpmetrics.cli import evaluate

    systems = []
    monkeypatch.setattr(evaluate, "publish", lambda content, *_: systems.extend(content.systems))
    run(*arguments)
    return systems


def test_datasets_and_attackers_of_2024_have_a_row_each(tmp_path, libri, lists, expected, monkeypatch):
    write_recipe_of_2024(tmp_path, libri, lists, ["_mcadams"])
    systems = evaluated_of(monkeypatch, "evaluate", tmp_path / "exp", "--no-attacks", "--intervals", "0")
    rows = {one.name: (one.dataset, *map(one.challenge_condition_names.get, ("OP", "PP"))) for one in systems}
    combined = {dataset: rows.pop(f"mcadams {dataset}") for dataset in ("dev", "test")}
    assert all(model[0] == dataset and model in rows.values() for dataset, model in combined.items())
    assert rows == {
        f"mcadams {dataset}, {encoder}": (dataset, op, pp)
        for dataset in ("dev", "test")
        for encoder, op, pp in (
            ("ASV_eval", "OA, ignorant", "AA, lazy-informed"),
            ("ASV_eval^anon", "OA", "AA, semi-informed"),
        )
    }
    for system in systems:
        wer, uar = (10.482, 55.6146) if system.dataset == "dev" else (9.994, 53.4914)
        assert system.utility == {"WER": wer, "UAR": uar}
        assert system.weights == {f"libri_{system.dataset}_{sex}": 0.25 for sex in "fm"}
        assert 0 < system.get_or_nan("deid") < 1
        assert system.get_or_nan("gvd") < 0
        for sex in "fm":
            got = system.groups[f"libri_{system.dataset}_{sex}"].get_or_nan("eer", "PP")
            assert got == pytest.approx(expected[sex, "pp"][0], abs=1e-9)


def test_results_folders_are_compared(tmp_path, libri, lists, monkeypatch):
    write_recipe_of_2024(tmp_path, libri, lists, ["_mcadams", "_nac"])
    folders = [f"{name}={tmp_path}/exp/asv_anon_{name}" for name in ("mcadams", "nac")]
    (tmp_path / "utility.csv").write_text("system,MOS,WER\nnac test,3.5,\n")
    options = ["--no-attacks", "--intervals", "0", "--utility", tmp_path / "utility.csv"]
    systems = evaluated_of(monkeypatch, "compare", *folders, *options)
    assert [system.name for system in systems] == ["mcadams dev", "mcadams test", "nac dev", "nac test"]
    assert {system.utility["WER"] for system in systems if system.dataset == "test"} == {9.994}
    assert [system.utility.get("MOS") for system in systems] == [None, None, None, 3.5]


def test_sets_of_mixed_sex_in_several_languages_make_the_average_of_2026(tmp_path, libri, lists, monkeypatch):
    rows = [(sex, trial) for sex in "fm" for trial in libri.trials[sex]]
    for language in ("de", "fr"):
        base = f"{language}_test"
        write_data(tmp_path, lists, base=base)
        mixed = tmp_path / "data" / f"{base}_trials_mixed"
        mixed.mkdir()
        (mixed / "trials").write_text(
            "".join(f"{s} {u} {'target' if same else 'nontarget'}\n" for _, (s, u, same) in rows)
        )
        place = tmp_path / f"exp/asv_anon_track2_10_{language}_ssl/cosine_out/emb_xvect"
        vectors = libri._replace(vectors={"": libri.vectors[""], "_ssl": libri.vectors["_anon"]})
        for side in ("", "_ssl"):
            write_vectors(place, vectors, side, base=base)
            names = sorted({u for _, (_, u, _) in rows})
            folder = place / f"{base}_trials_mixed{side}" / "utt-level"
            folder.mkdir(parents=True)
            torch.save(
                torch.from_numpy(np.stack([vectors.vectors[side][u] for u in names])), folder / "speaker_vectors.pt"
            )
            (folder / "id2idx").write_text("".join(f"{u} {row}\n" for row, u in enumerate(names)))
    (system,) = evaluated_of(monkeypatch, "evaluate", tmp_path / "exp", "--no-attacks", "--intervals", "0")
    assert system.weights == {"de_test_mixed": 0.5, "fr_test_mixed": 0.5}
    assert set(system.groups) == {
        f"{language}_test_{kind}" for language in ("de", "fr") for kind in ("f", "m", "mixed")
    }
    assert sum(system.report.conditions["PP"].num_trials) == 2 * len(rows)
    scores = [expected_scores(libri, sex, "pp") for sex in "fm"]
    expected = equal_error_rate(*(np.concatenate(part) for part in zip(*scores, strict=True)))
    for language in ("de", "fr"):
        assert system.groups[f"{language}_test_mixed"].get_or_nan("eer", "PP") == pytest.approx(expected, abs=1e-9)
    assert any("compared by 2 encoders" in note for note in system.notes)


def test_word_error_rates_of_2022_are_of_the_large_language_model(tmp_path, libri, lists, monkeypatch):
    write_data(tmp_path, lists)
    folder = tmp_path / "exp/results-2022"
    write_scores(folder, libri, "_anon")
    (folder / "results.txt").write_text(
        "ASR-libri_dev_asr_anon\n  %WER 1.0 [ 1 / 100 ] tgsmall\n  %WER 2.0 [ 2 / 100 ] tglarge\n"
        "ASR-libri_test_asr\n  %WER 3.0 [ 3 / 100 ] tglarge\n"
        "ASR-libri_test_asr_anon\n  %WER 6.20 [ 6 / 100 ] tgsmall/wer_13_0.0\n  %WER 4.58 [ 4 / 100 ] tglarge/wer_12\n"
        "ASR-vctk_test_asr_anon\n  %WER 9.0 [ 9 / 100 ] tgsmall\n  %WER 8.0 [ 8 / 100 ] tglarge\n"
    )
    (system,) = evaluated_of(monkeypatch, "evaluate", folder, "--intervals", "0")
    assert system.utility == {"WER": pytest.approx((4.58 + 8.0) / 2)}
    assert "no DeID and no G_VD: they need embeddings, and the folder has only scores" in system.notes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["WER=x"], "Expected a number in --utility 'WER=x', but got 'x'"),
        (["nowhere.csv"], "nowhere.csv: cannot be read as NAME=VALUE or CSV"),
        (["other.csv"], "other.csv: expected a column system, but got name, WER"),
        (["wrong.csv"], "wrong.csv: expected one of e, but got 'f'"),
    ],
)
def test_what_is_wrong_with_utility_is_said(tmp_path, monkeypatch, capsys, given, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.csv").write_text("name,WER\ne,1\n")
    (tmp_path / "wrong.csv").write_text("system,WER\nf,1\n")
    draw = np.random.default_rng(0)
    np.savez("e.npz", original=draw.normal(size=(9, 3)), protected=draw.normal(size=(9, 3)), speakers=np.arange(9) // 3)
    run("compare", "e.npz", "--no-attacks", "--utility", *given, expect=2)
    assert message in capsys.readouterr().err
