"""Examine a database file without changing it."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hierchat.store.connection import connect
from hierchat.store.migrations import is_foreign, is_newer, migrations

BUSY_SECONDS = 2.0

HealthState = Literal["well", "missing", "damaged", "newer", "foreign", "unreadable"]


@dataclass(frozen=True, slots=True)
class Health:
    """Result of examining a file; `schema`: last step of the schema, `detail`: a code of SQLite or the system."""

    state: HealthState
    size: int = 0
    schema: str = ""
    chats: int = 0
    detail: str = ""


def examine(path: Path) -> Health:
    """Examine a database file without changing it. Never raises."""
    if not path.exists():
        return Health("missing")
    try:
        if not path.is_file():
            return Health("unreadable", detail="no file")
        sides = [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))]
        size = sum(side.stat().st_size for side in sides if side.exists())
        with closing(connect(path.absolute(), "ro", BUSY_SECONDS)) as db:
            verdicts = db.execute("PRAGMA quick_check(10)").fetchall()
            if verdicts != [("ok",)]:
                return Health("damaged", size, detail=f"{len(verdicts)} findings or more")
            if size and not db.execute("PRAGMA page_count").fetchone()[0]:
                return Health("damaged", size, detail="no database")
            if is_newer(db):
                return Health("newer", size)
            if is_foreign(db):
                return Health("foreign", size)
            steps = [step.name for step in migrations.applied(db)]
            chats = db["conversations"].count if "conversations" in db.table_names() else 0
            return Health("well", size, steps[-1] if steps else "none", chats)
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorname", type(error).__name__)
        broken = getattr(error, "sqlite_errorcode", 0) & 0xFF in (
            sqlite3.SQLITE_CORRUPT,
            sqlite3.SQLITE_NOTADB,
        )
        return Health("damaged" if broken else "unreadable", path.stat().st_size, detail=code)
    except OSError as error:
        return Health("unreadable", detail=error.strerror or type(error).__name__)
