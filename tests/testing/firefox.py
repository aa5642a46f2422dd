"""A Firefox as distributions ship it, driven by Playwright over WebDriver BiDi. For browser tests."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from playwright.sync_api import Browser

from tests.testing import browser as driving

BETWEEN = Path(__file__).with_name("firefox_between.py")
SCHEME = {True: 0, False: 1}
"""Dark -> how the preference says it."""


def firefox() -> str | None:
    """The browser to drive: HIERCHAT_FIREFOX, or the system's."""
    named = (os.environ.get("HIERCHAT_FIREFOX"), "firefox-esr", "firefox")
    return next((found for name in named if name and (found := shutil.which(name))), None)


@contextmanager
def firefox_browser(dark: bool = False) -> Iterator[Browser]:
    """A headless one that prefers dark or light pages. Skips the test where there is none."""
    path = firefox()
    if path is None:
        pytest.skip("no Firefox: install firefox-esr, or set HIERCHAT_FIREFOX")
    with TemporaryDirectory() as folder:
        started = Path(folder) / "firefox"
        started.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-P", str(BETWEEN), path])} "$@"\n')
        started.chmod(0o700)
        launched = driving._playwright().firefox.launch(
            channel="moz-firefox",
            executable_path=started,
            firefox_user_prefs={"layout.css.prefers-color-scheme.content-override": SCHEME[dark]},
        )
        try:
            yield launched
        finally:
            launched.close()
