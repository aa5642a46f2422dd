"""Store conversations: create, list, search, title, copy, hide and delete."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any

from sqlite_utils import Database

from hierchat.store.connection import Connection, add_row, drop_words
from hierchat.store.documents import copy_documents
from hierchat.store.errors import NotFound
from hierchat.store.history import forget_learned
from hierchat.store.messages import PATH
from hierchat.store.projects import copy_settings, put_settings, require_project, settings_of
from hierchat.store.records import ChatSettings, Conversation
from hierchat.store.repository import (
    FOUND_BEGINS,
    FOUND_ENDS,
    NUMBER,
    Repository,
    is_running,
    match_expression,
    owned_conversation,
    owned_message,
    require_user,
    storable,
    this_process,
    title_of,
)

_ABANDONED_SECONDS = 86_400.0
"""A conversation that waited so long for its first message was left behind by a crash."""

_COLUMNS = ("id", "title", "created_at", "updated_at", "pinned", "archived", "unread", "project_id")
_EMPTY = (
    "NOT EXISTS (SELECT 1 FROM messages WHERE conversation_id = conversations.id)"
    " AND NOT EXISTS (SELECT 1 FROM waiting WHERE conversation_id = conversations.id)"
    " AND NOT EXISTS (SELECT 1 FROM documents WHERE conversation_id = conversations.id)"
)
"""Holds for a conversation where nothing was said, no question waits, and that has no documents."""
_LIST = f"""
    SELECT {", ".join(_COLUMNS)} FROM conversations
    WHERE user_id = :user AND archived = :archived AND hidden_by IS NULL
        AND (:project IS NULL OR ifnull(project_id, 0) = :project)
    ORDER BY archived, pinned DESC, updated_at DESC, id DESC LIMIT :limit
"""
# FTS5 makes no snippet inside a GROUP BY: hence first the newest hit of each conversation, then its text.
# MATERIALIZED and the + keep SQLite from running the match again for every conversation.
_SEARCH = f"""
    WITH found AS MATERIALIZED (
        SELECT rowid AS message_id, 0 AS attachment_id FROM messages_fts WHERE messages_fts MATCH :match
        UNION ALL
        SELECT message_id, attachments.id
        FROM attachments_fts JOIN attachments ON attachments.id = attachments_fts.rowid
        WHERE attachments_fts MATCH :match
    ),
    hits AS MATERIALIZED (
        SELECT conversation_id AS id, max(messages.id) AS message_id, attachment_id
        FROM found
        JOIN messages ON messages.id = found.message_id
        JOIN conversations ON conversations.id = conversation_id
        WHERE user_id = :user AND hidden_by IS NULL
        GROUP BY conversation_id
    ),
    snippets AS MATERIALIZED (
        SELECT rowid AS message_id, snippet(messages_fts, 0, '{FOUND_BEGINS}', '{FOUND_ENDS}', '…', 12) AS snippet
        FROM messages_fts
        WHERE messages_fts MATCH :match AND +rowid IN (SELECT message_id FROM hits WHERE NOT attachment_id)
        UNION ALL
        SELECT message_id, snippet(attachments_fts, -1, '{FOUND_BEGINS}', '{FOUND_ENDS}', '…', 12)
        FROM attachments_fts JOIN hits ON hits.attachment_id = attachments_fts.rowid
        WHERE attachments_fts MATCH :match AND +attachments_fts.rowid IN (SELECT attachment_id FROM hits)
    )
    SELECT
        {", ".join(_COLUMNS)}, ifnull(snippet, '') AS snippet,
        hits.message_id AS message_id
    FROM conversations LEFT JOIN hits USING (id) LEFT JOIN snippets USING (message_id)
    WHERE user_id = :user AND hidden_by IS NULL AND (
        hits.message_id IS NOT NULL OR id IN (SELECT rowid FROM titles_fts WHERE titles_fts MATCH :match)
    )
    ORDER BY archived, pinned DESC, updated_at DESC, id DESC LIMIT :limit
"""

_HIDDEN = "SELECT id, hidden_by, hider_started FROM {} WHERE hidden_by IS NOT NULL"
_NEW = """
    SELECT conversations.id, user_id, title FROM conversations JOIN users ON users.id = user_id
    WHERE conversations.created_at > :since AND model_titles AND NOT title_given AND title <> ''
        AND hidden_by IS NULL
        AND NOT EXISTS (SELECT 1 FROM title_tries WHERE conversation_id = conversations.id AND model_key = :model)
        AND EXISTS (
            SELECT 1 FROM messages JOIN turns ON message_id = messages.id
            WHERE conversation_id = conversations.id AND state <> 'writing' AND text <> ''
        )
    ORDER BY updated_at
"""
_FIRST_WORDS = "SELECT text FROM messages WHERE conversation_id = ? AND role = 'user' ORDER BY id LIMIT 1"
# Of several copies of a message that goes, the first becomes the original of the others.
_BEQUEATH = """
    UPDATE messages SET copy_of = nullif(heirs.first, messages.id)
    FROM (
        SELECT copy_of AS original, min(id) AS first FROM messages
        WHERE copy_of IN (
            SELECT messages.id FROM messages JOIN conversations ON conversations.id = conversation_id
            WHERE conversation_id = ? AND hidden_by IS NOT NULL
        ) GROUP BY copy_of
    ) AS heirs
    WHERE messages.copy_of = heirs.original
"""

# Whatever holds texts in memory looks for what is there.
_HAS_NEW_TEXTS = """
    UPDATE users SET deletions = deletions + 1 WHERE id = (SELECT user_id FROM conversations WHERE id = ?)
"""


@dataclass(frozen=True, slots=True)
class Untitled:
    """Conversation whose title is only its first words, so that a model may name it."""

    id: int
    user_id: int
    title: str


class Chats(Repository):
    """Conversations: list, search, title, pin, archive, settings, copies, and deletion with undo.
    Hidden ones count as missing everywhere, and do not draft."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._hidden: set[int] = set()  # conversations that this store hid and has to delete in the end,
        self._hidden_projects: set[int] = set()  # and projects

    def create(self, user_id: int, title: str = "", project_id: int | None = None) -> int:
        """Add an empty conversation and return its id; the first question names it. Raises StoreError, NotFound."""
        with self._connection.write() as db:
            require_user(db, user_id)
            if project_id is not None:
                require_project(db, user_id, project_id)
            return _create(db, user_id, storable(title), project_id=project_id)

    def find(
        self,
        user_id: int,
        query: str | None = None,
        limit: int = 200,
        *,
        archived: bool = False,
        project: int | None = None,
    ) -> list[Conversation]:
        """Return a user's conversations: pinned first, then the latest changed; `project`: 0 for none, None for all.
        With a query: those of all projects whose title or messages hold all its words, the last one as a prefix."""
        parameters: dict[str, object] = {"user": user_id, "limit": limit}
        with self._connection.read() as db:
            if not (query or "").strip():
                which = {"archived": archived, "project": project}
                return [_conversation(row) for row in db.query(_LIST, parameters | which)]
            if not (match := match_expression(query or "")):
                return []
            return [_conversation(row) for row in db.query(_SEARCH, parameters | {"match": match})]

    def count_archived(self, user_id: int) -> int:
        archived = "SELECT 1 FROM conversations WHERE user_id = ? AND archived AND hidden_by IS NULL"
        return len(self._rows(archived, [user_id]))

    def get(self, user_id: int, conversation_id: int) -> Conversation:
        with self._connection.read() as db:
            row = owned_conversation(db, user_id, conversation_id)
            return _conversation({name: row[name] for name in _COLUMNS})

    def discard(self, user_id: int, conversation_id: int) -> bool:
        """Remove a conversation if it has no message; return whether it is gone. It leaves nothing to forget."""
        with self._connection.write() as db:
            db.execute(
                f"DELETE FROM conversations WHERE id = ? AND user_id = ? AND {_EMPTY}",
                [conversation_id, user_id],
            )
            found = db.execute("SELECT 1 FROM conversations WHERE id = ?", [conversation_id]).fetchone()
            return found is None

    def rename(self, user_id: int, conversation_id: int, title: str) -> None:
        """Set a conversation's title, which no model replaces. Raises NotFound."""
        self._change(user_id, conversation_id, title=storable(title), title_given=1)

    def pin(self, user_id: int, conversation_id: int, pinned: bool) -> None:
        """Pin a conversation to the top of the list, or unpin it. Raises NotFound."""
        self._change(user_id, conversation_id, pinned=pinned)

    def archive(self, user_id: int, conversation_id: int, archived: bool) -> None:
        """Archive a conversation, or put it back into the list, unpinned; it drafts as before. Raises NotFound."""
        self._change(user_id, conversation_id, archived=archived, pinned=0)

    def mark_unread(self, user_id: int, conversation_id: int, unread: bool) -> None:
        """Set whether a conversation has a reply that was not seen yet. Raises NotFound."""
        self._change(user_id, conversation_id, unread=unread)

    def _change(self, user_id: int, conversation_id: int, **values: object) -> None:
        with self._connection.write() as db:
            # Also of one that another page has just deleted: it may come back
            owned_conversation(db, user_id, conversation_id, hidden=True)
            changes = ", ".join(f"{name} = ?" for name in values)
            db.execute(
                f"UPDATE conversations SET {changes} WHERE id = ?", [*values.values(), conversation_id]
            )
        self._changes.notify(user_id)

    def untitled(self, model_key: str, since: float) -> list[Untitled]:
        """Return conversations begun after `since` that this model has not tried to name, if their users allow it."""
        with self._connection.read() as db:
            rows = db.execute(_NEW, {"model": model_key, "since": since}).fetchall()
            firsts = {id: db.execute(_FIRST_WORDS, [id]).fetchone() for id, _, _ in rows}
        return [Untitled(*row) for row in rows if firsts[row[0]] and title_of(firsts[row[0]][0]) == row[2]]

    def title_by_model(self, chat: Untitled, model_key: str, title: str | None) -> bool:
        """Record that a model tried to name a chat, and set its title unless None; return whether the title changed."""
        with self._connection.write() as db:
            db.execute(
                "INSERT OR IGNORE INTO title_tries (conversation_id, model_key)"
                " SELECT id, ? FROM conversations WHERE id = ?",
                [model_key, chat.id],
            )
            changed = db.execute(
                "UPDATE conversations SET title = ifnull(?, title)"
                " WHERE id = ? AND title = ? AND NOT title_given AND hidden_by IS NULL",
                [title, chat.id, chat.title],
            ).rowcount
        if title and changed:
            self._changes.notify(chat.user_id)
        return bool(title and changed)

    def settings(self, user_id: int, conversation_id: int) -> ChatSettings | None:
        """Return a chat's settings; None if it takes the model's own values. Raises NotFound."""
        with self._connection.read() as db:
            owned_conversation(db, user_id, conversation_id)
            return settings_of(db, conversation_id)

    def set_settings(self, user_id: int, conversation_id: int, settings: ChatSettings) -> None:
        """Set a chat's settings from the next reply on; a preset that is gone counts as none. Raises NotFound."""
        with self._connection.write() as db:
            owned_conversation(db, user_id, conversation_id)
            put_settings(db, user_id, conversation_id, settings)

    def fork(self, user_id: int, message_id: int) -> int:
        """Copy the messages down to this one into a new conversation with settings, figures and tokens; return its id.
        A copy neither drafts nor counts until its original is deleted for good. Raises NotFound."""
        with self._connection.write() as db:
            source = owned_message(db, user_id, message_id)["conversation_id"]
            row = owned_conversation(db, user_id, source)
            title = _another_title(db, user_id, row["title"])
            fork = _create(db, user_id, title, project_id=row["project_id"])
            copy_settings(db, source, fork)
            parent = None
            for (id,) in db.execute(f"SELECT id FROM ({PATH})", [message_id]).fetchall():
                parent = _copy(db, id, fork, parent)
            copy_documents(db, source, fork)
            db.execute("UPDATE conversations SET current_leaf_id = ? WHERE id = ?", [parent, fork])
        self._changes.notify(user_id)
        return fork

    def hide(self, user_id: int, conversation_id: int) -> None:
        """Delete a conversation so that `restore` can undo it until `delete_hidden`. What was learned is forgotten now.
        Closing the store, or opening it after a crash, deletes it. Raises NotFound."""
        with self._connection.write() as db:
            owned_conversation(db, user_id, conversation_id)
            _hide(db, user_id, conversation_id)
        self._hidden.add(conversation_id)

    def restore(self, user_id: int, conversation_id: int) -> None:
        """Undo `hide`; the conversation drafts again. Raises NotFound if it has been deleted for good."""
        with self._connection.write() as db:
            if not show_again(db, user_id, conversation_id):
                raise NotFound("This chat was deleted for good.")
        self._hidden.discard(conversation_id)

    def hide_project(self, user_id: int, project_id: int) -> list[int]:
        """Delete a project with its conversations, as `hide` does, and return their ids. Raises NotFound."""
        with self._connection.write() as db:
            require_project(db, user_id, project_id)
            inside = "SELECT id FROM conversations WHERE project_id = ? AND hidden_by IS NULL"
            ids = [id for (id,) in db.execute(inside, [project_id]).fetchall()]
            for id in ids:
                _hide(db, user_id, id)
            _mark_hidden(db, "projects", project_id)
        self._hidden.update(ids)
        self._hidden_projects.add(project_id)
        return ids

    def restore_project(self, user_id: int, project_id: int, conversation_ids: Iterable[int]) -> None:
        """Undo `hide_project`. Raises NotFound if the project has been deleted for good."""
        with self._connection.write() as db:
            found = db.execute(
                "UPDATE projects SET hidden_by = NULL, hider_started = NULL"
                " WHERE id = ? AND user_id = ? AND hidden_by IS NOT NULL",
                [project_id, user_id],
            ).rowcount
            if not found:
                raise NotFound("This project was deleted for good.")
            for id in conversation_ids:
                show_again(db, user_id, id)
        self._hidden.difference_update(conversation_ids)
        self._hidden_projects.discard(project_id)

    def delete_hidden(
        self, conversation_ids: Iterable[int] | None = None, project_id: int | None = None
    ) -> None:
        """Delete for good what this store hid (all, or these conversations and that project), from the files too.
        Takes the time of rewriting the file; replies being written there get NotFound."""
        mine, projects = set(self._hidden), set(self._hidden_projects)
        if conversation_ids is not None:
            mine, projects = mine.intersection(conversation_ids), projects.intersection([project_id])
        if mine or projects:
            self._delete(mine, projects)
            self._hidden -= mine
            self._hidden_projects -= projects

    def recover(self) -> None:
        """Delete what ended processes had hidden, and conversations that a crash left without a message."""
        with self._connection.write() as db:
            db.execute(
                f"DELETE FROM conversations WHERE title = '' AND created_at < ? AND {_EMPTY}",
                [time.time() - _ABANDONED_SECONDS],
            )
            gone, projects = (
                {id for id, pid, started in db.execute(_HIDDEN.format(table)) if not is_running(pid, started)}
                for table in ("conversations", "projects")
            )
        if gone or projects:
            self._delete(gone, projects)

    def _delete(self, hidden: Iterable[int], projects: Iterable[int]) -> None:
        with self._connection.write() as db:
            for id in hidden:
                _delete_hidden(db, id)
            for id in projects:
                db.execute("DELETE FROM projects WHERE id = ? AND hidden_by IS NOT NULL", [id])
            drop_words(db)
        self._connection.rewrite()  # deleted by now: a full disk or a busy one must not make it look otherwise

    def begin_incognito(self, user_id: int) -> int:
        """Add a conversation that is in no list and drafts for no other until `end_incognito`; return its id.
        Closing the store, or opening it after a crash, deletes it. Raises StoreError if the user was forgotten."""
        with self._connection.write() as db:
            require_user(db, user_id)
            conversation = _create(db, user_id, "", incognito=1)
            _mark_hidden(db, "conversations", conversation)
        self._hidden.add(conversation)
        return conversation

    def end_incognito(self, user_id: int, conversation_id: int) -> bool:
        """Delete an incognito conversation for good, from the files too; return whether it was one."""
        ended = self._run(
            "UPDATE conversations SET incognito = 0 WHERE id = ? AND user_id = ? AND incognito",
            [conversation_id, user_id],
        )
        if ended:
            self.delete_hidden([conversation_id])
        return bool(ended)


def _create(db: Database, user_id: int, title: str, **more: object) -> int:
    now = time.time()
    return add_row(db, "conversations", user_id=user_id, title=title, created_at=now, updated_at=now, **more)


def delete_conversation(db: Database, user_id: int, conversation_id: int) -> None:
    """Delete a conversation with all that came of it, in a transaction, also under older schemas."""
    tables = set(db.table_names())
    if "suffix_runs" in tables:  # older versions stored the order of the texts' suffixes
        db.execute("DELETE FROM suffix_runs WHERE user_id = ?", [user_id])
    if "learned" in tables:
        db.execute("DELETE FROM learned WHERE user_id = ?", [user_id])
    if "hidden_by" in db["conversations"].columns_dict and "copy_of" in db["messages"].columns_dict:
        _mark_hidden(db, "conversations", conversation_id)
        _delete_hidden(db, conversation_id)
    else:
        db.execute("DELETE FROM conversations WHERE id = ?", [conversation_id])


def _delete_hidden(db: Database, conversation_id: int) -> None:
    if db.execute(_BEQUEATH, [conversation_id]).rowcount:
        db.execute(_HAS_NEW_TEXTS, [conversation_id])
    db.execute("DELETE FROM conversations WHERE id = ? AND hidden_by IS NOT NULL", [conversation_id])


def _hide(db: Database, user_id: int, conversation_id: int) -> None:
    forget_learned(db, user_id)
    _mark_hidden(db, "conversations", conversation_id)
    db.execute("UPDATE conversations SET incognito = 0 WHERE id = ?", [conversation_id])


def _mark_hidden(db: Database, table: str, id: int) -> None:
    db.execute(f"UPDATE {table} SET hidden_by = ?, hider_started = ? WHERE id = ?", [*this_process(), id])


def _conversation(row: dict[str, Any]) -> Conversation:
    flags = {name: bool(row[name]) for name in ("pinned", "archived", "unread")}
    return Conversation(**row | flags)


def _another_title(db: Database, user_id: int, title: str) -> str:
    if not title:
        return ""
    base = NUMBER.sub("", title)
    rows = db.execute("SELECT title FROM conversations WHERE user_id = ? AND title <> ''", [user_id])
    taken = {title for (title,) in rows}
    return next(name for number in count(2) if (name := f"{base} ({number})") not in taken)


def _copy(db: Database, message_id: int, conversation_id: int, parent_id: int | None) -> int:
    copy: int = db.execute(
        "INSERT INTO messages (conversation_id, parent_id, role, text, state, created_at, edited, call, copy_of)"
        " SELECT ?, ?, role, text, replace(state, 'writing', 'interrupted'), created_at, edited, call,"
        " ifnull(copy_of, id) FROM messages WHERE id = ?",
        [conversation_id, parent_id, message_id],
    ).lastrowid
    for table in ("turns", "token_log", "spans", "attachments", "imported_messages"):
        columns = ", ".join(name for name in db.table(table).columns_dict if name not in ("id", "message_id"))
        db.execute(
            f"INSERT INTO {table} (message_id, {columns}) SELECT ?, {columns} FROM {table} WHERE message_id = ?",
            [copy, message_id],
        )
    return copy


def show_again(db: Database, user_id: int, conversation_id: int) -> bool:
    """Undo the hiding of a conversation; False if no such hidden one is this user's."""
    found = db.execute(
        "UPDATE conversations SET hidden_by = NULL, hider_started = NULL, incognito = 0"
        " WHERE id = ? AND user_id = ? AND hidden_by IS NOT NULL",
        [conversation_id, user_id],
    ).rowcount
    if found:
        db.execute(_HAS_NEW_TEXTS, [conversation_id])
    return bool(found)
