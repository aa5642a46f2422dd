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
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def get_browser() -> None:
    """Debian's Chromium where we may install it, else Playwright's own; without one, browser tests say so and skip."""
    if os.environ.get("HIERCHAT_CHROMIUM") or any(shutil.which(name) for name in BROWSERS):
        return
    if shutil.which("apt-get") and os.geteuid() == 0:
        quiet = {"stdout": subprocess.DEVNULL, "env": os.environ | {"DEBIAN_FRONTEND": "noninteractive"}}
        subprocess.run(["apt-get", "update", "-q"], check=False, **quiet)
        install = [
            "apt-get",
            "install",
            "-y",
            "-q",
            "--no-install-recommends",
            "chromium",
            "fonts-dejavu-core",
        ]
        if subprocess.run(install, check=False, **quiet).returncode == 0:
            return
    print("Getting Playwright's Chromium …", flush=True)
    subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False)


if __name__ == "__main__":
    os.chdir(ROOT)
    get_browser()
    # Two: a browser test keeps a server and a browser busy, too. In alphabetical order the longest files come early.
    sys.exit(pytest.main(["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", *sys.argv[1:]]))
