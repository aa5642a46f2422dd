-- deletions: what was learned before a conversation was deleted may hold traces of it, and is not written back.
ALTER TABLE users ADD COLUMN deletions INTEGER NOT NULL DEFAULT 0;
CREATE TABLE learned (
    user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
    model_key TEXT NOT NULL,
    kind TEXT NOT NULL,
    value BLOB NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (user_id, model_key, kind)
);
CREATE TABLE latency (
    model_key TEXT NOT NULL,
    machine TEXT NOT NULL,
    value BLOB NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (model_key, machine)
);
ALTER TABLE turns ADD COLUMN draft_ms REAL;
