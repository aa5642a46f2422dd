-- Folders of conversations; source: what another program calls one that was imported. notes: a user's about
-- themselves, which stand in the system prompt of each chat unless its settings say otherwise.
CREATE TABLE projects (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
    name TEXT NOT NULL,
    system_prompt TEXT NOT NULL DEFAULT '',
    model TEXT NOT NULL DEFAULT '',
    preset_id INTEGER REFERENCES presets ON DELETE SET NULL,
    source TEXT NOT NULL DEFAULT '',
    created_at REAL NOT NULL,
    hidden_by INTEGER,
    hider_started REAL
);
CREATE INDEX projects_by_user ON projects (user_id);
ALTER TABLE conversations ADD COLUMN project_id INTEGER REFERENCES projects ON DELETE SET NULL;
CREATE INDEX conversations_by_project ON conversations (project_id) WHERE project_id IS NOT NULL;
ALTER TABLE users ADD COLUMN notes TEXT NOT NULL DEFAULT '';
ALTER TABLE chat_settings ADD COLUMN notes INTEGER NOT NULL DEFAULT 1;
