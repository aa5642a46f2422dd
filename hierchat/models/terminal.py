"""Progress drawn in the terminal."""

from collections.abc import Iterator
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
