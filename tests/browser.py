"""Headless Chromium by its debugging protocol: pages opened as their readers see them and asked."""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars --disable-sync "
    "--disable-quic --disable-background-networking --remote-debugging-port=0"
)


class View(NamedTuple):
    """A window, and what its owner has chosen."""

    name: str
    width: int
    height: int
    scheme: str


VIEWS = [
    View(f"{device}_{scheme}", *size, scheme)
    for device, size in {"wide": (1400, 900), "phone": (390, 844)}.items()
    for scheme in ("light", "dark")
]


class Tab:
    """A tab of the browser, and every complaint in its console."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0
        self.complaints: list[str] = []

    async def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        """One command, and its result."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        async for message in self._socket:
            answer = message.json()
            self._listen(answer)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
        raise RuntimeError("The browser closed the connection.")

    def _listen(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])
        if event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.complaints.append(str(parameters["args"]))

    async def open(self, address: str, view: View) -> None:
        """Go to an address and wait until it has loaded."""
        screen = {"width": view.width, "height": view.height, "deviceScaleFactor": 1, "mobile": view.width < 600}
        await self.ask("Emulation.setDeviceMetricsOverride", **screen)
        feature = [{"name": "prefers-color-scheme", "value": view.scheme}]
        await self.ask("Emulation.setEmulatedMedia", features=feature)
        for domain in ("Runtime", "Log", "Page"):
            await self.ask(f"{domain}.enable")
        await self.ask("Page.navigate", url=address)
        while await self.run("document.readyState + location.protocol") == "completeabout:":
            await asyncio.sleep(0.05)
        while await self.run("document.readyState") != "complete":
            await asyncio.sleep(0.05)

    async def run(self, script: str) -> Any:
        """What a script comes to, when it is done."""
        answer = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def press(self, key: str) -> None:
        """A key, down and up."""
        codes = {"Enter": (13, "\r"), "Escape": (27, "")}
        code, text = codes[key]
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            await self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **typed)


@asynccontextmanager
async def browser() -> AsyncIterator[Tab]:
    """A tab of a browser of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [str(CHROMIUM), *_FLAGS.split(), f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port = await _port(Path(profile) / "DevToolsActivePort")
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://localhost:{port}/json") as answer:
                    tabs = [tab for tab in await answer.json() if tab["type"] == "page"]
                async with session.ws_connect(tabs[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    yield Tab(socket)
        finally:
            process.terminate()
            process.wait()


async def _port(file: Path) -> int:
    for _ in range(600):
        if file.exists() and (lines := file.read_text().split()):
            return int(lines[0])
        await asyncio.sleep(0.1)
    raise RuntimeError("The browser did not start within 60 s.")
