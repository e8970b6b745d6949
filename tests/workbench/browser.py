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

_OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
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
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    found = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    found += [each["params"]["url"] for each in messages if each["method"] == "Network.webSocketCreated"]
    schemes, local = ("http", "https", "ws", "wss"), ("127.0.0.1", "localhost", "::1")
    return [url for url in found if urlsplit(url).scheme in schemes and urlsplit(url).hostname not in local]
