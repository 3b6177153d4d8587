"""Open a page in a headless Chromium over the DevTools protocol, and see what it does there."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest

Result = TypeVar("Result")
# A crashed browser answers nothing.
SECONDS = 60


class Tab:
    """A tab of the browser; `events` are all that the page did, in their order."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._socket, self._numbers, self._session = socket, itertools.count(1), ""

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol and returns its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(message | ({"sessionId": self._session} if self._session else {}))
        while True:
            answer = await self._socket.receive_json(timeout=SECONDS)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append((answer["method"], answer["params"]))

    async def attach(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        session = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = session["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def look(self, width: int, *, theme: str = "light", media: str = "screen") -> None:
        """Sets the window's width and what the reader prefers."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        await self.call("Emulation.setEmulatedMedia", media=media, features=features)

    async def open(self, page: Path) -> None:
        before = len(self.events)
        await self.call("Page.navigate", url=page.as_uri())
        while not any(name == "Page.loadEventFired" for name, _ in self.events[before:]):
            await self.run("new Promise((done) => requestAnimationFrame(done))")

    async def run(self, script: str) -> Any:
        """Returns the value of an expression in the page, awaited if it is a promise."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def picture(self, file: Path) -> None:
        """Writes a PNG of the whole page."""
        answer = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(answer["data"]))

    async def pdf(self) -> bytes:
        answer = await self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        return base64.b64decode(answer["data"])

    def complaints(self) -> list[Any]:
        """The page's errors and warnings, and what it has asked the network for."""
        loud = [p for name, p in self.events if name in ("Runtime.exceptionThrown", "Log.entryAdded")]
        loud += [p for name, p in self.events if name == "Runtime.consoleAPICalled"]
        asked = [p["request"]["url"] for name, p in self.events if name == "Network.requestWillBeSent"]
        return loud + [url[:200] for url in asked if not url.startswith(("file:", "data:", "blob:"))]


def chromium() -> str:
    """The browser's path; skips the test where there is none and none can be installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        command = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
        subprocess.run(command, capture_output=True, timeout=300, check=False)
        found = next(filter(None, map(shutil.which, names)), None)
    return found or pytest.skip("there is no Chromium, and apt can't install it")


def browse(visit: Callable[[Tab], Awaitable[Result]]) -> Result:
    """Starts a browser, returns what `visit` returns of a new tab, and ends the browser."""
    return asyncio.run(_browse(chromium(), visit))


async def _browse(path: str, visit: Callable[[Tab], Awaitable[Result]]) -> Result:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
        process = await asyncio.create_subprocess_exec(
            path, *options, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(2 * SECONDS), aiohttp.ClientSession() as client:
                address = await _address(process)
                async with client.ws_connect(address, max_msg_size=0) as socket:
                    tab = Tab(socket)
                    await tab.attach()
                    return await visit(tab)
        finally:
            process.kill()
            await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    said = []
    async for line in process.stderr:
        said.append(line.decode(errors="replace"))
        if match := re.search(r"DevTools listening on (ws://\S+)", said[-1]):
            return match[1]
    pytest.fail("Chromium ended:\n" + "".join(said[-10:]))


def axe_core(folder: Path) -> str:
    """The script of axe-core, which checks pages for the WCAG; skips the test where it can't be fetched."""
    if not shutil.which("npm"):
        pytest.skip("there is no npm to fetch axe-core with")
    command = ["npm", "pack", "--silent", "axe-core@4"]
    packed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if packed.returncode:
        pytest.skip(f"npm can't fetch axe-core: {packed.stderr.strip()[-200:]}")
    (archive,) = folder.glob("axe-core-*.tgz")
    shutil.unpack_archive(archive, folder)
    return (folder / "package" / "axe.min.js").read_text()


def serious(findings: str) -> list[Any]:
    """What axe-core's answer, as JSON, calls serious or critical: the rule, and the first places."""
    return [
        (each["id"], each["help"], [node["html"][:300] for node in each["nodes"][:3]])
        for each in json.loads(findings)["violations"]
        if each["impact"] in ("serious", "critical")
    ]
