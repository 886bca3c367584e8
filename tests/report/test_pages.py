"""What commands leave behind: a page, systems side by side, a demo."""

import base64
from itertools import product

import numpy as np
import pytest
from cli.cases import (
    Page,
    assert_scalars,
    expected_scalars,
    results_of,
    run,
    scalars_of,
    systems_of,
    trials_of,
    write_embeddings,
    write_key,
    write_npz,
    write_scores,
    write_utt2spk,
)

from vpmetrics import ReidentificationRate
from vpmetrics.functional import zebra_tag


@pytest.mark.usefixtures("all_figures")
def test_the_page_is_self_contained_and_holds_numbers_and_figures(tmp_path, voices):
    out = tmp_path / "out"
    title = "B2 <on> six & more"
    run(
        "evaluate",
        *write_npz(tmp_path, voices),
        "--out",
        out,
        "--title",
        title,
        "--population",
        "3,5",
    )
    text = (out / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    expected = expected_scalars(voices)
    for number in (
        f"{100 * expected['deid']:.2f}",
        f"{expected['op_d_ece']:.3f}",
        f"{100 * expected['oo_eer']:.2f}",
    ):
        assert any(shown.startswith(number) for shown in page.texts)
    assert title in page.texts
    assert zebra_tag(expected["op_l_w"]) in page.texts
    pictures = [
        base64.b64decode(image["src"].removeprefix("data:image/png;base64,"))
        for image in page.images
    ]
    assert len(pictures) >= 5
    whole_figures = [path.read_bytes() for path in out.glob("*.png")]
    assert len(pictures) > len(whole_figures)  # figures of several panels are shown panel by panel
    assert all(image["alt"] for image in page.images)
    links = [
        value
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in ("src", "href")
    ]
    assert all(link.startswith("data:") for link in links)
    assert all("scope" in attributes for tag, attributes in page.tags if tag == "th")
    metric = ReidentificationRate((3, 5), condition="OP")
    metric.update(voices.original, voices.protected["B2"], voices.speakers)
    content = results_of(out / "results.json")
    assert content["systems"][0]["scalars"]["op_rate_3"] == pytest.approx(
        float(metric.compute()["rate_3"]), abs=1e-6
    )
    assert content["settings"]["population"] == [3, 5]
    for shown in ("Re-identification in a population", "Who is found", "OP singled out"):
        assert shown in text


def test_compare_puts_systems_side_by_side(tmp_path, voices, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    names = "B2", "B2u"
    for name in names:
        arrays = {
            "original": voices.original,
            "speakers": voices.speakers,
            "protected": voices.protected[name],
        }
        np.savez(tmp_path / f"{name}.npz", **arrays)
    np.save(tmp_path / "o.npy", voices.original)
    np.save(tmp_path / "spk.npy", voices.speakers)
    systems = [tmp_path / "B2.npz", f"B2u={tmp_path / 'B2u.npz'}"]
    title = ["--title", "Two systems", "--no-attacks"]
    run("compare", *systems, *title, "--out", tmp_path / "out", "--all")
    table = [line for line in capsys.readouterr().out.splitlines() if str(tmp_path) not in line]
    assert max(map(len, table)) <= 80
    assert sum(line.strip() == "Two systems" for line in table) == 1
    expected = expected_scalars(voices, attacks=None)
    for number in (
        f"{100 * expected['deid']:.2f}",
        f"{expected['pp_d_ece']:.3f}",
        f"{expected['oo_d_ece']:.3f}",
    ):
        assert number in "\n".join(table)
    # The same from bare arrays and a shared original.
    systems = [f"{name}={tmp_path / name}.npz:protected" for name in names]
    bare = ["--original", tmp_path / "o.npy", "--speakers", tmp_path / "spk.npy"]
    run("compare", *systems, *bare, *title, "--json", tmp_path / "bare.json")
    for number, name in enumerate(names):
        system, same = (
            systems_of(tmp_path / path)[number] for path in ("out/results.json", "bare.json")
        )
        assert_scalars(system["scalars"], expected_scalars(voices, name, attacks=None))
        assert system["scalars"] == same["scalars"]
        assert "paired by position" in " ".join(same["notes"])


def test_compare_accepts_a_system_with_one_speaker(tmp_path):
    paths = (
        write_embeddings(tmp_path / "a.npz"),
        write_embeddings(tmp_path / "b.npz", speakers=1, each=40),
    )
    run("compare", *paths, "--no-attacks", "--json", tmp_path / "r.json")
    counts = [system["trials"]["OP"] for system in systems_of(tmp_path / "r.json")]
    assert counts == [{"target": 120, "nontarget": 1440}, {"target": 40 * 39, "nontarget": 0}]


def test_compare_takes_score_files_of_two_conditions(tmp_path, voices):
    files = {
        (name, condition): write_scores(
            tmp_path / f"{name}_{condition}", voices, trials_of(voices, condition, name)
        )
        for name, condition in product(("B2", "B2u"), ("OO", "OP", "PP"))
    }
    key = write_key(tmp_path / "key", voices)
    speakers = write_utt2spk(tmp_path, voices)
    options = [
        "--key",
        key,
        "--oo",
        files["B2", "OO"],
        "--utt2spk",
        speakers,
        "--json",
        tmp_path / "result.json",
    ]
    run(
        "scores",
        *(f"{name}={files[name, 'OP']},{files[name, 'PP']}" for name in ("B2", "B2u")),
        *options,
    )
    for number, name in enumerate(("B2", "B2u")):
        got = scalars_of(tmp_path / "result.json", number)
        expected = expected_scalars(voices, name, attacks=None)
        for key in ("deid", "gvd", "op_d_ece", "oo_eer"):
            assert got[key] == pytest.approx(float(expected[key]), abs=2e-5)


def test_compare_says_when_originals_differ(tmp_path, capsys):
    for name, offset in (("a", 0.0), ("b", 0.2)):
        arrays = dict(np.load(write_embeddings(tmp_path / f"{name}.npz")))
        np.savez(tmp_path / f"{name}.npz", **{**arrays, "original": arrays["original"] + offset})
    run("compare", tmp_path / "a.npz", tmp_path / "b.npz", "--no-attacks")
    assert "b: its original embeddings are not those of a" in " ".join(
        capsys.readouterr().out.split()
    )


def test_demo_trains_measures_and_logs(tmp_path, capsys):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "demo"
    log_folder = tmp_path / "demo-tensorboard"
    run("demo", "--epochs", "2", "--seed", "3", "--out", out)
    shown = capsys.readouterr().out
    content = results_of(out / "results.json")
    assert [system["name"] for system in content["systems"]] == [
        "B2",
        "B2r",
        "B2u",
        "averaging",
        "drawn",
        "trained",
    ]
    assert all(system["name"] in shown for system in content["systems"])
    assert "In brackets: 95 % confidence intervals" in shown
    assert len(content["differences"]) == 15  # pairs of the six
    trained = content["systems"][-1]["scalars"]
    assert "The trained model maps embeddings and makes no speech, unlike B2, B2r and B2u." in shown
    assert f"(within a session {trained['within_d_ece']:.3f} bit)" in shown
    assert f"tensorboard --logdir {log_folder}" in shown
    (events,) = log_folder.rglob("events*")
    log = EventAccumulator(str(events))
    log.Reload()
    assert log.Scalars("val/privacy/deid")[-1].value == pytest.approx(trained["deid"], abs=1e-5)
    assert len(Page((out / "report.html").read_text(encoding="utf-8")).images) >= 3
