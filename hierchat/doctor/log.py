"""The last errors of the log: when, where, of what kind. What an error says is not in the log, nor here."""

from __future__ import annotations

import re
from pathlib import Path

from hierchat.doctor.finding import Finding
from hierchat.logs import log_path

MOST = 5
LATEST_BYTES = 200_000
_HEAD = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ (WARNING|ERROR|CRITICAL) ([\w.]+): ")
_KIND = re.compile(r"[A-Za-z_][\w.]*(?: [A-Z][A-Z0-9_]*)?")


def errors(path: Path | None = None) -> list[Finding]:
    """The latest ones, oldest first."""
    path = path or log_path()
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - LATEST_BYTES, 0))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return [Finding("no log: no error was recorded")]
    except OSError as error:
        return [Finding(f"the log cannot be read ({error.strerror})", f"Make {path} readable.")]
    found = []
    for number, line in enumerate(lines):
        if head := _HEAD.match(line):
            following = lines[number + 1] if number + 1 < len(lines) else ""
            kind = f": {following}" if _KIND.fullmatch(following) else ""
            found.append(Finding(f"{head[1]} {head[2]} {head[3]}{kind}"))
    return found[-MOST:] or [Finding("no errors in the log")]
