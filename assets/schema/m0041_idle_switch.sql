-- Idle generation is on or off; when and how much is the program's.
ALTER TABLE users DROP COLUMN learns_after;
ALTER TABLE users DROP COLUMN learns_most;
