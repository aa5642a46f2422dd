-- text: what stands in the prompt in place of that message and all above it. compacts: whether the model writes such a
-- text by itself before the oldest turns are left out.
CREATE TABLE summaries (
    message_id INTEGER PRIMARY KEY REFERENCES messages ON DELETE CASCADE,
    text TEXT NOT NULL
);
ALTER TABLE users ADD COLUMN compacts INTEGER NOT NULL DEFAULT 0;
