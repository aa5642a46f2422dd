"""Kernels compiled beside the program: what happens when that ends early, and what is compiled at all."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hierchat.drafting.suffix_index import ordered, suffix_order
from hierchat.jit import Kernels
from hierchat.models.progress import Progress
from hierchat.runtime import kernels
from hierchat.runtime.kernels import DRAFTING, ENGINE, Compiling

# The process that stands in for the compiler
ENDLESS = "import sys; sys.stdin.read()"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """What is started, as if nothing were compiled and there were two cores; it does what `script` says."""
    found: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(kernels, "cores", lambda: 2)
    monkeypatch.setattr(kernels, "is_compiled", lambda: False)
    monkeypatch.setattr(kernels, "is_drafting_compiled", lambda: False)
    monkeypatch.setattr(kernels, "LEAST_MEMORY", 0)
    popen = subprocess.Popen

    def start(command: list[str], **kwargs: Any) -> subprocess.Popen[bytes]:
        found.append(popen([command[0], "-c", os.environ.get("SCRIPT", ENDLESS)], **kwargs))
        return found[-1]

    monkeypatch.setattr(kernels.subprocess, "Popen", start)
    return found


def test_what_is_not_waited_for_ends(started: list[subprocess.Popen[bytes]]) -> None:
    compiling = Compiling()
    assert [one.poll() for one in started] == [None, None]
    assert DRAFTING in compiling
    compiling.close()
    assert DRAFTING not in compiling
    assert all(one.poll() is not None for one in started)


def test_a_process_that_dies_is_not_waited_for(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPT", "raise SystemExit(3)")
    compiling = Compiling()
    compiling.wait(ENGINE, lambda progress: None)
    compiling.wait(DRAFTING, lambda progress: None)
    compiling.wait(ENGINE, lambda progress: None)  # a second time there is nothing
    assert [one.poll() for one in started] == [3, 3]


def test_a_report_that_raises_ends_it(started: list[subprocess.Popen[bytes]]) -> None:
    def stop(progress: Progress) -> None:
        assert progress.phase == "compiling"
        assert progress.total
        raise KeyboardInterrupt

    compiling = Compiling()
    with pytest.raises(KeyboardInterrupt):
        compiling.wait(ENGINE, stop)
    assert started[0].poll() is not None
    compiling.close()
    assert started[1].poll() is not None


def test_one_core_compiles_itself(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "cores", lambda: 1)
    Compiling().close()
    assert not started


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    """However the parent ends: the pipe closes."""
    child = subprocess.Popen(
        [sys.executable, "-m", "hierchat.runtime.kernels", ENGINE],
        env={**os.environ, "HIERCHAT_CACHE": str(tmp_path)},
        stdin=subprocess.PIPE,
    )
    child.stdin.close()
    assert child.wait(120) == 1


def test_a_literal_number_is_compiled_for_all_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path))
    kernel = Kernels(__file__)

    @kernel
    def inner(number: int) -> int:
        return number + 1

    @kernel
    def outer(count: int) -> int:
        at = 0
        for _ in range(count):
            at = inner(at) + inner(1) + inner(2)
        return at

    assert outer(2) == 12
    assert len(inner.signatures) == 1  # type: ignore[attr-defined]


def test_what_cannot_be_written_is_sorted_by_the_same_code() -> None:
    """As what comes from a database is: another kind of array would be compiled for in the first reply."""
    tokens = np.array([3, 1, 3, 1, 2, -1], np.int32)
    expected = suffix_order(tokens).tolist()
    known = len(ordered.signatures)  # type: ignore[attr-defined]
    tokens.flags.writeable = False
    assert suffix_order(tokens).tolist() == expected
    assert len(ordered.signatures) == known  # type: ignore[attr-defined]
