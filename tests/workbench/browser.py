"""Headless Chromium for tests that open a page: a driver, what its console complains of, and where requests go."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

_LOCAL = ("127.0.0.1", "localhost", "::1")
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@contextmanager
def open_browser(width: int, height: int, *, dark: bool = False) -> Iterator[Any]:
    """Yield a selenium driver whose page is this large, in CSS pixels; skip the test where there is no Chromium."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("needs Debian's chromium and chromium-driver: make browser")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        for option in (*_OPTIONS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(option)
        opened = webdriver.Chrome(options, webdriver.ChromeService(driver))
        try:
            # A window has a least width, a page has not.
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
            opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
            yield opened
        finally:
            opened.quit()


def console_errors(driver: Any) -> list[str]:
    """Return the errors that the browser's console has had since this was last asked."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


def outside_requests(driver: Any) -> list[str]:
    """Return the addresses on other machines that were asked for since this was last asked."""
    found = []
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        sent = message.get("params", {})
        if message["method"] == "Network.requestWillBeSent":
            address = sent["request"]["url"]
        elif message["method"] == "Network.webSocketCreated":
            address = sent["url"]
        else:
            continue
        parts = urlsplit(address)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in _LOCAL:
            found.append(address)
    return found
