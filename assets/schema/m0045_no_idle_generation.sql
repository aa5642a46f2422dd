-- Models write nothing for themselves any more.
DROP TABLE self_texts;
ALTER TABLE users DROP COLUMN learns;
