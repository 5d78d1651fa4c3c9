"""Headless Chromium, which `make test-slow` installs (Debian: chromium, chromium-driver)."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
)  # fmt: skip


def missing() -> bool:
    """Whether there is none here, or no Selenium to drive it."""
    programs = shutil.which("chromium") and shutil.which("chromedriver")
    return not (programs and find_spec("selenium"))


@contextmanager
def chromium() -> Iterator:
    """A browser of its own, with an empty profile; it logs what a page writes to the console."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with TemporaryDirectory(prefix="uvd-chromium-") as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        browser = webdriver.Chrome(options, service)
        try:
            yield browser
        finally:
            browser.quit()


def show(browser, page: Path, width: int, height: int, theme: str) -> None:
    """Opens a page in a window of this size, as a system of this theme does."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 640}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get(page.resolve().as_uri())
