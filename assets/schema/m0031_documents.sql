-- Documents of chats and projects, read in passages. scope: whose they are, as a word of the index; pairs: of
-- characters, for writing without blanks between words. Of attachments: passages that were found for a question.
CREATE TABLE documents (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
    conversation_id INTEGER REFERENCES conversations ON DELETE CASCADE,
    project_id INTEGER REFERENCES projects ON DELETE CASCADE,
    name TEXT NOT NULL,
    size INTEGER NOT NULL,
    done INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL,
    CHECK ((conversation_id IS NULL) <> (project_id IS NULL))
);
CREATE INDEX documents_by_user ON documents (user_id);
CREATE INDEX documents_by_conversation ON documents (conversation_id);
CREATE INDEX documents_by_project ON documents (project_id);
CREATE TABLE passages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    document_id INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    place TEXT NOT NULL,
    text TEXT NOT NULL,
    pairs TEXT NOT NULL
);
CREATE INDEX passages_by_document ON passages (document_id);
CREATE VIRTUAL TABLE passages_fts USING fts5 (
    scope, name, place, text, pairs, content = 'passages', content_rowid = 'id',
    tokenize = 'porter unicode61 remove_diacritics 2'
);
CREATE TRIGGER passages_fts_insert AFTER INSERT ON passages BEGIN
    INSERT INTO passages_fts (rowid, scope, name, place, text, pairs)
    VALUES (new.id, new.scope, new.name, new.place, new.text, new.pairs);
END;
CREATE TRIGGER passages_fts_delete AFTER DELETE ON passages BEGIN
    INSERT INTO passages_fts (passages_fts, rowid, scope, name, place, text, pairs)
    VALUES ('delete', old.id, old.scope, old.name, old.place, old.text, old.pairs);
END;
ALTER TABLE attachments ADD COLUMN number INTEGER;
ALTER TABLE attachments ADD COLUMN passage_id INTEGER REFERENCES passages ON DELETE CASCADE;
CREATE INDEX attachments_by_passage ON attachments (passage_id) WHERE passage_id IS NOT NULL;
