"""Accounts: names with which people log in, each the name of a user. And who the owner is."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlite_utils import Database

from hierchat.store.connection import Connected
from hierchat.store.conversations import LOCAL_USER
from hierchat.store.errors import StoreError
from hierchat.store.names import mixes_scripts, normal, skeleton

_OWNER = """
    SELECT users.name = ? OR ifnull(owner, 0) FROM users LEFT JOIN accounts ON accounts.name = users.name COLLATE BINARY
    WHERE users.id = ?
"""


@dataclass(frozen=True, slots=True)
class Account:
    """Somebody who may log in. `password` is a hash that the store does not read."""

    name: str
    password: str
    owner: bool
    created_at: float


class Accounts(Connected):
    """The part of Store that knows who may log in. What users have stored is none of its business."""

    def accounts(self) -> list[Account]:
        """All of them, the oldest first."""
        with self._read() as db:
            return [_account(row) for row in db.query("SELECT * FROM accounts ORDER BY created_at, rowid")]

    def account(self, name: str) -> Account | None:
        """The account of that name, however it is capitalised."""
        with self._read() as db:
            return _find(db, name)

    def add_account(self, name: str, password: str, *, owner: bool = False) -> Account:
        """A new one. The first becomes the owner, and so does one for the page without a login. Chats of a user of
        that name are theirs from now on.

        Raises StoreError where there is one of that name, or of a name that looks like it.
        """
        with self._write() as db:
            _require_free(db, name)
            first = not db.execute("SELECT 1 FROM accounts").fetchone()
            account = Account(name, password, owner or first or name == LOCAL_USER, time.time())
            db.execute(
                "INSERT INTO accounts (name, password, owner, created_at) VALUES (?, ?, ?, ?)",
                [account.name, account.password, account.owner, account.created_at],
            )
            return account

    def require_free(self, name: str) -> None:
        """Raises StoreError where no account can have this name: there is one, or it can be taken for another's."""
        with self._read() as db:
            _require_free(db, name)

    def set_password(self, name: str, password: str) -> Account:
        """Another one from now on; the account as it is now. Raises StoreError where there is none of that name."""
        with self._write() as db:
            account = _required(db, name)
            db.execute("UPDATE accounts SET password = ? WHERE name = ?", [password, account.name])
            return _required(db, name)

    def remove_account(self, name: str) -> Account:
        """Nobody logs in with it any more; what its user has stored stays. Raises StoreError where there is none of
        that name, or others would be left without an owner."""
        with self._write() as db:
            account = _required(db, name)
            left = [
                _account(row) for row in db.query("SELECT * FROM accounts") if row["name"] != account.name
            ]
            if left and not any(one.owner for one in left):
                raise StoreError(
                    f"{account.name} is the only owner. Remove the other accounts first, or make another owner with "
                    "`hierchat users add NAME --owner`."
                )
            db.execute("DELETE FROM accounts WHERE name = ?", [account.name])
            return account

    def is_owner(self, user_id: int) -> bool:
        """Whether this user decides about models, backups and other users: an account that is marked so, or whoever
        uses the page on this machine without a login."""
        with self._read() as db:
            row = db.execute(_OWNER, [LOCAL_USER, user_id]).fetchone()
            return bool(row and row[0])


def _find(db: Database, name: str) -> Account | None:
    rows = list(db.query("SELECT * FROM accounts"))
    # SQLite knows capitals of ASCII alone. What is spelled just so comes first: names of earlier versions may differ
    # in nothing else.
    ways = ((name, str), (name.lower(), str.lower), (normal(name), normal))
    for wanted, spelled in ways:
        for row in rows:
            if spelled(row["name"]) == wanted:
                return _account(row)
    return None


def _require_free(db: Database, name: str) -> None:
    if there := _find(db, name):
        raise StoreError(f"There is an account {there.name!r} already. Take another name.")
    if mixes_scripts(name):
        raise StoreError(
            f"{name!r} mixes letters of several scripts, so that it can be taken for another name. Take letters of one."
        )
    for row in db.query("SELECT * FROM accounts"):
        if skeleton(row["name"]) == skeleton(name):
            raise StoreError(
                f"{name!r} looks like {row['name']!r}, which is an account already. Take another name."
            )


def _required(db: Database, name: str) -> Account:
    if (account := _find(db, name)) is None:
        raise StoreError(f"There is no account {name!r}. `hierchat users list` names those that there are.")
    return account


def _account(row: dict[str, object]) -> Account:
    return Account(**row | {"owner": bool(row["owner"])})  # type: ignore[arg-type]
