-- By name, as users are: an account outlives that its user forgets everything. password: argon2's own encoding.
-- guests: users who go with their login; the process is the one in which they are logged in.
CREATE TABLE accounts (
    name TEXT NOT NULL PRIMARY KEY COLLATE NOCASE,
    password TEXT NOT NULL,
    owner INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL
);
CREATE TABLE guests (
    name TEXT NOT NULL PRIMARY KEY,
    pid INTEGER NOT NULL,
    started REAL NOT NULL
);
