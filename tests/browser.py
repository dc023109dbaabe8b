"""A real browser without a screen, spoken to by the DevTools protocol through two pipes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")

_START = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser reads descriptor 3 and writes 4."""

_VIOLATIONS = """
window.violations = [];
document.addEventListener('securitypolicyviolation', (event) => violations.push(event.violatedDirective));
"""


def find_browser() -> str | None:
    """The program; None if none is installed."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, "")}
"""Keys, with the code and the text of each."""


class Browser:
    """One page of one browser; `asked` are the addresses of all that the page asked for."""

    def __init__(self, program: str) -> None:
        self._place = tempfile.TemporaryDirectory(
            prefix="browser-", dir="/tmp", ignore_cleanup_errors=True
        )  # its socket needs a short path
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        words = [program, "--headless", "--no-sandbox", "--disable-gpu"]
        words += [f"--user-data-dir={self._place.name}/profile", "--remote-debugging-pipe", "about:blank"]
        start = [sys.executable, "-c", _START, str(read), str(write), *words]
        environ = {**os.environ, "TMPDIR": self._place.name}
        self._process = subprocess.Popen(
            start, env=environ, pass_fds=(read, write), stderr=subprocess.DEVNULL, start_new_session=True
        )
        os.close(read)
        os.close(write)
        self._calls, self._rest = 0, b""
        self.asked: list[str] = []
        page = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        self._call("Page.enable", self._session)
        self._call("Network.enable", self._session)
        self._call("Page.addScriptToEvaluateOnNewDocument", self._session, source=_VIOLATIONS)

    def open(self, address: str) -> None:
        """Go to an address; `violations` of the page has what its policy forbade."""
        self._call("Page.navigate", self._session, url=address)

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Show the page in a window of that many pixels, to somebody who likes it dark or light."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", self._session, **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", self._session, features=[scheme])

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; None while it has none."""
        found = self._call("Runtime.evaluate", self._session, expression=expression, returnByValue=True)
        return found["result"].get("value")

    def text(self) -> str:
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def press(self, words: str) -> bool:
        """Press the button or follow the link with these words; whether it is there."""
        found = f"[...document.querySelectorAll('a, button')].find((one) => one.innerText === {json.dumps(words)})"
        return bool(self.evaluate(f"(() => {{ const one = {found}; if (one) one.click(); return !!one; }})()"))

    def key(self, name: str) -> None:
        code, text = KEYS[name]
        known = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        self._call("Input.dispatchKeyEvent", self._session, type="keyDown", **known, text=text)
        self._call("Input.dispatchKeyEvent", self._session, type="keyUp", **known)

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._place.cleanup()

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                content = os.read(self._read, 65536)
                assert content, "the browser has ended"
                self._rest += content
            line, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(line)
            if answer.get("method") == "Network.requestWillBeSent":
                self.asked.append(answer["params"]["request"]["url"])
            if answer.get("id") == self._calls:
                assert "error" not in answer, answer
                return dict(answer["result"])
