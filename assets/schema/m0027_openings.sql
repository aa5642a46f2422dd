-- Who has the file open, which has a log beside it for as long: a file without one that names somebody is a copy of
-- a file in use, or of one whose process was killed, and its log is missing.
CREATE TABLE openings (
    id INTEGER PRIMARY KEY,
    pid INTEGER NOT NULL,
    started REAL NOT NULL,
    opened_at REAL NOT NULL
);
