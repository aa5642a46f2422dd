-- Their texts are not among the messages' own, so that a page with long files is drawn without reading them.
CREATE TABLE attachments (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id INTEGER NOT NULL REFERENCES messages ON DELETE CASCADE,
    name TEXT NOT NULL,
    size INTEGER NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX attachments_by_message ON attachments (message_id);
CREATE VIRTUAL TABLE attachments_fts USING fts5 (
    name, text, content = 'attachments', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
);
CREATE TRIGGER attachments_fts_insert AFTER INSERT ON attachments BEGIN
    INSERT INTO attachments_fts (rowid, name, text) VALUES (new.id, new.name, new.text);
END;
CREATE TRIGGER attachments_fts_delete AFTER DELETE ON attachments BEGIN
    INSERT INTO attachments_fts (attachments_fts, rowid, name, text)
    VALUES ('delete', old.id, old.name, old.text);
END;
