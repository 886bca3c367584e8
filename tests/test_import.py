"""What is imported when, and what `import vpmetrics` offers whatever was imported before."""

import subprocess
import sys
from pathlib import Path

import pytest

import vpmetrics

PUBLIC_MODULES = ("attacks", "audio", "data", "functional", "lightning", "losses", "scoring")


def run(code):
    """What a new interpreter prints."""
    root = Path(vpmetrics.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    return done.stdout.strip()


@pytest.mark.parametrize("arguments", [None, [], ["evaluate"]])
def test_import_and_help_do_not_load_torch(arguments):
    code = "from vpmetrics import __version__"
    if arguments is not None:
        code = (
            f"from vpmetrics.cli import main\ntry: main({[*arguments, '--help']})\nexcept"
            " SystemExit: pass"
        )
    heavy = "{'torch', 'torchmetrics', 'numpy', 'matplotlib', 'rich', 'pytorch_lightning'}"
    assert run(f"{code}\nimport sys\nprint('loaded', *{heavy} & set(sys.modules))").endswith(
        "loaded"
    )


METRICS_WITHOUT_LIGHTNING_AND_RICH = """
import sys, vpmetrics
vpmetrics.VoicePrivacy
heavy = {"pytorch_lightning", "lightning", "rich", "tensorboard"}
heavy |= {"vpmetrics.cli", "vpmetrics.plotting"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


@pytest.mark.parametrize(
    "before", [METRICS_WITHOUT_LIGHTNING_AND_RICH, "import vpmetrics.lightning"]
)
def test_public_names_are_independent_of_import_order(before):
    names = (*vpmetrics.__all__, *PUBLIC_MODULES)
    value = run(
        f"{before}\nimport vpmetrics\nprint(*(getattr(vpmetrics, name) for name in {names}))"
    )
    assert value.count("<class") + value.count("<function") == len(vpmetrics.__all__)
    assert value.count("<module") == len(PUBLIC_MODULES)


REPORT = """
import sys
from vpmetrics import VoicePrivacy
for name in {missing}:
    sys.modules[name] = None
from vpmetrics.data import demo_voices
voices = demo_voices()
metric = VoicePrivacy(attacks=None)
metric.update(voices.original, voices.protected["B2"], voices.speakers)
report = metric.report()
assert "disclosure" in str(report)
try:
    report.save({folder!r})
except ImportError as error:
    print(error)
"""


def test_a_report_needs_nothing_of_the_command_line(tmp_path):
    missing = [
        "rich",
        "polars",
        "pytorch_lightning",
        "lightning",
        "tensorboard",
        "kaldiio",
        "h5py",
        "safetensors",
    ]
    assert run(REPORT.format(missing=missing, folder=str(tmp_path / "report"))) == ""
    assert (tmp_path / "report" / "report.html").is_file()


@pytest.mark.parametrize("name", ["jinja2", "matplotlib", "PIL"])
def test_a_page_says_which_extra_it_needs(tmp_path, name):
    said = run(REPORT.format(missing=[name], folder=str(tmp_path / "report")))
    assert said == f"A page needs {name}: pip install 'vpmetrics[report]'."
    assert not (tmp_path / "report").exists()


def test_only_public_names_are_importable():
    assert set(vpmetrics.__all__) <= set(dir(vpmetrics))
    assert [getattr(vpmetrics, name).__name__ for name in vpmetrics.__all__] == list(
        vpmetrics.__all__
    )
    assert not any(hasattr(vpmetrics, name) for name in ("nothing", "_nothing", "__nothing__"))
    scope = {}
    exec("from vpmetrics import *", scope)
    assert set(vpmetrics.__all__) <= set(scope)
