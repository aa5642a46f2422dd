-- How many of the remarks on what a user's own first replies show they have had; whoever has chats needs none.
ALTER TABLE users ADD COLUMN told INTEGER NOT NULL DEFAULT 0;
UPDATE users SET told = 2 WHERE id IN (SELECT user_id FROM conversations);
