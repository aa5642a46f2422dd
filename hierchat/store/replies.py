"""Replies as they are written: text, tokens and sources together, so that they agree after a crash."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from sqlite_utils import Database

from hierchat.store.errors import NotFound, StoreError
from hierchat.store.messages import Messages
from hierchat.store.records import FinalState, NewTurn, SourceCount, State, TurnFigures
from hierchat.store.text import storable
from hierchat.store.writers import is_running, this_process

TOKEN = np.dtype("<i4")
"""How the token log keeps a token id: 4 bytes, little endian, on every machine."""


class Replies(Messages):
    """The part of Store that writes replies."""

    def __init__(self, path: Path, busy_seconds: float) -> None:
        # Replies that this store began and has not finished.
        self._writing: set[int] = set()
        super().__init__(path, busy_seconds)

    def begin_reply(self, user_id: int, conversation_id: int, parent_id: int, turn: NewTurn) -> int:
        """Add an empty reply in state 'writing' below `parent_id` and make its branch current.

        Returns its message id; raises NotFound. Only this store may append to it and finish it; if
        it closes first, the reply is marked interrupted.
        """
        with self._write() as db:
            message_id = self._add(db, user_id, conversation_id, parent_id, "assistant", "", "writing")
            pid, started = this_process()
            db.table("turns").insert(
                _columns(turn)
                | {"message_id": message_id, "writer_pid": pid, "writer_started": started}
                | {"settings": json.dumps(dict(turn.settings))}
            )
            db.execute("INSERT INTO token_log (message_id, ids) VALUES (?, x'')", [message_id])
        self._writing.add(message_id)
        return message_id

    def append_reply(self, message_id: int, text: str, tokens: Sequence[int], sources: Sequence[str]) -> None:
        """Replace the reply's text by `text` (all of it so far); append new `tokens` and the source of each.

        Raises NotFound if the conversation was deleted meanwhile, ValueError unless every token has a source.
        """
        if len(tokens) != len(sources):
            raise ValueError(f"{len(tokens)} tokens but {len(sources)} sources")
        new = np.asarray(tokens, dtype=TOKEN)
        with self._write() as db:
            self._set(db, message_id, text, "writing")
            (ids,) = db.execute("SELECT ids FROM token_log WHERE message_id = ?", [message_id]).fetchone()
            db.execute("UPDATE token_log SET ids = ? WHERE message_id = ?", [ids + new.tobytes(), message_id])
            start = len(ids) // TOKEN.itemsize
            for source, run in groupby(sources):
                length = len(list(run))
                extended = db.execute(
                    "UPDATE spans SET length = length + ?"
                    " WHERE message_id = ? AND start + length = ? AND source = ?",
                    [length, message_id, start, source],
                ).rowcount
                if not extended:
                    db.execute(
                        "INSERT INTO spans (message_id, start, length, source) VALUES (?, ?, ?, ?)",
                        [message_id, start, length, source],
                    )
                start += length

    def finish_reply(self, message_id: int, text: str, state: FinalState, figures: TurnFigures) -> None:
        """Record the final text, how the reply ended and what was measured. Raises NotFound."""
        sources = json.dumps({name: _columns(count) for name, count in figures.sources.items()})
        values = _columns(figures) | {"sources": sources}
        assignments = ", ".join(f"{name} = :{name}" for name in values)
        with self._write() as db:
            self._set(db, message_id, text, state)
            db.execute(
                f"UPDATE turns SET {assignments} WHERE message_id = :message_id",
                values | {"message_id": message_id},
            )
        self._writing.discard(message_id)

    def recover(self) -> int:
        """Mark replies as interrupted whose process no longer runs; how many there were."""
        with self._write() as db:
            lost = [
                row["id"]
                for row in db.query(
                    "SELECT id, writer_pid, writer_started FROM messages JOIN turns ON message_id = id"
                    " WHERE state = 'writing'"
                )
                if not is_running(row["writer_pid"], row["writer_started"])
            ]
            self._interrupt(db, lost)
        return len(lost)

    def close(self) -> None:
        """Mark this store's unfinished replies as interrupted and close the connections of all threads."""
        try:
            if self._writing and not self._closed:
                with self._write() as db:
                    self._interrupt(db, self._writing)
        except StoreError:
            pass  # a disk that cannot be written: the next open will mark them
        finally:
            super().close()

    def _set(self, db: Database, message_id: int, text: str, state: State) -> None:
        changed = (
            message_id in self._writing
            and db.execute(
                "UPDATE messages SET text = ?, state = ? WHERE id = ?", [storable(text), state, message_id]
            ).rowcount
        )
        if not changed:
            self._writing.discard(message_id)
            raise NotFound(
                f"Reply {message_id} is not being written. Its conversation may have been deleted."
            )

    def _interrupt(self, db: Database, message_ids: Iterable[int]) -> None:
        # One statement even for no message: on opening, it is what finds out that a file is read-only.
        db.execute(
            "UPDATE messages SET state = 'interrupted' WHERE id IN (SELECT value FROM json_each(?))",
            [json.dumps(list(message_ids))],
        )


def _columns(record: NewTurn | TurnFigures | SourceCount) -> dict[str, Any]:
    # Not dataclasses.asdict: it copies deeply, which a read-only mapping does not allow.
    return {field.name: getattr(record, field.name) for field in fields(record)}
