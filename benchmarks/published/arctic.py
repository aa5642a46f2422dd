"""Draft with arctic-inference's own suffix cache, the one that vLLM uses, built from its source distribution.

Its trees over prompt and replies (C++) take the place of ours in `suffix`: the same method, as its authors wrote it.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import shutil
import sys
import tarfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import requests
from filelock import FileLock
from numpy.typing import NDArray

from benchmarks.peers.environment import ArmError, Packages, python_with, run
from benchmarks.published.common import Published, SortedTexts
from benchmarks.published.suffix import DEPTH, FACTOR, LEAST, WIDTH
from hierchat.config import cache_dir
from hierchat.drafting.draft_tree import DraftTree
from hierchat.drafting.suffix_index import BREAK

# The suffix cache of arctic-inference, compiled by itself: the package as a whole asks for vLLM and a GPU.


VERSION = "0.3.0"
SOURCE = (
    "https://files.pythonhosted.org/packages/63/c1/573fa2f00097cd9cc1167b31fd900b2482f58f3491867cebdd5516626533/"
    f"arctic_inference-{VERSION}.tar.gz"
)
SHA256 = "7f22e3e1b1071c6061c0d6951be17c0fb50b08d06d6e543144c8f52faba60a36"
NANOBIND = Packages(
    "nanobind",
    "2.9.2",
    "import cmake, nanobind, ninja; assert nanobind.__version__ == {version!r}",
    others=("cmake>=3.18,<4", "ninja"),
)
SECONDS = 60
_WANTED = ("arctic_inference/__init__.py", "arctic_inference/suffix_decoding/", "csrc/suffix_decoding/")


def arctic_folder() -> Path:
    """Return a folder to import arctic_inference.suffix_decoding from. Raises ArmError."""
    folder = cache_dir() / "peers" / f"arctic-suffix-{VERSION}-{sys.implementation.cache_tag}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            _build(folder)
    return folder


def _build(folder: Path) -> None:
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    _unpack(part)
    python = python_with(NANOBIND, lambda text: print(text, file=sys.stderr))
    log = folder.with_name(f"{folder.name}.log")
    log.unlink(missing_ok=True)
    what = f"arctic-inference's suffix cache {VERSION}"
    build = part / "build"
    cmake = [str(python), "-m", "cmake"]
    source = str(part / "csrc" / "suffix_decoding")
    module = part / "arctic_inference" / "suffix_decoding"
    chosen = [f"-DPython_EXECUTABLE={python}", "-DCMAKE_BUILD_TYPE=Release"]
    chosen.append(f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={module}")
    run([*cmake, "-S", source, "-B", str(build), *chosen], log, what)
    run([*cmake, "--build", str(build), "--config", "Release"], log, what)
    shutil.rmtree(build)
    part.rename(folder)


def _unpack(folder: Path) -> None:
    """Unpack the needed parts of the source distribution."""
    try:
        answer = requests.get(SOURCE, timeout=SECONDS)
        answer.raise_for_status()
    except requests.RequestException as error:
        raise ArmError(f"arctic-inference {VERSION} could not be fetched: {error}") from error
    if hashlib.sha256(answer.content).hexdigest() != SHA256:
        raise ArmError(f"{SOURCE} is not the file that it was.")
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        root = f"arctic_inference-{VERSION}/"
        for member in archive.getmembers():
            member.name = member.name.removeprefix(root)
            if member.name.startswith(_WANTED):
                archive.extract(member, folder, filter="data")


class Arctic(Published):
    """Draft a tree whose size follows the length of the match. Raises ArmError where it cannot be built."""

    def __init__(self, width: int | None, statistics: Sequence[SortedTexts] = ()) -> None:
        self._most = (width or WIDTH) - 1
        folder = str(arctic_folder())
        if folder not in sys.path:
            sys.path.append(folder)
        module: Any = importlib.import_module("arctic_inference.suffix_decoding")
        self._cache = module.SuffixDecodingCache(max_tree_depth=DEPTH)
        self._numbers = count()
        self._learned: list[int] = []
        self._now: int | None = None
        for texts in statistics:
            for text in np.split(texts.tokens, np.flatnonzero(texts.tokens == BREAK) + 1):
                self._add(text[text != BREAK])

    def begin(self, prompt: Sequence[int]) -> None:
        self._end()
        self._now = next(self._numbers)
        self._cache.start_request(self._now, np.array(prompt, np.int32))
        self._tail = list(prompt[-DEPTH:])

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        self._cache.add_active_response(self._now, np.array(tokens, np.int32))
        self._tail = [*self._tail, *tokens][-DEPTH:]

    def propose(self, limit: int | None = None) -> DraftTree:
        most = self._most if limit is None else min(self._most, limit)
        if most <= 0:
            return DraftTree()
        draft = self._cache.speculate(
            self._now,
            np.array(self._tail, np.int32),
            max_spec_tokens=most,
            max_spec_factor=FACTOR,
            min_token_prob=LEAST,
            use_tree_spec=True,
        )
        size = len(draft.token_ids)
        return DraftTree(tuple(draft.token_ids), tuple(draft.parents), ("suffix",) * size, tuple(draft.probs))

    def learn(self, reply: Sequence[int]) -> None:
        self._end()
        self._learned.append(self._add(np.array(reply, np.int32)))

    def forget(self) -> None:
        self._end()
        for number in self._learned:
            self._cache.evict_cached_response(number)
        self._learned = []

    def _add(self, text: NDArray[np.int32]) -> int:
        """Add a text of its own to the cache of earlier replies."""
        number = next(self._numbers)
        self._cache.start_request(number, np.zeros(0, np.int32))
        self._cache.add_active_response(number, np.ascontiguousarray(text, np.int32))
        self._cache.stop_request(number)
        return number

    def _end(self) -> None:
        """Remove the reply that was being written; `learn` gets it whole."""
        if self._now is not None:
            self._cache.stop_request(self._now)
            self._cache.evict_cached_response(self._now)
        self._now = None
