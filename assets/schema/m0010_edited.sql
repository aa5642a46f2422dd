-- edited: a reply as the user changed it. No model wrote it, so it has no turn, and drafts as the user's text.
ALTER TABLE messages ADD COLUMN edited INTEGER NOT NULL DEFAULT 0;
