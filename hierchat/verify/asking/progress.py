"""A bar on standard error that takes nothing from what is measured: it is drawn between measurements only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Tell = Callable[[str, int], None]
"""Takes what comes next, and how many units were done since the last call."""


@contextmanager
def bar(total: int, done: int = 0, console: Console | None = None) -> Iterator[Tell]:
    """`total` units of work, `done` of them before."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns,
        console=console or Console(stderr=True),
        auto_refresh=False,
        speed_estimate_period=3600,  # seconds: questions take long
    ) as drawn:
        task = drawn.add_task("", total=total, completed=done)

        def tell(doing: str, advance: int = 0) -> None:
            drawn.update(task, description=doing, advance=advance, refresh=True)

        yield tell
