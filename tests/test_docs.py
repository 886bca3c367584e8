"""What the documents promise: their code runs, their links lead somewhere, and they name what there is."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from pathlib import Path

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from torchmetrics import Metric

import vpmetrics
from vpmetrics.data import demo_voices

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CHANGELOG.md", "vpmetrics/data/README.md", "notebooks/voices/README.md"]
NOTEBOOKS = ["01_quickstart", "02_papers", "03_training", "04_attackers", "05_audio"]

# Every name a user may import. Whoever adds, renames or removes one changes this list, and so knows it.
PUBLIC = {
    "vpmetrics": """
        CalibrationDistortion Cllr DeIdentification EmbeddingTrials EqualErrorRate Linkability
        LocalInformationDisclosure MinCllr ReidentificationRate SimilarityRankDisclosure SinglingOut
        StrongestAttack VoiceDistinctiveness VoicePrivacy VoiceSimilarityMatrix ZebraDisclosure""",
    "vpmetrics.functional": """
        bootstrap bootstrap_embeddings calibration_distortion cllr codebook_histogram combine_disclosures
        conversations de_identification diagonal_dominance ece_profile equal_error_rate f0_histogram
        fit_beta_binomial fit_local_slope identify isotonic_regression linkability local_information
        local_information_disclosure min_cllr min_dcf normalised_relatives pav_llr rank_disclosure
        rank_histogram raw_equal_error_rate reidentification_rate singling_out speaker_disclosure
        summarise_information voice_distinctiveness voice_similarity_matrix zebra_disclosure zebra_tag""",
    "vpmetrics.losses": "DisclosureLoss DistinctivenessLoss PseudonymisationLoss",
    "vpmetrics.lightning": "ParetoPoint PrivacyCheckpoint PrivacyMonitor",
    "vpmetrics.attacks": """
        STANDARD Attack CanonicalCorrelation Centred Discriminant KernelRidge LinearAttack Maps PLDAPosterior Plain
        Procrustes ReducedProcrustes RidgeToOriginal RidgeToProtected Whitened WithinClassWhitening ridge_map""",
    "vpmetrics.scoring": "PLDA",
    "vpmetrics.data": "DemoVoices SpeakerBatchSampler demo_voices",
}
CONSTANTS = {"STANDARD"}
OBJECTS = [(module, name) for module, names in PUBLIC.items() for name in names.split() if name not in CONSTANTS]
OTHERS = {
    "LightningModule", "MetricCollection", "MetricTracker", "MinMaxMetric", "ModelCheckpoint", "EarlyStopping",
    "TensorBoardLogger",
}  # fmt: skip
METRICS = [name for name in PUBLIC["vpmetrics"].split() if issubclass(getattr(vpmetrics, name), Metric)]


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[tuple[int, str]]:
    """Fenced blocks of a page, each with the number of lines before it."""
    text = text_of(page)
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in found]


# Pages


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_python_blocks_run_in_order_and_print_what_they_say(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for lines_before, code in blocks(page, "python"):
        exec(compile("\n" * lines_before + code, page, "exec"), names)
        said = capsys.readouterr().out.splitlines()
        assert set(re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)) <= set(said)


@pytest.mark.parametrize("page", PAGES)
def test_links_inside_the_repository_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", text_of(page))
    for link in filter(lambda link: not re.match(r"[a-z]+:", link), map("".join, links)):
        path, _, heading = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.resolve().is_relative_to(ROOT), link
        assert target.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}, link


def test_commands_in_shell_blocks_exist(capsys):
    from vpmetrics.app import main

    shell = "\n".join(code for page in PAGES for _, code in blocks(page, "(?:bash|sh|shell|console)"))
    commands = set(re.findall(r"\bvpmetrics ([a-z]\w*)", shell))
    assert "demo" in commands
    for command in commands:
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0, command
        assert f"vpmetrics {command}" in capsys.readouterr().out


# Names


@pytest.mark.parametrize("module", PUBLIC)
def test_exports_are_the_list(module):
    exported = importlib.import_module(module).__all__
    assert list(exported) == sorted(exported, key=lambda name: (name not in CONSTANTS, name))
    assert list(exported) == PUBLIC[module].split()


def test_changelog_names_every_metric():
    assert [name for name in METRICS if f"`{name}`" not in text_of("CHANGELOG.md")] == []


def test_a_table_of_metrics_in_the_readme_is_complete():
    rows = [line for line in text_of("README.md").splitlines() if line.startswith("|")]
    listed = {name for row in rows for name in re.findall(r"\w+", row.split("|")[1])} & set(METRICS)
    assert not listed or sorted(listed) == sorted(METRICS)


def test_numbers_of_the_bundled_voices_are_those_measured():
    shown = {"deid": (100, ".1f"), "gvd": (1, ".2f"), "op_d_ece_strongest": (1, ".2f")}
    voices, metric = demo_voices(), vpmetrics.VoicePrivacy(metrics=list(shown), intervals=0.95)
    rows = re.findall(r"^\| (B2\w*) \| (.+ % .+ dB .+ bit .+) \|$", text_of("README.md"), re.MULTILINE)
    assert {system for system, _ in rows} == set(voices.protected)
    for system, row in rows:
        metric.reset()
        metric.update(voices.original, voices.protected[system], voices.speakers)
        values = metric.compute()
        ends = [(key, end) for key in shown for end in ("", "_low", "_high")]
        expected = [format(shown[key][0] * float(values[f"{key}{end}"]), shown[key][1]) for key, end in ends]
        assert re.findall(r"-?\d+\.\d+", row) == expected, system


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_pages_name_only_what_there_is(page):
    known = {name for _, name in OBJECTS}
    for path in re.findall(r"`(vpmetrics(?:\.\w+)+)`", text_of(page)):
        module, _, name = path.rpartition(".")
        assert path in PUBLIC or hasattr(importlib.import_module(module), name), path
    # In prose, words with two capitals are classes: ours, or somebody else's by their full name.
    prose = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    for name in re.findall(r"`((?:[A-Z][a-z]+){2,})`", prose):
        assert name in known | OTHERS, name


@pytest.mark.parametrize(("module", "name"), OBJECTS)
def test_docstrings_are_complete(module, name):
    thing = getattr(importlib.import_module(module), name)
    text = inspect.getdoc(thing) or ""
    assert len(text.splitlines()[0]) > 20
    if isinstance(thing, type) and issubclass(thing, tuple):
        assert not text.startswith(f"{name}("), "made by NamedTuple, not by us"
        return
    own = getattr(thing, "__init__", None) is not torch.nn.Module.__init__  # which takes anything, and nothing at all
    parameters = inspect.signature(thing).parameters if own else {}
    assert "\nExample:\n    >>> " in text
    # `kwargs` are named where they come from; `validate_args` and the like are never left out.
    missing = [each for each in parameters if not re.search(rf"^    {each}:", text, re.MULTILINE)]
    assert missing == []
    assert "\nReturns:\n" in text or isinstance(thing, type) or not parameters


# Notebooks


def read_notebook(name: str) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shape_of_outputs(cell: nbformat.NotebookNode) -> list[tuple[str, ...]]:
    """What a cell shows, but for the digits: those of a training depend on the machine."""
    shown = []
    for output in cell.outputs:
        data = output.get("data", {"text/plain": output.get("text", "")})
        text = "figure" if "image/png" in data else data.get("text/markdown", data.get("text/plain", ""))
        shown.append((output.output_type, *sorted(data), re.sub(r"[-+\s\d.e]+", " ", text).strip()))
    return shown


def test_notebooks_are_the_list():
    assert sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb")) == NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_is_stored_as_it_ran(name):
    notebook, cells = read_notebook(name), code_cells(read_notebook(name))
    assert notebook.metadata.kernelspec.name == "python3"
    assert (ROOT / "notebooks" / f"{name}.ipynb").stat().st_size < 1_000_000
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert sum("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs) >= 3
    assert all(cell.metadata == {} for cell in notebook.cells)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs_and_shows_what_is_stored(name, tmp_path):
    stored, notebook = read_notebook(name), read_notebook(name)
    # Of this checkout, and with one thread: the other processes of the test run have the other cores.
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    run = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    run.execute(env=env)
    warned = [output.text for cell in code_cells(notebook) for output in cell.outputs if output.get("name") == "stderr"]
    assert warned == []
    for then, now in zip(code_cells(stored), code_cells(notebook), strict=True):
        assert shape_of_outputs(then) == shape_of_outputs(now), then.source
