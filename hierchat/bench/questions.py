"""Questions to ask: a file of JSON lines with `turns`, or ten that form a conversation of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONVERSATION = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "Now add a docstring and type hints to that function.",
    "Explain the function line by line.",
    "Rewrite it without recursion.",
    "Write three unit tests for it.",
    "Give me a packing list for a weekend in the mountains.",
    "Repeat the list, sorted by weight, heaviest first.",
    "Shorten the list to the five most important things.",
    "Write a short e-mail that sends this list to a friend.",
    "Make the e-mail more formal.",
)


class QuestionsError(ValueError):
    """The questions cannot be read."""


def read_turns(path: Path | None, limit: int) -> list[str]:
    """The first `limit` user messages, in order. Raises QuestionsError."""
    if path is None:
        return list(CONVERSATION[:limit])
    try:
        with path.open(encoding="utf-8") as lines:
            turns = [turn for line in lines if line.strip() for turn in _listed(json.loads(line)["turns"])]
    except (OSError, UnicodeDecodeError) as error:
        raise QuestionsError(f"{path} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise QuestionsError(
            f'{path}: every line must be a JSON object with "turns": [...] ({error})'
        ) from error
    if not turns or not all(isinstance(turn, str) for turn in turns):
        raise QuestionsError(f'{path}: "turns" must hold questions as text')
    return turns[:limit]


def _listed(turns: Any) -> list[Any]:
    if not isinstance(turns, list):
        raise TypeError('"turns" is no list')
    return turns
