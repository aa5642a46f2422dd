-- result: JSON of chat/comparison.py, which alone reads it.
CREATE TABLE comparisons (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation_id INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    created_at REAL NOT NULL,
    question TEXT NOT NULL,
    result TEXT NOT NULL
);
CREATE INDEX comparisons_by_conversation ON comparisons (conversation_id);
