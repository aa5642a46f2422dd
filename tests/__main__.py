"""python -m tests: gets a browser where there is none, compiles the kernels once, then runs every test, three files at
a time. Arguments go to pytest; `-n 0` runs one after the other."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHELL = "chromium-headless-shell"
CHROMIUM = (SHELL, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALLED = (
    # The shell lacks the window's own parts, and so takes a fifth less time; not every Debian has it.
    ("HIERCHAT_CHROMIUM", (SHELL,), SHELL),
    ("HIERCHAT_CHROMIUM", CHROMIUM, "chromium"),
)
"""Variable, names and Debian's package."""
NIGHTLY = ("HIERCHAT_FIREFOX", ("firefox-esr", "firefox"), "firefox-esr")
"""What tests marked `large` need, too."""


def get_browsers(marks: str) -> None:
    """Debian's Chromium where we may install it, else Playwright's, and Firefox for tests marked `large`; tests that
    lack one say so and skip."""
    if shutil.which("apt-get") and os.geteuid() == 0:
        for variable, names, package in [*INSTALLED, *[NIGHTLY] * ("large" in marks)]:
            if not is_there(variable, names):
                updated()
                apt("install", "-y", "-q", "--no-install-recommends", package, "fonts-dejavu-core")
    if not is_there("HIERCHAT_CHROMIUM", CHROMIUM):
        print("Getting Playwright's Chromium …", flush=True)
        subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False)


@cache
def updated() -> None:
    """The lists of packages, once."""
    apt("update", "-q")


def apt(*words: str) -> None:
    """What fails is said by apt alone: the tests then do without."""
    quiet = {"stdout": subprocess.DEVNULL, "env": os.environ | {"DEBIAN_FRONTEND": "noninteractive"}}
    subprocess.run(["apt-get", *words], check=False, **quiet)


def is_there(variable: str, names: tuple[str, ...]) -> bool:
    """Whether a browser is named by this variable, or is installed under one of these names."""
    return bool(os.environ.get(variable)) or any(shutil.which(name) for name in names)


def compile_kernels() -> list[subprocess.Popen[bytes]]:
    """Start to compile the kernels that nearly every test file needs: else each worker compiles all of them."""
    command = [sys.executable, "-m", "hierchat.runtime.kernels"]
    return [subprocess.Popen([*command, part], stdin=subprocess.PIPE) for part in ("engine", "drafting")]


def keep_bytecode() -> None:
    """Let Python keep what it compiles: images of Docker forbid it, and then each of the hundred processes that the
    tests start compiles torch, transformers and pandas again."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


if __name__ == "__main__":
    os.chdir(ROOT)
    keep_bytecode()
    compiling = compile_kernels()
    get_browsers(" ".join(sys.argv[1:]))
    for process in compiling:
        process.wait()
    # Three: on two cores, two left a quarter of the time unused, waiting for servers, browsers and timeouts. In
    # alphabetical order the longest files come early.
    sys.exit(pytest.main(["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", *sys.argv[1:]]))
