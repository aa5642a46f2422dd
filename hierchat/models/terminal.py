"""What commands draw in the terminal: progress, and lists with a line for each thing."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from hierchat.models import progress
from hierchat.models.cache import gigabytes


@contextmanager
def terminal_progress(console: Console | None = None) -> Iterator[progress.Report]:
    """A report that draws one bar per phase, on standard error unless told otherwise."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console or Console(stderr=True)) as drawn:
        tasks: dict[progress.Phase, TaskID] = {}

        def report(now: progress.Progress) -> None:
            said = f"{now.phase} {escape(now.message)}"
            if now.phase not in tasks:
                for earlier in tasks.values():  # a phase begins where the one before it is done
                    drawn.update(earlier, total=1, completed=1)
                tasks[now.phase] = drawn.add_task(said, total=now.total, amount="")
            amount = "" if not now.total else f"{now.done} of {now.total}"
            if now.total and now.phase in ("downloading", "reading"):
                amount = f"{gigabytes(now.done)} of {gigabytes(now.total)}"
            drawn.update(
                tasks[now.phase], description=said, total=now.total, completed=now.done, amount=amount
            )

        yield report
        for task in tasks.values():
            drawn.update(task, total=1, completed=1)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a line for each row, never broken. A terminal gets aligned columns, as many as have room, the first ones
    first, and the names of those that have none; a pipe or file gets all cells, with tabs between them. `right`:
    columns of numbers."""
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(row))
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    room, shown = shutil.get_terminal_size().columns, len(columns)
    while shown > 1 and sum(widths[:shown]) + 2 * (shown - 1) > room:
        shown -= 1
    for row in (columns, *rows):
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, cell, width in zip(columns[:shown], row, widths, strict=False)
        ]
        print("  ".join(cells).rstrip())
    if left_out := ", ".join(columns[shown:]):
        print(f"A wider window, or a file, also gets: {left_out}.")
