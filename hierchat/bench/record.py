"""bench record: the model's own replies with what it thought of at each token, for bench replay.

Decoding is plain, and exact where the target can be. A reply is one line of the file, added when it is finished; a run
goes on from what the file holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hierchat.bench.conversation import Conversation
from hierchat.bench.errors import BenchError
from hierchat.bench.progress import Tell
from hierchat.bench.questions import Question
from hierchat.bench.traces import Line, append, read_lines
from hierchat.chat.host import Hosted
from hierchat.chat.prompt import MessageTooLong
from hierchat.config import GenerationSettings
from hierchat.engine.engine import Engine
from hierchat.engine.target import Rows, Target

TOP = 10
"""Tokens that are written down for each token of a reply."""


class Watched:
    """A target that remembers its likeliest tokens in every row that it commits."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._rows: Rows
        self.ids: list[list[int]] = []
        self.chances: list[list[float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forward(self, tokens: Sequence[int], parents: Sequence[int], *, padded: bool = True) -> Rows:
        self._rows = self._target.forward(tokens, parents, padded=padded)
        return self._rows

    def commit(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            ids, chances = likeliest(self._rows[node], TOP)
            self.ids.append(ids.tolist())
            self.chances.append([round(chance, 4) for chance in chances.tolist()])
        self._target.commit(nodes)


def likeliest(logits: NDArray[np.float32], count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The likeliest tokens of a row, highest first, the lowest id first among equals, and their probabilities."""
    count = min(count, len(logits))
    least = np.partition(logits, -count)[-count]
    ids = np.flatnonzero(logits >= least)
    ids = ids[np.argsort(-logits[ids], kind="stable")][:count]
    weights = np.exp(logits.astype(np.float64) - float(logits.max()))
    return ids, weights[ids] / weights.sum()


def earlier(path: Path, said: dict[str, Any]) -> dict[tuple[str, int], Line]:
    """The replies that a file holds, by question and turn; none where there is no file. A torn last line is cut off.

    Raises BenchError where it was recorded with other settings than those `said`.
    """
    if not path.exists():
        return {}
    lines = read_lines(path, mend=True)
    for line in lines:
        settings = line.get("settings", {})
        differing = [
            f"{key} was {settings.get(key)!r} and is {value!r}"
            for key, value in said.items()
            if settings.get(key) != value
        ]
        if differing:
            raise BenchError(f"{path} holds another recording: {'; '.join(differing)}. Name another file.")
    return {(str(line["question_id"]), line["turn"]): line for line in lines}


def record(
    hosted: Hosted,
    questions: Sequence[Question],
    settings: GenerationSettings,
    path: Path,
    said: dict[str, Any],
    tell: Tell,
    done: dict[tuple[str, int], Line],
) -> int:
    """Adds the replies that the file lacks; all turns of a question in order. `done`: those that it holds. Returns how
    many questions do not fit the model's context."""
    too_long = 0
    for question in questions:
        tell(f"{question.group} {question.name}", 0)
        talk = Conversation(hosted, settings.max_new_tokens)
        try:
            for turn, text in enumerate(question.turns):
                prompt = talk.ask(text)
                line = done.get((question.name, turn))
                if line is None:
                    line = _line(hosted, question, turn, prompt, settings, said)
                    append(path, line)
                talk.answered(line["reply"])
        except MessageTooLong:
            too_long += 1
        tell("", 1)
    return too_long


def _line(
    hosted: Hosted,
    question: Question,
    turn: int,
    prompt: Sequence[int],
    settings: GenerationSettings,
    said: dict[str, Any],
) -> Line:
    engine = hosted.engine
    target = Watched(engine.target)
    watched = Engine(cast(Target, target), engine.end_ids, engine.decode)
    reply = [token for step in watched.generate(prompt, settings) for token in step.tokens]
    return {
        "question_id": int(question.name) if question.name.isdecimal() else question.name,
        "category": question.category,
        "day": question.day,
        "turn": turn,
        "settings": said,
        "prompt": list(prompt),
        "reply": reply,
        "top_from": len(prompt) - 1,
        "top_ids": target.ids,
        "top_p": target.chances,
    }
