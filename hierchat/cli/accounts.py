"""Define `hierchat users` and `hierchat keys`: accounts for the page's login, and keys for other programs."""

import getpass
import re
import sys
import time
import unicodedata

import click
from rich.console import Console
from rich.text import Text

from hierchat.access.login_sessions import GUEST_LOGIN, AccountError, hashed
from hierchat.cli.options import Group, chats, positive, table, with_store
from hierchat.language import _
from hierchat.store import Store
from hierchat.store.users import normal

_NAME = re.compile(r"\w[\w.@-]{0,39}")

users_command = Group("users")
keys_command = Group("keys")


@users_command.command("add", help="a new account; its password is asked for, or read from stdin")
@click.argument("name")
@click.option(
    "--owner",
    is_flag=True,
    help="may fetch and remove models, back up, and see and end logins (the first account may anyway)",
)
@with_store
def add_account(store: Store, name: str, owner: bool) -> None:
    name = unicodedata.normalize("NFC", name)
    if not _NAME.fullmatch(name) or normal(name).startswith(GUEST_LOGIN):
        form = f"take up to 40 letters, digits and . _ - @, not beginning with {GUEST_LOGIN}."
        raise AccountError(f"{name!r} cannot be a name: {form}")
    account = store.accounts.add(name, hashed(_typed(name)), owner=owner)
    said = _("{name} can log in now, and is the owner.") if account.owner else _("{name} can log in now.")
    print(said.format(name=account.name))
    if count := store.users.counts(store.users.ensure(account.name))[0]:
        said = _("Chats of a user {name!r} are there already: {chats}. They are this account's.")
        print(said.format(name=account.name, chats=chats(count)))
    print(
        _(
            "A login is asked for with --host, --share or --auth; a hierchat that runs takes the account at once."
        )
    )


@users_command.command("list", help="all accounts, and what each has stored")
@with_store
def list_accounts(store: Store) -> None:
    accounts, users = store.accounts.all(), store.users.ids()
    if not accounts:
        print(
            _(
                "There are no accounts: `hierchat users add NAME` makes one. Without any, whoever logs in is a guest."
            )
        )
        return
    rows = []
    for account in accounts:
        count = store.users.counts(users[account.name])[0] if account.name in users else 0
        rows.append((account.name, "owner" if account.owner else "", _date(account.created_at), f"{count:,}"))
    Console(soft_wrap=True).print(table(("name", "", "since", "chats"), rows, ("chats",)))


@users_command.command("remove", help="nobody logs in with it any more; its chats stay")
@click.argument("name")
@with_store
def remove_account(store: Store, name: str) -> None:
    account = store.accounts.remove(name)
    print(
        _("{name} cannot log in any more, and is logged out within some seconds.").format(name=account.name)
    )
    user = store.users.ids().get(account.name)
    if user is not None and (count := store.users.counts(user)[0]):
        stay = _("{chats} stay in the database. To delete them: hierchat forget --user {name}")
        print(stay.format(chats=chats(count), name=account.name))


@users_command.command("passwd", help="another password; whoever is logged in with it is logged out")
@click.argument("name")
@with_store
def change_password(store: Store, name: str) -> None:
    if (account := store.accounts.find(name)) is None:
        raise AccountError(f"There is no account {name!r}. `hierchat users list` names those that there are.")
    store.accounts.set_password(account.name, hashed(_typed(account.name)))
    said = _("{name} has another password. Whoever was logged in with the old one is logged out.")
    print(said.format(name=account.name))


def _typed(name: str) -> str:
    """Read a password: typed twice on a terminal, else the first line of stdin. Raises AccountError."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    first = getpass.getpass(f"Password for {name}: ")
    if first != getpass.getpass("Once more: "):
        raise AccountError("The two passwords are not the same. Nothing was changed.")
    return first


# `hierchat keys`
@keys_command.command("add", help="a new key, shown once")
@click.argument("name")
@click.option(
    "--history",
    is_flag=True,
    help="keep what it asks and gets, so that this drafts its later replies; by default nothing is kept",
)
@click.option(
    "--at-once", type=positive, metavar="N", help="replies that may be written at the same time (no limit)"
)
@click.option("--per-minute", type=positive, metavar="N", help="requests a minute (no limit)")
@click.option(
    "--tokens-a-day", type=positive, metavar="N", help="tokens of prompts and replies a day (no limit)"
)
@with_store
def add_key(store: Store, name: str, history: bool, tokens_a_day: int | None, **limits: int | None) -> None:
    print(store.keys.add(name, history=history, tokens_per_day=tokens_a_day, **limits))
    said = _("The key of {name!r}, shown only now. Nothing it asks is kept.")
    if history:
        said = _("The key of {name!r}, shown only now. What it asks and gets is kept, for its own drafts.")
    Console(stderr=True).print(Text(said.format(name=name)))


@keys_command.command("list", help="the keys that are there, without what opens")
@with_store
def list_keys(store: Store) -> None:
    rows = []
    for key in store.keys.all():
        limits = (
            (key.at_once, "at once"),
            (key.per_minute, "a minute"),
            (key.tokens_per_day, "tokens a day"),
        )
        most = ", ".join(f"{number:,} {what}" for number, what in limits if number is not None) or "none"
        cells = [key.name, _date(key.created_at), _date(key.used_at), f"{key.today:,}", most]
        rows.append([*map(Text, cells), "kept" if key.user_id else "none"])
    columns = ("name", "made", "last used", "tokens today", "limits", "history")
    Console().print(
        table(columns, rows, ()) if rows else _("No keys yet. `hierchat keys add NAME` makes one.")
    )


@keys_command.command("remove", help="a key opens nothing any more; its history is deleted")
@click.argument("name")
@with_store
def remove_key(store: Store, name: str) -> None:
    key = store.keys.remove(name)
    if key.user_id is not None and not store.users.forget(key.user_id):
        print(_("Its history is deleted; another program keeps bytes of it in the file until it closes."))
    print(_("The key {name!r} opens nothing any more.").format(name=name))


def _date(at: float | None) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at)) if at else "never"
