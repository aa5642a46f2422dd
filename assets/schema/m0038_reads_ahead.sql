-- reads_ahead: chats that are opened and files that are attached are read in spare time, before a question is sent.
ALTER TABLE users ADD COLUMN reads_ahead INTEGER NOT NULL DEFAULT 1;
