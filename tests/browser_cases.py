"""A real browser for tests of pages: Playwright's own, or the system's.

    python -m tests.browser_cases     # says which, or that there is none

Tests of pages are skipped where there is none: see the fixture `browser`.
"""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Error, Page, Playwright, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
PATIENCE = 120_000  # milliseconds that a busy machine may take
NONE = "no Chromium: neither Playwright's (playwright install chromium) nor the system's"


def launch(playwright: Playwright) -> tuple[Browser, str] | None:
    """The first headless Chromium that starts, and where it is; None if there is none."""
    for path in (None, *filter(None, map(shutil.which, NAMES))):
        try:
            browser = playwright.chromium.launch(
                executable_path=path, args=list(FLAGS), timeout=PATIENCE
            )
        except Error:
            continue
        return browser, path or playwright.chromium.executable_path
    return None


@contextmanager
def opened(
    browser: Browser, path: Path, scheme: Literal["light", "dark"] = "light"
) -> Iterator[tuple[Page, list[str]]]:
    """A page without network, and what went wrong on it so far."""
    page = browser.new_page(color_scheme=scheme, viewport={"width": 1100, "height": 900})
    page.set_default_timeout(PATIENCE)
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
        page.close()


def main() -> int:
    """Says in a line whether tests of pages run here; 1 where they do not."""
    with sync_playwright() as playwright:
        started = launch(playwright)
        if started is None:
            print(f"tests of pages are skipped: {NONE}")
            return 1
        started[0].close()
        print(f"tests of pages run in {started[1]}")
        return 0


if __name__ == "__main__":
    sys.exit(main())
