"""Recorded replies: JSON lines, one reply each, in the order in which they were written.

Keys: question_id, category (or a chat's kind), group, day, turn, settings, prompt and reply (token ids, the end token
included where the model said it), top_ids and top_p: the target's likeliest next tokens, highest first, with
probabilities at temperature 1. Their entry i stands behind token `top_from` + i of prompt + reply, so that the reply's
first token was chosen from entry len(prompt) - 1 - top_from. Without `top_from` the entries begin behind the prompt's
first token.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.verify.asking.errors import RequestError, unreadable
from hierchat.verify.asking.questions import Question

Line = dict[str, Any]
PLAIN = GenerationSettings()
CHOICE = ("max_new_tokens", "temperature", "top_p", "top_k", "seed")
"""The settings of a reply that are written down."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One recorded reply."""

    question: Question
    """What was asked; its turns' texts are not recorded."""
    turn: int
    prompt: list[int]
    reply: list[int]
    top: NDArray[np.int32]
    """[reply, k]: the target's likeliest tokens where it chose each token; k is 0 where none were recorded,"""
    chances: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
    """[reply, k]: and their probabilities at temperature 1."""
    settings: GenerationSettings = PLAIN
    """Greedy where none were recorded."""
    model: str | None = None
    """As models.yaml calls it, where it was recorded."""


def read_lines(path: Path, *, mend: bool = False) -> list[Line]:
    """The lines of a file. `mend`: cut off a last line that a crash left half written. Raises RequestError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RequestError(unreadable(path, error)) from error
    whole = data.rfind(b"\n") + 1 if mend else len(data)
    half = data[whole:].startswith(b'{"') and not _is_json(
        data[whole:]
    )  # of another kind of file nothing is cut
    try:
        lines = [json.loads(line) for line in data[: whole if half else None].splitlines() if line.strip()]
    except ValueError as error:
        raise RequestError(unreadable(path, error)) from error
    if not all(isinstance(line, dict) for line in lines):
        raise RequestError(f"{path}: every line must be a JSON object. Is it the right file?")
    if half:
        os.truncate(path, whole)
    elif mend and whole < len(data):
        with path.open("ab") as file:
            file.write(b"\n")
    return lines


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def append(path: Path, line: Line) -> None:
    """Adds a line with one write, on disk before this returns."""
    with path.open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")
        os.fsync(file.fileno())


def read_traces(path: Path) -> list[Trace]:
    """All replies of a file; turns of one question belong to one Question. Raises RequestError."""
    questions: dict[str, Question] = {}
    traces = []
    try:
        for at, line in enumerate(read_lines(path)):
            name = str(line.get("question_id", at))
            question = questions.setdefault(
                name, Question(len(questions), name, (), line.get("category") or "all", line.get("day"))
            )
            traces.append(_trace(question, line))
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(
            f'{path}: every line must have "prompt" and "reply" as token ids. Is it of `bench record`?'
        ) from error
    if not traces:
        raise RequestError(f"{path} holds no replies.")
    return traces


def _trace(question: Question, line: Line) -> Trace:
    prompt, reply = list(line["prompt"]), list(line["reply"])
    first = len(prompt) - 1 - line.get("top_from", 0)
    nothing = [()] * (first + len(reply))

    def entries(key: str, kind: type[Any]) -> NDArray[Any]:
        return np.array(line.get(key, nothing)[first : first + len(reply)], kind).reshape(len(reply), -1)

    said = line.get("settings", {})
    return Trace(
        question,
        line.get("turn", 0),
        prompt,
        reply,
        entries("top_ids", np.int32),
        entries("top_p", np.float32),
        GenerationSettings(**{key: said[key] for key in CHOICE if key in said}),
        said.get("model"),
    )
