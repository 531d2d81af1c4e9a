"""Runs a page in headless Chromium, by its debugging protocol over a pipe: nothing to install, no port."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One tab. `problems` are the errors and warnings of its console, exceptions, and whatever it fetched."""

    def __init__(self, write: int, read: int):
        self._write, self._read, self._buffer, self._count = write, os.fdopen(read, "rb", buffering=0), b"", 0
        self.problems: list[str] = []
        target = self._send("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """The result of one command to the tab."""
        return self._send(method, parameters, self._session)

    def open(self, path: Path, *, width: int = 1400, dark: bool = False) -> None:
        """Opens a file and waits until its script has run."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Page.navigate", url=path.as_uri())
        self.run("new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))")
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """The visible text of an element."""
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def point(self, selector: str, across: float, down: float, *, press: bool = False) -> None:
        """Moves the pointer to a place in an element, given in shares of its size, and presses there."""
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = self.run(f"JSON.stringify(document.querySelector({json.dumps(selector)}).getBoundingClientRect())")
        place = json.loads(box)
        at = {"x": place["x"] + across * place["width"], "y": place["y"] + down * place["height"]}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        for kind in ("mousePressed", "mouseReleased") if press else ():
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def key(self, key: str) -> None:
        """Presses a key."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": key} if len(key) == 1 else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def save_picture(self, path: Path) -> None:
        """Saves what the whole page looks like, as PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _send(self, method: str, parameters: dict[str, Any], session: str | None = None) -> Any:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        os.write(self._write, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = self._read.read(1 << 16)
            assert read, "Chromium ended"
            self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def _note(self, event: dict[str, Any]) -> None:
        method, found = event.get("method"), event.get("params", {})
        if (
            method == "Runtime.exceptionThrown"
            or (method == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning"))
            or (method == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"))
        ):
            self.problems.append(json.dumps(found))
        elif method == "Network.requestWillBeSent":
            url = found["request"]["url"]
            if not url.startswith("file:///") or not url.endswith(".html"):
                self.problems.append(f"fetched {url}")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless Chromium of its own."""
    to_browser, from_us = os.pipe()
    from_browser, to_us = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = f'exec "$@" 3<&{to_browser} 4>&{to_us}'
        process = subprocess.Popen(
            ["bash", "-c", command, "bash", str(CHROMIUM), *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(to_us)
        try:
            yield Browser(from_us, from_browser)
        finally:
            process.kill()
            process.wait()
            os.close(from_us)
