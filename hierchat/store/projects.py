"""Store presets and projects: named settings of a chat's replies, folders of chats, what new chats begin with."""

import json
import time
from dataclasses import replace
from typing import Any

from sqlite_utils import Database

from hierchat.store.connection import add_row
from hierchat.store.errors import NotFound, StoreError
from hierchat.store.records import ChatSettings, Preset, Project
from hierchat.store.repository import Repository, owned_conversation, require_user, storable


class Presets(Repository):
    """Stores named settings, which a chat copies when it takes them: a preset that changes later changes no chat."""

    def all(self, user_id: int) -> list[Preset]:
        with self._connection.read() as db:
            rows = db.query("SELECT * FROM presets WHERE user_id = ? ORDER BY name COLLATE NOCASE", [user_id])
            return [_preset(row) for row in rows]

    def get(self, user_id: int, preset_id: int) -> Preset:
        with self._connection.read() as db:
            return _preset(_owned(db, user_id, preset_id))

    def create(self, user_id: int, name: str, settings: ChatSettings) -> int:
        """Add a preset and return its id. Raises StoreError if there is one of that name."""
        with self._connection.write() as db:
            _require_free(db, user_id, name)
            preset = add_row(db, "presets", user_id=user_id, name=storable(name), **_values(settings))
        self._changes.notify_settings(user_id)
        return preset

    def change(self, user_id: int, preset_id: int, settings: ChatSettings) -> None:
        """Replace the settings of a preset. Raises StoreError if it is gone."""
        with self._connection.write() as db:
            _owned(db, user_id, preset_id)
            db.execute(
                "UPDATE presets SET system_prompt = ?, sampling = ? WHERE id = ?",
                [*_values(settings).values(), preset_id],
            )
        self._changes.notify_settings(user_id)

    def rename(self, user_id: int, preset_id: int, name: str) -> None:
        """Rename a preset. Raises StoreError if it is gone, or another one has that name."""
        with self._connection.write() as db:
            _owned(db, user_id, preset_id)
            _require_free(db, user_id, name, preset_id)
            db.execute("UPDATE presets SET name = ? WHERE id = ?", [storable(name), preset_id])
        self._changes.notify_settings(user_id)

    def delete(self, user_id: int, preset_id: int) -> None:
        """Delete a preset; chats keep the settings that they took from it. Raises StoreError if it is gone."""
        with self._connection.write() as db:
            _owned(db, user_id, preset_id)
            db.execute("DELETE FROM presets WHERE id = ?", [preset_id])
        self._changes.notify_settings(user_id)

    def set_default(self, user_id: int, preset_id: int | None) -> None:
        """Set the preset that new chats begin with; None: the model's own values. Raises StoreError if it is gone."""
        with self._connection.write() as db:
            if preset_id is not None:
                _owned(db, user_id, preset_id)
            # Two statements: at no moment may there be two defaults.
            db.execute("UPDATE presets SET is_default = 0 WHERE user_id = ?", [user_id])
            db.execute("UPDATE presets SET is_default = 1 WHERE id = ?", [preset_id])
        self._changes.notify_settings(user_id)

    def add_missing(self, user_id: int, name: str, settings: ChatSettings, *, is_default: bool) -> bool:
        """Add a preset from a file unless the name exists; return whether it did. It becomes the default if none is."""
        with self._connection.write() as db:
            if preset_named(db, user_id, name) is not None:
                return False
            default = "SELECT 1 FROM presets WHERE user_id = ? AND is_default"
            values = _values(settings) | {
                "is_default": is_default and not db.execute(default, [user_id]).fetchone()
            }
            add_row(db, "presets", user_id=user_id, name=storable(name), **values)
            return True


def settings_of(db: Database, conversation_id: int) -> ChatSettings | None:
    """Return a chat's settings; None if it takes the model's own values."""
    for row in db.query("SELECT * FROM chat_settings WHERE conversation_id = ?", [conversation_id]):
        sampling, notes = json.loads(row["sampling"]), bool(row["notes"])
        return ChatSettings(row["system_prompt"], sampling, row["preset_id"], notes)
    return None


def put_settings(
    db: Database, user_id: int, conversation_id: int, settings: ChatSettings, preset: str = ""
) -> None:
    """Store a chat's settings. A preset that is gone counts as none; `preset` names one of the user's instead."""
    preset_id = preset_named(db, user_id, preset) if preset else settings.preset_id
    db.execute(
        "INSERT OR REPLACE INTO chat_settings (conversation_id, system_prompt, sampling, notes, preset_id)"
        " VALUES (?, ?, ?, ?, (SELECT id FROM presets WHERE id = ? AND user_id = ?))",
        [conversation_id, *_values(settings).values(), settings.notes, preset_id, user_id],
    )


def preset_named(db: Database, user_id: int, name: str) -> int | None:
    row = db.execute(
        "SELECT id FROM presets WHERE user_id = ? AND name = ?", [user_id, storable(name)]
    ).fetchone()
    return row[0] if row else None


def copy_settings(db: Database, source: int, target: int) -> None:
    db.execute(
        "INSERT INTO chat_settings (conversation_id, system_prompt, sampling, preset_id, notes)"
        " SELECT ?, system_prompt, sampling, preset_id, notes FROM chat_settings WHERE conversation_id = ?",
        [target, source],
    )


def _owned(db: Database, user_id: int, preset_id: int) -> dict[str, Any]:
    for row in db.query("SELECT * FROM presets WHERE id = ? AND user_id = ?", [preset_id, user_id]):
        return row
    raise StoreError("This preset was deleted in another tab. Reload the page to see those that are there.")


def _require_free(db: Database, user_id: int, name: str, but: int = 0) -> None:
    if preset_named(db, user_id, name) not in (None, but):
        raise StoreError(f"There is a preset called “{name}” already. Take another name.")


def _preset(row: dict[str, Any]) -> Preset:
    settings = ChatSettings(row["system_prompt"], json.loads(row["sampling"]), row["id"])
    return Preset(row["id"], row["name"], settings, bool(row["is_default"]))


def _values(settings: ChatSettings) -> dict[str, object]:
    sampling = storable(json.dumps(dict(settings.sampling), ensure_ascii=False))
    return {"system_prompt": storable(settings.system_prompt), "sampling": sampling}


# Folders of conversations.
LONGEST_NAME = 100
"""Characters."""

_ALL = """
    SELECT id, name, system_prompt, model, preset_id,
        (SELECT count(*) FROM conversations WHERE project_id = projects.id AND hidden_by IS NULL) AS chats
    FROM projects WHERE user_id = ? AND hidden_by IS NULL ORDER BY name COLLATE NOCASE, id
"""


class Projects(Repository):
    """Stores a user's projects. A hidden one counts as missing; `Chats` hides and deletes it with its conversations."""

    def all(self, user_id: int) -> list[Project]:
        with self._connection.read() as db:
            return [Project(**row) for row in db.query(_ALL, [user_id])]

    def get(self, user_id: int, project_id: int) -> Project:
        with self._connection.read() as db:
            require_project(db, user_id, project_id)
        return next(project for project in self.all(user_id) if project.id == project_id)

    def save(self, user_id: int, project: Project) -> int:
        """Change a project, or add one with id 0; return its id. Raises NotFound, or StoreError for a bad name."""
        with self._connection.write() as db:
            require_user(db, user_id)
            if project.id:
                require_project(db, user_id, project.id)
            if not (name := " ".join(storable(project.name).replace("\0", " ").split())):
                raise StoreError("A project needs a name. Type one.")
            if len(name) > LONGEST_NAME:
                raise StoreError(f"A project name has at most {LONGEST_NAME} characters. Take a shorter one.")
            if project_named(db, user_id, name) not in (None, project.id):
                raise StoreError(f"There is a project called “{name}” already. Take another name.")
            saved = put_project(db, user_id, replace(project, name=name))
        self._changes.notify(user_id)
        return saved

    def add_missing(self, user_id: int, project: Project, preset: str = "") -> bool:
        """Add a project from a file, with the preset of that name; return whether it is new. An existing one stays."""
        with self._connection.write() as db:
            before = project_named(db, user_id, project.name)
            new = replace(project, preset_id=preset_named(db, user_id, preset))
            return import_project(db, user_id, new) not in (None, before)

    def move(self, user_id: int, conversation_id: int, project_id: int | None) -> None:
        """Move a conversation into a project, or out of all. Its settings stay. Raises NotFound."""
        with self._connection.write() as db:
            owned_conversation(db, user_id, conversation_id)
            if project_id is not None:
                require_project(db, user_id, project_id)
            db.execute("UPDATE conversations SET project_id = ? WHERE id = ?", [project_id, conversation_id])
        self._changes.notify(user_id)


def require_project(db: Database, user_id: int, project_id: int) -> None:
    """Raise NotFound if a project is missing, hidden or another user's, the same for all."""
    own = "SELECT 1 FROM projects WHERE id = ? AND user_id = ? AND hidden_by IS NULL"
    if not db.execute(own, [project_id, user_id]).fetchone():
        raise NotFound("This project was deleted in another tab. The list is up to date again.")


def project_named(db: Database, user_id: int, name: str, source: str = "") -> int | None:
    """Return the id of the project imported from that source, or else of the one with that name, or None."""
    row = db.execute(
        "SELECT id FROM projects WHERE user_id = ? AND hidden_by IS NULL"
        " AND (name = ? OR source = ? AND source <> '') ORDER BY source <> ? LIMIT 1",
        [user_id, name, source, source],
    ).fetchone()
    return int(row[0]) if row else None


def put_project(db: Database, user_id: int, project: Project, source: str = "") -> int:
    """Store a project whose name was checked, as part of a transaction; return its id."""
    if not (id := project.id):
        id = db.execute(
            "INSERT INTO projects (user_id, name, source, created_at) VALUES (?, '', ?, ?)",
            [user_id, source, time.time()],
        ).lastrowid
    db.execute(
        "UPDATE projects SET name = ?, system_prompt = ?, model = ?,"
        " preset_id = (SELECT id FROM presets WHERE id = ? AND user_id = ?) WHERE id = ?",
        [
            project.name,
            storable(project.system_prompt),
            storable(project.model),
            project.preset_id,
            user_id,
            id,
        ],
    )
    return id


def import_project(db: Database, user_id: int, project: Project, source: str = "") -> int | None:
    """Return the id of the project with this source or name, added if it is missing; None if it has no name."""
    if not (name := " ".join(storable(project.name)[:LONGEST_NAME].split())):
        return None
    found = project_named(db, user_id, name, source)
    return found or put_project(db, user_id, replace(project, id=0, name=name), source)
