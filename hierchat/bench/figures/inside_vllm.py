"""The figures of `bench vllm` as tables, one for each number of requests at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hierchat.bench.figures.table import number

Figures = Mapping[str, Any]
Rows = list[list[str]]
_COLUMNS = (
    *("tok/s", "speed-up", "prompts aside: tok/s", "speed-up"),
    *("T", "drafts a forward", "draft ms", "tokens", "differ"),
)


def tables(run: Figures) -> Iterator[tuple[Sequence[str], Rows]]:
    """Of each table the head and rows of cells."""
    for one in run["together"]:
        arms = {**one["arms"], **{f"{name}, again": arm for name, arm in one["again"].items()}}
        yield (
            (f"{one['together']} at once", *_COLUMNS),
            [[name, *_cells(arm)] for name, arm in arms.items()],
        )


def _cells(arm: Figures) -> Iterator[str]:
    for figures in (arm, arm["without_prompts"]):
        yield number(figures["tokens_per_second"], 1)
        yield number(figures["speedup"], 2)
    yield number(arm["tokens_per_forward"], 2)
    yield number(arm["drafts_per_forward"], 2)
    yield number(arm["draft_ms_per_forward"], 2)
    yield f"{arm['tokens']:,}"
    yield f"{arm['differing']:,}"
