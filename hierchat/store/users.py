"""Accounts: names with which people log in, each the name of a user. And who the owner is."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlite_utils import Database

from hierchat.store.chats import LOCAL_USER
from hierchat.store.connection import Connected, StoreError, is_running, storable, this_process
from hierchat.store.deletion import Deletion, drop_words
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


# Guests: users who have no account, and of whom nothing stays when their login ends.


class Guests(Deletion):
    """The part of Store that knows guests."""

    def __init__(self, path: Path, busy_seconds: float) -> None:
        self._guests: set[str] = set()
        super().__init__(path, busy_seconds)

    def begin_guest(self) -> str:
        """The name of a new guest. If this store closes, they are forgotten; if the process dies, when the file is
        opened next."""
        name = f"guest-{secrets.token_hex(8)}"
        with self._write() as db:
            db.execute("INSERT INTO guests (name, pid, started) VALUES (?, ?, ?)", [name, *this_process()])
        self._guests.add(name)
        return name

    def forget_abandoned_guests(self) -> None:
        """Delete what is left of guests whose process no longer runs."""
        with self._read() as db:
            rows = db.execute("SELECT name, pid, started FROM guests").fetchall()
        self._forget_guests(name for name, pid, started in rows if not is_running(pid, started))

    def close(self) -> None:
        """Forget this store's guests, and close the connections of all threads."""
        try:
            if not self._closed:
                self._forget_guests(self._guests)
        except StoreError:
            pass  # a disk that cannot be written: the next open will forget them
        finally:
            super().close()

    def _forget_guests(self, names: Iterable[str]) -> None:
        """From the file, too. Of those who left earlier there is nothing any more, so the file is not rewritten."""
        names, left = list(names), 0
        if not names:
            return
        with self._write() as db:
            for name in names:
                left += db.execute("DELETE FROM users WHERE name = ?", [name]).rowcount
                db.execute("DELETE FROM guests WHERE name = ?", [name])
            if left:
                drop_words(db)
        if left:
            self.rewrite()


# Keys of other programs, what each may use, and whether there is an endpoint at all.


Access = Literal["off", "keys", "open"]
"""Who may ask the endpoint: nobody; who has a key; programs on this machine without one, too."""
MARK = "hc-"
"""What a key begins with, so that it is known as one where it was left lying about."""
_WITH_TODAY = """
    SELECT keys.*, ifnull((SELECT tokens FROM key_days WHERE key_id = keys.id AND day = ?), 0) AS today FROM keys
"""


@dataclass(frozen=True, slots=True)
class Key:
    """What is known of a key. Limits are None where there is none."""

    id: int
    name: str
    created_at: float
    used_at: float | None
    user_id: int | None
    """Whose texts draft for it, and take in its requests; None: none, and nothing is kept."""
    at_once: int | None
    """Replies that may be written at the same time."""
    per_minute: int | None
    """Requests."""
    tokens_per_day: int | None
    """Of prompts and replies together."""
    today: int = 0
    """Tokens so far today."""


class Keys(Connected):
    """The part of Store that knows who may use the endpoint. A key is random: its SHA-256 is all that is kept."""

    started_with: Access | None = None
    """What holds in place of what is kept, as long as this program runs and nothing else is chosen."""

    def access(self) -> Access:
        """Who may ask."""
        if self.started_with:
            return self.started_with
        with self._read() as db:
            return db.execute("SELECT access FROM endpoint").fetchone()[0]

    def set_access(self, access: Access) -> None:
        """Let others ask from now on, or no longer."""
        self.started_with = None
        with self._write() as db:
            db.execute("UPDATE endpoint SET access = ?", [access])

    def add_key(
        self,
        name: str,
        *,
        history: bool = False,
        at_once: int | None = None,
        per_minute: int | None = None,
        tokens_per_day: int | None = None,
    ) -> str:
        """A new key, which can be had only here. `history`: what it asks and gets is kept, to draft its later replies.

        Raises StoreError where there is one of that name.
        """
        key = MARK + secrets.token_urlsafe(32)
        with self._write() as db:
            if db.execute("SELECT 1 FROM keys WHERE name = ?", [storable(name)]).fetchone():
                raise StoreError(
                    f"There is a key called {name!r} already. Take another name, or remove that key."
                )
            values = [storable(name), _hash(key), time.time(), at_once, per_minute, tokens_per_day]
            number = db.execute(
                "INSERT INTO keys (name, hash, created_at, at_once, per_minute, tokens_per_day)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                values,
            ).lastrowid
            if history:
                # No person: nobody logs in under such a name, and a model gives no titles to what is never listed.
                user = db.execute(
                    "INSERT INTO users (name, created_at, model_titles) VALUES (?, ?, 0)",
                    [f"key:{number}", time.time()],
                ).lastrowid
                db.execute("UPDATE keys SET user_id = ? WHERE id = ?", [user, number])
        return key

    def all_keys(self) -> list[Key]:
        """All of them, by name."""
        with self._read() as db:
            return [_key(row) for row in db.query(f"{_WITH_TODAY} ORDER BY name COLLATE NOCASE", [_today()])]

    def find_key(self, key: str) -> Key | None:
        """The one that this is; None where it is none."""
        with self._read() as db:
            for row in db.query(f"{_WITH_TODAY} WHERE hash = ?", [_today(), _hash(key)]):
                return _key(row)
        return None

    def note_use(self, key_id: int, tokens: int) -> None:
        """So many tokens more today. A key that was removed meanwhile is passed over."""
        with self._write() as db:
            db.execute("UPDATE keys SET used_at = ? WHERE id = ?", [time.time(), key_id])
            db.execute(
                "INSERT INTO key_days (key_id, day, tokens) SELECT id, ?, ? FROM keys WHERE id = ?"
                " ON CONFLICT DO UPDATE SET tokens = tokens + excluded.tokens",
                [_today(), tokens, key_id],
            )

    def remove_key(self, name: str) -> Key:
        """It opens nothing from now on. Its history is left to `forget_user`. Raises StoreError where there is none."""
        with self._write() as db:
            key = _named(db, name)
            db.execute("DELETE FROM keys WHERE id = ?", [key.id])
        return key


def _named(db: Database, name: str) -> Key:
    for row in db.query(f"{_WITH_TODAY} WHERE name = ?", [_today(), storable(name)]):
        return _key(row)
    raise StoreError(f"There is no key called {name!r}. `hierchat keys list` shows those that are there.")


def _key(row: dict[str, Any]) -> Key:
    return Key(**{name: value for name, value in row.items() if name != "hash"})


def _hash(key: str) -> bytes:
    # Of 256 random bits: nothing slower is needed, for nobody can try them all.
    return hashlib.sha256(key.encode()).digest()


def _today() -> str:
    return time.strftime("%Y-%m-%d")
