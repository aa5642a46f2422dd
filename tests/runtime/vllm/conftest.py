"""A stand-in for a Python that has vLLM, and what it was started with."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"HIERCHAT_{name}", str(tmp_path / name.lower()))
    monkeypatch.setenv("FAKE_VLLM_SEEN", str(tmp_path / "seen.json"))
    (tmp_path / "My model").mkdir()
    return tmp_path / "seen.json"


@pytest.fixture
def python(tmp_path: Path) -> str:
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).with_name("fake_vllm.py")}" "$@"\n')
    path.chmod(0o700)
    return str(path)


def wait_for_end(pid: int) -> None:
    """A process that nobody waits for may stay as a zombie."""
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.02)
