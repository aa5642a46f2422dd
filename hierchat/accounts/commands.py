"""`hierchat users add | list | remove | passwd`. All return the process's exit code."""

from __future__ import annotations

import argparse
import getpass
import re
import sys
import time
import unicodedata

from rich.console import Console
from rich.table import Table

from hierchat.accounts.errors import AccountError
from hierchat.accounts.passwords import hashed
from hierchat.config import data_dir
from hierchat.store import LOCAL_USER, Store
from hierchat.store.names import skeleton

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
    if store.account(name):  # before a password is typed for nothing
        raise AccountError(
            f"There is an account {name!r} already. `hierchat users passwd {name}` changes its password."
        )
    store.require_free(name)
    account = store.add_account(name, hashed(_typed(name)), owner=owner)
    print(f"{account.name} can log in now{', and is the owner' if account.owner else ''}.")
    chats, _ = store.held_of(store.ensure_user(account.name))
    if chats:
        print(f"Chats of {_whose(account.name)} are there already: {_chats(chats)}. They are this account's.")
    print(
        "A login is asked for with --host, --share or --auth. A hierchat that runs takes the account at once."
    )
    return 0


def _list(store: Store) -> int:
    accounts, users = store.accounts(), store.users()
    if not accounts:
        print(
            "There are no accounts: `hierchat users add NAME` makes one. Without any, whoever logs in is a guest."
        )
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("name", "", "since", "chats"):
        table.add_column(column, justify="right" if column == "chats" else "left", no_wrap=True)
    for account in accounts:
        chats = store.held_of(users[account.name])[0] if account.name in users else 0
        since = time.strftime("%Y-%m-%d", time.localtime(account.created_at))
        table.add_row(account.name, "owner" if account.owner else "", since, f"{chats:,}")
    Console(soft_wrap=True).print(table)
    return 0


def _remove(store: Store, name: str) -> int:
    account = store.remove_account(name)
    print(f"{account.name} cannot log in any more, and is logged out within some seconds.")
    user = store.users().get(account.name)
    if user is not None and (chats := store.held_of(user)[0]):
        print(f"{_chats(chats)} stay in the database. To delete them: hierchat forget --user {account.name}")
    return 0


def _passwd(store: Store, name: str) -> int:
    if (account := store.account(name)) is None:
        raise AccountError(f"There is no account {name!r}. `hierchat users list` names those that there are.")
    store.set_password(account.name, hashed(_typed(account.name)))
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
