# ruff: noqa: F401
"""Store users, conversations, messages, turns and their tokens in one SQLite file, without knowing models or pages."""

from contextlib import suppress
from pathlib import Path
from typing import Self

from hierchat.store.backups import Backups
from hierchat.store.chats import Chats
from hierchat.store.connection import Connection
from hierchat.store.errors import NotFound, StoreError
from hierchat.store.figures import ReplyFigures
from hierchat.store.history import DeletionOutbox, History, LearnedValues, Mark, PrefixFolders, TextKind
from hierchat.store.messages import Messages
from hierchat.store.portable import Chat, ChatMessage, ChatTransfer
from hierchat.store.projects import Presets, Projects
from hierchat.store.replies import Replies
from hierchat.store.repository import FOUND_BEGINS, FOUND_ENDS, title_of
from hierchat.store.users import LOCAL_USER, Access, Account, Accounts, Guests, Key, Keys, Users


class Store:
    """One SQLite file by kinds of things, for any thread and several processes.
    Every method may raise DatabaseLocked, DatabaseCorrupt or DatabaseUnwritable, and is then undone as a whole."""

    def __init__(self, connection: Connection, access: Access | None = None) -> None:
        self.connection = connection
        self.path, self.changes = connection.path, connection.changes
        self.backups = Backups(connection)
        self.users = Users(connection, self.backups.forget)
        self.accounts = Accounts(connection)
        self.guests = Guests(connection)
        self.keys = Keys(connection, access)
        self.chats = Chats(connection)
        self.presets = Presets(connection)
        self.projects = Projects(connection)
        self.messages = Messages(connection)
        self.replies = Replies(connection)
        self.figures = ReplyFigures(connection)
        self.history = History(connection)
        self.learned = LearnedValues(connection)
        self.outbox = DeletionOutbox(connection)
        self.prefixes = PrefixFolders(connection)
        self.transfer = ChatTransfer(connection)

    @classmethod
    def open(cls, path: Path, *, busy_seconds: float = 5.0, access: Access | None = None) -> Self:
        """Open the file, or create it and its folder; mark interrupted replies, and finish deletions after a crash.
        `busy_seconds`: how long methods wait for another program; `access` replaces the file's. Raises a StoreError."""
        store = cls(Connection(path, busy_seconds, _before_step), access)
        try:
            store.replies.recover()
            store.messages.recover()
            store.chats.recover()
            store.guests.recover()
            store.connection.rewrite_what_is_soiled()
            store.connection.fold()  # a process that was killed left its log
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Forget guests, mark unfinished replies, make waiting questions messages, delete what is hidden, and close."""
        ends = (self.guests.end, self.replies.end, self.messages.end, self.chats.delete_hidden)
        try:
            for end in () if self.connection.closed else ends:
                with suppress(StoreError):  # a disk that cannot be written: the next open does it
                    end()
        finally:
            self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()


def _before_step(connection: Connection, step: str) -> None:
    with suppress(StoreError):
        Backups(connection).make(before=step)
