-- message_tokens: tokens of messages that no model wrote here. AUTOINCREMENT: a row is newer than all before it.
CREATE TABLE message_tokens (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id INTEGER NOT NULL REFERENCES messages ON DELETE CASCADE,
    model_key TEXT NOT NULL,
    ids BLOB NOT NULL,
    UNIQUE (message_id, model_key)
);
CREATE TABLE suffix_runs (
    id INTEGER PRIMARY KEY,
    user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
    model_key TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('written', 'asked')),
    texts BLOB NOT NULL,
    positions BLOB NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE INDEX suffix_runs_by_user ON suffix_runs (user_id, model_key, kind);
