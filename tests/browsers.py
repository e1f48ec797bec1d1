"""A real browser, without a network: Debian's Chromium, driven by Selenium."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.processes import wait_until

HAS_CHROMIUM = bool(shutil.which("chromium") and shutil.which("chromedriver"))
DRAWN_S = 60.0
LOADED_S = 60.0
LOADS = 3
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-features=LogOnDeviceMetricsOnStartup,OptimizationGuideOnDeviceModel",  # begin after 3 minutes
    "--window-size=1200,900",
)


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A browser that logs its console and its requests; it ends with the block."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(LOADED_S)
    try:
        yield driver
    finally:
        driver.quit()


def open_page(browser: Any, path: Path) -> None:
    """Open a page of dstack, and wait until its charts are drawn."""
    _load(browser, path)
    wait_until(
        lambda: browser.execute_script("return document.body.dataset.drawn === 'yes'"),
        deadline_s=DRAWN_S,
        what=lambda: f"charts: {errors(browser)}",
    )


def _load(browser: Any, path: Path) -> None:
    """Load a page; again if it is not loaded in time.

    About 1 of 40 loads of a file of more than a megabyte never ends in Chromium 150, with all of its threads idle.
    """
    from selenium.common.exceptions import TimeoutException

    for attempt in range(LOADS):
        browser.get_log("browser"), browser.get_log("performance")  # those of the page before
        try:
            browser.get("about:blank")
            browser.get(path.as_uri())
            return
        except TimeoutException:
            if attempt == LOADS - 1:
                raise


def errors(browser: Any) -> list[str]:
    """What the console reported since the page was opened: errors and violations of its policy."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def requests(browser: Any) -> list[str]:
    """The addresses in the network that the page has requested."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if url.startswith(("http", "ws"))]


def use_dark_theme(browser: Any, *, is_dark: bool) -> None:
    """Emulate a preference for dark or light pages."""
    value = "dark" if is_dark else "light"
    features = [{"name": "prefers-color-scheme", "value": value}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
