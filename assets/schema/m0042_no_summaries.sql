-- The oldest turns of a chat that outgrows the context are left out; no summary replaces them any more.
DROP TABLE summaries;
ALTER TABLE users DROP COLUMN compacts;
