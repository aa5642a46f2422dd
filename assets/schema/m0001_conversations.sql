-- AUTOINCREMENT: an id is never used again, so that a stale page or draft index cannot meet a stranger,
-- and a child's id is always above its parent's.
-- parent_id does not cascade: long conversations would exceed SQLite's limit of 1,000 nested triggers.
CREATE TABLE users (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL
);
CREATE TABLE conversations (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
    title TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    current_leaf_id INTEGER
);
CREATE INDEX conversations_by_user ON conversations (user_id, updated_at);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation_id INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    parent_id INTEGER REFERENCES messages,
    role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
    text TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('complete', 'writing', 'interrupted', 'stopped')),
    created_at REAL NOT NULL
);
CREATE INDEX messages_by_conversation ON messages (conversation_id);
CREATE INDEX messages_by_parent ON messages (parent_id);
CREATE INDEX messages_being_written ON messages (id) WHERE state = 'writing';
CREATE TABLE turns (
    message_id INTEGER PRIMARY KEY REFERENCES messages ON DELETE CASCADE,
    writer_pid INTEGER NOT NULL,
    writer_started REAL NOT NULL,
    model TEXT NOT NULL,
    model_key TEXT NOT NULL,
    settings TEXT NOT NULL,
    seed INTEGER NOT NULL,
    drafted INTEGER NOT NULL,
    prompt_tokens INTEGER,
    seconds REAL,
    first_token_seconds REAL,
    forwards INTEGER,
    tokens_per_forward REAL,
    proposed INTEGER,
    accepted INTEGER,
    sources TEXT,
    baseline_tokens_per_second REAL,
    baseline TEXT CHECK (baseline IN ('measured', 'estimated')),
    speedup REAL,
    finish TEXT
);
CREATE INDEX turns_by_model ON turns (model_key, message_id);
CREATE TABLE spans (
    message_id INTEGER NOT NULL REFERENCES turns ON DELETE CASCADE,
    start INTEGER NOT NULL,
    length INTEGER NOT NULL,
    source TEXT NOT NULL,
    PRIMARY KEY (message_id, start)
) WITHOUT ROWID;
CREATE TABLE token_log (
    message_id INTEGER PRIMARY KEY REFERENCES turns ON DELETE CASCADE,
    ids BLOB NOT NULL
);
