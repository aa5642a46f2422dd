-- drafts_from: which of the user's texts may draft. incognito: hidden from its beginning, by the process in which it
-- is open; so it drafts for no other chat, and goes as whatever is hidden goes.
ALTER TABLE users ADD COLUMN drafts_from TEXT NOT NULL DEFAULT 'all'
    CHECK (drafts_from IN ('all', 'chat', 'none'));
ALTER TABLE conversations ADD COLUMN incognito INTEGER NOT NULL DEFAULT 0;
