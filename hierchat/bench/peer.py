"""Another program's decoding, in a process of its own: python -P peer.py transformers|llama.cpp MODEL OPTIONS.

Runs without hierchat, in whatever environment holds the peer. OPTIONS is JSON: threads, context, and for transformers
device and dtype. Says {"versions": {...}} when it is ready, then answers one line per line read:
{"prompt", "max_new_tokens", "temperature", "seed", "end_ids"} -> {"tokens", "seconds", "first_seconds"}, where
`seconds` is decoding from the prompt's last token on and `first_seconds` all until the first token; or {"error"}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any


class Transformers:
    """model.generate with a cache that stays from turn to turn. MODEL is a folder."""

    packages = ("transformers", "torch")

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import torch
        from transformers import AutoModelForCausalLM, DynamicCache

        torch.set_num_threads(options["threads"])
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, options["dtype"]), local_files_only=True
        ).to(options["device"])
        self.model.eval()
        self.cache = DynamicCache(config=self.model.config)
        self.held: list[int] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        from transformers import GenerationConfig

        torch, prompt = self.torch, request["prompt"]
        ids = torch.tensor([prompt], device=self.model.device)
        sampled = request["temperature"] > 0
        config = GenerationConfig(
            max_new_tokens=request["max_new_tokens"],
            eos_token_id=request["end_ids"],
            pad_token_id=request["end_ids"][0] if request["end_ids"] else None,
            do_sample=sampled,
            **({"temperature": request["temperature"], "top_k": 0, "top_p": 1.0} if sampled else {}),
        )
        torch.manual_seed(request["seed"])
        clock = _Clock()
        with torch.inference_mode():
            common = _common(self.held, prompt[:-1])
            if len(self.held) > common:
                self.cache.crop(common - len(self.held))
            if common < len(prompt) - 1:
                self.model(ids[:, common:-1], past_key_values=self.cache, logits_to_keep=1)
            clock.read()
            out = self.model.generate(
                ids, past_key_values=self.cache, generation_config=config, streamer=clock
            )
        clock.end()
        tokens = out[0, len(prompt) :].tolist()
        self.held = (prompt + tokens)[: self.cache.get_seq_length()]
        return clock.answer(tokens)


class LlamaCpp:
    """llama.cpp through llama-cpp-python; its slots stay from turn to turn. MODEL is a GGUF file."""

    packages = ("llama-cpp-python",)

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from llama_cpp import Llama  # type: ignore[import-not-found]

        threads = options["threads"]
        self.llama = Llama(
            model, n_ctx=options["context"], n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        llama, prompt = self.llama, request["prompt"]
        llama.set_seed(request["seed"])
        clock = _Clock()
        llama.n_tokens = _common(llama.input_ids[: llama.n_tokens].tolist(), prompt[:-1])
        if llama.n_tokens < len(prompt) - 1:
            llama.eval(prompt[llama.n_tokens : -1])
        clock.read()
        tokens: list[int] = []
        for token in llama.generate(prompt, temp=request["temperature"], top_k=0, top_p=1.0, min_p=0.0):
            clock.put(token)
            tokens.append(int(token))
            if token in request["end_ids"] or len(tokens) >= request["max_new_tokens"]:
                break
        clock.end()
        return clock.answer(tokens)


class _Clock:
    """When the prompt was read, when the first token came, when the last; a streamer to transformers."""

    def __init__(self) -> None:
        self.marks = [time.perf_counter()]
        self.first: float | None = None

    def read(self) -> None:
        self.marks.append(time.perf_counter())

    def put(self, value: Any) -> None:
        # transformers streams the prompt first, [1, length], then tokens, [1]
        if self.first is None and getattr(value, "ndim", 1) == 1:
            self.first = time.perf_counter()

    def end(self) -> None:
        if len(self.marks) < 3:  # transformers says so, too
            self.marks.append(time.perf_counter())

    def answer(self, tokens: list[int]) -> dict[str, Any]:
        began, read, ended = self.marks
        return {"tokens": tokens, "seconds": ended - read, "first_seconds": (self.first or ended) - began}


def _common(held: list[int], prompt: list[int]) -> int:
    """How many tokens at the beginning need not be read again."""
    for at, (one, other) in enumerate(zip(held, prompt, strict=False)):
        if one != other:
            return at
    return min(len(held), len(prompt))


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes beside the answers, not between them
    kind, model, options = sys.argv[1:]
    kinds: dict[str, Any] = {"transformers": Transformers, "llama.cpp": LlamaCpp}
    peer = kinds[kind](model, json.loads(options))
    print(json.dumps({"versions": {name: version(name) for name in peer.packages}}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            said = peer.answer(json.loads(line))
        except Exception as error:  # the other side lists it as the reason why this arm is absent
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main()
