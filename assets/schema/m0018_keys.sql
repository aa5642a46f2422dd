-- Programs that may use the endpoint. hash: SHA-256 of the key, which is random and stands nowhere. user_id: whose
-- texts draft, and take in what is written; none: nothing is kept. key_days: tokens of prompts and replies by day.
-- endpoint: one row, who may ask: nobody, who has a key, or programs on this machine without one, too.
CREATE TABLE keys (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    hash BLOB NOT NULL UNIQUE,
    created_at REAL NOT NULL,
    used_at REAL,
    user_id INTEGER REFERENCES users ON DELETE SET NULL,
    at_once INTEGER,
    per_minute INTEGER,
    tokens_per_day INTEGER
);
CREATE TABLE key_days (
    key_id INTEGER NOT NULL REFERENCES keys ON DELETE CASCADE,
    day TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    PRIMARY KEY (key_id, day)
) WITHOUT ROWID;
CREATE TABLE endpoint (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    access TEXT NOT NULL CHECK (access IN ('off', 'keys', 'open'))
);
INSERT INTO endpoint VALUES (1, 'off');
