"""What is imported when, and what `import vpmetrics` offers whatever was imported before."""

import subprocess
import sys
from pathlib import Path

import pytest

import vpmetrics

PUBLIC_MODULES = ("attacks", "audio", "data", "functional", "lightning", "losses", "scoring")


def run(code: str) -> str:
    """What a new interpreter prints."""
    root = Path(vpmetrics.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    return done.stdout.strip()


@pytest.mark.parametrize(
    "code",
    [
        "import vpmetrics",
        "from vpmetrics import __version__",
        "from vpmetrics.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from vpmetrics.cli import main\ntry: main(['evaluate', '--help'])\nexcept SystemExit: pass",
    ],
)
def test_neither_the_package_nor_the_help_of_its_command_waits_for_torch(code):
    heavy = "{'torch', 'torchmetrics', 'numpy', 'matplotlib', 'rich', 'pytorch_lightning'}"
    assert run(f"{code}\nimport sys\nprint('loaded', *{heavy} & set(sys.modules))").endswith("loaded")


METRICS_WITHOUT_LIGHTNING_AND_RICH = """
import sys, vpmetrics
vpmetrics.VoicePrivacy
heavy = {"pytorch_lightning", "lightning", "rich", "tensorboard", "vpmetrics.cli", "vpmetrics.plotting"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


@pytest.mark.parametrize("before", [METRICS_WITHOUT_LIGHTNING_AND_RICH, "import vpmetrics.lightning"])
def test_the_package_offers_the_same_whatever_was_imported_before(before):
    offered = (
        f"import vpmetrics\nprint(*(getattr(vpmetrics, name) for name in {(*vpmetrics.__all__, *PUBLIC_MODULES)}))"
    )
    value = run(f"{before}\n{offered}")
    assert value.count("<class") + value.count("<function") == len(vpmetrics.__all__)
    assert value.count("<module") == len(PUBLIC_MODULES)


def test_every_public_name_is_found_and_no_other():
    assert set(vpmetrics.__all__) <= set(dir(vpmetrics))
    for name in vpmetrics.__all__:
        assert getattr(vpmetrics, name).__name__ == name
    for name in ("nothing", "_nothing", "__nothing__"):
        assert not hasattr(vpmetrics, name)
    scope: dict[str, object] = {}
    exec("from vpmetrics import *", scope)
    assert set(vpmetrics.__all__) <= set(scope)
