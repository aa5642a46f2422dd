"""The figures of `bench forward` as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]
Rows = list[list[str]]


def tables(run: Figures) -> Iterator[tuple[Sequence[str], Rows]]:
    """Of each table the head and rows of cells: forwards, reading a prompt, and what limits a forward."""
    programs = {"hierchat": run, **run.get("peers", {})}
    widths = list(next(iter(run["contexts"].values())))
    yield (
        ("ms of a forward over positions", "context", *widths),
        [
            [name, context, *(f"{by[width]:.1f}" for width in widths)]
            for context in run["contexts"]
            for name, by in ((name, figures["contexts"][context]) for name, figures in programs.items())
        ],
    )
    if "prompt_ms" in run:
        yield (
            ("reading a prompt", "tokens", "ms", "tokens per second"),
            [
                [
                    name,
                    f"{by['prompt_tokens']:,}",
                    f"{by['prompt_ms']:.0f}",
                    f"{by['prompt_tokens_per_second']:.0f}",
                ]
                for name, by in programs.items()
            ],
        )
    if "memory" in run:
        yield from _memory(run["memory"], widths)


def _memory(memory: Figures, widths: Sequence[str]) -> Iterator[tuple[Sequence[str], Rows]]:
    forwards: Mapping[str, Figures] = memory["contexts"]
    yield (
        ("reading memory", "MB", "GB a second", "of what is possible"),
        [
            ["all threads, nothing else", "", f"{memory['gigabytes_per_second']:.1f}", ""],
            *(
                [
                    f"a forward of 1 position, context {context}",
                    f"{found['read_mb']:,.0f}",
                    f"{found['gigabytes_per_second']:.1f}",
                    f"{found['percent']} %",
                ]
                for context, found in forwards.items()
            ),
        ],
    )
    yield (
        ("computed, not measured: ms on (* bound by memory)", "context", *widths),
        [
            [
                f"{one['cores']} cores, {one['gigabytes_per_second']:.0f} GB a second",
                context,
                *(
                    f"{one['ms'][width]:.1f}{'*' if one['bound'][width] == 'memory' else ''}"
                    for width in widths
                ),
            ]
            for context, found in forwards.items()
            for one in found["computed_not_measured"]
        ],
    )
