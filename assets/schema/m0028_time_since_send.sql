-- From Send to the last token; of these, what other replies took, and what it took until the model was there.
ALTER TABLE turns ADD COLUMN total_ms REAL;
ALTER TABLE turns ADD COLUMN waited_ms REAL;
ALTER TABLE turns ADD COLUMN loading_ms REAL;
