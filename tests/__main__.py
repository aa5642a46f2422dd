"""python -m tests: gets a browser where there is none, then runs every test, two files at a time. Arguments go to
pytest; `-n 0` runs one after the other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FIREFOX = ("firefox-esr", "firefox")


def get_browsers() -> None:
    """Debian's Chromium and Firefox where we may install them, else Playwright's own Chromium; tests that lack one say
    so and skip."""
    packages = []
    if not is_there("HIERCHAT_CHROMIUM", CHROMIUM):
        packages += ["chromium", "fonts-dejavu-core"]
    if not is_there("HIERCHAT_FIREFOX", FIREFOX):
        packages.append("firefox-esr")
    if packages and shutil.which("apt-get") and os.geteuid() == 0:
        quiet = {"stdout": subprocess.DEVNULL, "env": os.environ | {"DEBIAN_FRONTEND": "noninteractive"}}
        subprocess.run(["apt-get", "update", "-q"], check=False, **quiet)
        install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
        subprocess.run(install, check=False, **quiet)
    if not is_there("HIERCHAT_CHROMIUM", CHROMIUM):
        print("Getting Playwright's Chromium …", flush=True)
        subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False)


def is_there(variable: str, names: tuple[str, ...]) -> bool:
    """Whether a browser is named by this variable, or is installed under one of these names."""
    return bool(os.environ.get(variable)) or any(shutil.which(name) for name in names)


if __name__ == "__main__":
    os.chdir(ROOT)
    get_browsers()
    # Two: a browser test keeps a server and a browser busy, too. In alphabetical order the longest files come early.
    sys.exit(pytest.main(["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", *sys.argv[1:]]))
