-- The precision of what weights were multiplied by, of which the words depend: int8 or int16.
ALTER TABLE turns ADD COLUMN activations TEXT;
