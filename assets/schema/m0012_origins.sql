-- What a span was found by. origin_id references no table: that a message is gone is to be seen.
ALTER TABLE spans ADD COLUMN slot TEXT NOT NULL DEFAULT '';
ALTER TABLE spans ADD COLUMN matched INTEGER NOT NULL DEFAULT 0;
ALTER TABLE spans ADD COLUMN chance REAL;
ALTER TABLE spans ADD COLUMN origin_id INTEGER;
ALTER TABLE spans ADD COLUMN corpus TEXT NOT NULL DEFAULT '';
ALTER TABLE spans ADD COLUMN place INTEGER;
