"""A peer as an arm: a process that is asked one JSON line at a time. programs/main.py is the other side."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hierchat.bench.arms.arm import Answer
from hierchat.bench.errors import ArmError
from hierchat.config import GenerationSettings
from hierchat.engine.local import LocalEngine

CLOSE_SECONDS = 2
"""How long a peer may take to notice that nobody asks any more."""


class PeerArm:
    """A peer process. Raises ArmError when it does not start, dies, or says what went wrong."""

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
        """Replies to the prompts [user][question] of users who ask at once: seconds in all, and of each reply "tokens",
        and the seconds until "first" and "all" of them. Greedy."""
        heard = self.ask(
            do="serve",
            talks=[[list(prompt) for prompt in prompts] for prompts in talks],
            max_new_tokens=settings.max_new_tokens,
            end_ids=self._end_ids,
        )
        return heard["seconds"], heard["served"]

    def ask(self, **request: Any) -> dict[str, Any]:
        """One request, and what the process says to it (programs/main.py)."""
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
        """Why it ended: its exit code, and the last line that it wrote to standard error."""
        self.close()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        return f"ended with code {self._process.returncode}" + (f": {lines[-1]}" if lines else "")

    def learn(self, reply: Sequence[int]) -> None:
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
