"""A GGUF file's configuration and tokenizer, as files that transformers reads.

Where transformers has to read them itself, a process of its own does it (`describe GGUF FOLDER`): that brings torch
into memory, which a chat on the CPU engine does without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from hierchat.models.formats.gguf_config import completed, end_tokens, whole_config
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.formats.gguf_tokenizer import write_tokenizer
from hierchat.models.progress import UnsupportedError

SECONDS = 600


def describe(gguf: Path, folder: Path) -> None:
    """Writes config.json, generation_config.json and the tokenizer of a GGUF file. Raises BrokenFileError,
    UnsupportedError."""
    config = whole_config(read_head(gguf))
    if config and write_tokenizer(gguf, folder):
        for name in ("config.json", "generation_config.json"):
            (folder / name).write_text(json.dumps(config, indent=2), encoding="utf-8")
    elif not _describe_beside(gguf, folder):
        _describe_here(gguf, folder)


def describe_tokenizer(gguf: Path, folder: Path) -> None:
    """Writes the tokenizer alone. Raises BrokenFileError, UnsupportedError."""
    if not write_tokenizer(gguf, folder):
        _tokenizer(gguf).save_pretrained(folder)


def first_line(error: Exception) -> str:
    """What an error of a library says, in one line."""
    return (str(error) or type(error).__name__).strip().splitlines()[0]


def _describe_here(gguf: Path, folder: Path) -> None:
    from transformers import AutoConfig, GenerationConfig

    try:
        config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UnsupportedError(f"{gguf.name} cannot be read: {first_line(error)}.") from error
    config.save_pretrained(folder)
    file, head = folder / "config.json", read_head(gguf)
    said = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(completed(said, head), indent=2), encoding="utf-8")
    generation = GenerationConfig.from_model_config(config)
    if (ends := end_tokens(head)) is not None:
        generation.eos_token_id = ends
    generation.save_pretrained(folder)
    _tokenizer(gguf).save_pretrained(folder)


def _tokenizer(gguf: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except Exception as error:  # the tokenizers library raises nothing more exact
        raise UnsupportedError(f"The tokenizer in {gguf.name} cannot be read: {first_line(error)}") from error


def _describe_beside(gguf: Path, folder: Path) -> bool:
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

    # transformers reads the file once for each question, and the library makes several views for each token's text,
    # which for mapped arrays take most of its time
    library.GGUFReader = cache(library.GGUFReader)
    library.gguf_reader.np = _unmapped()
    try:
        _describe_here(gguf, folder)
    except Exception:  # said by the caller, who does it once more
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
