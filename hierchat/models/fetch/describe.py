"""A GGUF file's configuration and tokenizer, written by a process of its own: `describe GGUF FOLDER`.

Reading them through transformers brings torch into memory, which a chat on the CPU engine does without.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np

SECONDS = 600


def describe_beside(gguf: Path, folder: Path) -> bool:
    """Whether a process of its own could do it; what kept it from it shows where it is done here."""
    package = str(Path(__file__).parents[3])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(gguf), str(folder)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": path},
            timeout=SECONDS,
        )
        return done.returncode == 0
    return False


def _unmapped() -> ModuleType:
    """numpy, whose mapped files are plain arrays over the same memory."""
    found = ModuleType("numpy")
    found.__dict__.update(np.__dict__)
    found.__dict__["memmap"] = lambda *given, **named: np.asarray(np.memmap(*given, **named))
    return found


def main(gguf: Path, folder: Path) -> int:
    """1 where it could not be done."""
    import gguf as library

    from hierchat.models.fetch.convert import describe

    # transformers reads the file once for each question, and the library makes several views for each token's text,
    # which for mapped arrays take most of its time
    library.GGUFReader = cache(library.GGUFReader)
    library.gguf_reader.np = _unmapped()
    try:
        describe(gguf, folder)
    except Exception:  # said by the caller, who does it once more
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
