"""`hierchat users add | list | remove | passwd`. All return the process's exit code."""

from __future__ import annotations

import argparse
import getpass
import re
import sys
import time
import unicodedata
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hierchat.access.members import AccountError, hashed
from hierchat.config import data_dir
from hierchat.store import LOCAL_USER, Key, Store
from hierchat.store.users import skeleton

_GUEST = "guest"
"""How guests log in, and how the names of their users begin."""
_NAME = re.compile(r"\w[\w.@-]{0,39}")


def run(args: argparse.Namespace) -> int:
    """One of the four. Raises AccountError and StoreError."""
    path = (args.db or data_dir() / "hierchat.db").expanduser().absolute()
    if args.db and not path.parent.is_dir():
        raise AccountError(f"There is no folder {path.parent}. Make it, or name another file with --db.")
    with Store.open(path) as store:
        if args.action == "add":
            return _add(store, args.name, args.owner)
        if args.action == "list":
            return _list(store)
        return _remove(store, args.name) if args.action == "remove" else _passwd(store, args.name)


def _add(store: Store, name: str, owner: bool) -> int:
    name = unicodedata.normalize("NFC", name)
    if not _NAME.fullmatch(name) or skeleton(name).startswith(_GUEST):
        raise AccountError(
            f"{name!r} cannot be a name: take up to 40 letters, digits and . _ - @, not beginning with {_GUEST}."
        )
    if store.accounts.find(name):  # before a password is typed for nothing
        raise AccountError(
            f"There is an account {name!r} already. `hierchat users passwd {name}` changes its password."
        )
    store.accounts.require_free(name)
    account = store.accounts.add(name, hashed(_typed(name)), owner=owner)
    print(f"{account.name} can log in now{', and is the owner' if account.owner else ''}.")
    chats, _ = store.users.counts(store.users.ensure(account.name))
    if chats:
        print(f"Chats of {_whose(account.name)} are there already: {_chats(chats)}. They are this account's.")
    print(
        "A login is asked for with --host, --share or --auth. A hierchat that runs takes the account at once."
    )
    return 0


def _list(store: Store) -> int:
    accounts, users = store.accounts.all(), store.users.ids()
    if not accounts:
        print(
            "There are no accounts: `hierchat users add NAME` makes one. Without any, whoever logs in is a guest."
        )
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("name", "", "since", "chats"):
        table.add_column(column, justify="right" if column == "chats" else "left", no_wrap=True)
    for account in accounts:
        chats = store.users.counts(users[account.name])[0] if account.name in users else 0
        since = time.strftime("%Y-%m-%d", time.localtime(account.created_at))
        table.add_row(account.name, "owner" if account.owner else "", since, f"{chats:,}")
    Console(soft_wrap=True).print(table)
    return 0


def _remove(store: Store, name: str) -> int:
    account = store.accounts.remove(name)
    print(f"{account.name} cannot log in any more, and is logged out within some seconds.")
    user = store.users.ids().get(account.name)
    if user is not None and (chats := store.users.counts(user)[0]):
        print(f"{_chats(chats)} stay in the database. To delete them: hierchat forget --user {account.name}")
    return 0


def _passwd(store: Store, name: str) -> int:
    if (account := store.accounts.find(name)) is None:
        raise AccountError(f"There is no account {name!r}. `hierchat users list` names those that there are.")
    store.accounts.set_password(account.name, hashed(_typed(account.name)))
    print(f"{account.name} has another password. Whoever was logged in with the old one is logged out.")
    return 0


def _typed(name: str) -> str:
    """A password: typed twice on a terminal, else the first line of stdin. Raises AccountError."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    first = getpass.getpass(f"Password for {name}: ")
    if first != getpass.getpass("Once more: "):
        raise AccountError("The two passwords are not the same. Nothing was changed.")
    return first


def _whose(name: str) -> str:
    return "the page without a login" if name == LOCAL_USER else f"a user {name!r}"


def _chats(count: int) -> str:
    return f"{count:,} chat{'' if count == 1 else 's'}"


# `hierchat keys`.


def run_keys(args: argparse.Namespace) -> int:
    """One of its actions; the exit code. Raises StoreError."""
    path: Path = (args.db or data_dir() / "hierchat.db").expanduser()
    with Store.open(path) as store:
        if args.action == "add":
            return _add_key(store, args)
        return _list_keys(store) if args.action == "list" else _remove_key(store, args.name)


def _add_key(store: Store, args: argparse.Namespace) -> int:
    key = store.keys.add(
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


def _list_keys(store: Store) -> int:
    table = Table(box=None, pad_edge=False)
    for column in ("name", "made", "last used", "tokens today", "limits", "history"):
        table.add_column(column)
    for key in store.keys.all():
        cells = [key.name, _date(key.created_at), _date(key.used_at), f"{key.today:,}", _limits(key)]
        table.add_row(*map(Text, [*cells, "kept" if key.user_id else "none"]))
    Console().print(table if table.row_count else "No keys yet. `hierchat keys add NAME` makes one.")
    return 0


def _remove_key(store: Store, name: str) -> int:
    key = store.keys.remove(name)
    if key.user_id is not None and not store.users.forget(key.user_id):
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
