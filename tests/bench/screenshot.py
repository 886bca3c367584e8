"""Look at a log as a user would: TensorBoard started on it, opened in headless Chromium, its picture kept.

    python tests/bench/screenshot.py vpmetrics-demo/tensorboard notebooks/pictures/tensorboard.png

Needs Debian's ``chromium``. Fails if the page never shows the scalars.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import aiohttp

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
    quiet = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        view = ["--window-size=1280,1150", "--hide-scrollbars", f"--remote-debugging-port={PORT + 1}", address]
        command = ["chromium", "--headless", "--no-sandbox", f"--user-data-dir={profile}", *quiet, *view]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            await asyncio.sleep(seconds)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://localhost:{PORT + 1}/json") as answer:
                    pages = json.loads(await answer.text())
                page = next(page for page in pages if page["type"] == "page")
                async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    close = "[...document.querySelectorAll('button')].find(b => /Settings/.test(b.innerText))?.click()"
                    await ask(socket, 1, "Runtime.evaluate", expression=close)
                    await asyncio.sleep(3)
                    shot = await ask(socket, 2, "Page.captureScreenshot", format="png")
            Path(picture).write_bytes(base64.b64decode(shot["data"]))
        finally:
            browser.terminate()


async def ask(socket: aiohttp.ClientWebSocketResponse, number: int, method: str, **parameters: object) -> dict:
    """One command of the browser's debugging protocol, and its result."""
    await socket.send_json({"id": number, "method": method, "params": parameters})
    async for message in socket:
        answer = message.json()
        if answer.get("id") == number:
            return answer["result"]
    sys.exit("The browser closed the connection")


if __name__ == "__main__":
    main()
