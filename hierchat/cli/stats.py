"""Define `hierchat stats`: how drafting has fared from day to day."""

import sys
from collections.abc import Mapping
from datetime import date

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from hierchat.chat.wording import in_order
from hierchat.cli.options import Command, table, with_existing_store
from hierchat.drafting.acceptance import Acceptance
from hierchat.language import plural
from hierchat.runtime.served_model import counted
from hierchat.store import Store
from hierchat.store.records import DraftingFigures

FILE_WIDTH = 140
"""Columns where the output is no terminal."""
TENTHS = 10
COLUMNS = ("day", "replies", "tokens", "T", "speed-up", "draft ms", "proposed", "accepted")
CALIBRATION = "Likely candidates by the chance that they were given, and how many of them were right."
CAPTION = "Each source's share of the tokens, and how many of its drafts were accepted."


@click.command("stats", cls=Command)
@click.option("--days", type=int, default=30, metavar="N", help="today and the days before it")
@with_existing_store
def stats_command(store: Store, days: int) -> None:
    """Print tables by day for each user of the database who has measured replies. Raises StoreError."""
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    users = store.users.ids()
    measured = {name: store.figures.over_time(user, days=days).days for name, user in users.items()}
    for name, figures in measured.items():
        if not figures:
            continue
        if len(users) > 1:
            console.print(name, markup=False, highlight=False)
        console.print(table(COLUMNS, (_day(day, one) for day, one in figures.items()), COLUMNS[1:]))
        if any(one.sources for one in figures.values()):
            console.print()
            console.print(_sources(figures))
        learned = counted(store, users[name])
        if learned.curve.any():
            console.print()
            console.print(_calibration(learned))
    if not any(measured.values()):
        none = plural(
            "No reply was measured in the last day.", "No reply was measured in the last {n} days.", days
        )
        console.print(none)


def _day(day: date, one: DraftingFigures) -> list[str]:
    return [
        day.isoformat(),
        f"{one.replies:,}",
        f"{one.tokens:,}",
        "-" if one.tokens_per_forward is None else f"{one.tokens_per_forward:.2f}",
        "-" if one.speedup is None else f"{one.speedup:.2f}x",
        "-" if one.draft_ms is None else f"{one.draft_ms:.2f}",
        f"{one.proposed:,}",
        _percent(one.accepted, one.proposed),
    ]


def _sources(figures: Mapping[date, DraftingFigures]) -> Table:
    sources = in_order(name for one in figures.values() for name in one.sources)
    rows = ([day.isoformat(), *(_of_source(one, name) for name in sources)] for day, one in figures.items())
    return table(("day", *sources), rows, sources, CAPTION)


def _calibration(learned: Acceptance) -> Table:
    sources, rows = learned.calibration(), []
    for low in np.arange(0, 1, 1 / TENTHS):
        cells = []
        for bins in sources.values():
            within = [one for one in bins if low <= one[0] < low + 1 / TENTHS]
            number = sum(one[2] for one in within)
            right = sum(one[1] * one[2] for one in within)
            cells.append(f"{right / number:.0%} of {number:,}" if number else "-")
        rows.append([f"{low:.0%} to {low + 1 / TENTHS:.0%}", *cells])
    columns = ("chance", *sources)
    return table(columns, rows, columns, CALIBRATION)


def _of_source(day: DraftingFigures, name: str) -> str:
    if name not in day.sources:
        return "-"
    count = day.sources[name]
    return f"{_percent(count.accepted, day.tokens)}, {_percent(count.accepted, count.proposed)}"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
