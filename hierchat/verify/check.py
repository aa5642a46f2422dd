"""The same words, token for token, with drafting on and off.

Each question is decoded plainly, as exactly as the target can (padded), and again speculatively with slots of its
own; both get the prompts that the plain replies make. History grows over the questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from hierchat.config import GenerationSettings
from hierchat.drafting.proposer import Proposer
from hierchat.drafting.source import Source
from hierchat.engine.decoding import common_prefix
from hierchat.engine.local import LocalEngine
from hierchat.hierarchy.plan import Plan
from hierchat.runtime.drafters import Memory, reply_drafter, with_models
from hierchat.runtime.hosted import Hosted
from hierchat.runtime.prompt import MessageTooLong
from hierchat.verify.asking import result_file
from hierchat.verify.asking.dialogue import Dialogue
from hierchat.verify.asking.errors import RequestError
from hierchat.verify.asking.progress import Tell
from hierchat.verify.asking.questions import Question
from hierchat.verify.trials import Adversary, Noise, second_choices

FIRST = 20
"""Differences that are written down."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plain:
    """A turn decoded plainly. `seconds` are the target's next best tokens, [reply]."""

    prompt: list[int]
    reply: list[int]
    seconds: list[int]


Drafting = Callable[[Hosted, Memory, Plain, int | None, GenerationSettings], Proposer]
"""Makes the drafter of one reply; with the fixed width, if any."""
STACK = (2, 4, 8, 12)
"""Draft lengths of a stack of all draft models, from the lowest up."""
DRAFTERS: dict[str, Drafting] = {
    "default": lambda hosted, memory, plain, width, settings: reply_drafter(
        hosted, memory, settings, Event(), width
    ),
    "stack": lambda hosted, memory, plain, width, settings: _stack(hosted, memory, settings),
    "random": lambda hosted, memory, plain, width, settings: Noise(
        hosted.local.runner.vocabulary, width, seed=len(plain.prompt)
    ),
    "adversarial": lambda hosted, memory, plain, width, settings: Adversary(
        plain.reply, plain.seconds, hosted.local.runner.vocabulary, width, seed=len(plain.prompt)
    ),
}


def _stack(hosted: Hosted, memory: Memory, settings: GenerationSettings) -> Proposer:
    """All draft models at every step, whether it pays or not. Raises RequestError where there are none."""
    levels = hosted.levels
    if not levels or not levels.sequences:
        raise RequestError(f"{hosted.name} has no draft models here.")
    plan = Plan(tuple(range(len(levels.hierarchy.names))), STACK[: len(levels.sequences)], retrieval=True)
    return with_models(hosted, memory, settings, Event(), levels, plan)


class Compared:
    """What a run has compared so far, and its file. `head`: what stands before the figures."""

    def __init__(self, path: Path, head: dict[str, Any], rows: Sequence[Row] = ()) -> None:
        self.path = path
        self.head = head
        self.rows = list(rows)

    @property
    def mismatches(self) -> int:
        """Replies with another token than plain decoding's."""
        return sum(len(row["differences"]) for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """As it stands in the file. `tokens` were compared; `tokens_per_forward` says how many drafts stood."""
        tokens = sum(len(reply) for row in self.rows for reply in row["replies"])
        forwards = sum(row["forwards"] for row in self.rows)
        return {
            **self.head,
            "questions": sum("skipped" not in row for row in self.rows),
            "tokens": tokens,
            "tokens_per_forward": round(tokens / forwards, 3) if forwards else None,
            "mismatches": self.mismatches,
            "first": [difference for row in self.rows for difference in row["differences"]][:FIRST],
            "done": self.rows,
        }

    def write(self) -> None:
        result_file.write(self.path, self.as_dict(), rows="done")


def check(
    hosted: Hosted,
    questions: Sequence[Question],
    settings: GenerationSettings,
    drafter: str,
    result: Compared,
    tell: Tell,
    *,
    width: int | None = None,
) -> None:
    """Compares what `result` lacks, and writes it after every question. `drafter`: a key of DRAFTERS."""
    memory = Memory([Source.of(reply for row in result.rows for reply in row["replies"])])
    done = {row["question"] for row in result.rows}
    for question in questions:
        if question.number in done:
            continue
        tell(f"{question.group} {question.name}", 0)
        row: Row = {"question": question.number, "forwards": 0, "replies": [], "differences": []}
        try:
            plain = _plainly(hosted, question, settings)
        except MessageTooLong as error:
            row["skipped"] = str(error)
        else:
            _compare(hosted, question, settings, plain, DRAFTERS[drafter], memory, width, row)
        result.rows.append(row)
        result.write()
        tell("", 1)


def _plainly(hosted: Hosted, question: Question, settings: GenerationSettings) -> list[Plain]:
    engine = hosted.local
    engine.forget()
    talk = Dialogue(hosted, settings.max_new_tokens)
    turns = []
    for text in question.turns:
        prompt = talk.ask(text)
        reply, seconds = second_choices(engine, prompt, settings)
        talk.answered(reply)
        turns.append(Plain(prompt, reply, seconds))
    return turns


def _compare(
    hosted: Hosted,
    question: Question,
    settings: GenerationSettings,
    turns: Sequence[Plain],
    drafting: Drafting,
    memory: Memory,
    width: int | None,
    row: Row,
) -> None:
    """Decodes speculatively and fills the row. Gaps are measured last: that writes into the slots."""
    engine = hosted.local
    engine.forget()  # nothing that plain decoding left may help, or hide what we wrote wrong
    found: list[tuple[int, Plain, list[int]]] = []
    for number, plain in enumerate(turns):
        reply: list[int] = []
        for step in engine.generate(
            plain.prompt, settings, drafting(hosted, memory, plain, width, settings), padded=True
        ):
            reply += step.tokens
            row["forwards"] += bool(step.tokens)
        if reply != plain.reply:
            found.append((number, plain, reply))
        memory.history[0].add(plain.reply)
        row["replies"].append(plain.reply)
    row["differences"] = [
        {"question": question.name, "turn": number, **_difference(engine, plain, reply)}
        for number, plain, reply in found
    ]


def _difference(engine: LocalEngine, plain: Plain, reply: Sequence[int]) -> dict[str, Any]:
    """The first one. `position` counts the reply's tokens from 0; a reply that ended there has None for its token."""
    at = common_prefix(plain.reply, reply)
    one = plain.reply[at] if at < len(plain.reply) else None
    other = reply[at] if at < len(reply) else None
    gap = None
    if one is not None and other is not None:
        gap = engine.logit_gap([*plain.prompt, *plain.reply[:at]], one, other)
    return {"position": at, "vanilla": one, "speculative": other, "gap": gap}
