-- keep_writing: replies go on when the user's last page was closed. unread: a reply came and was not seen yet.
ALTER TABLE users ADD COLUMN keep_writing INTEGER NOT NULL DEFAULT 1;
ALTER TABLE conversations ADD COLUMN unread INTEGER NOT NULL DEFAULT 0;
