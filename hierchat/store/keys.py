"""Keys of other programs, what each may use, and whether there is an endpoint at all."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from typing import Any, Literal

from sqlite_utils import Database

from hierchat.store.connection import Connected
from hierchat.store.errors import StoreError
from hierchat.store.text import storable

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
