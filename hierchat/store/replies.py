"""Store replies as they are written: text, tokens and sources together, so that they agree after a crash."""

import json
from collections.abc import Sequence
from dataclasses import astuple, fields, replace
from typing import Any

import numpy as np
from sqlite_utils import Database

from hierchat.store import records, repository
from hierchat.store.connection import Connection, interrupt
from hierchat.store.errors import NotFound, StoreError
from hierchat.store.messages import Messages

# Runs of a reply's tokens that came from one source, and from one place of it.
_ORIGIN = [field.name for field in fields(records.Origin)]
SPANS = f"SELECT start, length, source, {', '.join(_ORIGIN)} FROM spans"
"""Rows for `span_of`."""


def span_of(row: dict[str, Any]) -> records.SourceSpan:
    origin = records.Origin(**{name: row[name] for name in _ORIGIN})
    return records.SourceSpan(row["start"], row["length"], row["source"], origin)


def joined(
    held: Sequence[records.SourceSpan], start: int, sources: Sequence[str], origins: Sequence[records.Origin]
) -> list[records.SourceSpan]:
    """Return the spans with tokens from `start` on appended; the last span may be continued."""
    spans = list(held)
    for number, (source, origin) in enumerate(zip(sources, origins, strict=True), start):
        last = spans[-1] if spans else None
        if last and last.source == source and origin.goes_on(last.origin, last.length):
            before, chance = last.origin.chance, origin.chance
            mean = (
                None if before is None or chance is None else before + (chance - before) / (last.length + 1)
            )
            spans[-1] = replace(last, length=last.length + 1, origin=replace(last.origin, chance=mean))
        else:
            spans.append(records.SourceSpan(number, 1, source, origin))
    return spans


TOKEN = np.dtype("<i4")
"""How the token log keeps a token id: 4 bytes, little endian, on every machine."""

FINISHED = """
    FROM turns
    JOIN token_log USING (message_id)
    JOIN messages ON messages.id = message_id
    JOIN conversations ON conversations.id = conversation_id
    WHERE user_id = ? AND state <> 'writing' AND hidden_by IS NULL AND copy_of IS NULL
"""
"""The replies of a user that count: neither hidden nor copies."""
_WRITTEN = """
    SELECT message_id, ids FROM messages
    JOIN turns ON turns.message_id = messages.id
    JOIN token_log USING (message_id)
    WHERE conversation_id = ? AND model_key = ?
"""


class Replies(repository.Repository):
    """Stores replies: written in pieces, then read with their figures."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._writing: set[int] = set()  # replies that this store began and has not finished

    def begin(
        self,
        user_id: int,
        conversation_id: int,
        parent_id: int,
        turn: records.NewTurn,
        lead: Sequence[int] = (),
    ) -> int:
        """Add an empty reply in state 'writing' below `parent_id`, make its branch current, and return its id.
        `lead`: the last tokens of its prompt. Only this store may append to it; closing the store interrupts it.
        Raises NotFound."""
        with self._connection.write() as db:
            reply = records.NewMessage(parent_id, "", "assistant")
            message_id = Messages.insert(db, user_id, conversation_id, reply, "writing")
            pid, started = repository.this_process()
            db.table("turns").insert(
                _columns(turn)
                | {"message_id": message_id, "writer_pid": pid, "writer_started": started}
                | {"settings": json.dumps(dict(turn.settings))}
            )
            before = np.asarray(lead, dtype=TOKEN).tobytes()
            db.execute(
                "INSERT INTO token_log (message_id, ids, lead) VALUES (?, x'', ?)", [message_id, before]
            )
        self._writing.add(message_id)
        return message_id

    def resume(self, user_id: int, message_id: int) -> None:
        """Reopen a reply that had ended, without its figures. Raises NotFound, StoreError."""
        cleared = ", ".join(f"{field.name} = NULL" for field in fields(records.TurnFigures))
        with self._connection.write() as db:
            if repository.owned_message(db, user_id, message_id)["state"] == "writing":
                raise StoreError("This reply is still being written.")
            pid, started = repository.this_process()
            db.execute(
                f"UPDATE turns SET writer_pid = ?, writer_started = ?, {cleared} WHERE message_id = ?",
                [pid, started, message_id],
            )
            # A copy that goes on is one no more.
            db.execute("UPDATE messages SET state = 'writing', copy_of = NULL WHERE id = ?", [message_id])
        self._writing.add(message_id)

    def append(
        self,
        message_id: int,
        text: str,
        tokens: Sequence[int],
        sources: Sequence[str],
        origins: Sequence[records.Origin] = (),
    ) -> None:
        """Replace the reply's text; append new `tokens`, the source of each, and the origin of each draft, if known.
        Raises NotFound if the conversation was deleted, ValueError without a source for each token."""
        origins = origins or [records.UNKNOWN] * len(tokens)
        if not len(tokens) == len(sources) == len(origins):
            raise ValueError(f"{len(tokens)} tokens but {len(sources)} sources and {len(origins)} origins")
        new = np.asarray(tokens, dtype=TOKEN)
        with self._connection.write() as db:
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

    def finish(
        self, message_id: int, text: str, state: records.FinalState, figures: records.TurnFigures
    ) -> None:
        """Record the final text, how the reply ended and its figures. Raises NotFound."""
        sources = {name: _columns(count) for name, count in figures.sources.items()}
        encoded = {"sources": sources, "plan": figures.plan, "loading": figures.loading}
        values = _columns(figures) | {
            name: None if value is None else json.dumps(value) for name, value in encoded.items()
        }
        assignments = ", ".join(f"{name} = :{name}" for name in values)
        try:
            with self._connection.write() as db:
                self._set(db, message_id, text, state)
                db.execute(
                    f"UPDATE turns SET {assignments} WHERE message_id = :message_id",
                    values | {"message_id": message_id},
                )
        except NotFound:
            raise
        except StoreError:
            self._connection.ended.add(message_id)
            raise
        self._writing.discard(message_id)

    def recover(self) -> None:
        """Mark replies as interrupted whose process no longer runs."""
        with self._connection.write() as db:
            writing = db.execute(
                "SELECT id, writer_pid, writer_started FROM messages JOIN turns ON message_id = id"
                " WHERE state = 'writing'"
            ).fetchall()
            interrupt(db, [id for id, *writer in writing if not repository.is_running(*writer)])

    def end(self) -> None:
        """Mark this store's unfinished replies as interrupted."""
        if unfinished := self._writing | self._connection.ended:
            with self._connection.write() as db:
                interrupt(db, unfinished)

    def _set(self, db: Database, message_id: int, text: str, state: records.MessageState) -> None:
        changed = (
            message_id in self._writing
            and db.execute(
                "UPDATE messages SET text = ?, state = ? WHERE id = ?",
                [repository.storable(text), state, message_id],
            ).rowcount
        )
        if not changed:
            self._writing.discard(message_id)
            raise NotFound(
                f"Reply {message_id} is not being written. Its conversation may have been deleted."
            )

    def turn(self, user_id: int, message_id: int) -> records.Turn | None:
        """Return the record of a reply; None for a message that no model wrote here. Raises NotFound."""
        with self._connection.read() as db:
            repository.owned_message(db, user_id, message_id)
            for row in db.query("SELECT * FROM turns WHERE message_id = ?", [message_id]):
                row |= {"settings": json.loads(row["settings"]), "drafted": bool(row["drafted"])}
                figures = None
                if row["sources"] is not None:
                    counts = json.loads(row["sources"]).items()
                    row["sources"] = {name: records.SourceCount(**count) for name, count in counts}
                    row["plan"] = row["plan"] and tuple(map(tuple, json.loads(row["plan"])))
                    row["loading"] = row["loading"] and json.loads(row["loading"])
                    figures = records.TurnFigures(**_only(records.TurnFigures, row))
                return records.Turn(
                    message_id=message_id,
                    begun=records.NewTurn(**_only(records.NewTurn, row)),
                    reply_tokens=len(_tokens(db, message_id)),
                    figures=figures,
                )
            return None

    def spans(self, user_id: int, message_id: int) -> list[records.SourceSpan]:
        """Return the sources of a reply's tokens, in order and without gaps. Raises NotFound."""
        with self._connection.read() as db:
            repository.owned_message(db, user_id, message_id)
            rows = db.query(f"{SPANS} WHERE message_id = ? ORDER BY start", [message_id])
            return [span_of(row) for row in rows]

    def tokens(self, user_id: int, message_id: int) -> list[int]:
        """Return the token ids of a reply; none for a message that no model wrote here. Raises NotFound."""
        with self._connection.read() as db:
            repository.owned_message(db, user_id, message_id)
            return _tokens(db, message_id).tolist()

    def tokens_by(self, user_id: int, conversation_id: int, model_key: str) -> dict[int, list[int]]:
        """Return the token ids of every reply that this model wrote in a conversation, by message. Raises NotFound."""
        with self._connection.read() as db:
            repository.owned_conversation(db, user_id, conversation_id)
            rows = db.execute(_WRITTEN, [conversation_id, model_key])
            return {id: np.frombuffer(ids, dtype=TOKEN).tolist() for id, ids in rows}


def _columns(record: records.NewTurn | records.TurnFigures | records.SourceCount) -> dict[str, Any]:
    # Not dataclasses.asdict: it copies deeply, which a read-only mapping does not allow.
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _tokens(db: Database, message_id: int) -> np.ndarray:
    row = db.execute("SELECT ids FROM token_log WHERE message_id = ?", [message_id]).fetchone()
    return np.frombuffer(row[0] if row else b"", dtype=TOKEN)


def _only(record: type, row: dict[str, Any]) -> dict[str, Any]:
    return {field.name: row[field.name] for field in fields(record)}
