"""What commands have in common: how each is run, flags that several take, and kinds of values."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, get_args

import click

from hierchat.config import MOST_TOKENS, database_file, require_folders
from hierchat.models.catalogue import Backend

_HOTTEST = 10.0
_MOST_SEED = 2**63 - 1


class CommandError(Exception):
    """A command cannot do what its flags say; the text is for the user."""


class Command(click.Command):
    """Runs a command once its arguments are understood and its folders can be used."""

    def invoke(self, ctx: click.Context) -> Any:
        require_folders()
        return super().invoke(ctx)


class Group(click.Group):
    """Holds the commands of one word, such as `models list` and `models get`."""

    command_class = Command

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **{"no_args_is_help": False, **more})


# Flags that several commands take


database_option = click.option("--db", type=click.Path(path_type=Path), metavar="FILE", help="the database")
backend_option = click.option(
    "--backend", type=click.Choice(get_args(Backend)), help="what computes it (default: the fastest here)"
)
model_option = click.option(
    "--model", metavar="MODEL", help="a name from `models list` (its default), a folder, or a GGUF file"
)


def with_store(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Give a command the flag `--db`, and as its first argument the store of that database, open while it runs."""

    @database_option
    @wraps(command)
    def opened(db: Path | None, **arguments: Any) -> int | None:
        from hierchat.store import Store

        with Store.open(database_file(db)) as store:
            return command(store, **arguments)

    return opened


def catalogue_name(model: str | None) -> str | None:
    """Return the name that a model has in the catalogue, which a folder or a GGUF file joins with it.

    Raises ModelError.
    """
    if not model:
        return None
    from hierchat.models.catalogue import read_catalogue
    from hierchat.models.load.add import chosen

    return chosen(model, read_catalogue())


# Kinds of values. Each raises click.BadParameter with a sentence


def temperature(text: str) -> float:
    """Parse a temperature."""
    value = _number(text)
    if not 0 <= value <= _HOTTEST:
        raise click.BadParameter(f"A temperature is a number from 0 to {_HOTTEST:g}, not {text!r}.")
    return value


def minutes(text: str) -> float:
    """Parse a number of minutes."""
    value = _number(text)
    if value <= 0:
        raise click.BadParameter(f"Minutes are a number above 0, not {text!r}.")
    return value


def _number(text: str) -> float:
    """Parse a finite number; -1 stands for anything else, which no flag takes."""
    try:
        value = float(text)
    except ValueError:
        return -1.0
    return value if math.isfinite(value) else -1.0


def seed(text: str) -> int:
    """Parse a seed."""
    return _whole(text, "A seed", 0, _MOST_SEED)


def max_tokens(text: str) -> int:
    """Parse how long a reply may be."""
    return _whole(text, "The longest reply, in tokens,", 1, MOST_TOKENS)


def _whole(text: str, what: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 20 or not least <= int(text) <= most:
        raise click.BadParameter(f"{what} is a whole number from {least} to {most:,}, not {text!r}.")
    return int(text)


def port(text: str) -> int:
    """Parse a port."""
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise click.BadParameter(f"{text} is no port; give a number from 1 to 65535")
    return int(text)


def limit(text: str) -> int:
    """Parse a limit of a key."""
    if not text.isdecimal() or int(text) < 1:
        raise click.BadParameter(f"{text} is no limit; give a number from 1 up")
    return int(text)


def positive(text: str) -> int:
    """Parse a number from 1 up."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise click.BadParameter(f"{text} is not 1 or more")
    return number


def numbers(text: str) -> list[int]:
    """Parse numbers from 1 up that commas separate."""
    return [positive(part) for part in text.split(",")]
