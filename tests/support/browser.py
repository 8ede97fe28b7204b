# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A real Chromium, driven over HTTP by the WebDriver protocol; no package is needed for it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.waiting import eventually

PROGRAMS = ("chromium", "chromedriver")
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_STARTED = re.compile(r"started successfully on port (\d+)")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-default-browser-check", "--force-device-scale-factor=1",
)  # fmt: skip


class Browser:
    """One window.

    Args:
        address: of the driver's session.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    def open(self, url: str) -> None:
        """Load a page, until its load event."""
        self._ask("POST", "url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """What a function body returns in the page."""
        return self._ask("POST", "execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str = "body") -> str:
        """What a person sees of the first element that matches."""
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def style(self, selector: str, name: str) -> str:
        """A property of the first element that matches, as it was computed."""
        script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
        return str(self.run(script, selector, name))

    def click(self, selector: str) -> None:
        """Click the first element that matches, as a mouse would."""
        found = self._ask("POST", "element", {"using": "css selector", "value": selector})
        self._ask("POST", f"element/{found[_ELEMENT]}/click", {})

    def press(self, key: str) -> None:
        """Press a key; whatever has the focus gets it."""
        actions = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self._ask(
            "POST", "actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]}
        )

    def emulate(self, **features: str) -> None:
        """Media features (``color_scheme="dark"``), for all that is loaded from now on, too."""
        told = [
            {"name": f"prefers-{name.replace('_', '-')}", "value": value}
            for name, value in features.items()
        ]
        self.devtools("Emulation.setEmulatedMedia", features=told)

    def resize(self, width: int, height: int) -> None:
        """Size of what a page has."""
        sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **sizes)

    def first_paint(self) -> float:
        """Seconds from the begin of the navigation to the first content that was painted.

        Waits for it: a page is loaded before it is painted.
        """
        script = (
            "return performance.getEntriesByType('paint')"
            ".find((one) => one.name === 'first-contentful-paint')?.startTime"
        )
        found = eventually(lambda: self.run(script), what="something is painted")
        return float(found) / 1000

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self._ask("POST", "print", {"background": True}))

    def picture(self, path: pathlib.Path, selector: str = "") -> pathlib.Path:
        """Write a PNG of the window, or of the first element that matches."""
        where = "screenshot"
        if selector:
            found = self._ask("POST", "element", {"using": "css selector", "value": selector})
            where = f"element/{found[_ELEMENT]}/screenshot"
        path.write_bytes(base64.b64decode(self._ask("GET", where)))
        return path

    def console(self) -> list[str]:
        """What the console got since it was asked last, warnings and refusals among it."""
        return [entry["message"] for entry in self._ask("POST", "se/log", {"type": "browser"})]

    def devtools(self, command: str, **parameters: object) -> Any:
        """A command of Chromium's own protocol."""
        return self._ask("POST", "goog/cdp/execute", {"cmd": command, "params": parameters})

    def end(self) -> None:
        """Close it."""
        self._ask("DELETE", "")

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        return _ask(method, f"{self._address}/{path}".rstrip("/"), body)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium while the block runs; the test says why it skips where there is none."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        reason = f"no {' and no '.join(missing)}: python3 tests/cluster/testcluster/packages.py"
        if os.environ.get("CI"):
            pytest.fail(f"tests in a browser must run in CI: {reason}")
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="rvb") as home, _driver(pathlib.Path(home)) as address:
        options = {
            "binary": shutil.which("chromium"),
            "args": [*_FLAGS, f"--user-data-dir={home}/profile"],
        }
        wanted = {"browserName": "chrome", "goog:chromeOptions": options}
        wanted["goog:loggingPrefs"] = {"browser": "ALL"}
        body = {"capabilities": {"alwaysMatch": wanted}}
        session = _ask("POST", f"{address}/session", body)["sessionId"]
        made = Browser(f"{address}/session/{session}")
        try:
            yield made
        finally:
            made.end()


@contextlib.contextmanager
def _driver(home: pathlib.Path) -> Iterator[str]:
    """A chromedriver on a port of its own; its address."""
    environment = os.environ | {"HOME": str(home), "TMPDIR": str(home)}
    process = subprocess.Popen(
        ["chromedriver", "--port=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            found = _STARTED.search(line)
            if found:
                yield f"http://127.0.0.1:{found[1]}"
                return
        raise AssertionError("".join(said))
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def _ask(method: str, url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as refusal:
        said = json.load(refusal)["value"]
        raise AssertionError(f"{said['error']}: {said['message']}") from None
