"""`hierchat stats`: how drafting has fared from day to day."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from hierchat.chat.wording import in_order
from hierchat.cli.options import Command
from hierchat.config import database_file
from hierchat.drafting.acceptance import Acceptance
from hierchat.runtime.served_model import counted
from hierchat.store import DraftingFigures, Store, StoreError

FILE_WIDTH = 140
"""Columns where the output is no terminal."""
TENTHS = 10
CALIBRATION = "Likely candidates by the chance that they were given, and how many of them were right."
CAPTION = "Each source's share of the tokens, and how many of its drafts were accepted."


@click.command("stats", cls=Command)
@click.option("--db", type=click.Path(path_type=Path), metavar="FILE", help="the database file")
@click.option("--days", type=int, default=30, metavar="N", help="today and the days before it")
def stats_command(db: Path | None, days: int) -> None:
    """Print tables by day for each user of the database who has measured replies. Raises StoreError."""
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    path = db or database_file()
    if not path.exists():
        raise StoreError(f"There is no {path}. Name the database with --db.")
    with Store.open(path) as store:
        users = {
            name: store.figures.over_time(user, days=days).days for name, user in store.users.ids().items()
        }
        learned = {name: counted(store, user) for name, user in store.users.ids().items()}
    measured = {name: figures for name, figures in users.items() if figures}
    for name, figures in measured.items():
        if len(users) > 1:
            console.print(name, markup=False, highlight=False)
        console.print(table(figures))
        if any(one.sources for one in figures.values()):
            console.print()
            console.print(sources_table(figures))
        if learned[name].curve.any():
            console.print()
            console.print(calibration_table(learned[name]))
    if not measured:
        console.print(f"No reply was measured in the last {days} days.")


def table(figures: Mapping[date, DraftingFigures]) -> Table:
    """Draw a row for each day."""
    made = Table(box=None, pad_edge=False)
    made.add_column("day", no_wrap=True)
    for column in ("replies", "tokens", "T", "speed-up", "draft ms", "proposed", "accepted"):
        made.add_column(column, justify="right")
    for day, one in figures.items():
        made.add_row(
            day.isoformat(),
            f"{one.replies:,}",
            f"{one.tokens:,}",
            "-" if one.tokens_per_forward is None else f"{one.tokens_per_forward:.2f}",
            "-" if one.speedup is None else f"{one.speedup:.2f}x",
            "-" if one.draft_ms is None else f"{one.draft_ms:.2f}",
            f"{one.proposed:,}",
            _percent(one.accepted, one.proposed),
        )
    return made


def sources_table(figures: Mapping[date, DraftingFigures]) -> Table:
    """Draw a row for each day, a column for each source."""
    made = Table(box=None, pad_edge=False, caption=CAPTION, caption_justify="left")
    sources = in_order(name for one in figures.values() for name in one.sources)
    made.add_column("day", no_wrap=True)
    for source in sources:
        made.add_column(source, justify="right")
    for day, one in figures.items():
        made.add_row(day.isoformat(), *(_of_source(one, name) for name in sources))
    return made


def calibration_table(learned: Acceptance) -> Table:
    """Draw how many of the likely candidates were right, by the chance that they were given."""
    made = Table(box=None, pad_edge=False, caption=CALIBRATION, caption_justify="left")
    sources = learned.calibration()
    made.add_column("chance", justify="right", no_wrap=True)
    for source in sources:
        made.add_column(source, justify="right")
    for low in np.arange(0, 1, 1 / TENTHS):
        cells = []
        for bins in sources.values():
            within = [one for one in bins if low <= one[0] < low + 1 / TENTHS]
            number = sum(one[2] for one in within)
            right = sum(one[1] * one[2] for one in within)
            cells.append(f"{right / number:.0%} of {number:,}" if number else "-")
        made.add_row(f"{low:.0%} to {low + 1 / TENTHS:.0%}", *cells)
    return made


def _of_source(day: DraftingFigures, name: str) -> str:
    if name not in day.sources:
        return "-"
    count = day.sources[name]
    return f"{_percent(count.accepted, day.tokens)}, {_percent(count.accepted, count.proposed)}"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
