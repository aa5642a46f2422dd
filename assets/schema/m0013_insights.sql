-- All that figures over time ask of messages: the rows themselves hold whole texts before these columns.
-- Not a partial index: SQLite would read the row all the same, for the column in its condition.
CREATE INDEX messages_in_time ON messages (conversation_id, role, copy_of, created_at);
