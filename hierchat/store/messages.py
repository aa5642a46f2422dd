"""Store the tree of messages: an edit or a regeneration is a sibling, a branch is a path from a root to a leaf."""

import json
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlite_utils import Database

from hierchat.store.connection import Connection, add_row
from hierchat.store.errors import NotFound, StoreError
from hierchat.store.records import (
    Attachment,
    AttachmentHead,
    Message,
    MessageState,
    NewMessage,
    ToolCall,
    Whereabouts,
)
from hierchat.store.repository import (
    Repository,
    is_running,
    owned_conversation,
    owned_message,
    storable,
    this_process,
    title_of,
)

# A child is newer than its parent: along a path ids only grow, and the newest node below any node is a leaf.
PATH = """
    WITH RECURSIVE path (id) AS (
        SELECT ?
        UNION ALL SELECT parent_id FROM path JOIN messages USING (id) WHERE parent_id IS NOT NULL
    )
    SELECT messages.* FROM path JOIN messages USING (id) ORDER BY id
"""
"""The messages from the root to one of them."""
_END_OF_PATH = PATH.replace("IS NOT NULL", "IS NOT NULL LIMIT :most").replace("SELECT ?", "SELECT :leaf")
"""The last `most` of them."""
_HAS_SYSTEM = "SELECT 1 FROM messages WHERE conversation_id = ? AND role = 'system' LIMIT 1"
_MODELS = """
    WITH asked (id) AS (SELECT value FROM json_each(?))
    SELECT message_id, model FROM asked JOIN turns ON message_id = id
    UNION ALL
    SELECT message_id, json_extract(written_by, '$.model') FROM asked JOIN imported_messages ON message_id = id
    WHERE written_by IS NOT NULL
"""
_HEADS = """
    SELECT message_id, attachments.id, name, size, number, passage_id
    FROM attachments JOIN messages ON messages.id = message_id
    WHERE conversation_id = ? ORDER BY attachments.id
"""
_FILE = "name, size, text, number, passage_id"
_NEWEST_LEAF = """
    WITH RECURSIVE below (id) AS (
        SELECT ?
        UNION ALL SELECT messages.id FROM below JOIN messages ON parent_id = below.id
    )
    SELECT max(id) FROM below
"""


_COLUMNS = ("id", "conversation_id", "parent_id", "role", "text", "state", "created_at")
_WHEREABOUTS = """
    SELECT messages.id, conversation_id, title, role
    FROM messages
    JOIN conversations ON conversations.id = conversation_id
    WHERE messages.id IN (SELECT value FROM json_each(?)) AND user_id = ? AND hidden_by IS NULL
"""


class Messages(Repository):
    """Stores the messages of a conversation, their files, and questions that wait until they become messages."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._queued: set[int] = set()  # questions that this store queued: at most those wait

    def add(
        self, user_id: int, conversation_id: int, message: NewMessage, queued: Collection[int] = ()
    ) -> int:
        """Add a complete message, make its branch current, and give an untitled conversation its title.
        `queued`: questions that it replaces. Raises NotFound."""
        with self._connection.write() as db:
            if _let_go(db, queued) != len(queued):
                raise NotFound("This question is not waiting any more. Its chat may have been deleted.")
            added = self.insert(db, user_id, conversation_id, message)
        self._queued.difference_update(queued)
        return added

    def enqueue(self, user_id: int, conversation_id: int, message: NewMessage, *, at_end: bool) -> int | None:
        """Store a question that waits for its turn below its parent, or `at_end`; None if the conversation is gone.
        `add` makes it a message, and so does closing the store or opening it after a crash."""
        with self._connection.write() as db:
            if owned_conversation(db, user_id, conversation_id)["incognito"]:
                return None
            pid, started = this_process()
            place = {"conversation_id": conversation_id, "parent_id": message.parent_id, "at_end": at_end}
            files = json.dumps([asdict(file) for file in message.files])
            text = storable(message.text)
            queued = add_row(db, "waiting", **place, text=text, files=files, pid=pid, started=started)
        self._queued.add(queued)
        return queued

    def dequeue(self, queued: int) -> None:
        """Remove a question that waits; one that waits no more stays as it is."""
        with self._connection.write() as db:
            dropped = _let_go(db, [queued])
        self._queued.discard(queued)
        if dropped:
            self._connection.fold()  # its text stands in the log until then

    def recover(self) -> None:
        """Turn questions that waited in an ended process into messages without a reply."""
        with self._connection.write() as db:
            waiting = db.execute("SELECT id, pid, started FROM waiting").fetchall()
            self._ask_unanswered(db, [id for id, *process in waiting if not is_running(*process)])

    def end(self) -> None:
        """Turn this store's questions that wait into messages without a reply."""
        if self._queued:
            with self._connection.write() as db:
                self._ask_unanswered(db, self._queued)

    def _ask_unanswered(self, db: Database, queued: Iterable[int]) -> None:
        rows = db.query(
            "SELECT waiting.*, user_id,"
            " iif(at_end, current_leaf_id, (SELECT id FROM messages WHERE messages.id = waiting.parent_id)) AS below"
            " FROM waiting JOIN conversations ON conversations.id = conversation_id"
            " WHERE waiting.id IN (SELECT value FROM json_each(?)) AND hidden_by IS NULL"
            " ORDER BY conversation_id, waiting.id",
            [json.dumps(list(queued))],
        )
        for conversation_id, of_one in groupby(list(rows), key=itemgetter("conversation_id")):
            first, *more = of_one
            text = "\n\n".join(row["text"] for row in (first, *more) if row["text"])
            files = [Attachment(**file) for row in (first, *more) for file in json.loads(row["files"])]
            _let_go(db, [row["id"] for row in (first, *more)])
            message = NewMessage(first["below"], text, files=files)
            self.insert(db, first["user_id"], conversation_id, message)

    def edit_reply(self, user_id: int, message_id: int, text: str) -> int:
        """Add the user's version of a reply, make it current, and return its id. Raises NotFound, StoreError."""
        with self._connection.write() as db:
            reply = owned_message(db, user_id, message_id)
            if reply["role"] != "assistant":
                raise StoreError("Only a reply can be edited so.")
            version = NewMessage(reply["parent_id"], text, "assistant")
            edited = self.insert(db, user_id, reply["conversation_id"], version)
            db.execute("UPDATE messages SET edited = 1 WHERE id = ?", [edited])
        self._changes.notify(user_id, reply["conversation_id"])
        return edited

    def put_call(self, user_id: int, message_id: int, call: ToolCall) -> None:
        """Store the tool call of a reply, in place of its earlier state. Raises NotFound."""
        with self._connection.write() as db:
            owned_message(db, user_id, message_id)
            db.execute("UPDATE messages SET call = ? WHERE id = ?", [stored_call(call), message_id])

    def path(
        self, user_id: int, conversation_id: int, leaf_id: int | None = None, most: int = -1
    ) -> list[Message]:
        """Return the messages from the root to `leaf_id` or the current leaf; the last `most` if >= 0."""
        with self._connection.read() as db:
            leaf = owned_conversation(db, user_id, conversation_id)["current_leaf_id"]
            if leaf_id is not None:
                leaf = leaf_id
                _require_inside(db, user_id, conversation_id, leaf_id)
            rows = list(db.query(_END_OF_PATH, {"leaf": leaf, "most": most}))
            return self._messages(db, conversation_id, rows)

    def last(self, user_id: int, conversation_id: int) -> int | None:
        """Return the id of a conversation's last message. Raises NotFound."""
        with self._connection.read() as db:
            leaf: int | None = owned_conversation(db, user_id, conversation_id)["current_leaf_id"]
            return leaf

    def system_prompts(self, user_id: int, conversation_id: int) -> list[str]:
        """Return the system prompts that a conversation brought along, as an imported one may. Raises NotFound."""
        with self._connection.read() as db:
            leaf = owned_conversation(db, user_id, conversation_id)["current_leaf_id"]
            if not db.execute(_HAS_SYSTEM, [conversation_id]).fetchone():
                return []
            return [row["text"] for row in db.query(PATH, [leaf]) if row["role"] == "system"]

    def get(self, user_id: int, message_id: int) -> Message:
        with self._connection.read() as db:
            row = owned_message(db, user_id, message_id)
            return self._messages(db, row["conversation_id"], [row])[0]

    def select_branch(self, user_id: int, message_id: int) -> int:
        """Make the newest leaf at or below `message_id` current, and return its id. Raises NotFound."""
        with self._connection.write() as db:
            conversation_id = owned_message(db, user_id, message_id)["conversation_id"]
            (leaf,) = db.execute(_NEWEST_LEAF, [message_id]).fetchone()
            db.execute("UPDATE conversations SET current_leaf_id = ? WHERE id = ?", [leaf, conversation_id])
        self._changes.notify(user_id, conversation_id)
        return leaf

    def _messages(self, db: Database, conversation_id: int, rows: list[dict[str, Any]]) -> list[Message]:
        children = defaultdict(list)
        for id, parent_id in db.execute(
            "SELECT id, parent_id FROM messages WHERE conversation_id = ? ORDER BY id", [conversation_id]
        ):
            children[parent_id].append(id)
        attached: defaultdict[int, tuple[AttachmentHead, ...]] = defaultdict(tuple)
        for message_id, *head in db.execute(_HEADS, [conversation_id]).fetchall():
            attached[message_id] += (AttachmentHead(*head),)
        models = dict(db.execute(_MODELS, [json.dumps([row["id"] for row in rows])]).fetchall())
        return [
            Message(
                **{name: row[name] for name in _COLUMNS if name != "state"},
                state="interrupted" if row["id"] in self._connection.ended else row["state"],
                siblings=tuple(children[row["parent_id"]]),
                attachments=attached[row["id"]],
                edited=bool(row["edited"]),
                model=models.get(row["id"], ""),
                call=call_of(row),
            )
            for row in rows
        ]

    @staticmethod
    def insert(
        db: Database,
        user_id: int,
        conversation_id: int,
        message: NewMessage,
        state: MessageState = "complete",
    ) -> int:
        """Add a message as part of a transaction, and make its branch current. Raises NotFound."""
        conversation = owned_conversation(db, user_id, conversation_id)
        if message.parent_id is not None:
            _require_inside(db, user_id, conversation_id, message.parent_id)
        now = time.time()
        place = {"conversation_id": conversation_id, "parent_id": message.parent_id, "role": message.role}
        text = storable(message.text)
        message_id = add_row(db, "messages", **place, text=text, state=state, created_at=now)
        db.execute(
            "UPDATE conversations SET current_leaf_id = ?, updated_at = ? WHERE id = ?",
            [message_id, now, conversation_id],
        )
        if message.role == "user" and not conversation["title"]:
            title = message.text if message.text.strip() or not message.files else message.files[0].name
            db.execute("UPDATE conversations SET title = ? WHERE id = ?", [title_of(title), conversation_id])
        attach(db, message_id, message.files)
        return message_id

    def attachments(self, user_id: int, message_id: int) -> list[Attachment]:
        """Return the files of a message, in their order. Raises NotFound."""
        with self._connection.read() as db:
            owned_message(db, user_id, message_id)
            return attachments_of(db, message_id)

    def attachment(self, user_id: int, attachment_id: int) -> Attachment:
        with self._connection.read() as db:
            row = db.execute(
                f"SELECT message_id, {_FILE} FROM attachments WHERE id = ?", [attachment_id]
            ).fetchone()
            if row is None:
                raise NotFound(f"There is no attachment {attachment_id}.")
            owned_message(db, user_id, row[0])
            return Attachment(*row[1:])

    def whereabouts(self, user_id: int, message_ids: Iterable[int]) -> dict[int, Whereabouts]:
        """Return chat, title and role of messages by id; those that are gone, or another user's, are left out."""
        rows = self._rows(_WHEREABOUTS, [json.dumps(sorted(set(message_ids))), user_id])
        return {id: Whereabouts(*rest) for id, *rest in rows}


def _require_inside(db: Database, user_id: int, conversation_id: int, message_id: int) -> None:
    if owned_message(db, user_id, message_id)["conversation_id"] != conversation_id:
        raise NotFound(f"Message {message_id} is not in conversation {conversation_id}.")


def stored_call(call: ToolCall) -> str:
    """Encode a tool call as JSON for the column `call`."""
    return storable(json.dumps(asdict(call), ensure_ascii=False))


def call_of(message: dict[str, Any]) -> ToolCall | None:
    return ToolCall(**json.loads(message["call"])) if message["call"] else None


def attachments_of(db: Database, message_id: int) -> list[Attachment]:
    """Return the files of a message, of any user."""
    rows = db.execute(f"SELECT {_FILE} FROM attachments WHERE message_id = ? ORDER BY id", [message_id])
    return [Attachment(*row) for row in rows.fetchall()]


def attach(db: Database, message_id: int, files: Iterable[Attachment]) -> None:
    for file in files:
        db.execute(
            f"INSERT INTO attachments (message_id, {_FILE}) VALUES (?, ?, ?, ?, ?, ?)",
            [message_id, storable(file.name), file.size, storable(file.text), file.number, file.passage_id],
        )


def _let_go(db: Database, queued: Collection[int]) -> int:
    removed: int = db.execute(
        "DELETE FROM waiting WHERE id IN (SELECT value FROM json_each(?))", [json.dumps(list(queued))]
    ).rowcount
    return removed
