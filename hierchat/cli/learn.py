"""Define `hierchat learn`: the model answers likely questions ahead of time, so that its words can draft."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from hierchat.cli import options
from hierchat.language import _, number
from hierchat.models.catalogue import Backend
from hierchat.shutdown import stopped_by_signals

if TYPE_CHECKING:
    from hierchat.store import Store

FULL = "It has written as much for itself as is allowed. Allow more in Settings of the page, or delete what there is."
LINE_SECONDS = 60.0
"""Between two lines where there is no terminal."""


@click.command(
    "learn",
    cls=options.Command,
    help="The model answers questions like yours, and prompts that come with hierchat. What it writes drafts your "
    "later replies; it stands in no chat. Ctrl-C stops it; the same command goes on.",
)
@click.option("--minutes", type=options.minutes, default="10", metavar="N", help="how long (10)")
@options.model_option
@click.option("--user", metavar="NAME", help="for whom: local (the default), or an account's name")
@options.backend_option
@options.with_store
def learn_command(
    store: "Store", minutes: float, model: str | None, user: str | None, backend: Backend | None
) -> None:
    # These take seconds to import: only when they are needed
    from hierchat.chat.idle_generation import Writer
    from hierchat.chat.prompts import waiting_scripts
    from hierchat.chat.wording import tokens
    from hierchat.models.catalogue import read_catalogue
    from hierchat.models.load.load_model import makers_sampling
    from hierchat.models.progress import terminal_progress
    from hierchat.runtime.loading import LoadOptions, load_served_model
    from hierchat.runtime.model_slot import PLACES

    entry = read_catalogue().entry(options.catalogue_name(model))
    owner = _user(store, user)
    with terminal_progress() as report:
        served = load_served_model(entry, LoadOptions(backend, places=PLACES, costs=store.learned), report)
    room = store.users.idle_settings(owner).most_tokens - store.generated.size(owner, served.model_key).tokens
    if room <= 0:
        raise options.CommandError(FULL)
    stop = Event()
    with stopped_by_signals(stop):
        writer = Writer(store, served, owner, makers_sampling(entry), stop)
        began = time.monotonic()
        with _progress(minutes * 60) as show:

            def goes_on() -> bool:
                seconds = time.monotonic() - began
                show(writer.tokens, writer.replies, seconds)
                return seconds < minutes * 60 and writer.tokens < room

            writer.write(waiting_scripts(store, owner, served.model_key), goes_on)
        seconds = time.monotonic() - began
        writer.keep()
    size = store.generated.size(owner, served.model_key)
    wrote = _(
        "{name} wrote {tokens} in {minutes} minutes: {rate} tokens a minute, replies at a time: {streams}."
    ).format(
        name=served.name, tokens=tokens(writer.tokens), minutes=number(seconds / 60, ",.1f"),
        rate=_rate(writer.tokens, seconds), streams=writer.streams,
    )  # fmt: skip
    there = _(
        "It has written {tokens} by now, {megabytes} MB. Replies use them from now on; Settings of the page, or "
        "`hierchat forget`, deletes them."
    ).format(tokens=tokens(size.tokens), megabytes=number(size.size / 1e6, ",.1f"))
    print(f"{wrote}\n{there}")


def _user(store: "Store", name: str | None) -> int:
    """Return the id of the user with this name, which may not be mistyped. Raises CommandError if there is none."""
    from hierchat.store import LOCAL_USER

    if name is None or name == LOCAL_USER:
        user = store.users.ensure(LOCAL_USER)
    elif (found := store.users.ids().get(name)) is not None:
        user = found
    elif store.accounts.find(name) is not None:
        user = store.users.ensure(name)
    else:
        raise options.CommandError(f"There is no user {name!r}. `hierchat users list` names the accounts.")
    if store.users.drafts_from(user) != "all":
        raise options.CommandError(
            "Earlier texts may not make replies faster: that was chosen in Settings. Allow it there first; nothing "
            "would come of what is written."
        )
    return user


@contextmanager
def _progress(whole: float) -> Iterator[Callable[[int, int, float], None]]:
    """Show progress over `whole` seconds: as a bar on a terminal, elsewhere by a line each minute."""
    console, last = Console(stderr=True), 0.0
    lines = not console.is_terminal
    columns = (BarColumn(bar_width=30), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=lines) as bar:
        task = bar.add_task("", total=whole)

        def show(tokens: int, replies: int, seconds: float) -> None:
            nonlocal last
            if seconds - last < (LINE_SECONDS if lines else 0.5):
                return
            last = seconds
            line = _("Tokens: {tokens}, replies: {replies}, tokens a minute: {rate}").format(
                tokens=number(tokens, ",d"), replies=number(replies, ",d"), rate=_rate(tokens, seconds)
            )
            bar.update(task, completed=seconds, description=line)
            if lines:
                print(line, file=sys.stderr, flush=True)

        yield show


def _rate(tokens: int, seconds: float) -> str:
    return number(tokens / max(seconds, 1e-3) * 60, ",.0f")
