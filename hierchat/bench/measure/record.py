"""bench record: the model's own replies with what it thought of at each token, for bench replay.

Decoding is plain, and exact where the target can be. A reply is one line of the file, added when it is finished; a run
goes on from what the file holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.bench.measure.traces import Line, append, read_lines
from hierchat.config import GenerationSettings
from hierchat.runtime.hosted import Hosted
from hierchat.runtime.prompt import MessageTooLong
from hierchat.verify.asking.dialogue import Dialogue
from hierchat.verify.asking.errors import RequestError
from hierchat.verify.asking.progress import Tell
from hierchat.verify.asking.questions import Question
from hierchat.verify.asking.result_file import differences

TOP = 32
"""Tokens that are written down for each token of a reply."""


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
        talk = Dialogue(hosted, settings.max_new_tokens)
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
    reply: list[int] = []
    top_ids: list[list[int]] = []
    top_p: list[list[float]] = []
    for rows, step in hosted.local.plain(prompt, settings):
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
