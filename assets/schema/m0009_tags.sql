-- What conversations are called: tags; titles that the user gave (title_given) and no model replaces; which models
-- tried to write one; and whether they may, for each user.
CREATE TABLE tags (
    conversation_id INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    name TEXT NOT NULL,
    PRIMARY KEY (conversation_id, name)
) WITHOUT ROWID;
CREATE TABLE title_tries (
    conversation_id INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    model_key TEXT NOT NULL,
    PRIMARY KEY (conversation_id, model_key)
) WITHOUT ROWID;
ALTER TABLE conversations ADD COLUMN title_given INTEGER NOT NULL DEFAULT 0;
ALTER TABLE users ADD COLUMN model_titles INTEGER NOT NULL DEFAULT 1;
