"""Traces to show, and a browser to show them in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

import dapd
from dapd.trace import Trace
from viewer.helpers_viewer import Browser

HOW = "needs Chromium (Debian: apt-get install chromium chromium-driver) and selenium (pip install selenium)"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--window-size=1300,1000",
)


@pytest.fixture(scope="session")
def decoded() -> list[Trace]:
    """DAPD with its graphs, and Fast-dLLM, on the same prompt."""
    lm = dapd.load("random:tiny-llada", device="cpu")
    return [
        lm.generate("Five questions", strategy=name, max_new_tokens=40, record_edges=True).trace
        for name in ("dapd-staged", "fast-dllm")
    ]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """For the tests of a file: a page that is left open goes on moving beside all that are run later."""
    chromium, driver = shutil.which("chromium") or shutil.which("chromium-browser"), shutil.which("chromedriver")
    webdriver = pytest.importorskip("selenium.webdriver", reason=HOW)
    if chromium is None or driver is None:
        pytest.skip(HOW)
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    running = webdriver.Chrome(options=options, service=Service(driver))
    yield Browser(running, tmp_path_factory.mktemp("pages"))
    running.quit()
