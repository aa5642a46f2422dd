"""Apply the schema, numbered scripts in assets/schema. One that has shipped is never changed; add the next one."""

from functools import partial

from sqlite_utils import Database, Migrations

from hierchat.config import shipped

_SCRIPTS = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((shipped("assets") / "schema").glob("*.sql"))
}
"""Steps by the names under which a database notes that it has them."""
migrations = Migrations("hierchat")
for _name, _script in _SCRIPTS.items():
    migrations(name=_name)(partial(Database.executescript, sql=_script))


def is_newer(db: Database) -> bool:
    """Return whether a step was applied that this program does not know. Reads only."""
    return any(step.name not in _SCRIPTS for step in migrations.applied(db))


def is_foreign(db: Database) -> bool:
    """Return whether the file holds tables, but none of hierchat's. Reads only."""
    return bool(db.table_names()) and not migrations.applied(db)
