"""Compile kernels in other processes while a model is fetched and converted: the compiler holds Python's lock.
The cache folder has the result. If a process fails, kernels are compiled at their first use."""

import os
import subprocess
import sys
import threading
from contextlib import suppress

import numpy as np
import psutil

from hierchat.config import process_environment
from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.draft_cost import LatencyCurve
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.growing import kernel as drafting_kernel
from hierchat.drafting.source import TOP, Source, Successors
from hierchat.engine.cpu.forward import cores
from hierchat.engine.cpu.llvm import is_compiled
from hierchat.engine.sampling.sampler import top_tokens
from hierchat.jit import compiled
from hierchat.models.progress import Progress, Report

LEAST_MEMORY = 1_500_000_000
"""Free bytes without which nothing is compiled beside this process: it takes 200 MB for each part."""
EVERY = 0.25
"""Seconds between two looks at how far it is."""
ENGINE, DRAFTING = "engine", "drafting"


class Compiling:
    """Compile in a process of its own each part that is not compiled yet."""

    def __init__(self, parts: tuple[str, ...] = (ENGINE, DRAFTING)) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        if cores() < 2 or psutil.virtual_memory().available < LEAST_MEMORY:
            return
        for part in parts:
            if not (is_compiled() if part == ENGINE else is_drafting_compiled()):
                with suppress(OSError):
                    self._running[part] = _start(part)

    def wait(self, part: str, report: Report) -> None:
        """Wait until a part is compiled, or its process has ended for another reason."""
        if not (process := self._running.pop(part, None)):
            return
        try:
            while process.poll() is None:
                report(Progress("compiling", *compiled(), "for this processor, once"))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(EVERY)
        finally:
            with process:
                process.kill()

    def __contains__(self, part: str) -> bool:
        return part in self._running and self._running[part].poll() is None

    def close(self) -> None:
        """End the processes for which nobody waits any more."""
        while self._running:
            with self._running.popitem()[1] as process:
                process.kill()


def draft_once(drafter: Drafter) -> None:
    """Draft once over a few tokens, so that what drafting compiles at its first use is compiled, or read, now."""
    drafter.begin([1, 2, 3, 1, 2] * 4)
    drafter.propose()
    top = top_tokens(np.zeros(2 * TOP, np.float32), TOP)
    drafter.observe([3, 1], np.array([top, top]))


def is_drafting_compiled() -> bool:
    """Tell whether the compiled code of the drafter lies on disk."""
    return drafting_kernel.has("grow.grow") and drafting_kernel.has("grow.teach")


def _start(part: str) -> subprocess.Popen[bytes]:
    # Where this process looks for kernels, even if the setting has changed since
    cache = drafting_kernel.folder.parent.parent
    return subprocess.Popen(
        [sys.executable, "-m", __name__, part],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**process_environment(), "HIERCHAT_CACHE": str(cache)},
    )


def main(part: str) -> int:
    """Compile a part; end early when the input does."""
    if part == DRAFTING and hasattr(os, "nice"):
        os.nice(10)  # the model may be loaded, measured, and answering meanwhile

    def end_with_input() -> None:
        while os.read(0, 1):  # not by sys.stdin, whose lock would be held when the process ends by itself
            pass
        os._exit(1)

    threading.Thread(target=end_with_input, daemon=True).start()
    with suppress(KeyboardInterrupt):
        if part == ENGINE:  # a forward over a tiny model: kernels know no sizes
            from hierchat.engine.cpu.runner import trial_runner

            trial_runner(threads=1).team.close()
        else:  # sorting is needed as soon as a model's tokens are known
            source = Source()
            source.index.extend([[1, 2, 3, 1, 2], [2, 3]])
            source.add([1, 2, 3])
            draft_once(Drafter([source], Acceptance(), LatencyCurve(), None, Successors()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
