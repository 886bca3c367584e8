"""Look at a log as a user would: TensorBoard started on it, opened in headless Chromium, its picture kept.

    python tests/bench/screenshot.py vpmetrics-demo/tensorboard notebooks/pictures/tensorboard.png

Needs Debian's ``chromium``. Fails if the page never shows the scalars.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request

PORT = 16_006
SCALARS = ("op_d_ece", "pp_d_ece", "deid", "gvd")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logdir")
    parser.add_argument("picture")
    parser.add_argument("--pattern", default="^val/privacy/(" + "|".join(SCALARS) + ")$")
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", arguments.logdir, "--port", str(PORT)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        tags = wait_for_tags()
        missing = [name for name in SCALARS if not any(tag.endswith("/" + name) for tag in tags)]
        if missing:
            sys.exit(f"TensorBoard shows no {missing}; it has {sorted(tags)}")
        # The filter of the page is part of its address.
        address = (
            f"http://localhost:{PORT}/?tagFilter={urllib.request.quote(arguments.pattern)}&darkMode=false#timeseries"
        )
        photograph(address, arguments.picture)
    finally:
        server.terminate()
    print(f"{len(tags)} scalars; wrote {arguments.picture}")


def wait_for_tags(seconds: float = 60) -> set[str]:
    """Names of the scalars TensorBoard has read, as soon as it has read any."""
    end = time.time() + seconds
    while time.time() < end:
        try:
            with urllib.request.urlopen(f"http://localhost:{PORT}/data/plugin/scalars/tags") as answer:
                tags = {tag for run in json.load(answer).values() for tag in run}
            if tags:
                return tags
        except OSError:
            pass
        time.sleep(0.5)
    sys.exit("TensorBoard read no scalars")


def photograph(address: str, picture: str) -> None:
    """Let the page draw, then keep it as a PNG."""
    quiet = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"]
    with tempfile.TemporaryDirectory() as profile:
        view = ["--window-size=1280,900", "--hide-scrollbars", "--virtual-time-budget=30000", f"--screenshot={picture}"]
        command = ["chromium", "--headless", "--no-sandbox", f"--user-data-dir={profile}", *quiet, *view, address]
        subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
