"""Record the model's own replies with its likeliest tokens at each position, by `benchmarks record`, for replay.

Decoding is plain, and exact where the target can be. A reply is one line of the file, added when it is finished; a run
goes on from what the file holds."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measured_run import differences
from hierchat.checks.runs import Dialogue, Question, RequestError, Tell, unreadable
from hierchat.config import GenerationSettings
from hierchat.runtime.prompt import MessageTooLong
from hierchat.runtime.served_model import ServedModel

# Recorded replies: JSON lines, one reply each, in the order in which they were written. Keys: question_id,
# category (or a chat's kind), group, day, turn, settings, prompt and reply (token ids, the end token
# included where the model said it), top_ids and top_p: the target's likeliest next tokens, highest first,
# with probabilities at temperature 1. Their entry i stands behind token `top_from` + i of prompt + reply,
# so that the reply's first token was chosen from entry len(prompt) - 1 - top_from. Without `top_from` the
# entries begin behind the prompt's first token.


Line = dict[str, Any]
PLAIN = GenerationSettings()
CHOICE = ("max_new_tokens", "temperature", "top_p", "top_k", "seed")
"""The settings of a reply that are written down."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Hold one recorded reply."""

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
    """Read the lines of a file. `mend`: cut off a last line that a crash left half written. Raises RequestError."""
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
    """Add a line with one write, on disk before this returns."""
    with path.open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")
        os.fsync(file.fileno())


def read_traces(path: Path) -> list[Trace]:
    """Read all replies of a file; turns of one question belong to one Question. Raises RequestError."""
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
            f'{path}: every line must have "prompt" and "reply" as token ids. Is it of `benchmarks record`?'
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


TOP = 32
"""Tokens that are written down for each token of a reply."""


def likeliest(logits: NDArray[np.float32], count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the likeliest tokens of a row, highest first, the lowest id among equals, and their probabilities."""
    count = min(count, len(logits))
    least = np.partition(logits, -count)[-count]
    ids = np.flatnonzero(logits >= least)
    ids = ids[np.argsort(-logits[ids], kind="stable")][:count]
    weights = np.exp(logits.astype(np.float64) - float(logits.max()))
    return ids, weights[ids] / weights.sum()


def earlier(path: Path, said: dict[str, Any]) -> dict[tuple[str, int], Line]:
    """Read the replies that a file holds, by question and turn; none where there is no file. A torn last line is cut
    off.

    Raises RequestError where it was recorded with other settings than those `said`.
    """
    if not path.exists():
        return {}
    lines = read_lines(path, mend=True)
    for line in lines:
        if differing := differences(line.get("settings", {}), said):
            raise RequestError(f"{path} holds another recording: {'; '.join(differing)}. Name another file.")
    return {(str(line["question_id"]), line["turn"]): line for line in lines}


def record(
    served: ServedModel,
    questions: Sequence[Question],
    settings: GenerationSettings,
    path: Path,
    said: dict[str, Any],
    tell: Tell,
    done: dict[tuple[str, int], Line],
) -> int:
    """Write the replies that the file lacks; all turns of a question in order. `done`: those that it holds. Returns how
    many questions do not fit the model's context."""
    too_long = 0
    for question in questions:
        tell(f"{question.group} {question.name}", 0)
        talk = Dialogue(served, settings.max_new_tokens)
        try:
            for turn, text in enumerate(question.turns):
                prompt = talk.ask(text)
                line = done.get((question.name, turn))
                if line is None:
                    line = _line(served, question, turn, prompt, settings, said)
                    append(path, line)
                talk.answered(line["reply"])
        except MessageTooLong:
            too_long += 1
        tell("", 1)
    return too_long


def _line(
    served: ServedModel,
    question: Question,
    turn: int,
    prompt: Sequence[int],
    settings: GenerationSettings,
    said: dict[str, Any],
) -> Line:
    reply: list[int] = []
    top_ids: list[list[int]] = []
    top_p: list[list[float]] = []
    for rows, step in served.local.plain(prompt, settings):
        reply += step.tokens
        ids, chances = likeliest(rows[0], TOP)
        top_ids.append(ids.tolist())
        top_p.append([round(chance, 5) for chance in chances.tolist()])
    return {
        "question_id": int(question.name) if question.name.isdecimal() else question.name,
        "category": question.category,
        "day": question.day,
        "turn": turn,
        "settings": said,
        "prompt": list(prompt),
        "reply": reply,
        "top_from": len(prompt) - 1,
        "top_ids": top_ids,
        "top_p": top_p,
    }
