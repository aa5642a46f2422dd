"""Start a headless Chromium. Playwright is imported when it is used: the program does without it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hierchat.checks.runs import RequestError

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_NAMES = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
    "chromium-headless-shell",
)


def chromium(first: str | None = None) -> str | None:
    """Find HIERCHAT_CHROMIUM, `first`, a system Chromium or Chrome; None means Playwright's own."""
    named = (os.environ.get("HIERCHAT_CHROMIUM"), first, *_NAMES)
    return next((found for name in named if name and (found := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a fresh browser. Raises RequestError where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise RequestError(
            "What drives the browser is not installed: pip install 'hierchat[bench]', or playwright."
        ) from None
    with sync_playwright() as playwright:
        path = chromium()
        if path is None and not Path(playwright.chromium.executable_path).exists():
            raise RequestError(
                "There is no Chromium here. Install it, set HIERCHAT_CHROMIUM to one, or run "
                "`playwright install chromium`."
            )
        launched = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield launched
        finally:
            launched.close()
