-- hidden_by: the process that took a conversation out of sight and will delete it unless that is undone.
-- copy_of: where a message was copied from, as long as that is there; only one of the two drafts and counts.
ALTER TABLE conversations ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
ALTER TABLE conversations ADD COLUMN archived INTEGER NOT NULL DEFAULT 0;
ALTER TABLE conversations ADD COLUMN hidden_by INTEGER;
ALTER TABLE conversations ADD COLUMN hider_started REAL;
ALTER TABLE messages ADD COLUMN copy_of INTEGER REFERENCES messages ON DELETE SET NULL;
CREATE INDEX conversations_hidden ON conversations (id) WHERE hidden_by IS NOT NULL;
CREATE INDEX messages_by_original ON messages (copy_of) WHERE copy_of IS NOT NULL;
