-- What a model wrote for itself, for one user: of the conversation `key` the reply to turn `turn`. A row that is
-- written anew gets a new id, so that ids above a mark are all that is new. origin_id: the user's message from which
-- the question was made; with it go the replies. suffix_runs: of these texts, too; made anew, for its CHECK.
CREATE TABLE self_texts (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
    model_key TEXT NOT NULL,
    key TEXT NOT NULL,
    turn INTEGER NOT NULL,
    origin_id INTEGER REFERENCES messages ON DELETE CASCADE,
    ids BLOB NOT NULL,
    done INTEGER NOT NULL,
    created_at REAL NOT NULL,
    UNIQUE (user_id, model_key, key, turn)
);
CREATE INDEX self_texts_by_origin ON self_texts (origin_id) WHERE origin_id IS NOT NULL;
ALTER TABLE users ADD COLUMN learns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE users ADD COLUMN learns_after REAL NOT NULL DEFAULT 10;
ALTER TABLE users ADD COLUMN learns_most INTEGER NOT NULL DEFAULT 500000;
CREATE TABLE suffix_runs_anew (
    id INTEGER PRIMARY KEY,
    user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
    model_key TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('written', 'asked', 'self')),
    texts BLOB NOT NULL,
    positions BLOB NOT NULL,
    checksum INTEGER NOT NULL
);
INSERT INTO suffix_runs_anew SELECT id, user_id, model_key, kind, texts, positions, checksum FROM suffix_runs;
DROP TABLE suffix_runs;
ALTER TABLE suffix_runs_anew RENAME TO suffix_runs;
CREATE INDEX suffix_runs_by_user ON suffix_runs (user_id, model_key, kind);
