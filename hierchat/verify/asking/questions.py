"""Questions to ask: a file of JSON lines with `turns`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierchat.models.cache import sha256
from hierchat.verify.asking.errors import RequestError, unreadable

MT_BENCH = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)
"""Spec-Bench's categories that are MT-Bench; its other groups have one category each."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question of one turn or more; `number` is its place in the file, from 0."""

    number: int
    name: str
    turns: tuple[str, ...]
    category: str = "all"
    """As the file says: its `category`, or a chat's `kind`."""
    day: int | None = None

    @property
    def group(self) -> str:
        """The category; all of MT-Bench's together."""
        return "mt_bench" if self.category in MT_BENCH else self.category


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """What is to be asked; `name`: the file or workload; `sha256`: of its content."""

    questions: list[Question]
    name: str
    sha256: str

    @classmethod
    def of_file(cls, path: Path) -> QuestionSet:
        """All questions of a file. Raises RequestError."""
        return cls(read_questions(path), path.name, sha256(path))


def read_questions(path: Path) -> list[Question]:
    """All questions of a file, in order. Raises RequestError."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(unreadable(path, error)) from error
    try:
        every = [_question(number, json.loads(line)) for number, line in enumerate(lines)]
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(
            f'{path}: every line must be a JSON object with "turns": [...], a list of texts'
        ) from error
    asking = [question for question in every if question.turns]
    if not asking:
        raise RequestError(f'{path}: there are no questions; "turns" must list them as text')
    return asking


def _question(number: int, said: Any) -> Question:
    turns = said["turns"]
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        raise TypeError('"turns" must list questions as text')
    return Question(
        number,
        name=str(said.get("question_id", said.get("id", number))),
        turns=tuple(turns),
        category=str(said.get("category") or said.get("kind") or "all"),
        day=said.get("day"),
    )


def spread(questions: Sequence[Question], limit: int | None = None) -> list[Question]:
    """One question of each group in turn, and of each category within a group, so that any beginning of the list,
    such as its first `limit`, holds about equally many of each."""
    groups: dict[str, list[Question]] = {}
    for question in _in_turn(questions, [question.category for question in questions]):
        groups.setdefault(question.group, []).append(question)
    by_group = [question for group in groups.values() for question in group]
    return _in_turn(by_group, [question.group for question in by_group])[:limit]


def _in_turn(questions: Sequence[Question], keys: Sequence[str]) -> list[Question]:
    """The first of each key, the second of each, ...; keys in order of their appearance."""
    seen: dict[str, int] = {}
    ranked = []
    for at, (question, key) in enumerate(zip(questions, keys, strict=True)):
        rank = seen[key] = seen.get(key, -1) + 1
        ranked.append((rank, list(seen).index(key), at, question))
    return [question for *_, question in sorted(ranked, key=lambda item: item[:3])]
