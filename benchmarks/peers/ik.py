"""Run ik_llama.cpp as a peer: its own benchmark of speculative decoding, asked one prompt at a time.

HIERCHAT_IK_LLAMA names a folder in which `llama-spec-bench` was built (the program is not installed here, as it has no
package). It reads prompts as JSON lines and prints what it measured itself, so that loading counts in no figure.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.arms import Answer
from benchmarks.peers.environment import ArmError
from hierchat.config import GenerationSettings
from hierchat.runtime.served_model import ServedModel

FOLDER = "HIERCHAT_IK_LLAMA"
PROGRAM = "llama-spec-bench"
SECONDS = 1800
"""How long one reply may take, loading included."""
DRAFTS = {"": (), "suffix": ("--spec-type", "suffix"), "ngram-mod": ("--spec-type", "ngram-mod")}
"""Flags of plain decoding, and of its own ways of drafting without a model, as they are by default."""


class IkArm:
    """Ask ik_llama.cpp in a process for each reply: what it drafts from is the prompt and the reply."""

    def __init__(self, name: str, method: str, model: Path, served: ServedModel, threads: int) -> None:
        """Find the program. Raises ArmError where it was not built, or no folder is named."""
        self.name = name
        self._command = [str(find_program()), "-m", str(model), "-t", str(threads), "-tb", str(threads)]
        self._command += ["-c", str(served.local.context_length), *DRAFTS[method]]
        # An empty prefix: prompts have been through the chat template already
        self._command += ["--in-prefix", "", "--special", "--output-format", "jsonl", "--output-details"]
        self._served = served
        self.versions = {PROGRAM: _version(self._command[0])}

    def answer(self, prompt: Sequence[int], settings: GenerationSettings) -> Answer:
        with tempfile.TemporaryDirectory() as folder:
            prompts = Path(folder) / "prompts.jsonl"
            text = self._served.local.decode(list(prompt))
            prompts.write_text(json.dumps({"id": "1", "prompt": text}) + "\n", encoding="utf-8")
            flags = ["--prompts", prompts, "-n", settings.max_new_tokens, "-s", settings.seed]
            flags += ["--temp", settings.temperature, "--top-k", settings.top_k, "--top-p", settings.top_p]
            found = self._measured([*self._command, *map(str, flags), "--min-p", str(settings.min_p)])
        reply = self._served.prompts.tokenizer(found["output"], add_special_tokens=False, verbose=False)
        timing, generated = found["timing"], found["tokens"]["generated"]
        accepted = found["speculative"]["accepted_tokens"]
        # Of the text as many tokens as were generated: it may be cut up otherwise here
        tokens = list(reply["input_ids"])[:generated]
        tokens += [min(self._served.end_ids, default=0)] * (generated - len(tokens))
        return Answer(tokens, timing["decode_s"], timing["prompt_s"], generated - accepted)

    def _measured(self, command: list[str]) -> dict[str, Any]:
        """Run the program on one prompt, and return its row. Raises ArmError."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ArmError(f"{PROGRAM} gave no answer: {error}") from error
        for line in done.stdout.splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # it also says what it does
                continue
            if isinstance(row, dict) and row.get("row_type") == "attempt":
                if not row["quality"]["ok"]:
                    raise ArmError(f"{PROGRAM}: {row['quality']['error']}")
                return row
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise ArmError(f"{PROGRAM} ended with code {done.returncode}" + "".join(f": {line}" for line in last))

    def learn(self, reply: Sequence[int], lead: Sequence[int]) -> None:
        pass

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass


def find_program() -> Path:
    """Return the path of the built program. Raises ArmError."""
    folder = os.environ.get(FOLDER)
    if not folder:
        raise ArmError(
            f"{FOLDER} has to name a folder with a built {PROGRAM} (github.com/ikawrakow/ik_llama.cpp)"
        )
    for place in (Path(folder), Path(folder) / "bin", Path(folder) / "build" / "bin"):
        if (program := place / PROGRAM).is_file():
            return program
    raise ArmError(f"there is no {PROGRAM} in {folder}")


def _version(program: str) -> str:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ArmError(f"{program} does not run: {error}") from error
    said = (done.stdout + done.stderr).splitlines()
    return next((line.partition(":")[2].strip() for line in said if line.startswith("version:")), "unknown")
