"""Store documents of chats and projects, and find their passages by words."""

import re
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, islice

from sqlite_utils import Database

from hierchat.store.connection import drop_words
from hierchat.store.errors import NotFound, StoreError
from hierchat.store.projects import require_project
from hierchat.store.records import Document, Passage
from hierchat.store.repository import Repository, owned_conversation, storable

BATCH = 500
"""Passages that are stored at once: replies are stored between two."""
MOST_WORDS = 32
"""Bounds the words of the question, and those of what was said before, by which passages are looked for."""
_WORD = re.compile(r"\w+")
_CJK = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]+")
"""Writing without blanks between words: it is found by pairs of characters."""
_LISTED = """
    SELECT documents.id, name, size, (SELECT count(*) FROM passages WHERE document_id = documents.id), done,
        project_id IS NOT NULL
    FROM documents WHERE user_id = ? AND (conversation_id = ? OR project_id = ?) ORDER BY documents.id
"""
_UNFINISHED = """
    DELETE FROM documents WHERE NOT done AND user_id = ? AND name = ? AND conversation_id IS ? AND project_id IS ?
"""
_COPY = """
    INSERT INTO documents (user_id, conversation_id, name, size, done, created_at)
    SELECT user_id, ?, name, size, done, created_at FROM documents WHERE id = ?
"""
_COPY_PASSAGES = """
    INSERT INTO passages (document_id, scope, name, place, text, pairs)
    SELECT ?, 'c' || ?, name, place, text, pairs FROM passages WHERE document_id = ? ORDER BY id
"""
# What a message quotes of a document, it quotes of the copy: the passage at the same place.
_QUOTE_COPY = """
    WITH places AS (
        SELECT document_id, id, row_number() OVER (PARTITION BY document_id ORDER BY id) AS place
        FROM passages WHERE document_id IN (:document, :copy)
    )
    UPDATE attachments SET passage_id = copies.id
    FROM places AS originals JOIN places AS copies USING (place)
    WHERE originals.document_id = :document AND copies.document_id = :copy AND passage_id = originals.id
        AND message_id IN (SELECT id FROM messages WHERE conversation_id = :fork)
"""
_PUT = """
    INSERT INTO passages (document_id, scope, name, place, text, pairs)
    SELECT id, ifnull('p' || project_id, 'c' || conversation_id), ?, ?, ?, ? FROM documents WHERE id = ?
"""
# A document's scope is a word of the index: so what other chats hold is passed over while it is read. That word itself
# weighs nothing; a name or a heading weighs twice as much as the text.
_FIND = """
    WITH found AS MATERIALIZED (
        SELECT rowid AS id, -bm25(passages_fts, 0, 2, 2, 1, 1) AS score FROM passages_fts WHERE passages_fts MATCH ?
        LIMIT ?
    )
    SELECT passages.name, passages.place, passages.text, passages.id, score
    FROM found JOIN passages USING (id) JOIN documents ON documents.id = document_id
    WHERE user_id = ? ORDER BY score DESC, passages.id LIMIT ?
"""
_WORDS = "{{name place text pairs}} : {}"
RANKED, READ, SAMPLE = 40_000, 2_000_000, 5_000
"""Bounds of a question: passages ranked, index entries read, and entries of a word to estimate its frequency."""
_SAMPLED = (
    "SELECT count(*), max(rowid) FROM (SELECT rowid FROM passages_fts WHERE passages_fts MATCH ? LIMIT ?)"
)


class Documents(Repository):
    """Stores the documents of all users. Each belongs to one chat or one project, and is deleted with it."""

    def add(
        self,
        user_id: int,
        document: Document,
        chat: int | None,
        passages: Iterator[Passage],
        project: int | None = None,
    ) -> bool:
        """Store a document of a chat, its project, or `project`, as its passages come, in place of a half-read one of
        its name; return whether there were any. An error removes it. Raises NotFound, StoreError."""
        added: int | None = None
        try:
            while batch := list(islice(passages, BATCH)):
                with self._connection.write() as db:
                    if chat is not None:
                        project = owned_conversation(db, user_id, chat)["project_id"]
                    elif project is not None:
                        require_project(db, user_id, project)
                    owners = [None, project] if document.in_project and project else [chat, None]
                    if added is None:
                        db.execute(_UNFINISHED, [user_id, storable(document.name), *owners])
                        added = db.execute(
                            "INSERT INTO documents (user_id, conversation_id, project_id, name, size, created_at)"
                            " VALUES (?, ?, ?, ?, ?, ?)",
                            [user_id, *owners, storable(document.name), document.size, time.time()],
                        ).lastrowid
                    if not db.conn.executemany(_PUT, [[*_columns(one), added] for one in batch]).rowcount:
                        raise NotFound("This document was removed while it was read.")
            with self._connection.write() as db:
                db.execute("UPDATE documents SET done = 1 WHERE id = ?", [added])
                db.execute("INSERT INTO passages_fts (passages_fts) VALUES ('optimize')")
        except BaseException as error:
            if added is not None and not isinstance(error, StoreError):
                with suppress(StoreError):
                    self.delete(user_id, added)
            raise
        return added is not None

    def listed(self, user_id: int, conversation_id: int | None, project: int | None = None) -> list[Document]:
        """Return the documents of a chat and of its project; without a chat, of that `project`. Raises NotFound."""
        with self._connection.read() as db:
            if conversation_id is not None:
                project = owned_conversation(db, user_id, conversation_id)["project_id"]
            return [Document(*row) for row in db.execute(_LISTED, [user_id, conversation_id, project])]

    def find(
        self, user_id: int, conversation_id: int, question: str, before: Sequence[str], most: int
    ) -> list[Passage]:
        """Return the passages that share most with a question (counted twice) and earlier texts. Raises NotFound."""
        words = 2 * _words([question]) + _words(before)
        with self._connection.read() as db:
            project = owned_conversation(db, user_id, conversation_id)["project_id"]
            scope = f'scope : ("c{conversation_id}"' + (f' OR "p{project}")' if project else ")")
            match = f"{scope} AND {_ranking(db, scope, words)}"
            return (
                [Passage(*row) for row in db.execute(_FIND, [match, RANKED, user_id, most])] if words else []
            )

    def delete(self, user_id: int, document_id: int) -> bool:
        """Delete a document, passages and quotes, from the file too; as `Connection.rewrite`. Raises NotFound."""
        with self._connection.write() as db:
            own = "DELETE FROM documents WHERE id = ? AND user_id = ?"
            if not db.execute(own, [document_id, user_id]).rowcount:
                raise NotFound("This document was removed before.")
            drop_words(db)
        return self._connection.rewrite()


def _ranking(db: Database, scope: str, words: Sequence[str]) -> str:
    """Return the FTS5 expression that ranks a scope's passages in bounded time, by the rarer words."""
    (last,) = db.execute("SELECT ifnull(max(id), 0) FROM passages").fetchone()
    held = {word: _held(db, _WORDS.format(f"({word})"), SAMPLE, last) for word in dict.fromkeys(words)}
    words = sorted(words, key=held.__getitem__)  # stable: they count in any order
    sums = list(accumulate(held[word] for word in words))
    counted = words[: max(bisect_right(sums, READ), 2)]
    if _held(db, scope, RANKED, last) < RANKED:
        return _WORDS.format(f"({' OR '.join(counted)})")
    rare = list(dict.fromkeys(words[: bisect_right(sums, RANKED)]))
    among = " OR ".join(rare) or " AND ".join(list(dict.fromkeys(words))[:2])
    return _WORDS.format(f"({among})") + " AND " + _WORDS.format(f"({' OR '.join(counted)})")


def _held(db: Database, match: str, sample: int, last: int) -> int:
    found, at = db.execute(_SAMPLED, [match, sample]).fetchone()
    return int(found if found < sample else found * last / at)


def copy_documents(db: Database, conversation_id: int, fork: int) -> None:
    """Copy a chat's documents for its fork, whose messages quote the copies from then on."""
    for (document,) in db.execute(
        "SELECT id FROM documents WHERE conversation_id = ? ORDER BY id", [conversation_id]
    ).fetchall():
        copy = db.execute(_COPY, [fork, document]).lastrowid
        db.execute(_COPY_PASSAGES, [copy, fork, document])
        db.execute(_QUOTE_COPY, {"document": document, "copy": copy, "fork": fork})


def _columns(passage: Passage) -> list[str]:
    texts = map(storable, (passage.name, passage.place, passage.text))
    return [*texts, " ".join(_pairs(passage.text))]


def _words(texts: Iterable[str]) -> list[str]:
    words = (
        word for text in texts for word in [*_WORD.findall(_CJK.sub(" ", storable(text))), *_pairs(text)]
    )
    different = list(dict.fromkeys(word.lower() for word in words))[:MOST_WORDS]
    return [f'"{word}"' + ("*" if len(word) == 1 and _CJK.match(word) else "") for word in different]


def _pairs(text: str) -> list[str]:
    runs = _CJK.findall(text)
    return [run[at : at + 2] for run in runs for at in range(max(len(run) - 1, 1))]
