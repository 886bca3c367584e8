"""What a command leaves behind."""

import base64

import numpy as np
import pytest
import torch
from cli.cases import (
    Page,
    assert_scalars,
    expected_scalars,
    results_of,
    run,
    scalars_of,
    systems_of,
    trials_of,
    write_key,
    write_npz,
    write_scores,
    write_utt2spk,
)

from vpmetrics import ReidentificationRate
from vpmetrics.functional import zebra_tag


@pytest.mark.usefixtures("all_figures")
def test_the_page_is_self_contained_and_holds_numbers_and_figures(tmp_path, voices):
    out, title = tmp_path / "out", "B2 <on> six & more"
    run("evaluate", *write_npz(tmp_path, voices), "--out", out, "--title", title)
    text = (out / "report.html").read_text(encoding="utf-8")
    page, expected = Page(text), expected_scalars(voices)
    for number in (f"{100 * expected['deid']:.2f}", f"{expected['op_d_ece']:.3f}", f"{100 * expected['oo_eer']:.2f}"):
        assert any(text.startswith(number) for text in page.texts)
    assert title in page.texts
    assert zebra_tag(expected["op_l_w"]) in page.texts
    pictures = [base64.b64decode(image["src"].removeprefix("data:image/png;base64,")) for image in page.images]
    assert len(pictures) >= 5
    assert {path.read_bytes() for path in out.glob("*.png")} == set(pictures)
    assert all(image["alt"] for image in page.images)
    links = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")]
    assert all(link.startswith("data:") for link in links)
    assert all("scope" in attributes for tag, attributes in page.tags if tag == "th")


def test_population_option_adds_reidentification_rates(tmp_path, voices, capsys):
    options = ["--population", "3,5", "--no-attacks", "--json", tmp_path / "result.json", "--out", tmp_path / "report"]
    run("evaluate", *write_npz(tmp_path, voices), *options)
    metric = ReidentificationRate((3, 5), condition="OP")
    metric.update(voices.original, voices.protected["B2"], voices.speakers)
    expected = metric.compute()["rate_3"].item()
    assert scalars_of(tmp_path / "result.json")["op_rate_3"] == pytest.approx(expected, abs=1e-6)
    assert results_of(tmp_path / "result.json")["settings"]["population"] == [3, 5]
    assert "found among 3" not in capsys.readouterr().out  # but in
    (page,) = (tmp_path / "report").glob("*.html")
    assert "Re-identification in a population" in page.read_text()
    assert "found among 3 ↓ [%]" in page.read_text()
    assert "singled out of 5" in page.read_text()


def test_compare_puts_systems_side_by_side(tmp_path, voices, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shared = {"original": voices.original, "speakers": voices.speakers}
    for name in ("B2", "B2u"):
        np.savez(tmp_path / f"{name}.npz", **shared, protected=voices.protected[name])
    np.save(tmp_path / "o.npy", voices.original)
    options = ["--json", tmp_path / "result.json", "--out", tmp_path / "out"]
    systems = [tmp_path / "B2.npz", f"random={tmp_path / 'B2u.npz'}"]
    run("compare", *systems, *options, "--title", "Two systems")
    for number, name in enumerate(("B2", "B2u")):
        assert_scalars(scalars_of(tmp_path / "result.json", number), expected_scalars(voices, name))
    brief = capsys.readouterr().out.splitlines()
    assert [sum(line.startswith(f"{name} ") for line in brief if "high" in line) for name in ("B2", "random")] == [1, 1]
    run("compare", *systems, *options, "--title", "Two systems", "--all")
    table = [line for line in capsys.readouterr().out.splitlines() if str(tmp_path) not in line]
    assert max(map(len, table)) <= 80
    text, expected = "\n".join(table), expected_scalars(voices)
    for number in (f"{100 * expected['deid']:.2f}", f"{expected['pp_d_ece']:.3f}", f"{expected['oo_d_ece']:.3f}"):
        assert number in text
    assert sum(line.strip() == "Two systems" for line in table) == 1
    assert len(Page((tmp_path / "out" / "report.html").read_text(encoding="utf-8")).images) == 3
    # The same from bare arrays and a shared original.
    np.save(tmp_path / "spk.npy", voices.speakers)
    systems = [f"B2={tmp_path / 'B2.npz'}:protected", f"random={tmp_path / 'B2u.npz'}:protected"]
    bare = ["--original", tmp_path / "o.npy", "--speakers", tmp_path / "spk.npy"]
    run("compare", *systems, *bare, "--json", tmp_path / "bare.json")
    for system, same in zip(*(systems_of(tmp_path / name) for name in ("bare.json", "result.json")), strict=True):
        assert system["scalars"] == same["scalars"]
        assert "paired by position" in " ".join(system["notes"])


def test_compare_takes_score_files_of_two_conditions(tmp_path, voices):
    systems = {"B2": [], "B2u": []}
    for system, files in systems.items():
        for condition in ("OP", "PP"):
            trials = trials_of(voices, condition, system)
            files.append(str(write_scores(tmp_path / f"{system}_{condition}", voices, trials)))
    oo = write_scores(tmp_path / "oo", voices, trials_of(voices, "OO"))
    key, speakers = write_key(tmp_path / "key", voices), write_utt2spk(tmp_path, voices)
    options = ["--key", key, "--oo", oo, "--utt2spk", speakers, "--json", tmp_path / "result.json"]
    run("compare", *(f"{system}={','.join(files)}" for system, files in systems.items()), *options)
    for number, system in enumerate(systems):
        got, expected = scalars_of(tmp_path / "result.json", number), expected_scalars(voices, system)
        for name in ("deid", "gvd", "op_d_ece", "oo_eer"):
            assert got[name] == pytest.approx(float(expected[name]), abs=2e-5)


def test_compare_requires_key_option_for_a_key(tmp_path, voices, capsys):
    scores = write_scores(tmp_path / "scores", voices, trials_of(voices, "OP"))
    key = write_key(tmp_path / "key", voices)
    run("compare", f"B1={scores}", key, expect=2)
    assert "expected a fourth column target|nontarget, or a key (--key KEY), but got neither" in capsys.readouterr().err
    run("compare", f"B1={scores}", "--key", key)


def test_compare_says_when_originals_differ(tmp_path, voices, capsys):
    for name, sign in (("a", 1), ("b", -1)):
        sides = {"original": voices.original * sign, "protected": voices.protected["B2"], "speakers": voices.speakers}
        sides["original"] = sides["original"] + (0.2 * torch.randn(60, 256) if sign < 0 else 0)
        torch.save(sides, tmp_path / f"{name}.pt")
    run("compare", tmp_path / "a.pt", tmp_path / "b.pt")
    assert "b: its original embeddings are not those of a" in " ".join(capsys.readouterr().out.split())


def test_demo_trains_measures_and_logs(tmp_path, capsys):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run("demo", "--epochs", "2", "--seed", "3", "--out", tmp_path)
    shown = capsys.readouterr().out
    content = results_of(tmp_path / "results.json")
    assert [system["name"] for system in content["systems"]] == ["B2", "B2r", "B2u", "averaging", "trained"]
    assert all(system["name"] in shown for system in content["systems"])
    assert "In brackets: 95 % confidence intervals" in shown
    assert len(content["differences"]) == 10  # pairs of the five
    trained = content["systems"][-1]["scalars"]
    limits = "The trained model maps embeddings and makes no speech, unlike B2, B2r and B2u."
    within = f"(within a session {trained['within_d_ece']:.3f} bit)"
    for text in (shown, (tmp_path / "report.html").read_text(encoding="utf-8")):
        assert limits in text
        assert within in text
    assert f"tensorboard --logdir {tmp_path / 'tensorboard'}" in shown
    (events,) = (tmp_path / "tensorboard").rglob("events*")
    log = EventAccumulator(str(events))
    log.Reload()
    last = log.Scalars("val/privacy/deid")[-1].value
    assert last == pytest.approx(content["systems"][-1]["scalars"]["deid"], abs=1e-5)
    assert len(Page((tmp_path / "report.html").read_text(encoding="utf-8")).images) == 3
