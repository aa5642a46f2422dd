"""What choosing one token costs: python -m hierchat.bench.sampler"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hierchat.config import GenerationSettings
from hierchat.engine.sampler import Counts, choose

VOCABULARIES = 49_152, 152_064
SPREADS = 1.0, 2.5, 4.0
"""Standard deviations of normal logits: from a model that knows nothing to one that is rather sure."""
TOKENS = 2_000
"""Length of the text so far, for the penalties."""
CALLS = 300
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
    "T 0.8, bias on 5 tokens": {"temperature": 0.8, "logit_bias": dict.fromkeys(range(0, 500, 100), 1.5)},
    "T 0.7, top-p 0.9, min-p 0.05, all penalties, bias": {
        "temperature": 0.7,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.1,
        "logit_bias": dict.fromkeys(range(0, 500, 100), 1.5),
    },
}


def median_ms(vocabulary: int, spread: float, settings: GenerationSettings) -> float:
    """Of one choice each over rows of normal logits, at many positions."""
    random = np.random.default_rng(0)
    rows = random.normal(0, spread, (4, vocabulary)).astype(np.float32)
    counts = Counts(
        random.integers(0, vocabulary, TOKENS).tolist(), random.integers(0, vocabulary, TOKENS).tolist()
    )
    times = []
    for position in range(CALLS):
        began = time.perf_counter()
        choose(rows[position % len(rows)], position, 1, settings, counts)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def main() -> None:
    table = Table("median ms")
    for vocabulary in VOCABULARIES:
        for spread in SPREADS:
            table.add_column(f"{vocabulary:,}, std {spread:g}", justify="right")
    for name, kind in SETTINGS.items():
        settings = GenerationSettings(**kind)
        table.add_row(name, *(f"{median_ms(v, s, settings):.3f}" for v in VOCABULARIES for s in SPREADS))
    Console().print(table)


if __name__ == "__main__":
    main()
