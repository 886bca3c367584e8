"""Check what a wheel holds, and what it must not hold: ``python wheel_contents.py WHEEL``."""

import sys
import zipfile

REQUIRED = {
    "vpmetrics/__init__.py",
    "vpmetrics/py.typed",
    "vpmetrics/data/demo_voices.npz",
    "vpmetrics/report/page.html.jinja",
}
ALLOWED_SUFFIXES = (".py", ".typed", ".npz", ".jinja", ".json", ".md")


def check_contents(path: str) -> None:
    """Raise unless the wheel holds the package with its data, and nothing else."""
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
    missing = REQUIRED - names
    if missing:
        raise SystemExit(f"{path} lacks {sorted(missing)}")
    for name in sorted(names):
        print(name)
        folder = name.partition("/")[0]
        if folder.endswith(".dist-info"):
            continue
        if folder != "vpmetrics" or not name.endswith(ALLOWED_SUFFIXES):
            raise SystemExit(f"{path} holds {name}, which is no part of the package")


if __name__ == "__main__":
    check_contents(sys.argv[1])
