"""Look at a page as its readers do: in headless Chromium, wide and on a phone, light and dark; pictures are kept.

    python tests/bench/page.py report/report.html pictures

Needs Debian's ``chromium``. Fails where the page itself scrolls sideways.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import subprocess
import sys
import tempfile
from pathlib import Path

import aiohttp
from screenshot import ask

PORT = 16_018
SIZES = {"wide": (1400, 900), "phone": (390, 844)}


async def look(page: Path, folder: Path) -> list[str]:
    """All views of a page; what is wrong with them."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        browser = subprocess.Popen(
            ["chromium", *options, f"--remote-debugging-port={PORT}", "about:blank"], stderr=subprocess.DEVNULL
        )
        try:
            return await _views(page, folder)
        finally:
            browser.terminate()


async def _views(page: Path, folder: Path) -> list[str]:
    wrong = []
    async with aiohttp.ClientSession() as session:
        tab = await _first_tab(session)
        async with session.ws_connect(tab, max_msg_size=0) as socket:
            for name, (width, height) in SIZES.items():
                for scheme in ("light", "dark"):
                    view = f"{page.stem}_{name}_{scheme}"
                    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": name == "phone"}
                    await ask(socket, 1, "Emulation.setDeviceMetricsOverride", **screen)
                    feature = [{"name": "prefers-color-scheme", "value": scheme}]
                    await ask(socket, 2, "Emulation.setEmulatedMedia", features=feature)
                    await ask(socket, 3, "Page.navigate", url=page.resolve().as_uri())
                    await asyncio.sleep(1)
                    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                    found = await ask(socket, 4, "Runtime.evaluate", expression=over)
                    if found["result"]["value"] > 0:
                        wrong.append(f"{view} scrolls sideways by {found['result']['value']} pixels")
                    shot = await ask(socket, 5, "Page.captureScreenshot", format="png")
                    (folder / f"{view}.png").write_bytes(base64.b64decode(shot["data"]))
    return wrong


async def _first_tab(session: aiohttp.ClientSession) -> str:
    for _ in range(60):
        try:
            async with session.get(f"http://localhost:{PORT}/json") as answer:
                return next(tab["webSocketDebuggerUrl"] for tab in await answer.json() if tab["type"] == "page")
        except (aiohttp.ClientError, StopIteration):  # noqa: PERF203
            await asyncio.sleep(0.5)
    sys.exit("The browser did not start")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    sys.exit("\n".join(asyncio.run(look(arguments.page, arguments.folder))) or 0)
