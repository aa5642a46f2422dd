"""Time choosing one token: python -m benchmarks.sampler"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from hierchat.config import GenerationSettings
from hierchat.engine.sampling.sampler import Counts, choose

VOCABULARIES = 49_152, 152_064
SPREADS = 1.0, 2.5, 4.0
"""Standard deviations of normal logits: 1 is flatter than any model's, 4 that of the default model's."""
TOKENS = 2_000
"""Of the prompt, and of the reply so far, for the penalties."""
CALLS = 400
BIASES = dict.fromkeys(range(0, 500, 100), 1.5)
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "T 0.8": {"temperature": 0.8},
    "T 0.7, top-p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "T 0.6, top-p 0.95, top-k 20": {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
    "T 1, min-p 0.05": {"temperature": 1.0, "min_p": 0.05},
    "T 0.8, repetition 1.1": {"temperature": 0.8, "repetition_penalty": 1.1},
    "T 0.8, frequency 0.2, presence 0.1": {
        "temperature": 0.8,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.1,
    },
    "T 0.8, bias on 5 tokens": {"temperature": 0.8, "logit_bias": BIASES},
    "greedy, repetition 1.1, bias": {"repetition_penalty": 1.1, "logit_bias": BIASES},
}


def median_ms(vocabulary: int, spread: float, settings: GenerationSettings) -> float:
    """Return the median milliseconds of one choice at many positions, over a few rows of normal logits."""
    random = np.random.default_rng(0)
    rows = random.normal(0, spread, (4, vocabulary)).astype(np.float32)
    prompt, reply = random.integers(0, vocabulary, (2, TOKENS)).tolist()
    counts = Counts(prompt, reply)
    times = []
    for position in range(CALLS):
        began = time.perf_counter()
        choose(rows[position % len(rows)], position, 1, settings, counts)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def main() -> None:
    columns = [(vocabulary, spread) for vocabulary in VOCABULARIES for spread in SPREADS]
    heads = [f"{vocabulary:,}, std {spread:g}" for vocabulary, spread in columns]
    print("| median ms |", " | ".join(heads), "|")
    print("|---" * (len(heads) + 1) + "|")
    for name, kind in SETTINGS.items():
        settings = GenerationSettings(**kind)
        print(f"| {name} |", " | ".join(f"{median_ms(*column, settings):.3f}" for column in columns), "|")


if __name__ == "__main__":
    main()
