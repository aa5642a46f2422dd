"""The database: where, how large, how it is, how many rows. Nothing of what it says."""

from __future__ import annotations

import shutil
from pathlib import Path

from hierchat.doctor.finding import Finding
from hierchat.models.cache import gigabytes
from hierchat.store.health import examine

ADVICE = {
    "missing": "Name the database with --db as the chat was started.",
    "damaged": "Restore a backup, or start with another file: --db. This one was left as it is.",
    "newer": "Update hierchat: a newer one wrote this file.",
    "foreign": "Name another file with --db: this one belongs to another program.",
    "unreadable": "Make the file and its folder readable, and close other programs that hold it.",
}


def database(path: Path, *, named: bool) -> list[Finding]:
    """`named`: the user said that it is there."""
    health = examine(path)
    if health.state == "missing" and not named:
        return [Finding(f"{path}: not there yet; the first chat makes it")]
    detail = f" ({health.detail})" if health.detail else ""
    found = [
        Finding(
            f"{path}: {health.state}{detail}, {gigabytes(health.size)}, schema {health.schema or 'unknown'}",
            ADVICE.get(health.state, ""),
        )
    ]
    if health.rows:
        found.append(
            Finding("rows: " + ", ".join(f"{name} {count:,}" for name, count in health.rows.items()))
        )
    if path.parent.is_dir():
        free = shutil.disk_usage(path.parent).free
        short = free < max(2 * health.size, 64 * 2**20)
        advice = (
            "Free some space: deleting rewrites the whole file, for which there is no room." if short else ""
        )
        found.append(Finding(f"free beside it: {gigabytes(free)}", advice))
    return found
