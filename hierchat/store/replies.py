"""Replies as they are written: text, tokens and sources together, so that they agree after a crash."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from sqlite_utils import Database

from hierchat.store.chats import EMPTY
from hierchat.store.connection import NotFound, StoreError, is_running, owned_message, storable, this_process
from hierchat.store.messages import Messages
from hierchat.store.records import (
    UNKNOWN,
    FinalState,
    Message,
    NewTurn,
    Origin,
    SourceCount,
    SourceSpan,
    State,
    TurnFigures,
)

# Runs of a reply's tokens that came from one source, and from one place of it.


_ORIGIN = [field.name for field in fields(Origin)]
SPANS = f"SELECT start, length, source, {', '.join(_ORIGIN)} FROM spans"
"""Rows for `span_of`."""


def span_of(row: dict[str, Any]) -> SourceSpan:
    """A row of `SPANS`."""
    origin = Origin(**{name: row[name] for name in _ORIGIN})
    return SourceSpan(row["start"], row["length"], row["source"], origin)


def joined(
    held: Sequence[SourceSpan], start: int, sources: Sequence[str], origins: Sequence[Origin]
) -> list[SourceSpan]:
    """The spans of tokens that begin at `start`, behind those that are held; the last of these may go on."""
    spans = list(held)
    for number, (source, origin) in enumerate(zip(sources, origins, strict=True), start):
        last = spans[-1] if spans else None
        if last and last.source == source and origin.goes_on(last.origin, last.length):
            chance = _mean(last.origin.chance, last.length, origin.chance)
            spans[-1] = replace(last, length=last.length + 1, origin=replace(last.origin, chance=chance))
        else:
            spans.append(SourceSpan(number, 1, source, origin))
    return spans


def _mean(mean: float | None, count: int, value: float | None) -> float | None:
    """The mean of `count` chances and one more; None where one of them is not known."""
    if mean is None or value is None:
        return None
    return mean + (value - mean) / (count + 1)


TOKEN = np.dtype("<i4")
"""How the token log keeps a token id: 4 bytes, little endian, on every machine."""
_ABANDONED_SECONDS = 86_400.0
"""A conversation that waited so long for its first message was left behind by a crash."""


class Replies(Messages):
    """The part of Store that writes replies."""

    def __init__(self, path: Path, busy_seconds: float) -> None:
        # Replies that this store began and has not finished.
        self._writing: set[int] = set()
        # Replies that ended while the file could not be written: it still says that they are being written.
        self._unfinished: set[int] = set()
        super().__init__(path, busy_seconds)

    @contextmanager
    def _write(self) -> Iterator[Database]:
        """Whoever can write again writes first which replies ended while nobody could."""
        ended = set(self._unfinished)
        with super()._write() as db:
            if ended:
                self._interrupt(db, ended)
            yield db
        self._unfinished -= ended

    def messages(
        self, user_id: int, conversation_id: int, leaf_id: int | None = None, most: int = -1
    ) -> list[Message]:
        """As Messages.messages."""
        return [self._known(message) for message in super().messages(user_id, conversation_id, leaf_id, most)]

    def message(self, user_id: int, message_id: int) -> Message:
        """One message. Raises NotFound."""
        return self._known(super().message(user_id, message_id))

    def _known(self, message: Message) -> Message:
        return replace(message, state="interrupted") if message.id in self._unfinished else message

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

    def resume_reply(self, user_id: int, message_id: int) -> None:
        """Take up a reply that had ended: it is being written again, and what was measured of it is taken back.

        Raises NotFound, StoreError where it has not ended.
        """
        cleared = ", ".join(f"{field.name} = NULL" for field in fields(TurnFigures))
        with self._write() as db:
            if owned_message(db, user_id, message_id)["state"] == "writing":
                raise StoreError("This reply is still being written.")
            pid, started = this_process()
            db.execute(
                f"UPDATE turns SET writer_pid = ?, writer_started = ?, {cleared} WHERE message_id = ?",
                [pid, started, message_id],
            )
            # A copy that goes on is one no more.
            db.execute("UPDATE messages SET state = 'writing', copy_of = NULL WHERE id = ?", [message_id])
        self._writing.add(message_id)

    def append_reply(
        self,
        message_id: int,
        text: str,
        tokens: Sequence[int],
        sources: Sequence[str],
        origins: Sequence[Origin] = (),
    ) -> None:
        """Replace the reply's text by `text` (all of it so far); append new `tokens`, the source of each, and what each
        was found by, if anything is known of that.

        Raises NotFound if the conversation was deleted meanwhile, ValueError unless every token has a source.
        """
        origins = origins or [UNKNOWN] * len(tokens)
        if not len(tokens) == len(sources) == len(origins):
            raise ValueError(f"{len(tokens)} tokens but {len(sources)} sources and {len(origins)} origins")
        new = np.asarray(tokens, dtype=TOKEN)
        with self._write() as db:
            self._set(db, message_id, text, "writing")
            (ids,) = db.execute("SELECT ids FROM token_log WHERE message_id = ?", [message_id]).fetchone()
            db.execute("UPDATE token_log SET ids = ? WHERE message_id = ?", [ids + new.tobytes(), message_id])
            start = len(ids) // TOKEN.itemsize
            last = db.query(f"{SPANS} WHERE message_id = ? ORDER BY start DESC LIMIT 1", [message_id])
            held = [span_of(row) for row in last]
            spans = joined(held, start, sources, origins)
            db.conn.executemany(
                "INSERT OR REPLACE INTO spans"
                " (message_id, start, length, source, slot, matched, chance, origin_id, corpus, place)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [[message_id, span.start, span.length, span.source, *astuple(span.origin)] for span in spans],
            )

    def finish_reply(self, message_id: int, text: str, state: FinalState, figures: TurnFigures) -> None:
        """Record the final text, how the reply ended and what was measured. Raises NotFound.

        A reply that this cannot record counts as interrupted from now on; the file says so as soon as it can be
        written.
        """
        sources = json.dumps({name: _columns(count) for name, count in figures.sources.items()})
        plan = None if figures.plan is None else json.dumps(figures.plan)
        values = _columns(figures) | {"sources": sources, "plan": plan}
        assignments = ", ".join(f"{name} = :{name}" for name in values)
        try:
            with self._write() as db:
                self._set(db, message_id, text, state)
                db.execute(
                    f"UPDATE turns SET {assignments} WHERE message_id = :message_id",
                    values | {"message_id": message_id},
                )
        except NotFound:
            raise
        except StoreError:
            self._unfinished.add(message_id)
            raise
        self._writing.discard(message_id)

    def recover(self) -> int:
        """Mark replies as interrupted whose process no longer runs; how many there were. Questions that waited there
        are messages now, without a reply. Conversations that a crash left without a message go."""
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
            waiting = db.execute("SELECT id, pid, started FROM waiting").fetchall()
            self._ask_unanswered(db, [id for id, *process in waiting if not is_running(*process)])
            db.execute(
                f"DELETE FROM conversations WHERE title = '' AND created_at < ? AND {EMPTY}",
                [time.time() - _ABANDONED_SECONDS],
            )
        return len(lost)

    def close(self) -> None:
        """Mark this store's unfinished replies as interrupted, make messages of the questions that wait, and close the
        connections of all threads."""
        try:
            unfinished = self._writing | self._unfinished
            if (unfinished or self._held) and not self._closed:
                with self._write() as db:
                    self._interrupt(db, unfinished)
                    self._ask_unanswered(db, self._held)
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
