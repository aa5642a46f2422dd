"""Define what the classes share that read and write one kind of thing: whose rows are, and in which form texts are
stored."""

import os
import re
from pathlib import Path
from typing import Any

import psutil
from sqlite_utils import Database

from hierchat.store.connection import Connection
from hierchat.store.errors import NotFound, StoreError

TITLE_CHARACTERS = 60
NUMBER = re.compile(r" \(\d+\)$")
"""Number at the end of a fork's title."""
SEARCH_WORDS = 16
FOUND_BEGINS, FOUND_ENDS = "\x02", "\x03"
"""Marks around the found words of a snippet. A text may contain them itself, so they need not be in pairs."""


class Repository:
    """Base of the classes that read and write one kind of thing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._changes = connection.changes

    def _rows(self, query: str, values: Any = ()) -> list[Any]:
        with self._connection.read() as db:
            return db.execute(query, values).fetchall()

    def _run(self, statement: str, values: Any = ()) -> int:
        with self._connection.write() as db:
            return db.execute(statement, values).rowcount


def require_user(db: Database, user_id: int) -> None:
    """Raise StoreError if the user was deleted."""
    if not db.execute("SELECT 1 FROM users WHERE id = ?", [user_id]).fetchone():
        raise StoreError("All chats of this user were deleted. Reload the page.")


def owned_conversation(
    db: Database, user_id: int, conversation_id: int, *, hidden: bool = False
) -> dict[str, Any]:
    """Return a conversation's row. Raises NotFound if it is missing or another user's, or hidden unless a `hidden` one
    is wanted, too; the same for all."""
    for row in db.query(
        "SELECT * FROM conversations WHERE id = ? AND user_id = ? AND (? OR hidden_by IS NULL OR incognito)",
        [conversation_id, user_id, hidden],
    ):
        return row
    raise NotFound(f"There is no conversation {conversation_id}. It may have been deleted.")


def owned_message(db: Database, user_id: int, message_id: int) -> dict[str, Any]:
    """Return a message's row. Raises NotFound as owned_conversation does."""
    for row in db.query(
        "SELECT messages.* FROM messages JOIN conversations ON conversations.id = conversation_id"
        " WHERE messages.id = ? AND user_id = ? AND (hidden_by IS NULL OR incognito)",
        [message_id, user_id],
    ):
        return row
    raise NotFound(f"There is no message {message_id}. Its conversation may have been deleted.")


# A process that hides a chat or writes a reply names itself in the row: a later one looks whether it still runs.
def this_process() -> tuple[int, float]:
    """Return this process's id and when it was started: together they name it, for ids are used again."""
    return os.getpid(), _began(psutil.Process())


def _began(process: psutil.Process) -> float:
    """Return a process's start: on Linux by boot and ticks, independent of the clock, else as Unix time."""
    try:
        ticks = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        boot = int(Path("/proc/sys/kernel/random/boot_id").read_text()[:5], 16)
    except (OSError, ValueError, IndexError):
        return process.create_time()
    return (boot + 10) * 1e9 + ticks


def is_running(pid: int, started: float) -> bool:
    """Return whether that process still runs. One that was killed but not yet reaped by its parent does not."""
    try:
        process = psutil.Process(pid)
        # Earlier versions noted the Unix time on Linux, too, which derives it from the clock.
        now = _began(process) if started > 1e10 else process.create_time()
        return abs(now - started) < 2 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


# Texts: titles, search expressions.
def storable(text: str) -> str:
    """Return a text with lone surrogates, which UTF-8 cannot hold and a browser may send, replaced by "?"."""
    return text.encode("utf-8", "replace").decode("utf-8")


def title_of(text: str) -> str:
    """Return one line of a text for the list of conversations, cut between words if it can be."""
    line = " ".join(storable(text).split())
    if len(line) <= TITLE_CHARACTERS:
        return line
    cut = line[:TITLE_CHARACTERS]
    return (cut.rsplit(" ", 1)[0] if " " in cut else cut) + "…"


def match_expression(query: str) -> str:
    """Return an FTS5 expression for all words of `query`, quoted, the last one as a prefix; empty without words."""
    words = storable(query).replace("\0", " ").split()
    words = [word for word in words if any(map(str.isalnum, word))][:SEARCH_WORDS]
    quoted = ['"' + word.replace('"', '""') + '"' for word in words]
    return " ".join(quoted) + "*" if quoted else ""
