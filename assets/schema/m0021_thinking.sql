-- How long the model thought before it answered.
ALTER TABLE turns ADD COLUMN thought_ms REAL;
