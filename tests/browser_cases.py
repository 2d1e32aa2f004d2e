"""A real browser for tests of pages; they are skipped where there is none."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@contextmanager
def opened(path: Path, scheme: str = "light") -> Iterator[tuple[Page, list[str]]]:
    """A page in headless Chromium, without network, and what went wrong on it so far."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        page = browser.new_page(color_scheme=scheme, viewport={"width": 1100, "height": 900})  # pyright: ignore
        wrong: list[str] = []
        page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request",
            lambda r: None if r.url.startswith(("file:", "data:")) else wrong.append(r.url),
        )
        page.goto(path.as_uri())
        try:
            yield page, wrong
        finally:
            browser.close()
