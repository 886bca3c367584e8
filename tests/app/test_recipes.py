"""Folders as the recipes of the VoicePrivacy challenges leave them."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from app.cases import run
from app.libri import CONDITIONS, SETS, expected_scores, write_libri_test
from reference.verification import equal_error_rate, min_cllr

from vpmetrics import StrongestAttack


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


def write_data(recipe, lists, side=""):
    """``data`` of the recipe: the lists of each set in a folder of its own."""
    for name, kind in zip(SETS, ("enrolls", "trials", "trials"), strict=True):
        folder = recipe / "data" / f"libri_test_{name}{side}"
        folder.mkdir(parents=True)
        shutil.copy(lists / name, folder / kind)
        shutil.copy(lists / "utt2spk", folder / "utt2spk")


def write_vectors(folder, libri, side, level="utt-level"):
    """Rows in the order of a set, as the toolkit of 2024 has them, with their index."""
    draw = np.random.default_rng(len(side))
    sets = {"enrolls": libri.enrolled, **{f"trials_{s}": sorted({u for _, u, _ in libri.trials[s]}) for s in "fm"}}
    for name in SETS:
        place = folder / f"libri_test_{name}{side}" / level
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
    metric = StrongestAttack()
    metric.update(*sides, speakers, torch.tensor([u in set(libri.enrolled) for u in used]), groups=speakers // 1000)
    metric.enrolment = "speaker"
    found = metric.compute()
    assert found["d_ece_strongest"] > 0.1
    assert system["scalars"]["op_d_ece_strongest"] == pytest.approx(float(found["d_ece_strongest"]), abs=1e-6)
    assert system["scalars"]["op_eer_strongest"] == pytest.approx(float(found["eer_strongest"]), abs=1e-6)
    assert system["unattacked"] == ""
    for group in system["groups"].values():
        assert group["scalars"]["op_d_ece_strongest"] > group["scalars"]["op_d_ece"]


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
