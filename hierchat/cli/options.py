"""Define what commands share: how each is run, flags that several take, and kinds of values."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from hierchat.config import MOST_TOKENS, database_file, require_folders
from hierchat.language import plural
from hierchat.models.cache import gigabytes
from hierchat.models.catalogue import Backend
from hierchat.models.progress import LoadPhase, Progress, Report

if TYPE_CHECKING:
    from rich.table import Table


class CommandError(Exception):
    """Raised when a command cannot do what its flags say; the text is for the user."""


class Command(click.Command):
    """Runs a command after its arguments are parsed and its folders are found usable."""

    def invoke(self, ctx: click.Context) -> Any:
        require_folders()
        return super().invoke(ctx)


class Group(click.Group):
    """Holds the commands of one word, such as `models list` and `models get`."""

    command_class = Command

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **{"no_args_is_help": False, **more})


FILE = click.Path(path_type=Path)
# Flags that several commands take
database_option = click.option("--db", type=FILE, metavar="FILE", help="the database")
backend_option = click.option(
    "--backend", type=click.Choice(get_args(Backend)), help="what computes it (default: the fastest here)"
)
model_option = click.option(
    "--model", metavar="MODEL", help="a name from `models list` (its default), a folder, or a GGUF file"
)


def with_store(command: Callable[..., int | None], *, existing: bool = False) -> Callable[..., int | None]:
    """Give a command the flag `--db`, and the open store as first argument. `existing`: the database must exist."""

    @database_option
    @wraps(command)
    def opened(db: Path | None, **arguments: Any) -> int | None:
        from hierchat.store import Store, StoreError

        path = (db or database_file()).expanduser().absolute() if existing else database_file(db)
        if existing and not path.exists():
            raise StoreError(f"There is no {path}. Name the database with --db.")
        with Store.open(path) as store:
            return command(store, **arguments)

    return opened


with_existing_store = partial(with_store, existing=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[str]) -> "Table":
    """Draw a table without lines. `right`: columns of numbers."""
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False)
    for column in columns:
        justify: Any = "right" if column in right else "left"
        drawn.add_column(column, justify=justify, no_wrap=column == columns[0], overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    return drawn


def chats(count: int) -> str:
    return plural("{n:,} chat", "{n:,} chats", count)


def catalogue_name(model: str | None) -> str | None:
    """Return the catalogue's name of a model; a folder or a GGUF file is added to the catalogue. Raises ModelError."""
    if not model:
        return None
    from hierchat.models.catalogue import read_catalogue
    from hierchat.models.load.add import chosen

    return chosen(model, read_catalogue())


max_tokens = click.IntRange(1, MOST_TOKENS)
positive = click.IntRange(1)
counts = click.IntRange(0)
seeds = click.IntRange(0, 2**63 - 1)
shares = click.FloatRange(0, 1, min_open=True)
temperatures = click.FloatRange(0, 10)


@contextmanager
def terminal_progress() -> Iterator[Report]:
    """Draw a bar for each phase, on standard error."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TextColumn("{task.fields[amount]}"))
    with Bars(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as drawn:
        tasks: dict[LoadPhase, TaskID] = {}

        def report(now: Progress) -> None:
            said = f"{now.phase} {escape(now.message)}"
            if now.phase not in tasks:
                for earlier in tasks.values():  # a phase begins where the one before it is done
                    drawn.update(earlier, total=1, completed=1)
                tasks[now.phase] = drawn.add_task(said, total=now.total, amount="")
            amount = "" if not now.total else f"{now.done} of {now.total}"
            if now.total and now.phase in ("downloading", "reading"):
                amount = f"{gigabytes(now.done)} of {gigabytes(now.total)}"
            task = tasks[now.phase]
            drawn.update(task, description=said, total=now.total, completed=now.done, amount=amount)

        yield report
        for task in tasks.values():
            drawn.update(task, total=1, completed=1)
