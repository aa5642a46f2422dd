"""The file of a run: whole at any moment, and enough to go on from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hierchat.verify.asking.errors import RequestError, unreadable


def require_writable(path: Path) -> None:
    """Raises RequestError unless the file can be written, so that no run is in vain."""
    if path.is_dir():
        raise RequestError(f"{path} is a folder; name a file in it.")
    try:
        _part(path).touch()
        _part(path).unlink()
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}.") from error


def write(path: Path, result: dict[str, Any], rows: str) -> None:
    """Replaces the file in one step. The list under the key `rows` comes last, one element a line."""
    head = json.dumps({key: value for key, value in result.items() if key != rows}, indent=2)
    lines = ",\n".join(json.dumps(row) for row in result[rows])
    _part(path).write_text(f'{head[:-2]},\n  "{rows}": [\n{lines}\n  ]\n}}\n', encoding="utf-8")
    os.replace(_part(path), path)


def read(path: Path, expected: dict[str, Any]) -> dict[str, Any] | None:
    """An earlier run's result to go on from; None where there is none.

    Raises RequestError where it is none of ours, or was asked for with other `expected` values.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RequestError(f"{unreadable(path, error)} Leave --resume out to start anew.") from error
    if not isinstance(found, dict) or not isinstance(found.get("settings"), dict):
        raise RequestError(f"{path} holds no run to go on from.")
    flat = {**found, **found["settings"]}
    if differing := differences(flat, expected):
        raise RequestError(f"{path} holds another run: {'; '.join(differing)}. Name another file.")
    return found


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """What stands in a file otherwise than is expected now, as words."""
    return [
        f"{key} was {found.get(key)!r} and is {value!r}"
        for key, value in expected.items()
        if found.get(key) != value
    ]


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")
