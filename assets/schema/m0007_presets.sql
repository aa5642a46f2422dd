-- chat_settings: a copy of what a preset held, and what was changed in the chat since.
CREATE TABLE presets (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
    name TEXT NOT NULL,
    system_prompt TEXT NOT NULL,
    sampling TEXT NOT NULL,
    is_default INTEGER NOT NULL DEFAULT 0,
    UNIQUE (user_id, name)
);
CREATE UNIQUE INDEX presets_default ON presets (user_id) WHERE is_default;
CREATE TABLE chat_settings (
    conversation_id INTEGER PRIMARY KEY REFERENCES conversations ON DELETE CASCADE,
    system_prompt TEXT NOT NULL,
    sampling TEXT NOT NULL,
    preset_id INTEGER REFERENCES presets ON DELETE SET NULL
);
CREATE INDEX chat_settings_by_preset ON chat_settings (preset_id);
ALTER TABLE turns ADD COLUMN system_prompt TEXT;
ALTER TABLE turns ADD COLUMN stop_string TEXT;
