"""Measure the first start after an installation, and the one after it: how long a newcomer waits.

The program runs as a user would start it, in folders of its own that are empty the first time: models, compiled
kernels, database. What stands in start_inside.py watches it from within.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from hierchat.checks.runs import RequestError

GIVE_UP = 900
"""Seconds."""
EVERY = 0.1
"""Seconds between two looks at the memory."""


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure seconds and megabytes of so many starts in the same folders. Raises RequestError."""
    with tempfile.TemporaryDirectory(prefix="hierchat-start-", ignore_cleanup_errors=True) as folder:
        starts = [_start(Path(folder), args.model) for _ in range(args.starts)]
    names = ("first", *(f"start {number}" for number in range(2, args.starts + 1)))
    return {"cores": psutil.cpu_count(), "starts": dict(zip(names, starts, strict=True))}


def _start(folder: Path, model: str | None) -> dict[str, Any]:
    places = {f"HIERCHAT_{name}": str(folder / name.lower()) for name in ("CACHE", "DATA")}
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.start_inside", str(report)]
    began = time.time()
    with (folder / "said.txt").open("w+", encoding="utf-8") as said:
        program = subprocess.Popen(
            [*command, *(["--model", model] if model else [])],
            env={**os.environ, **places, "HIERCHAT_START": str(began)},
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        memory = _Memory(program.pid)
        try:
            program.wait(GIVE_UP)
        except subprocess.TimeoutExpired:
            raise RequestError(f"The start took more than {GIVE_UP} seconds.") from None
        finally:
            memory.stop()
            program.kill()
            program.wait()
        said.seek(0)
        if not report.exists():
            raise RequestError(f"The program ended before its first reply.\n{said.read()[-2000:]}")
    found = json.loads(report.read_text(encoding="utf-8"))
    return {**found, "peak_mib": memory.peak}


class _Memory:
    """Record the most memory (resident, MiB) that a process and its children held together; pages that they share count
    in each of them."""

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(psutil.Process(pid),), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self, program: psutil.Process) -> None:
        while not self._end.wait(EVERY):
            total = 0
            try:
                for one in (program, *program.children(recursive=True)):
                    total += one.memory_info().rss
            except psutil.Error:
                continue
            self.peak = max(self.peak, total // 2**20)
