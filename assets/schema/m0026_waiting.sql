-- Questions that were sent and wait for the model, until they become messages. at_end: below the last message, which
-- may not be there yet; else below parent_id. files: as JSON. The process is the one in which they wait.
CREATE TABLE waiting (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation_id INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    parent_id INTEGER,
    at_end INTEGER NOT NULL,
    text TEXT NOT NULL,
    files TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started REAL NOT NULL
);
CREATE INDEX waiting_by_conversation ON waiting (conversation_id);
