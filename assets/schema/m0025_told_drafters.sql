-- Replies that a drafter outside of this program was told of, as long as it may hold them. place: which drafter;
-- user, reply: what it calls them; message_id: none once the message is deleted. drafters: what tells the users of
-- this database from those of others.
CREATE TABLE told_drafters (
    id INTEGER PRIMARY KEY,
    place TEXT NOT NULL,
    user TEXT NOT NULL,
    reply TEXT NOT NULL,
    message_id INTEGER REFERENCES messages ON DELETE SET NULL
);
CREATE INDEX told_drafters_by_message ON told_drafters (message_id);
CREATE TABLE drafters (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    name TEXT NOT NULL
);
INSERT INTO drafters VALUES (1, lower(hex(randomblob(8))));
