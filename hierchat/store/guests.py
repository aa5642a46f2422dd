"""Guests: users who have no account, and of whom nothing stays when their login ends."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path

from hierchat.store.deletion import Deletion, drop_words
from hierchat.store.errors import StoreError
from hierchat.store.writers import is_running, this_process


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
