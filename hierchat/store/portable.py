"""Export and import whole conversations: all branches, and where each message came from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlite_utils import Database

from hierchat.store.chats import show_again
from hierchat.store.connection import add_row
from hierchat.store.messages import attach, attachments_of, call_of, stored_call
from hierchat.store.projects import import_project, put_settings, settings_of
from hierchat.store.records import Attachment, ChatSettings, FinalState, Project, Role, ToolCall
from hierchat.store.repository import Repository, owned_conversation, storable, title_of

HERE = "hierchat:"
"""How the source of a conversation begins that was written in a hierchat."""

Outcome = Literal["new", "grown", "same"]
"""Of an import: it was not here; some of its messages were not; all of it was."""

_MESSAGES = """
    SELECT messages.*, imported_messages.source, written_by, model, model_key, settings, seed, drafted
    FROM messages
    LEFT JOIN imported_messages ON imported_messages.message_id = messages.id
    LEFT JOIN turns ON turns.message_id = messages.id
    WHERE conversation_id = ? ORDER BY messages.id
"""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """Message of a portable conversation. Its name is the same in every copy of the conversation."""

    name: str
    parent: str | None
    role: Role
    text: str
    created_at: float
    state: FinalState = "complete"
    written_by: Mapping[str, Any] | None = None
    """Of a reply: "model", and where it is known "model_key", "settings", "seed", "drafted"."""
    attachments: Sequence[Attachment] = ()
    """The files that were sent with it."""
    edited: bool = False
    """Whether it is a reply as the user changed it."""
    call: ToolCall | None = None


@dataclass(frozen=True, slots=True)
class Chat:
    """Whole conversation that belongs to no database."""

    source: str
    """Its name in every copy."""
    title: str
    created_at: float
    updated_at: float
    messages: Sequence[ChatMessage]
    """A parent stands before its children, an older version before a newer."""
    current: str | None
    """The message at the end of the open branch."""
    settings: ChatSettings | None = None
    """What it sets for its replies, if anything; `preset_id` means nothing elsewhere,"""
    preset: str = ""
    """but the name of the preset does."""
    project: str = ""
    """The name of its project; empty: it is in none."""
    project_source: str = ""
    """What another program calls that project, which may have been renamed here since."""


class ChatTransfer(Repository):
    """Exports whole conversations from the store, and imports them."""

    def export_chat(self, user_id: int, conversation_id: int) -> Chat:
        """Return a whole conversation; a reply that is being written counts as interrupted. Raises NotFound."""
        with self._connection.read() as db:
            row = owned_conversation(db, user_id, conversation_id)
            found = db.execute("SELECT source FROM imports WHERE conversation_id = ?", [conversation_id])
            imported = found.fetchone()
            rows = list(db.query(_MESSAGES, [conversation_id]))
            files = {message["id"]: attachments_of(db, message["id"]) for message in rows}
            settings = settings_of(db, conversation_id)
            preset = _name_in(db, "presets", settings.preset_id if settings else None)
            project = _name_in(db, "projects", row["project_id"])
        names = {message["id"]: _name(message) for message in rows}
        return Chat(
            source=imported[0] if imported else HERE + _own_name(row),
            title=row["title"],
            created_at=row["created_at"],
            updated_at=row["updated_at"],
            messages=[
                ChatMessage(
                    name=names[message["id"]],
                    parent=names.get(message["parent_id"]),
                    role=message["role"],
                    text=message["text"],
                    created_at=message["created_at"],
                    state="interrupted" if message["state"] == "writing" else message["state"],
                    written_by=_written_by(message),
                    attachments=files[message["id"]],
                    edited=bool(message["edited"]),
                    call=call_of(message),
                )
                for message in rows
            ],
            current=names.get(row["current_leaf_id"]),
            settings=settings,
            preset=preset,
            project=project,
        )

    def import_chat(self, user_id: int, chat: Chat) -> tuple[Outcome, Sequence[ChatMessage]]:
        """Add a conversation, or its new messages; return the outcome and these. The open branch moves if it grew."""
        with self._connection.write() as db:
            conversation_id = _find(db, user_id, chat.source)
            outcome: Outcome = "new" if conversation_id is None else "grown"
            ids: dict[str, int] = {}
            if conversation_id is None:
                conversation_id = _create(db, user_id, chat)
            else:
                show_again(db, user_id, conversation_id)
                ids = {_name(row): row["id"] for row in db.query(_MESSAGES, [conversation_id])}
            added = [message for message in chat.messages if message.name not in ids]
            if not added:
                return ("same" if outcome == "grown" else outcome), []
            for message in added:
                ids[message.name] = _insert(db, conversation_id, ids, message)
            _move_on(db, conversation_id, ids, chat)
        return outcome, added


def _create(db: Database, user_id: int, chat: Chat) -> int:
    asked = next((message for message in chat.messages if message.role == "user"), None)
    first = "" if asked is None else asked.text or next((file.name for file in asked.attachments), "")
    project = import_project(db, user_id, Project(0, chat.project), chat.project_source)
    conversation_id: int = db.execute(
        "INSERT INTO conversations (user_id, title, created_at, updated_at, project_id) VALUES (?, ?, ?, ?, ?)",
        [user_id, title_of(chat.title) or title_of(first), chat.created_at, chat.updated_at, project],
    ).lastrowid
    add_row(db, "imports", conversation_id=conversation_id, user_id=user_id, source=storable(chat.source))
    if chat.settings:
        put_settings(db, user_id, conversation_id, replace(chat.settings, preset_id=None), chat.preset)
    return conversation_id


def _insert(db: Database, conversation_id: int, ids: Mapping[str, int], message: ChatMessage) -> int:
    parent = None if message.parent is None else ids[message.parent]
    message_id = add_row(
        db,
        "messages",
        conversation_id=conversation_id,
        parent_id=parent,
        role=message.role,
        text=storable(message.text),
        state=message.state,
        created_at=message.created_at,
        edited=message.edited,
        call=stored_call(message.call) if message.call else None,
    )
    writer = json.dumps(dict(message.written_by)) if message.written_by else None
    add_row(db, "imported_messages", message_id=message_id, source=storable(message.name), written_by=writer)
    attach(db, message_id, message.attachments)
    return message_id


def _move_on(db: Database, conversation_id: int, ids: Mapping[str, int], chat: Chat) -> None:
    (open_here,) = db.execute(
        "SELECT current_leaf_id FROM conversations WHERE id = ?", [conversation_id]
    ).fetchone()
    parents = {message.name: message.parent for message in chat.messages}
    behind, at = set(), chat.current
    while at is not None:
        behind.add(ids[at])
        at = parents[at]
    if chat.current is not None and (open_here is None or open_here in behind):
        open_here = ids[chat.current]
    db.execute(
        "UPDATE conversations SET current_leaf_id = ?, updated_at = max(updated_at, ?) WHERE id = ?",
        [open_here, chat.updated_at, conversation_id],
    )


def _find(db: Database, user_id: int, source: str) -> int | None:
    """Return the id of the conversation with that source, imported or exported from here; None if there is none."""
    row = db.execute(
        "SELECT conversation_id FROM imports WHERE user_id = ? AND source = ?", [user_id, storable(source)]
    ).fetchone()
    if row:
        return int(row[0])
    number = source.removeprefix(HERE).split("-")[0]
    if source.startswith(HERE) and number.isascii() and number.isdecimal() and len(number) < 19:
        own = "SELECT * FROM conversations WHERE id = ? AND user_id = ?"
        for found in db.query(own, [int(number), user_id]):
            if HERE + _own_name(found) == source:
                return int(number)
    return None


def _name_in(db: Database, table: str, id: int | None) -> str:
    row = db.execute(f"SELECT name FROM {table} WHERE id = ?", [id]).fetchone()
    return row[0] if row else ""


def _own_name(row: Mapping[str, Any]) -> str:
    return f"{row['id']}-{round(row['created_at'] * 1e6)}"


def _name(message: Mapping[str, Any]) -> str:
    return message["source"] or _own_name(message)


def _written_by(message: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if message["model"] is None:
        return json.loads(message["written_by"]) if message["written_by"] else None
    return {
        "model": message["model"],
        "model_key": message["model_key"],
        "settings": json.loads(message["settings"]),
        "seed": message["seed"],
        "drafted": bool(message["drafted"]),
    }
