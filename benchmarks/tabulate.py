"""Format the figures of runs as tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

Figures = Mapping[str, Any]
Rows = list[list[str]]


def forward_tables(run: Figures) -> Iterator[tuple[Sequence[str], Rows]]:
    """Yield head and rows of each table: forwards, reading a prompt, and what limits a forward."""
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


def gpu_tables(run: Figures) -> Iterator[tuple[Sequence[str], Rows]]:
    """Yield head and rows of each part of a run on a GPU."""
    for name, part in run["parts"].items():
        rows = part.get("rows", {})
        columns = list(dict.fromkeys(column for figures in rows.values() for column in figures))
        cells = [
            [label, *(_said(figures.get(column, "")) for column in columns)]
            for label, figures in rows.items()
        ]
        yield (name, *columns), cells + ([[part["failed"]]] if "failed" in part else [])


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


# The figures of a run as tables for the terminal.


FILE_WIDTH = 140
"""Columns where the output is no terminal, which would say how many it has."""


def show_tables(
    tables: Iterable[tuple[Sequence[str], list[list[str]]]], console: Console | None = None
) -> None:
    """Print tables of which each is a head and rows of cells."""
    console = console or _console()
    for head, rows in tables:
        table = _table(*head)
        for row in rows:
            table.add_row(*row)
        console.print(table)


def show(result: dict[str, Any], console: Console | None = None) -> None:
    """Print arms, their speed-ups by group, and what could not run."""
    console = console or _console()
    arms = result["arms"]
    if arms:
        console.print(_arms(arms))
        console.print(_groups(arms, "by_group", "group"))
        if any("by_day" in arm for arm in arms):
            console.print(_groups(arms, "by_day", "day"))
    for arm in arms:
        if gains := arm.get("history"):
            console.print(_gains(gains))
    if any(arm.get("plan_ms") for arm in arms):
        console.print(_plans(arms))
    skipped = sum("skipped" in row for row in result["questions"])
    if skipped:
        console.print(f"{skipped} of {len(result['questions'])} questions do not fit the model's context.")
    for arm in result["absent"]:
        console.print(f"absent: {arm['arm']}: {arm['reason']}", markup=False, highlight=False)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else FILE_WIDTH)


def _arms(arms: list[dict[str, Any]]) -> Table:
    table = _table(
        *("arm", "questions", "tokens", "tok/s", "speed-up", "quartiles", "own stack", "T"),
        *("draft ms", "first s", "MB", "differ"),
    )
    for arm in arms:
        quartiles = arm["quartiles"]["speedup"]
        table.add_row(
            arm["arm"],
            f"{arm['questions']:,}",
            f"{arm['tokens']:,}",
            number(arm["tokens_per_second"], 1),
            number(arm["speedup"], 2),
            " ".join(number(quartile, 2) for quartile in quartiles) if quartiles else "-",
            number(arm["stack_speedup"], 2),
            number(arm["tokens_per_forward"], 2),
            number(arm["draft_ms"], 2),
            number(arm["first_token_seconds"], 2),
            number(arm["peak_mb"], 0),
            number(arm["mismatches"], 0),
        )
    return table


def _gains(gains: dict[str, dict[str, Any]]) -> Table:
    """Format what the history brings."""
    table = _table("with the history over without", "questions", "speed", "fewer forwards")
    for name, gain in gains.items():
        ratios = [f"{number(gain[key], 2)}x" for key in ("speed", "forwards")]
        table.add_row(name, f"{gain['questions']:,}", *ratios)
    return table


def _plans(arms: list[dict[str, Any]]) -> Table:
    """Format the pace that was expected of fixed plans beside the measured one."""
    table = _table("plan", "expected ms a token", "measured", "apart")
    for arm in arms:
        if plan := arm.get("plan_ms"):
            expected, measured = plan["expected"], plan["measured"]
            table.add_row(
                arm["arm"], f"{expected:.2f}", f"{measured:.2f}", f"{100 * (expected / measured - 1):+.0f} %"
            )
    return table


def _groups(arms: list[dict[str, Any]], by: str, called: str) -> Table:
    """Format the speed-up of each arm; tokens per second where there is no vanilla, tokens per forward where nothing
    was timed."""
    groups = keys(arms, by)
    table = _table(f"arm, by {called}", *groups)
    for arm in arms:
        cells = []
        for group in groups:
            figures = arm.get(by, {}).get(group, {})
            speedup = figures.get("speedup")
            rate = figures.get("tokens_per_second")
            forward = number(figures.get("tokens_per_forward"), 2)
            cells.append(f"{speedup:.2f}x" if speedup else forward if rate is None else number(rate, 1))
        table.add_row(arm["arm"], *cells)
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", overflow="fold")
    return table


def keys(arms: Sequence[Mapping[str, Any]], by: str) -> list[str]:
    """Return the groups or days of all arms, in their order."""
    return list(dict.fromkeys(key for arm in arms for key in arm.get(by, {})))


def number(value: float | None, digits: int, none: str = "-") -> str:
    """Format a number with so many digits; None as `none`."""
    return none if value is None else f"{value:.{digits}f}"


# The figures of `benchmarks vllm` as tables, one for each number of requests at once.


_COLUMNS = (
    *("tok/s", "speed-up", "prompts aside: tok/s", "speed-up"),
    *("T", "drafts a forward", "draft ms", "tokens", "differ"),
)


def vllm_tables(run: Figures) -> Iterator[tuple[Sequence[str], Rows]]:
    """Yield head and rows of each table of a run over vLLM."""
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
