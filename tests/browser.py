"""A headless Chromium. chromedriver speaks W3C WebDriver, which is JSON over HTTP, so httpx is all it needs."""

import base64
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.patience import patience

DRIVER = shutil.which("chromedriver")
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
MISSING = "needs Chromium and its driver: apt-get install chromium chromium-driver"
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the standard's name for a reference
ENTER = "\ue007"


@dataclass(frozen=True, slots=True)
class Browser:
    """One session: one window, whose storage and sign-ins nobody else has."""

    driver: httpx.Client
    session: str

    def command(self, path: str, **body: Any) -> Any:
        """One of WebDriver's commands; raises what the browser says is wrong."""
        answer = self.driver.post(f"/session/{self.session}/{path}", json=body)
        value = answer.json()["value"]
        assert answer.status_code == 200, f"{value['error']}: {value['message']}"
        return value

    def open(self, url: str) -> None:
        """Load a page, and wait until it is loaded."""
        self.command("url", url=url)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a script's `return`."""
        return self.command("execute/sync", script=script, args=list(arguments))

    def text(self, selector: str) -> str:
        """What an element holds, as it is."""
        return self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def texts(self, selector: str) -> list[str]:
        return self.run("return [...document.querySelectorAll(arguments[0])].map(each => each.textContent)", selector)

    def type(self, selector: str, keys: str) -> None:
        """Press keys with an element in focus."""
        self.command(f"element/{self._find(selector)}/value", text=keys)

    def click(self, selector: str) -> None:
        self.command(f"element/{self._find(selector)}/click")

    def set(self, selector: str, value: str) -> None:
        """Give a field of the form a value."""
        self.run("document.querySelector(arguments[0]).value = arguments[1]", selector, value)

    def wait_until(self, what: Any, seconds: float = 20.0) -> None:
        """Look again until it is so."""
        ends = time.monotonic() + patience(seconds)
        while not what():
            assert time.monotonic() < ends, f"not so within {seconds} s; the page shows:\n{self.text('body')}"
            time.sleep(0.02)

    def prefer(self, scheme: str) -> None:
        """Light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("goog/cdp/execute", cmd="Emulation.setEmulatedMedia", params={"features": features})

    def complaints(self) -> list[str]:
        """What the page's console has said since it was asked last: errors, and what its policy forbade."""
        return [entry["message"] for entry in self.command("se/log", type="browser")]

    def screenshot(self, path: Path) -> None:
        answer = self.driver.get(f"/session/{self.session}/screenshot")
        path.write_bytes(base64.b64decode(answer.json()["value"]))

    def _find(self, selector: str) -> str:
        return self.command("element", using="css selector", value=selector)[ELEMENT]


@contextmanager
def chromium(*arguments: str) -> Iterator[Browser]:
    """Start one."""
    assert DRIVER is not None, MISSING
    process = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        with httpx.Client(base_url=_address(process), timeout=patience(60), trust_env=False) as driver:
            options = {"args": [*ARGUMENTS, *arguments], **({"binary": CHROMIUM} if CHROMIUM else {})}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            answer = driver.post("/session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
            assert "sessionId" in answer, answer
            try:
                yield Browser(driver, answer["sessionId"])
            finally:
                driver.delete(f"/session/{answer['sessionId']}")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _address(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None, "it is a pipe"
    for line in process.stdout:
        if found := re.search(r"successfully on port (\d+)", line):
            return f"http://127.0.0.1:{found[1]}"
    raise AssertionError("chromedriver ended without a port")
