"""Write what documents say of the code: docs/schema.md from the migrations, and the picture of the imports in
docs/architecture.md. Run it after a change of either: `python -m benchmarks.makers.documents`."""

from __future__ import annotations

import ast
import re
import sqlite3
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from sqlite_utils import Database

from hierchat.store.connection import migrations

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "hierchat"
SCHEMA, ARCHITECTURE = ROOT / "docs" / "schema.md", ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- picture of the imports -->\n", "<!-- end of the picture -->"
_HEAD = """# Database

All tables of `hierchat.db` after the last migration. `python -m benchmarks.makers.documents` writes this file from
`assets/schema/`; a test compares the two. The scripts say why a column is there.
"""
_OWN = ("sqlite_", "_sqlite_migrations")
"""Prefixes of tables that SQLite and sqlite-utils keep for themselves."""


def schema() -> str:
    """Return docs/schema.md: every table with its columns, indices and triggers."""
    db = Database(sqlite3.connect(":memory:"))
    migrations.apply(db)
    parts = [_HEAD]
    for name in sorted(db.table_names()):
        virtual = [one for one in db.table_names() if "VIRTUAL TABLE" in db[one].schema]
        if not name.startswith(_OWN) and not any(name.startswith(f"{one}_") for one in virtual):
            parts.append(_table(db, name, virtual=name in virtual))
    return "\n".join(parts)


def _table(db: Database, name: str, *, virtual: bool) -> str:
    table = db[name]
    lines = [f"## {name}"]
    if virtual:
        lines.append("A full-text index (FTS5).")
    goals = {key.column: key for key in table.foreign_keys}
    lines += ["| column | type | |", "|---|---|---|"]
    for column in table.columns:
        notes = ["primary key"] if column.is_pk else []
        notes += ["not null"] if column.notnull else []
        notes += [f"default {column.default_value}"] if column.default_value is not None else []
        if goal := goals.get(column.name):
            notes.append(f"references {goal.other_table}.{goal.other_column}")
        lines.append(f"| `{column.name}` | {column.type} | {', '.join(notes)} |")
    for index in sorted(table.indexes, key=lambda one: one.name):
        if not index.name.startswith("sqlite_autoindex"):
            unique = "Unique index" if index.unique else "Index"
            lines.append(f"\n{unique} `{index.name}` on {', '.join(map(str, index.columns))}.")
    lines += [f"\nTrigger `{trigger.name}`." for trigger in sorted(table.triggers)]
    return "\n".join(lines) + "\n"


def picture() -> str:
    """Return the rooms of the package and their imports, as a Mermaid drawing. An arrow is left out if others lead to
    the same room."""
    reached = _imports()
    rooms = sorted(room for room in reached if (PACKAGE / room).is_dir())
    lines = ["```mermaid", "flowchart TD"]
    lines += [f'  {room}["{room}/"]' for room in rooms]
    for room in rooms:
        direct = reached[room] & set(rooms)
        lines += [f"  {room} --> {goal}" for goal in sorted(direct) if not _leads(direct - {goal}, goal)]
    return "\n".join([*lines, "```", ""])


def _leads(rooms: set[str], goal: str) -> bool:
    """Tell whether the imports of any of these rooms lead to `goal`."""
    return any(goal in _below(room) for room in rooms)


@cache
def _below(room: str) -> frozenset[str]:
    """Return all rooms that a room imports, directly or through others."""
    direct = _imports()[room]
    return frozenset(direct.union(*(_below(one) for one in direct)))


@cache
def _imports() -> Mapping[str, set[str]]:
    """Return the rooms that each room imports when it is imported itself."""
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        found.setdefault(room, set()).update(_imported(ast.parse(path.read_text(encoding="utf-8"))))
    return {room: {goal for goal in goals if goal in found and goal != room} for room, goals in found.items()}


def _imported(module: ast.Module) -> Iterator[str]:
    for one in module.body:
        names = [one.module or ""] if isinstance(one, ast.ImportFrom) else []
        names += [alias.name for alias in one.names] if isinstance(one, ast.Import) else []
        if names == ["hierchat"] and isinstance(one, ast.ImportFrom):
            names = [f"hierchat.{alias.name}" for alias in one.names]
        yield from (name.split(".")[1] for name in names if name.startswith("hierchat."))


def with_picture(text: str) -> str:
    """Return docs/architecture.md with the picture as it is now."""
    return re.sub(f"{BEGIN}.*?{END}", lambda _: BEGIN + picture() + END, text, flags=re.DOTALL)


def main() -> None:
    SCHEMA.write_text(schema(), encoding="utf-8")
    ARCHITECTURE.write_text(with_picture(ARCHITECTURE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
