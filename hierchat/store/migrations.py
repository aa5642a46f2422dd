"""The schema, as numbered scripts. A script that has shipped is never changed; add the next one."""

from __future__ import annotations

from functools import partial

from sqlite_utils import Database, Migrations

_SCRIPTS = {
    # AUTOINCREMENT: an id is never used again, so that a stale page or draft index cannot meet a stranger,
    # and a child's id is always above its parent's.
    # parent_id does not cascade: long conversations would exceed SQLite's limit of 1,000 nested triggers.
    "m0001_conversations": """
        CREATE TABLE users (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            name TEXT NOT NULL UNIQUE,
            created_at REAL NOT NULL
        );
        CREATE TABLE conversations (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
            title TEXT NOT NULL,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            current_leaf_id INTEGER
        );
        CREATE INDEX conversations_by_user ON conversations (user_id, updated_at);
        CREATE TABLE messages (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            conversation_id INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
            parent_id INTEGER REFERENCES messages,
            role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
            text TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('complete', 'writing', 'interrupted', 'stopped')),
            created_at REAL NOT NULL
        );
        CREATE INDEX messages_by_conversation ON messages (conversation_id);
        CREATE INDEX messages_by_parent ON messages (parent_id);
        CREATE INDEX messages_being_written ON messages (id) WHERE state = 'writing';
        CREATE TABLE turns (
            message_id INTEGER PRIMARY KEY REFERENCES messages ON DELETE CASCADE,
            writer_pid INTEGER NOT NULL,
            writer_started REAL NOT NULL,
            model TEXT NOT NULL,
            model_key TEXT NOT NULL,
            settings TEXT NOT NULL,
            seed INTEGER NOT NULL,
            drafted INTEGER NOT NULL,
            prompt_tokens INTEGER,
            seconds REAL,
            first_token_seconds REAL,
            forwards INTEGER,
            tokens_per_forward REAL,
            proposed INTEGER,
            accepted INTEGER,
            sources TEXT,
            baseline_tokens_per_second REAL,
            baseline TEXT CHECK (baseline IN ('measured', 'estimated')),
            speedup REAL,
            finish TEXT
        );
        CREATE INDEX turns_by_model ON turns (model_key, message_id);
        CREATE TABLE spans (
            message_id INTEGER NOT NULL REFERENCES turns ON DELETE CASCADE,
            start INTEGER NOT NULL,
            length INTEGER NOT NULL,
            source TEXT NOT NULL,
            PRIMARY KEY (message_id, start)
        ) WITHOUT ROWID;
        CREATE TABLE token_log (
            message_id INTEGER PRIMARY KEY REFERENCES turns ON DELETE CASCADE,
            ids BLOB NOT NULL
        );
    """,
    # A reply enters the index when it is finished: its text changes twice a second until then.
    "m0002_search": """
        CREATE VIRTUAL TABLE messages_fts USING fts5 (
            text, content = 'messages', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
        );
        CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages WHEN new.state <> 'writing' BEGIN
            INSERT INTO messages_fts (rowid, text) VALUES (new.id, new.text);
        END;
        CREATE TRIGGER messages_fts_delete AFTER DELETE ON messages WHEN old.state <> 'writing' BEGIN
            INSERT INTO messages_fts (messages_fts, rowid, text) VALUES ('delete', old.id, old.text);
        END;
        CREATE TRIGGER messages_fts_leave BEFORE UPDATE OF text, state ON messages
        WHEN old.state <> 'writing' BEGIN
            INSERT INTO messages_fts (messages_fts, rowid, text) VALUES ('delete', old.id, old.text);
        END;
        CREATE TRIGGER messages_fts_enter AFTER UPDATE OF text, state ON messages
        WHEN new.state <> 'writing' BEGIN
            INSERT INTO messages_fts (rowid, text) VALUES (new.id, new.text);
        END;

        CREATE VIRTUAL TABLE titles_fts USING fts5 (
            title, content = 'conversations', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
        );
        CREATE TRIGGER titles_fts_insert AFTER INSERT ON conversations BEGIN
            INSERT INTO titles_fts (rowid, title) VALUES (new.id, new.title);
        END;
        CREATE TRIGGER titles_fts_delete AFTER DELETE ON conversations BEGIN
            INSERT INTO titles_fts (titles_fts, rowid, title) VALUES ('delete', old.id, old.title);
        END;
        CREATE TRIGGER titles_fts_update AFTER UPDATE OF title ON conversations BEGIN
            INSERT INTO titles_fts (titles_fts, rowid, title) VALUES ('delete', old.id, old.title);
            INSERT INTO titles_fts (rowid, title) VALUES (new.id, new.title);
        END;
    """,
    # message_tokens: tokens of messages that no model wrote here. AUTOINCREMENT: a row is newer than all before it.
    "m0003_suffix_runs": """
        CREATE TABLE message_tokens (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            message_id INTEGER NOT NULL REFERENCES messages ON DELETE CASCADE,
            model_key TEXT NOT NULL,
            ids BLOB NOT NULL,
            UNIQUE (message_id, model_key)
        );
        CREATE TABLE suffix_runs (
            id INTEGER PRIMARY KEY,
            user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
            model_key TEXT NOT NULL,
            kind TEXT NOT NULL CHECK (kind IN ('written', 'asked')),
            texts BLOB NOT NULL,
            positions BLOB NOT NULL,
            checksum INTEGER NOT NULL
        );
        CREATE INDEX suffix_runs_by_user ON suffix_runs (user_id, model_key, kind);
    """,
    # deletions: what was learned before a conversation was deleted may hold traces of it, and is not written back.
    "m0004_learned": """
        ALTER TABLE users ADD COLUMN deletions INTEGER NOT NULL DEFAULT 0;
        CREATE TABLE learned (
            user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
            model_key TEXT NOT NULL,
            kind TEXT NOT NULL,
            value BLOB NOT NULL,
            updated_at REAL NOT NULL,
            PRIMARY KEY (user_id, model_key, kind)
        );
        CREATE TABLE latency (
            model_key TEXT NOT NULL,
            machine TEXT NOT NULL,
            value BLOB NOT NULL,
            updated_at REAL NOT NULL,
            PRIMARY KEY (model_key, machine)
        );
        ALTER TABLE turns ADD COLUMN draft_ms REAL;
    """,
    # source: what the other program, or another hierchat, calls it; written_by: JSON, who wrote a reply elsewhere.
    "m0005_imports": """
        CREATE TABLE imports (
            conversation_id INTEGER PRIMARY KEY REFERENCES conversations ON DELETE CASCADE,
            user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
            source TEXT NOT NULL,
            UNIQUE (user_id, source)
        );
        CREATE TABLE imported_messages (
            message_id INTEGER PRIMARY KEY REFERENCES messages ON DELETE CASCADE,
            source TEXT NOT NULL,
            written_by TEXT
        );
    """,
    # hidden_by: the process that took a conversation out of sight and will delete it unless that is undone.
    # copy_of: where a message was copied from, as long as that is there; only one of the two drafts and counts.
    "m0006_organised": """
        ALTER TABLE conversations ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
        ALTER TABLE conversations ADD COLUMN archived INTEGER NOT NULL DEFAULT 0;
        ALTER TABLE conversations ADD COLUMN hidden_by INTEGER;
        ALTER TABLE conversations ADD COLUMN hider_started REAL;
        ALTER TABLE messages ADD COLUMN copy_of INTEGER REFERENCES messages ON DELETE SET NULL;
        CREATE INDEX conversations_hidden ON conversations (id) WHERE hidden_by IS NOT NULL;
        CREATE INDEX messages_by_original ON messages (copy_of) WHERE copy_of IS NOT NULL;
    """,
    # chat_settings: a copy of what a preset held, and what was changed in the chat since.
    "m0007_presets": """
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
    """,
    # Their texts are not among the messages' own, so that a page with long files is drawn without reading them.
    "m0008_attachments": """
        CREATE TABLE attachments (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            message_id INTEGER NOT NULL REFERENCES messages ON DELETE CASCADE,
            name TEXT NOT NULL,
            size INTEGER NOT NULL,
            text TEXT NOT NULL
        );
        CREATE INDEX attachments_by_message ON attachments (message_id);
        CREATE VIRTUAL TABLE attachments_fts USING fts5 (
            name, text, content = 'attachments', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
        );
        CREATE TRIGGER attachments_fts_insert AFTER INSERT ON attachments BEGIN
            INSERT INTO attachments_fts (rowid, name, text) VALUES (new.id, new.name, new.text);
        END;
        CREATE TRIGGER attachments_fts_delete AFTER DELETE ON attachments BEGIN
            INSERT INTO attachments_fts (attachments_fts, rowid, name, text)
            VALUES ('delete', old.id, old.name, old.text);
        END;
    """,
    # What conversations are called: tags; titles that the user gave (title_given) and no model replaces; which models
    # tried to write one; and whether they may, for each user.
    "m0009_tags": """
        CREATE TABLE tags (
            conversation_id INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
            name TEXT NOT NULL,
            PRIMARY KEY (conversation_id, name)
        ) WITHOUT ROWID;
        CREATE TABLE title_tries (
            conversation_id INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
            model_key TEXT NOT NULL,
            PRIMARY KEY (conversation_id, model_key)
        ) WITHOUT ROWID;
        ALTER TABLE conversations ADD COLUMN title_given INTEGER NOT NULL DEFAULT 0;
        ALTER TABLE users ADD COLUMN model_titles INTEGER NOT NULL DEFAULT 1;
    """,
    # edited: a reply as the user changed it. No model wrote it, so it has no turn, and drafts as the user's text.
    "m0010_edited": """
        ALTER TABLE messages ADD COLUMN edited INTEGER NOT NULL DEFAULT 0;
    """,
    # plan: JSON, the draft models in use at the end of the reply, from the lowest up, each with its draft length.
    "m0011_figures": """
        ALTER TABLE turns ADD COLUMN forward_ms REAL;
        ALTER TABLE turns ADD COLUMN verify_ms REAL;
        ALTER TABLE turns ADD COLUMN read_ms REAL;
        ALTER TABLE turns ADD COLUMN prompt_read INTEGER;
        ALTER TABLE turns ADD COLUMN plan TEXT;
    """,
    # What a span was found by. origin_id references no table: that a message is gone is to be seen.
    "m0012_origins": """
        ALTER TABLE spans ADD COLUMN slot TEXT NOT NULL DEFAULT '';
        ALTER TABLE spans ADD COLUMN matched INTEGER NOT NULL DEFAULT 0;
        ALTER TABLE spans ADD COLUMN chance REAL;
        ALTER TABLE spans ADD COLUMN origin_id INTEGER;
        ALTER TABLE spans ADD COLUMN corpus TEXT NOT NULL DEFAULT '';
        ALTER TABLE spans ADD COLUMN place INTEGER;
    """,
    # All that figures over time ask of messages: the rows themselves hold whole texts before these columns.
    # Not a partial index: SQLite would read the row all the same, for the column in its condition.
    "m0013_insights": """
        CREATE INDEX messages_in_time ON messages (conversation_id, role, copy_of, created_at);
    """,
    # result: JSON of chat/comparison.py, which alone reads it.
    "m0014_comparisons": """
        CREATE TABLE comparisons (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            conversation_id INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
            created_at REAL NOT NULL,
            question TEXT NOT NULL,
            result TEXT NOT NULL
        );
        CREATE INDEX comparisons_by_conversation ON comparisons (conversation_id);
    """,
    # drafts_from: which of the user's texts may draft. incognito: hidden from its beginning, by the process in which it
    # is open; so it drafts for no other chat, and goes as whatever is hidden goes.
    "m0015_privacy": """
        ALTER TABLE users ADD COLUMN drafts_from TEXT NOT NULL DEFAULT 'all'
            CHECK (drafts_from IN ('all', 'chat', 'none'));
        ALTER TABLE conversations ADD COLUMN incognito INTEGER NOT NULL DEFAULT 0;
    """,
    # keep_writing: replies go on when the user's last page was closed. unread: a reply came and was not seen yet.
    "m0016_going_on": """
        ALTER TABLE users ADD COLUMN keep_writing INTEGER NOT NULL DEFAULT 1;
        ALTER TABLE conversations ADD COLUMN unread INTEGER NOT NULL DEFAULT 0;
    """,
    # Programs that may use the endpoint. hash: SHA-256 of the key, which is random and stands nowhere. user_id: whose
    # texts draft, and take in what is written; none: nothing is kept. key_days: tokens of prompts and replies by day.
    # endpoint: one row, who may ask: nobody, who has a key, or programs on this machine without one, too.
    "m0018_keys": """
        CREATE TABLE keys (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            name TEXT NOT NULL UNIQUE,
            hash BLOB NOT NULL UNIQUE,
            created_at REAL NOT NULL,
            used_at REAL,
            user_id INTEGER REFERENCES users ON DELETE SET NULL,
            at_once INTEGER,
            per_minute INTEGER,
            tokens_per_day INTEGER
        );
        CREATE TABLE key_days (
            key_id INTEGER NOT NULL REFERENCES keys ON DELETE CASCADE,
            day TEXT NOT NULL,
            tokens INTEGER NOT NULL,
            PRIMARY KEY (key_id, day)
        ) WITHOUT ROWID;
        CREATE TABLE endpoint (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            access TEXT NOT NULL CHECK (access IN ('off', 'keys', 'open'))
        );
        INSERT INTO endpoint VALUES (1, 'off');
    """,
    # By name, as users are: an account outlives that its user forgets everything. password: argon2's own encoding.
    # guests: users who go with their login; the process is the one in which they are logged in.
    "m0019_accounts": """
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
    """,
    # What a model wrote for itself, for one user: of the conversation `key` the reply to turn `turn`. A row that is
    # written anew gets a new id, so that ids above a mark are all that is new. origin_id: the user's message from which
    # the question was made; with it go the replies. suffix_runs: of these texts, too; made anew, for its CHECK.
    "m0020_self_texts": """
        CREATE TABLE self_texts (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
            model_key TEXT NOT NULL,
            key TEXT NOT NULL,
            turn INTEGER NOT NULL,
            origin_id INTEGER REFERENCES messages ON DELETE CASCADE,
            ids BLOB NOT NULL,
            done INTEGER NOT NULL,
            created_at REAL NOT NULL,
            UNIQUE (user_id, model_key, key, turn)
        );
        CREATE INDEX self_texts_by_origin ON self_texts (origin_id) WHERE origin_id IS NOT NULL;
        ALTER TABLE users ADD COLUMN learns INTEGER NOT NULL DEFAULT 0;
        ALTER TABLE users ADD COLUMN learns_after REAL NOT NULL DEFAULT 10;
        ALTER TABLE users ADD COLUMN learns_most INTEGER NOT NULL DEFAULT 500000;
        CREATE TABLE suffix_runs_anew (
            id INTEGER PRIMARY KEY,
            user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
            model_key TEXT NOT NULL,
            kind TEXT NOT NULL CHECK (kind IN ('written', 'asked', 'self')),
            texts BLOB NOT NULL,
            positions BLOB NOT NULL,
            checksum INTEGER NOT NULL
        );
        INSERT INTO suffix_runs_anew SELECT id, user_id, model_key, kind, texts, positions, checksum FROM suffix_runs;
        DROP TABLE suffix_runs;
        ALTER TABLE suffix_runs_anew RENAME TO suffix_runs;
        CREATE INDEX suffix_runs_by_user ON suffix_runs (user_id, model_key, kind);
    """,
    # How long the model thought before it answered.
    "m0021_thinking": """
        ALTER TABLE turns ADD COLUMN thought_ms REAL;
    """,
    # Replies that a drafter outside of this program was told of, as long as it may hold them. place: which drafter;
    # user, reply: what it calls them; message_id: none once the message is deleted. drafters: what tells the users of
    # this database from those of others.
    "m0025_told_drafters": """
        CREATE TABLE told_drafters (
            id INTEGER PRIMARY KEY,
            place TEXT NOT NULL,
            user TEXT NOT NULL,
            reply TEXT NOT NULL,
            message_id INTEGER REFERENCES messages ON DELETE SET NULL
        );
        CREATE INDEX told_drafters_by_message ON told_drafters (message_id);
        CREATE TABLE drafters (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            name TEXT NOT NULL
        );
        INSERT INTO drafters VALUES (1, lower(hex(randomblob(8))));
    """,
    # Questions that were sent and wait for the model, until they become messages. at_end: below the last message, which
    # may not be there yet; else below parent_id. files: as JSON. The process is the one in which they wait.
    "m0026_waiting": """
        CREATE TABLE waiting (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            conversation_id INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
            parent_id INTEGER,
            at_end INTEGER NOT NULL,
            text TEXT NOT NULL,
            files TEXT NOT NULL,
            pid INTEGER NOT NULL,
            started REAL NOT NULL
        );
        CREATE INDEX waiting_by_conversation ON waiting (conversation_id);
    """,
    # Who has the file open, which has a log beside it for as long: a file without one that names somebody is a copy of
    # a file in use, or of one whose process was killed, and its log is missing.
    "m0027_openings": """
        CREATE TABLE openings (
            id INTEGER PRIMARY KEY,
            pid INTEGER NOT NULL,
            started REAL NOT NULL,
            opened_at REAL NOT NULL
        );
    """,
    # From Send to the last token; of these, what other replies took, and what it took until the model was there.
    "m0028_time_since_send": """
        ALTER TABLE turns ADD COLUMN total_ms REAL;
        ALTER TABLE turns ADD COLUMN waited_ms REAL;
        ALTER TABLE turns ADD COLUMN loading_ms REAL;
    """,
    # The precision of what weights were multiplied by, of which the words depend: int8 or int16.
    "m0029_activations": """
        ALTER TABLE turns ADD COLUMN activations TEXT;
    """,
    # Folders of conversations; source: what another program calls one that was imported. notes: a user's about
    # themselves, which stand in the system prompt of each chat unless its settings say otherwise.
    "m0030_projects": """
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
    """,
    # Documents of chats and projects, read in passages. scope: whose they are, as a word of the index; pairs: of
    # characters, for writing without blanks between words. Of attachments: passages that were found for a question.
    "m0031_documents": """
        CREATE TABLE documents (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
            conversation_id INTEGER REFERENCES conversations ON DELETE CASCADE,
            project_id INTEGER REFERENCES projects ON DELETE CASCADE,
            name TEXT NOT NULL,
            size INTEGER NOT NULL,
            done INTEGER NOT NULL DEFAULT 0,
            created_at REAL NOT NULL,
            CHECK ((conversation_id IS NULL) <> (project_id IS NULL))
        );
        CREATE INDEX documents_by_user ON documents (user_id);
        CREATE INDEX documents_by_conversation ON documents (conversation_id);
        CREATE INDEX documents_by_project ON documents (project_id);
        CREATE TABLE passages (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            document_id INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,
            scope TEXT NOT NULL,
            name TEXT NOT NULL,
            place TEXT NOT NULL,
            text TEXT NOT NULL,
            pairs TEXT NOT NULL
        );
        CREATE INDEX passages_by_document ON passages (document_id);
        CREATE VIRTUAL TABLE passages_fts USING fts5 (
            scope, name, place, text, pairs, content = 'passages', content_rowid = 'id',
            tokenize = 'porter unicode61 remove_diacritics 2'
        );
        CREATE TRIGGER passages_fts_insert AFTER INSERT ON passages BEGIN
            INSERT INTO passages_fts (rowid, scope, name, place, text, pairs)
            VALUES (new.id, new.scope, new.name, new.place, new.text, new.pairs);
        END;
        CREATE TRIGGER passages_fts_delete AFTER DELETE ON passages BEGIN
            INSERT INTO passages_fts (passages_fts, rowid, scope, name, place, text, pairs)
            VALUES ('delete', old.id, old.scope, old.name, old.place, old.text, old.pairs);
        END;
        ALTER TABLE attachments ADD COLUMN number INTEGER;
        ALTER TABLE attachments ADD COLUMN passage_id INTEGER REFERENCES passages ON DELETE CASCADE;
        CREATE INDEX attachments_by_passage ON attachments (passage_id) WHERE passage_id IS NOT NULL;
    """,
}
"""Steps by the names under which a database notes that it has them."""
migrations = Migrations("hierchat")
for _name, _script in _SCRIPTS.items():
    migrations(name=_name)(partial(Database.executescript, sql=_script))


def is_newer(db: Database) -> bool:
    """Whether a step was applied that this program does not know. Reads only."""
    return any(step.name not in _SCRIPTS for step in migrations.applied(db))


def is_foreign(db: Database) -> bool:
    """Whether the file holds tables, but none of hierchat's. Reads only."""
    return bool(db.table_names()) and not migrations.applied(db)
