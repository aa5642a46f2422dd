"""Ask a peer process, one JSON line at a time. programs/main.py is the other side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arms import Answer
from benchmarks.peers.environment import ArmError, Packages, python_with
from benchmarks.peers.ik import IkArm
from hierchat.config import GenerationSettings
from hierchat.engine.local import LocalEngine
from hierchat.models.catalogue import ModelEntry
from hierchat.models.device_memory import best_device, dtype_on
from hierchat.models.fetch.bring import get, get_gguf
from hierchat.runtime.served_model import ServedModel

CLOSE_SECONDS = 2
"""How long a peer may take to notice that nobody asks any more."""


class PeerArm:
    """Answer by a peer process. Raises ArmError when it does not start, dies, or reports an error."""

    def __init__(self, name: str, command: Sequence[str | Path], engine: LocalEngine, threads: int) -> None:
        self.name = name
        self._context = engine.context_length
        self._end_ids = sorted(engine.end_ids)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it lives as long as the process)
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            start_new_session=True,  # Ctrl-C is for us; we end it
        )
        try:
            self.versions: dict[str, str] = self._hear()["versions"]
        except BaseException:
            self.close()
            raise

    def answer(self, prompt: Sequence[int], settings: GenerationSettings) -> Answer:
        heard = self.ask(
            prompt=list(prompt),
            max_new_tokens=min(settings.max_new_tokens, self._context - len(prompt)),
            temperature=settings.temperature,
            seed=settings.seed,
            end_ids=self._end_ids,
        )
        return Answer(
            heard["tokens"],
            heard["seconds"],
            heard["first_seconds"],
            heard.get("forwards"),
            peak_mb=heard.get("peak_mb"),
        )

    def serve(
        self, talks: Sequence[Sequence[Sequence[int]]], settings: GenerationSettings
    ) -> tuple[float, list[list[dict[str, Any]]]]:
        """Answer the prompts [user][question] of users who ask at once: return seconds in all, and of each reply
        "tokens", and the seconds until "first" and "all" of them. Greedy."""
        heard = self.ask(
            do="serve",
            talks=[[list(prompt) for prompt in prompts] for prompts in talks],
            max_new_tokens=settings.max_new_tokens,
            end_ids=self._end_ids,
        )
        return heard["seconds"], heard["served"]

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send one request and return the answer (programs/main.py)."""
        assert self._process.stdin
        with suppress(BrokenPipeError):  # then it has died, and what it left says why
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        try:
            heard = json.loads(line)
        except ValueError:
            heard = {"error": f"said {line.strip()!r}" if line.strip() else self._last_words()}
        if "error" in heard:
            raise ArmError(str(heard["error"]))
        return heard

    def _last_words(self) -> str:
        """Return why the process ended: its exit code, and the last line that it wrote to standard error."""
        self.close()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        return f"ended with code {self._process.returncode}" + (f": {lines[-1]}" if lines else "")

    def learn(self, reply: Sequence[int], lead: Sequence[int]) -> None:
        pass

    def forget(self) -> None:
        pass

    def close(self) -> None:
        if self._process.stdin:
            with suppress(BrokenPipeError):
                self._process.stdin.close()  # it has nothing more to answer, and ends
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# How each peer is started: its environment, its weights, its options.


MAIN = Path(__file__).parent / "programs" / "main.py"
LOOKUP = 10
"""Tokens that transformers drafts from the prompt, as its documentation does."""
LLAMA_LOOKUP = {"lookup": 2, "lookup-10": 10}
"""Tokens that llama-cpp-python drafts from the prompt: what its documentation says of a CPU, and what it drafts by
itself."""
LLAMA_DRAFT = {"draft_tokens": 16, "draft_sure": 0.75}
"""Tokens that a draft model of llama.cpp writes at most, and how sure of each it must be: for long the defaults of
--draft-max and --draft-p-min of llama.cpp's own programs."""
LLAMA_CPP = Packages(
    "llama-cpp-python",
    "0.3.36",
    "import llama_cpp; assert llama_cpp.__version__ == {version!r}",
    # For this processor, and without the part that sees pictures.
    variables={"CMAKE_ARGS": f"-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF {os.environ.get('CMAKE_ARGS', '')}"},
)
FLASHSPEC = Packages(
    "flashspec",
    "0.3.1",
    "import flashspec.engine; assert flashspec.__version__ == {version!r}",
    others=("transformers==5.23.0", "accelerate==1.15.0"),
    first=("torch==2.13.0",),  # the same as ours: by themselves the others would ask for a larger build
)
DEJAVUU = Packages(
    "dejavuu",
    "0.2.0",
    "import dejavuu.decoders.hf, transformers; assert transformers.__version__ == '5.12.1'",
    others=("transformers==5.12.1",),  # newer ones roll their cache back in another way
    first=("torch==2.13.0",),
    python=(3, 13),
)
ENVIRONMENTS = {"flashspec": FLASHSPEC, "dejavuu": DEJAVUU}
"""Of programs over transformers that share no environment with hierchat."""

NO_DRAFT = "no draft model with the same tokens was named (--draft NAME)"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights for a peer: the model of `model`, and a smaller one for those that take a draft model."""

    entry: ModelEntry
    model: ServedModel
    draft: ModelEntry | None = None


def open_peer(name: str, weights: Weights, threads: int, say: Say) -> PeerArm | IkArm:
    """Start a peer on the same weights. Raises ArmError, or a ModelError where weights cannot be had."""
    program, _, method = name.partition("-")
    entry, draft, engine = weights.entry, weights.draft, weights.model.local
    if program == "ik":
        return IkArm(name, method, _gguf(entry), weights.model, threads)
    options: dict[str, Any] = {"threads": threads, "context": engine.context_length}
    if program == "llama.cpp":
        model, own = _on_gguf(entry, method, draft)
        python = python_with(LLAMA_CPP, say)
    else:
        own = _on_torch(program, method, draft)
        python = python_with(ENVIRONMENTS[program], say) if program in ENVIRONMENTS else Path(sys.executable)
        model = get(entry)
    # -P: the folder of main.py is no place to import from
    command: list[str | Path] = [python, "-P", MAIN, program, model, json.dumps(options | own)]
    return PeerArm(name, command, engine, threads)


def _on_gguf(entry: ModelEntry, method: str, draft: ModelEntry | None) -> tuple[Path, dict[str, Any]]:
    """Return the GGUF file and the options of llama.cpp. Raises ArmError."""
    if best_device() != "cpu":
        raise ArmError("llama.cpp is built for the CPU here, and the model runs on a GPU")
    if method != "draft":
        return _gguf(entry), {"lookup": LLAMA_LOOKUP[method]} if method else {}
    if draft is None:
        raise ArmError(NO_DRAFT)
    return _gguf(entry), {"draft": str(_gguf(draft)), **LLAMA_DRAFT}


def _gguf(entry: ModelEntry) -> Path:
    file = get_gguf(entry)
    if file is None:
        raise ArmError(f"{entry.name} does not come from a GGUF file")
    return file


def _on_torch(program: str, method: str, draft: ModelEntry | None) -> dict[str, Any]:
    """Return the options of programs over transformers. Raises ArmError."""
    if method == "assisted" and draft is None:
        raise ArmError(NO_DRAFT)
    device = best_device()
    usual = dtype_on("float32" if device == "cpu" else "auto", device)
    options: dict[str, Any] = {"device": device, "dtype": "bfloat16" if method == "bf16" else usual}
    if method == "pld":
        options["lookup"] = LOOKUP
    if draft and (method == "assisted" or program == "flashspec"):
        options["draft"] = str(get(draft))
    return options
