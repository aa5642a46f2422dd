"""The figures of docs/models.md: `python -m tests.models.figures OUT.jsonl [NAME...] [--replies N]`.

Each family, tiny and random, writes N replies of 200 tokens greedy and as many sampled (10 unless said otherwise):
plainly, then with random, adversarial and own drafts. What differs from plain decoding counts as a mismatch; greedy
tokens are compared with the choices of transformers in float32 over the same text. A line of OUT per family; what
stands there is not done again. At the end the table.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.source import Source
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.local import LocalEngine
from hierchat.engine.torch.torch_runner import TorchRunner
from hierchat.models.formats.blocks import pack
from tests.engine.drafters import Adversary, Noise
from tests.testing.architectures import CONFIGS, FAMILIES, model_of
from tests.testing.families import KINDS, VARIANTS, tiny_family
from tests.testing.tiny import block_model, fresh_steps, random_tokens, text_of, tokens_of

REPLIES, LENGTH, PROMPT, CONTEXT = 10, 200, 30, 240
SLOTS = (
    "gemma3n_text", "gemma4_text", "gpt_oss", "llama4_text", "cohere2", "starcoder2", "gpt2", "lfm2",
    "qwen3_5_text", "granitemoehybrid", "nemotron_h", "bamba", "olmo_hybrid",
    "qwen2_moe", "olmoe", "granitemoe", "glm4_moe", "deepseek_v3", "lfm2_moe", "qwen3_next", "qwen3_5_moe_text",
    *VARIANTS,
)  # fmt: skip
"""Kinds that transformers' modules compute over our slots: windows, sinks, shared keys, running states, experts."""
OWN = (*FAMILIES, "llama 3", "mistral, window", "qwen2, biases", "qwen3, norms", "gemma3")
NAMES = (*OWN, *SLOTS)


def opened(name: str) -> tuple[str, Any, Any]:
    """The step that computes it, a sequence, and the module of transformers with the same weights."""
    if name not in CONFIGS:
        module = tiny_family(name)
        # The runner's own: it hangs attention of ours into it.
        runner = TorchRunner(copy.deepcopy(module), context_length=CONTEXT)
        return "transformers, with drafts", runner.open(), module
    module = model_of(CONFIGS[name])
    for parameter in module.parameters():
        if parameter.ndim >= 2:
            rows = parameter.reshape(-1, parameter.shape[-1])
            parameter.copy_(torch.from_numpy(pack(rows.numpy(), 8).floats()).reshape(parameter.shape))
    blocks = block_model(module, lambda floats: pack(floats, 8))
    return "own kernels", CpuRunner(blocks, context_length=CONTEXT, threads=1).open(), module


def drafters(reply: list[int]) -> Iterator[tuple[str, Drafter]]:
    yield "random", Noise(nodes=8)
    yield "adversarial", Adversary(reply, nodes=8)
    yield "own", Drafter([Source.of([reply[: LENGTH // 2], reply[LENGTH // 4 :]])])


def agreement(module: Any, prompt: list[int], reply: list[int]) -> int:
    """How many greedy tokens are what transformers chooses behind the same text."""
    with torch.inference_mode():
        logits = module(torch.tensor([[*prompt, *reply]]), use_cache=False).logits[0].float().numpy()
    return int((logits[len(prompt) - 1 : -1].argmax(1) == np.array(reply)).sum())


def figures(name: str, replies: int = REPLIES) -> dict[str, Any]:
    """One line of the table."""
    step, sequence, module = opened(name)
    engine = LocalEngine(sequence, (), text_of)
    found: dict[str, Any] = {"family": name, "step": step, "exact": bool(sequence.exact), "tokens": 0}
    mismatches, agreed = dict.fromkeys(("random", "adversarial", "own"), 0), 0
    for temperature in (0.0, 0.8):
        for seed in range(replies):
            prompt = random_tokens(PROMPT, seed, vocabulary=90)
            wanted = GenerationSettings(temperature=temperature, max_new_tokens=LENGTH, seed=seed)
            plain = tokens_of(fresh_steps(engine, prompt, wanted))
            found["tokens"] += len(plain)
            if not temperature:
                agreed += agreement(module, prompt, plain)
            for kind, drafter in drafters(plain):
                other = tokens_of(fresh_steps(engine, prompt, wanted, drafter))
                mismatches[kind] += sum(one != two for one, two in zip(plain, other, strict=True))
    return found | {"mismatches": mismatches, "agreement": agreed / (replies * LENGTH)}


def table(lines: list[dict[str, Any]]) -> str:
    rows = ["| family | step | tokens | mismatches | agreement |", "|---|---|---|---|---|"]
    for one in lines:
        wrong, agreed = sum(one["mismatches"].values()), f"{100 * one['agreement']:.2f} %"
        rows.append(f"| {one['family']} | {one['step']} | {one['tokens']:,} | {wrong} | {agreed} |")
    return "\n".join(rows)


def main(out: Path, names: list[str], replies: int, say: Callable[[str], None] = print) -> None:
    """Goes on where it was left."""
    torch.set_num_threads(1)
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    for name in names or NAMES:
        assert name in CONFIGS or name in KINDS or name in VARIANTS, f"There is no family {name}."
        if name not in {one["family"] for one in lines}:
            lines.append(figures(name, replies))
            with out.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
    say(table(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--replies", type=int, default=REPLIES)
    said = parser.parse_args()
    main(said.out, said.names, said.replies)
