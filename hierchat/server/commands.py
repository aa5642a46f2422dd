"""`hierchat keys`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hierchat.config import data_dir
from hierchat.store import Key, Store


def run(args: argparse.Namespace) -> int:
    """One of its actions; the exit code. Raises StoreError."""
    path: Path = (args.db or data_dir() / "hierchat.db").expanduser()
    with Store.open(path) as store:
        if args.action == "add":
            return _add(store, args)
        return _list(store) if args.action == "list" else _remove(store, args.name)


def _add(store: Store, args: argparse.Namespace) -> int:
    key = store.add_key(
        args.name,
        history=args.history,
        at_once=args.at_once,
        per_minute=args.per_minute,
        tokens_per_day=args.tokens_a_day,
    )
    print(key)
    kept = (
        "What it asks and gets is kept, for its own drafts." if args.history else "Nothing it asks is kept."
    )
    Console(stderr=True).print(Text(f"The key of {args.name!r}, shown only now. {kept}"))
    return 0


def _list(store: Store) -> int:
    table = Table(box=None, pad_edge=False)
    for column in ("name", "made", "last used", "tokens today", "limits", "history"):
        table.add_column(column)
    for key in store.all_keys():
        cells = [key.name, _date(key.created_at), _date(key.used_at), f"{key.today:,}", _limits(key)]
        table.add_row(*map(Text, [*cells, "kept" if key.user_id else "none"]))
    Console().print(table if table.row_count else "No keys yet. `hierchat keys add NAME` makes one.")
    return 0


def _remove(store: Store, name: str) -> int:
    key = store.remove_key(name)
    if key.user_id is not None and not store.forget_user(key.user_id):
        print("Its history is deleted; another program keeps bytes of it in the file until it closes.")
    print(f"The key {name!r} opens nothing any more.")
    return 0


def _date(at: float | None) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at)) if at else "never"


def _limits(key: Key) -> str:
    limits = (
        (key.at_once, "at once"),
        (key.per_minute, "a minute"),
        (key.tokens_per_day, "tokens a day"),
    )
    return ", ".join(f"{most:,} {what}" for most, what in limits if most is not None) or "none"
