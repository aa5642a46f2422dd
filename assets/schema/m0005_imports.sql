-- source: what the other program, or another hierchat, calls it; written_by: JSON, who wrote a reply elsewhere.
CREATE TABLE imports (
    conversation_id INTEGER PRIMARY KEY REFERENCES conversations ON DELETE CASCADE,
    user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
    source TEXT NOT NULL,
    UNIQUE (user_id, source)
);
CREATE TABLE imported_messages (
    message_id INTEGER PRIMARY KEY REFERENCES messages ON DELETE CASCADE,
    source TEXT NOT NULL,
    written_by TEXT
);
