"""`hierchat learn`: writes at once what the page writes while nobody needs the machine. Returns the exit code."""

from __future__ import annotations

import argparse
import sys
import time
from threading import Event

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from hierchat.cli.chat import stopped_by_signals
from hierchat.cli.talk import TerminalError
from hierchat.config import database_file
from hierchat.store import LOCAL_USER, Store

FULL = "It has written as much for itself as is allowed. Allow more in Settings of the page, or delete what there is."
LINE_SECONDS = 60.0
"""Between two lines where there is no terminal."""


def run(args: argparse.Namespace) -> int:
    """Write for so many minutes, or until it is stopped."""
    # These take seconds to import: only when they are needed
    from hierchat.chat.idle_writer import Writer
    from hierchat.chat.prompts import waiting_scripts
    from hierchat.models.catalogue import read_catalogue
    from hierchat.models.terminal import terminal_progress
    from hierchat.runtime.load import load_hosted
    from hierchat.runtime.slot import PLACES

    entry = read_catalogue().entry(args.model)
    with Store.open(database_file(args.db)) as store:
        user = _user(store, args.user)
        with terminal_progress() as report:
            hosted = load_hosted(entry, args.backend, report, places=PLACES, costs=store.learned)
        room = (
            store.users.idle_generation(user).most_tokens
            - store.generated.size(user, hosted.model_key).tokens
        )
        stop = Event()
        with stopped_by_signals(stop):
            writer = Writer(store, hosted, user, entry.sampling, stop)
            began = time.monotonic()
            with _Told(args.minutes * 60) as told:

                def goes_on() -> bool:
                    seconds = time.monotonic() - began
                    told.tell(writer.tokens, writer.replies, seconds)
                    return seconds < args.minutes * 60 and writer.tokens < room

                if room <= 0:
                    raise TerminalError(FULL)
                writer.write(waiting_scripts(store, user, hosted.model_key), goes_on)
            seconds = time.monotonic() - began
            writer.keep()
        size = store.generated.size(user, hosted.model_key)
        print(
            f"{hosted.name} wrote {writer.tokens:,} tokens in {seconds / 60:.1f} minutes, "
            f"{_rate(writer.tokens, seconds)} tokens a minute, {writer.streams} replies at a time.\n"
            f"There are {size.tokens:,} tokens of it now, {size.size / 1e6:.1f} MB. They draft from the next reply on; "
            "Settings of the page, or `hierchat forget`, deletes them."
        )
    return 0


def _user(store: Store, name: str | None) -> int:
    """Only users who are there: a name that was mistyped would write for nobody. Raises TerminalError."""
    if name is None or name == LOCAL_USER:
        user = store.users.ensure(LOCAL_USER)
    elif (found := store.users.ids().get(name)) is not None:
        user = found
    elif store.accounts.find(name) is not None:
        user = store.users.ensure(name)
    else:
        raise TerminalError(f"There is no user {name!r}. `hierchat users list` names the accounts.")
    if store.users.drafts_from(user) != "all":
        raise TerminalError(
            "Earlier texts may not make replies faster: that was chosen in Settings. Allow it there first; nothing "
            "would come of what is written."
        )
    return user


class _Told:
    """A bar on a terminal, a line a minute elsewhere."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = 0.0
        console = Console(stderr=True)
        self._lines = not console.is_terminal
        columns = (BarColumn(bar_width=30), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, transient=True, disable=self._lines)

    def __enter__(self) -> _Told:
        self._bar.start()
        self._task = self._bar.add_task("", total=self._seconds)
        return self

    def __exit__(self, *ended: object) -> None:
        self._bar.stop()

    def tell(self, tokens: int, replies: int, seconds: float) -> None:
        """How far it is."""
        if seconds - self._last < (LINE_SECONDS if self._lines else 0.5):
            return
        self._last = seconds
        said = f"{tokens:,} tokens, {replies:,} replies, {_rate(tokens, seconds)} tokens a minute"
        self._bar.update(self._task, completed=seconds, description=said)
        if self._lines:
            print(said, file=sys.stderr, flush=True)


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / max(seconds, 1e-3) * 60:,.0f}"
