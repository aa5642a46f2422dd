"""Store users and their choices; accounts, guests, and keys of other programs."""

import hashlib
import json
import secrets
import time
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sqlite_utils import Database

from hierchat.store.connection import Connection, add_row, drop_words
from hierchat.store.errors import StoreError
from hierchat.store.records import DraftsFrom
from hierchat.store.repository import Repository, is_running, owned_conversation, storable, this_process

LONGEST_NOTES = 4_000
"""Characters of a user's notes about themselves."""
LOCAL_USER = "local"
"""Whose chats a page without a login shows."""
_OWNER = """
    SELECT users.name = ? OR ifnull(owner, 0) FROM users LEFT JOIN accounts ON accounts.name = users.name COLLATE BINARY
    WHERE users.id = ?
"""


class Users(Repository):
    """Stores users by id: who they are, what they chose, and how all of theirs is deleted."""

    def __init__(self, connection: Connection, forget_copies: Callable[[str], bool]) -> None:
        """Take the parts. `forget_copies` deletes the user of a name from the automatic backups."""
        super().__init__(connection)
        self._forget_copies = forget_copies

    def ensure(self, name: str) -> int:
        """Return the id of the user with that name, added if new."""
        with self._connection.write() as db:
            db.execute(
                "INSERT INTO users (name, created_at) VALUES (?, ?) ON CONFLICT DO NOTHING",
                [storable(name), time.time()],
            )
            return db.execute("SELECT id FROM users WHERE name = ?", [storable(name)]).fetchone()[0]

    def ids(self) -> dict[str, int]:
        return dict(self._rows("SELECT name, id FROM users ORDER BY name"))

    def is_owner(self, user_id: int) -> bool:
        """Return whether a user decides about models and users: an owner's account, or local use without a login."""
        return any(owns for (owns,) in self._rows(_OWNER, [LOCAL_USER, user_id]))

    def counts(self, user_id: int) -> tuple[int, int]:
        (counts,) = self._rows(
            "SELECT count(DISTINCT conversations.id), count(messages.id)"
            " FROM conversations LEFT JOIN messages ON conversation_id = conversations.id WHERE user_id = ?",
            [user_id],
        )
        return counts

    def forget(self, user_id: int) -> bool:
        """Delete a user with everything, from files and backups too; return as `rewrite`."""
        with self._connection.write() as db:
            found = db.execute("SELECT name FROM users WHERE id = ?", [user_id]).fetchone()
            db.execute("DELETE FROM users WHERE id = ?", [user_id])
            drop_words(db)
        copies = self._forget_copies(found[0]) if found else True
        return self._connection.rewrite() and copies

    def deletions(self, user_id: int) -> int:
        """Return how often texts of this user were deleted, which drops what was learned. -1: the user was deleted."""
        return self.chosen(user_id, "deletions", -1)

    def drafts_from(self, user_id: int, conversation_id: int | None = None) -> DraftsFrom:
        """Return which texts may draft a reply; in an incognito conversation, only its own. Raises NotFound."""
        chosen: DraftsFrom = self.chosen(user_id, "drafts_from", "all")
        if chosen == "all" and conversation_id is not None:
            with self._connection.read() as db:
                incognito = owned_conversation(db, user_id, conversation_id)["incognito"]
            return "chat" if incognito else "all"
        return chosen

    def notes(self, user_id: int) -> str:
        """Return the user's notes about themselves for all chats; empty if there are none."""
        return self.chosen(user_id, "notes", "")

    def set_notes(self, user_id: int, notes: str) -> None:
        """Replace the user's notes. Raises StoreError if they are too long."""
        if len(notes) > LONGEST_NOTES:
            raise StoreError(
                f"Notes have at most {LONGEST_NOTES:,} characters, and these have {len(notes):,}. Shorten them: they "
                "go before every reply."
            )
        self.choose(user_id, notes=storable(notes).strip())

    def tool_servers(self, user_id: int) -> set[str]:
        """Return the tool servers that the user switched on; empty unless the user is the owner."""
        return (
            set(json.loads(self.chosen(user_id, "tool_servers", "[]"))) if self.is_owner(user_id) else set()
        )

    def chosen(self, user_id: int, column: str, otherwise: Any) -> Any:
        """Return what a user chose, by the columns of the table; `otherwise` if the user was deleted."""
        chosen = self._rows(f"SELECT {column} FROM users WHERE id = ?", [user_id])
        return chosen[0][0] if chosen else otherwise

    def choose(self, user_id: int, **values: object) -> None:
        """Set what a user chose, by the columns of the table: `drafts_from`, `reads_ahead`, ..."""
        changes = ", ".join(f"{name} = ?" for name in values)
        self._run(f"UPDATE users SET {changes} WHERE id = ?", [*values.values(), user_id])


@dataclass(frozen=True, slots=True)
class Account:
    """Person who may log in. `password` is a hash that the store does not read."""

    name: str
    password: str
    owner: bool
    created_at: float


class Accounts(Repository):
    """Stores who may log in. An account stays when its user deletes all chats."""

    def all(self) -> list[Account]:
        with self._connection.read() as db:
            return sorted(_accounts(db), key=lambda account: account.created_at)

    def find(self, name: str) -> Account | None:
        """Return the account with that name, however it is capitalised, or None."""
        with self._connection.read() as db:
            return _find(db, name)

    def add(self, name: str, password: str, *, owner: bool = False) -> Account:
        """Add an account, the first as owner, with the chats of a user of that name. Raises StoreError if it exists."""
        with self._connection.write() as db:
            if there := _find(db, name):
                raise StoreError(f"There is an account {there.name!r} already. Take another name.")
            first = not db.execute("SELECT 1 FROM accounts").fetchone()
            account = Account(name, password, owner or first or name == LOCAL_USER, time.time())
            add_row(db, "accounts", **asdict(account))
            return account

    def set_password(self, name: str, password: str) -> Account:
        """Replace an account's password hash, and return the account. Raises StoreError if there is none so named."""
        with self._connection.write() as db:
            account = _required(db, name)
            db.execute("UPDATE accounts SET password = ? WHERE name = ?", [password, account.name])
            return _required(db, name)

    def remove(self, name: str) -> Account:
        """Delete an account, without its chats. Raises StoreError if it is missing, or the last owner's."""
        with self._connection.write() as db:
            account = _required(db, name)
            left = [one for one in _accounts(db) if one.name != account.name]
            if left and not any(one.owner for one in left):
                raise StoreError(
                    f"{account.name} is the only owner. Remove the other accounts first, or make another owner with "
                    "`hierchat users add NAME --owner`."
                )
            db.execute("DELETE FROM accounts WHERE name = ?", [account.name])
            return account


def _find(db: Database, name: str) -> Account | None:
    accounts = _accounts(db)
    # SQLite knows capitals of ASCII alone. What is spelled just so comes first: names of earlier versions may differ
    # in nothing else.
    ways = ((name, str), (name.lower(), str.lower), (normal(name), normal))
    for wanted, spelled in ways:
        for account in accounts:
            if spelled(account.name) == wanted:
                return account
    return None


def _required(db: Database, name: str) -> Account:
    if (account := _find(db, name)) is None:
        raise StoreError(f"There is no account {name!r}. `hierchat users list` names those that there are.")
    return account


def _accounts(db: Database) -> list[Account]:
    rows = db.query("SELECT * FROM accounts")
    return [Account(**row | {"owner": bool(row["owner"])}) for row in rows]


class Guests(Repository):
    """Stores users without an account, of whom nothing stays when their login ends."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._guests: set[str] = set()

    def begin(self) -> str:
        """Add a guest and return the name; closing the store, or opening it after a crash, deletes the guest."""
        name = f"guest-{secrets.token_hex(8)}"
        self._run("INSERT INTO guests (name, pid, started) VALUES (?, ?, ?)", [name, *this_process()])
        self._guests.add(name)
        return name

    def recover(self) -> None:
        """Delete the data of guests whose process no longer runs."""
        rows = self._rows("SELECT name, pid, started FROM guests")
        self._forget(name for name, pid, started in rows if not is_running(pid, started))

    def end(self) -> None:
        self._forget(self._guests)

    def _forget(self, guests: Iterable[str]) -> None:
        names, left = list(guests), 0
        if not names:
            return
        with self._connection.write() as db:
            for name in names:
                left += db.execute("DELETE FROM users WHERE name = ?", [name]).rowcount
                db.execute("DELETE FROM guests WHERE name = ?", [name])
            if left:
                drop_words(db)
        if left:
            self._connection.rewrite()


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
    """Record of a key without its secret. A limit of None is no limit."""

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


class Keys(Repository):
    """Stores keys of other programs. A key is random: its SHA-256 is all that is kept."""

    def __init__(self, connection: Connection, access: Access | None) -> None:
        """Take the parts. `access`: holds in place of the stored one, until another is set."""
        super().__init__(connection)
        self._access = access

    def access(self) -> Access:
        return self._access or self._rows("SELECT access FROM endpoint")[0][0]

    def set_access(self, access: Access) -> None:
        self._access = None
        self._run("UPDATE endpoint SET access = ?", [access])

    def add(self, name: str, *, history: bool = False, **limits: int | None) -> str:
        """Make a key and return it: it can be read only here. `limits`: fields of Key; `history`: keep its requests for
        drafts. Raises StoreError."""
        key = MARK + secrets.token_urlsafe(32)
        with self._connection.write() as db:
            if db.execute("SELECT 1 FROM keys WHERE name = ?", [storable(name)]).fetchone():
                raise StoreError(
                    f"There is a key called {name!r} already. Take another name, or remove that key."
                )
            number = add_row(
                db, "keys", name=storable(name), hash=_hash(key), created_at=time.time(), **limits
            )
            if history:
                # No person: nobody logs in under such a name, and a model gives no titles to what is never listed.
                user = add_row(db, "users", name=f"key:{number}", created_at=time.time(), model_titles=0)
                db.execute("UPDATE keys SET user_id = ? WHERE id = ?", [user, number])
        return key

    def all(self) -> list[Key]:
        with self._connection.read() as db:
            return _keys(db, "ORDER BY name COLLATE NOCASE")

    def find(self, key: str) -> Key | None:
        """Return the record of a key; None if it is unknown."""
        with self._connection.read() as db:
            return next(iter(_keys(db, "WHERE hash = ?", _hash(key))), None)

    def note_use(self, key_id: int, tokens: int) -> None:
        """Add tokens to those of today. Does nothing for a key that was removed meanwhile."""
        with self._connection.write() as db:
            db.execute("UPDATE keys SET used_at = ? WHERE id = ?", [time.time(), key_id])
            db.execute(
                "INSERT INTO key_days (key_id, day, tokens) SELECT id, ?, ? FROM keys WHERE id = ?"
                " ON CONFLICT DO UPDATE SET tokens = tokens + excluded.tokens",
                [_today(), tokens, key_id],
            )

    def remove(self, name: str) -> Key:
        """Delete a key; its history stays until `Users.forget`. Raises StoreError if there is none of that name."""
        with self._connection.write() as db:
            for key in _keys(db, "WHERE name = ?", storable(name)):
                db.execute("DELETE FROM keys WHERE id = ?", [key.id])
                return key
        raise StoreError(f"There is no key called {name!r}. `hierchat keys list` shows those that are there.")


def _keys(db: Database, which: str, *values: object) -> list[Key]:
    rows = db.query(f"{_WITH_TODAY} {which}", [_today(), *values])
    return [Key(**{name: value for name, value in row.items() if name != "hash"}) for row in rows]


def _hash(key: str) -> bytes:
    # Of 256 random bits: nothing slower is needed, for nobody can try them all.
    return hashlib.sha256(key.encode()).digest()


def _today() -> str:
    return time.strftime("%Y-%m-%d")


# Names of accounts


def normal(name: str) -> str:
    """Return one spelling of a name, for any capitals and any composition of its letters."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
