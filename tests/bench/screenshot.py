"""Look at a log as a user would: TensorBoard started on it, opened in headless Chromium, its picture kept.

    python tests/bench/screenshot.py vpmetrics-demo/tensorboard notebooks/pictures/tensorboard.png

Needs Debian's ``chromium``. Fails if the page never shows the scalars.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from browser import View, browser

PORT = 16_006
SCALARS = ("op_d_ece", "op_d_ece_strongest", "within_d_ece", "across_d_ece")


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
            f"http://localhost:{PORT}/?darkMode=false&tagFilter={urllib.request.quote(arguments.pattern)}#timeseries"
        )
        asyncio.run(photograph(address, arguments.picture))
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


async def photograph(address: str, picture: str, seconds: float = 12) -> None:
    """Open the page, let it draw in real time (it animates), and keep it as a PNG."""
    async with browser() as tab:
        await tab.open(address, View("wide", 1280, 1150, "light"))
        await asyncio.sleep(seconds)
        await tab.run("[...document.querySelectorAll('button')].find(b => /Settings/.test(b.innerText))?.click(); 0")
        await asyncio.sleep(3)
        Path(picture).write_bytes(await tab.photograph())


if __name__ == "__main__":
    main()
