-- plan: JSON, the draft models in use at the end of the reply, from the lowest up, each with its draft length.
ALTER TABLE turns ADD COLUMN forward_ms REAL;
ALTER TABLE turns ADD COLUMN verify_ms REAL;
ALTER TABLE turns ADD COLUMN read_ms REAL;
ALTER TABLE turns ADD COLUMN prompt_read INTEGER;
ALTER TABLE turns ADD COLUMN plan TEXT;
