"""Find plans by `benchmarks simulate` for families of models on GPUs, from sizes and published speeds.

Nothing runs. A forward reads every weight once and computes on every position: the larger of both, plus what starting
the kernels of its layers takes. Acceptances between models are assumed, and varied, since none of these pairs could be
recorded here; what the databases bring was recorded with the default model (docs/benchmarks.md). So the table tells how
the arrangement follows from costs and acceptances, not how fast a machine is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.arms import DATABASES
from hierchat.hierarchy.plan import (
    MOST,
    LevelStack,
    Plan,
    RetrievalLevel,
    TokenAcceptance,
    best_plan,
    by_renewal,
)
from hierchat.hierarchy.planner import likely_run
from hierchat.models.catalogue import Catalogue, read_catalogue

WIDEST = 33
BYTES = 2
"""Of a weight: bfloat16."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Describe a GPU by its data sheet, and how long it takes to start the kernels of one layer."""

    name: str
    bytes_per_ms: float
    flops_per_ms: float
    layer_ms: float


MACHINES = (
    Machine("RTX 4090, CUDA graphs", 1.008e9, 165e9, 0.008),
    Machine("RTX 4090, kernels one by one", 1.008e9, 165e9, 0.05),
    Machine("H200, CUDA graphs", 4.8e9, 990e9, 0.008),
)
COPY = ":4-bit"
"""After the name of a target: its copy in 4 bits, by kernels that read each block once for all positions."""
COPY_BYTES = 0.5625
FAMILIES: dict[tuple[str, ...], dict[tuple[int, int], float]] = {
    ("qwen3-0.6b", "qwen3-1.7b", "qwen3-8b"): {(0, 1): 0.75, (0, 2): 0.65, (1, 2): 0.75},
    ("smollm2-135m", "smollm2-360m", "smollm2-1.7b"): {(0, 1): 0.75, (0, 2): 0.65, (1, 2): 0.75},
    ("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b"): {(0, 1): 0.75, (0, 2): 0.70, (1, 2): 0.80},
    ("qwen3-0.6b", "qwen3-8b:4-bit", "qwen3-8b"): {(0, 1): 0.65, (0, 2): 0.65, (1, 2): 0.92},
    ("smollm2-135m", "smollm2-1.7b:4-bit", "smollm2-1.7b"): {(0, 1): 0.65, (0, 2): 0.65, (1, 2): 0.92},
    ("llama-3.2-1b", "llama-3.1-8b:4-bit", "llama-3.1-8b"): {(0, 1): 0.70, (0, 2): 0.70, (1, 2): 0.92},
}
"""Levels from the smallest up, and the acceptance that is assumed of each pair."""
LAYERS = {
    "qwen3-0.6b": 28,
    "qwen3-1.7b": 28,
    "qwen3-8b": 36,
    "smollm2-135m": 30,
    "smollm2-360m": 32,
    "smollm2-1.7b": 24,
    "llama-3.2-1b": 16,
    "llama-3.2-3b": 28,
    "llama-3.1-8b": 32,
}
SHIFTS = (-0.1, 0.0, 0.1)
"""What is added to all acceptances: pairs that agree less or more than assumed."""
RETRIEVED = ((1.6, 8), (3.03, 24))
"""Tokens per forward that the databases bring over so many positions: what published methods report of larger models,
and what was recorded with the default model on cold questions."""
RETRIEVED_MS = 0.3
"""Of their drafting."""


def forward_ms(name: str, catalogue: Catalogue, machine: Machine) -> list[float]:
    """Compute the milliseconds of forwards of a level over 1, 2, ... positions."""
    model = name.removesuffix(COPY)
    size, layers = catalogue.entry(model).size, LAYERS[model]
    assert size
    parameters = size.parameters
    reading = parameters * (COPY_BYTES if name.endswith(COPY) else BYTES) / machine.bytes_per_ms
    return [
        layers * machine.layer_ms + max(reading, 2 * parameters * width / machine.flops_per_ms)
        for width in range(1, WIDEST + 1)
    ]


def stack(
    costs: Sequence[Sequence[float]],
    pairs: dict[tuple[int, int], float],
    shift: float,
    retrieved: tuple[float, int] | None = None,
) -> LevelStack:
    """Make levels with these costs, acceptances that are shifted towards 0 or 1, and what the databases bring, if they
    are there: tokens per forward over so many positions."""
    count = range(len(costs))
    acceptance = [
        [TokenAcceptance(*[min(max(pairs.get((low, high), 0.0) + shift, 0.02), 0.98)] * 4) for high in count]
        for low in count[:-1]
    ]
    if retrieved is None:
        return LevelStack(costs, acceptance)
    tokens, width = retrieved
    retrieval_levels = [RetrievalLevel(likely_run(tokens), cost[width - 1] + RETRIEVED_MS) for cost in costs]
    return LevelStack(costs, acceptance, retrieval_levels)


def run(out: Path | None) -> int:
    """Print all families on all machines, and how long the search takes; write them into `out`."""
    result = simulate()
    _show(result)
    if out:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def simulate() -> dict[str, Any]:
    """Compute the figures of all families on all machines."""
    catalogue = read_catalogue()
    rows = []
    for names, pairs in FAMILIES.items():
        for machine in MACHINES:
            costs = [forward_ms(name, catalogue, machine) for name in names]
            rows += [_row(names, machine, costs, pairs, shift) for shift in SHIFTS]
    return {"rows": rows, "search_ms": search_ms()}


def search_ms(levels: int = 6) -> float:
    """Time searches over so many levels of random costs, with the databases; return the slowest."""
    rng, slowest = np.random.default_rng(0), 0.0
    best_plan(_random(rng, levels))  # compiled
    for _ in range(50):
        one = _random(rng, levels)
        began = time.perf_counter()
        best_plan(one)
        slowest = max(slowest, (time.perf_counter() - began) * 1e3)
    return slowest


def _random(rng: Any, levels: int) -> LevelStack:
    base = rng.uniform(0.2, 8.0, levels).cumsum()
    costs = [[float(ms * (1 + 0.05 * n)) for n in range(WIDEST)] for ms in base]
    pairs = {(low, high): float(rng.uniform(0.4, 0.95)) for high in range(levels) for low in range(high)}
    return stack(costs, pairs, 0.0, RETRIEVED[0])


def _row(
    names: Sequence[str],
    machine: Machine,
    costs: Sequence[Sequence[float]],
    pairs: dict[tuple[int, int], float],
    shift: float,
) -> dict[str, Any]:
    bare = stack(costs, pairs, shift)
    target = len(names) - 1
    singles = [Plan((level, target), (length,)) for level in range(target) for length in range(1, MOST + 1)]
    single = min(singles, key=lambda plan: by_renewal(bare, plan))
    models = best_plan(bare)
    single_ms = by_renewal(bare, single)
    joined = {}
    for retrieved in RETRIEVED:
        found = best_plan(stack(costs, pairs, shift, retrieved))
        joined[f"{retrieved[0]}"] = {
            "plan": _said(found.plan, names),
            "ms": found.ms,
            "gain": single_ms / found.ms,
        }
    return {
        "levels": names,
        "machine": machine.name,
        "shift": shift,
        "vanilla_ms": costs[-1][0],
        "single": _said(single, names),
        "single_ms": single_ms,
        "stack": _said(models.plan, names),
        "stack_ms": models.ms,
        "stack_gain": single_ms / models.ms,
        "databases": joined,
    }


def _said(plan: Plan, names: Sequence[str]) -> str:
    below = [f"{names[level]}={length}" for level, length in zip(plan.levels, plan.lengths, strict=False)]
    return " + ".join([*([DATABASES] if plan.retrieval else []), *below]) or "nothing"


def _show(result: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    columns = ["levels, machine", "a", "plain ms", "best single draft", "ms", "best stack", "ms", "gain"]
    for tokens, _ in RETRIEVED:
        columns += [f"databases of T {tokens}", "ms", "gain"]
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in result["rows"]:
        cells = [
            f"{' '.join(row['levels'])}, {row['machine']}",
            f"{row['shift']:+.1f}",
            f"{row['vanilla_ms']:.2f}",
        ]
        cells += [row["single"], f"{row['single_ms']:.2f}"]
        cells += [row["stack"], f"{row['stack_ms']:.2f}", f"{row['stack_gain']:.2f}x"]
        for joined in row["databases"].values():
            cells += [joined["plan"], f"{joined['ms']:.2f}", f"{joined['gain']:.2f}x"]
        table.add_row(*cells)
    console = Console(width=300)
    console.print(table)
    console.print(f"Search over 6 levels, the slowest of 50: {result['search_ms']:.1f} ms")
