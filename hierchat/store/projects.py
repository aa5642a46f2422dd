"""Store projects: folders of conversations, with the settings that new ones in them begin with."""

import time
from dataclasses import replace

from sqlite_utils import Database

from hierchat.store.connection import (
    NotFound,
    Repository,
    StoreError,
    owned_conversation,
    require_user,
    storable,
)
from hierchat.store.presets import preset_named
from hierchat.store.records import Project

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
        """Return a project by its id. Raises NotFound."""
        with self._connection.read() as db:
            require_project(db, user_id, project_id)
        return next(project for project in self.all(user_id) if project.id == project_id)

    def save(self, user_id: int, project: Project) -> int:
        """Change a project, or add one whose id is 0; return its id. A preset that is gone counts as none. Raises
        NotFound, and StoreError where the name is none, too long, or taken."""
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
