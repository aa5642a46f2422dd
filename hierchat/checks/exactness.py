"""Compare replies with drafting on and off, token for token (`hierchat verify`). Each question is decoded plainly, as
exactly as the target can (padded), and again by each drafter, with slots of its own; all get the prompts that the plain
replies make. History grows over the questions."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.checks import runs
from hierchat.checks.runs import Dialogue, Question, RequestError, Tell
from hierchat.config import GenerationSettings
from hierchat.drafting.draft_tree import DraftTree
from hierchat.drafting.proposer import Proposer
from hierchat.drafting.source import Source
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.generation import common_prefix
from hierchat.engine.local import LocalEngine
from hierchat.hierarchy.plan import Plan
from hierchat.runtime.drafters import Memory, reply_drafter, with_models
from hierchat.runtime.prompt import MessageTooLong
from hierchat.runtime.served_model import Levels, ServedModel

WIDEST = 24
"""Positions per forward where no width is asked for."""


class Trial(Proposer):
    """Proposer that tests verification by random, reproducible trees of up to width - 1 nodes. `seed`: by reply."""

    def __init__(self, vocabulary: int, width: int | None, seed: int) -> None:
        self._vocabulary = vocabulary
        self._most = (width or WIDEST) - 1
        self._random = np.random.default_rng(seed)
        self._at = 0  # tokens of the reply so far

    def begin(self, prompt: Sequence[int]) -> None:
        self._at = 0

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        self._at += len(tokens)

    def propose(self, limit: int | None = None) -> DraftTree:
        most = self._most if limit is None else min(self._most, limit)
        tokens, parents = self._nodes(int(self._random.integers(0, max(most, 0) + 1)))
        return DraftTree(tuple(tokens), tuple(parents), ("test",) * len(tokens), (1.0,) * len(tokens))

    def _nodes(self, size: int) -> tuple[list[int], list[int]]:
        raise NotImplementedError

    def _any(self, count: int) -> list[int]:
        return self._random.integers(0, self._vocabulary, count).tolist()


class Noise(Trial):
    """Proposes random tokens in trees of any shape: several roots, deep branches, doubles."""

    def _nodes(self, size: int) -> tuple[list[int], list[int]]:
        return self._any(size), [int(self._random.integers(-1, node)) if node else -1 for node in range(size)]


class Adversary(Trial):
    """Proposes the hardest cases, made from `reply` and the target's second choices: only second choices, a second
    choice above the right continuation, and the reply itself among wrong siblings."""

    def __init__(
        self, reply: Sequence[int], seconds: Sequence[int], vocabulary: int, width: int | None, seed: int
    ) -> None:
        super().__init__(vocabulary, width, seed)
        self._reply, self._seconds = list(reply), list(seconds)
        self._turn = 0

    def _nodes(self, size: int) -> tuple[list[int], list[int]]:
        self._turn += 1
        right, wrong = self._reply[self._at :], self._seconds[self._at :]
        if self._turn % 3:
            chain = (wrong if self._turn % 3 == 1 else wrong[:1] + right[1:])[:size]
            return chain, list(range(-1, len(chain) - 1))
        tokens, parents, parent = list[int](), list[int](), -1
        for pair in zip(right, wrong, strict=True):
            siblings = [*pair, *self._any(1)]
            if len(tokens) + len(siblings) > size:
                break
            self._random.shuffle(siblings)
            tokens += siblings
            parents += [parent] * len(siblings)
            parent = len(tokens) - len(siblings) + siblings.index(pair[0])
        return tokens, parents


Row = dict[str, Any]
"""A question: its number, the plain replies, and drafters: name -> forwards and differences."""


@dataclass(frozen=True, slots=True)
class PlainTurn:
    """Turn that was decoded plainly. `seconds`: the target's second choice at each token, [reply]."""

    prompt: list[int]
    reply: list[int]
    seconds: list[int]


Drafting = Callable[[ServedModel, Memory, PlainTurn, int | None, GenerationSettings], Proposer]
"""Makes the drafter of one reply; with the fixed width, if any."""
STACK = (2, 4, 8, 12)
"""Draft lengths of a stack of all draft models, from the lowest up."""
DRAFTERS: Mapping[str, Drafting] = {
    "default": lambda served, memory, plain, width, settings: reply_drafter(
        served, memory, settings, Event(), width
    ),
    "stack": lambda served, memory, plain, width, settings: _stack(served, memory, settings),
    "random": lambda served, memory, plain, width, settings: Noise(
        served.local.runner.vocabulary, width, seed=len(plain.prompt)
    ),
    "adversarial": lambda served, memory, plain, width, settings: Adversary(
        plain.reply, plain.seconds, served.local.runner.vocabulary, width, seed=len(plain.prompt)
    ),
}


def _stack(served: ServedModel, memory: Memory, settings: GenerationSettings) -> Proposer:
    """Make a drafter that asks all draft models at every step. Raises RequestError if the model has none."""
    levels = _draft_models(served)
    plan = Plan(tuple(range(len(levels.hierarchy.names))), STACK[: len(levels.sequences)], retrieval=True)
    return with_models(served, memory, settings, Event(), levels, plan)


def _draft_models(served: ServedModel) -> Levels:
    if not served.levels or not served.levels.sequences:
        raise RequestError(f"{served.name} has no draft models here: leave `stack` out of --drafter.")
    return served.levels


@dataclass(slots=True)
class Compared:
    """What a run has compared so far, and its file. `head`: is before the figures; `drafters`: keys of DRAFTERS."""

    path: Path
    head: dict[str, Any]
    drafters: Sequence[str]
    rows: list[Row] = field(default_factory=list)

    @property
    def mismatches(self) -> int:
        return len(self._differences())

    def as_dict(self) -> dict[str, Any]:
        """Return the run as a dict for its file. `tokens` were compared, over all drafters."""
        plain = sum(len(reply) for row in self.rows for reply in row["replies"])
        return {
            **self.head,
            "questions": sum("skipped" not in row for row in self.rows),
            "tokens": plain * len(self.drafters),
            "mismatches": self.mismatches,
            "by_drafter": {name: self._of(name, plain) for name in self.drafters},
            "first": self._differences()[:20],
            "done": self.rows,
        }

    def _of(self, drafter: str, tokens: int) -> dict[str, Any]:
        found = [row["drafters"][drafter] for row in self.rows if "skipped" not in row]
        forwards = sum(one["forwards"] for one in found)
        return {
            "tokens": tokens,
            "tokens_per_forward": round(tokens / forwards, 3) if forwards else None,
            "mismatches": sum(len(one["differences"]) for one in found),
        }

    def _differences(self) -> list[dict[str, Any]]:
        return [
            {"drafter": name, **difference}
            for row in self.rows
            for name, found in row["drafters"].items()
            for difference in found["differences"]
        ]

    def write(self) -> None:
        runs.write(self.path, self.as_dict(), rows="done")


def check(
    served: ServedModel,
    questions: Sequence[Question],
    settings: GenerationSettings,
    result: Compared,
    tell: Tell,
    *,
    width: int | None = None,
    users: int = 1,
) -> None:
    """Compare the questions, and write the file of `result` after each. `users` ask at once and share forwards.
    Raises RequestError for a drafter that is not available."""
    if "stack" in result.drafters:
        _draft_models(served)

    def draft(
        drafting: Drafting, memory: Memory, turns: Sequence[PlainTurn], user: int
    ) -> tuple[int, list[list[int]]]:
        engine = served.local
        if turns:  # what an earlier drafter left of the first prompt stays: nothing drafted is in it
            engine.pool.forget(turns[0].prompt, len(turns[0].prompt) - 1)
        forwards, replies = 0, []
        for plain in turns:
            reply: list[int] = []
            drafter = drafting(served, memory, plain, width, settings)
            for step in engine.generate(
                GenerationRequest(plain.prompt, settings, drafter, padded=True, user=user)
            ):
                reply += step.tokens
                forwards += bool(step.tokens)
            replies.append(reply)
            memory.history[0].add(plain.reply)
        return forwards, replies

    memories = {name: Memory([Source()]) for name in result.drafters}
    for begin in range(0, len(questions), users):
        rows: list[Row] = []
        asked: list[tuple[Row, Question, list[PlainTurn]]] = []
        for question in questions[begin : begin + users]:
            tell(f"{question.group} {question.name}: plain", 0)
            row: Row = {"question": question.number, "replies": [], "drafters": {}}
            rows.append(row)
            try:
                plain = _plainly(served, question, settings)
            except MessageTooLong as error:
                row["skipped"] = str(error)
            else:
                row["replies"] = [turn.reply for turn in plain]
                asked.append((row, question, plain))
        served.local.clear()  # nothing that plain decoding left may help, or hide what we wrote wrong
        for name, memory in memories.items():
            tell(f"{', '.join(question.name for _, question, _ in asked)}: {name}", 0)
            with ThreadPoolExecutor(max(len(asked), 1)) as pool:
                drafting = partial(draft, DRAFTERS[name], memory)
                drafted = list(pool.map(drafting, [plain for _, _, plain in asked], range(len(asked))))
            for (row, question, plain), (forwards, replies) in zip(asked, drafted, strict=True):
                differing = [  # gaps are measured last: that writes into the slots
                    {"question": question.name, "turn": number, **_difference(served.local, turn, reply)}
                    for number, (turn, reply) in enumerate(zip(plain, replies, strict=True))
                    if reply != turn.reply
                ]
                row["drafters"][name] = {"forwards": forwards, "differences": differing}
        result.rows += rows
        result.write()
        tell("", len(rows))


def _plainly(served: ServedModel, question: Question, settings: GenerationSettings) -> list[PlainTurn]:
    engine = served.local
    engine.clear()
    talk = Dialogue(served, settings.max_new_tokens)
    turns = []
    for text in question.turns:
        prompt = talk.ask(text)
        reply, seconds = list[int](), list[int]()
        for rows, step in engine.plain(prompt, settings):
            second, first = np.argpartition(rows[0], -2)[-2:].tolist()
            reply += step.tokens
            seconds.append(second if step.tokens[0] == first else first)
        talk.answered(reply)
        turns.append(PlainTurn(prompt, reply, seconds))
    return turns


def _difference(engine: LocalEngine, plain: PlainTurn, reply: Sequence[int]) -> dict[str, Any]:
    """Return the first difference as a dict. `position`: index of the token; a reply that ended there has None."""
    at = common_prefix(plain.reply, reply)
    one = plain.reply[at] if at < len(plain.reply) else None
    other = reply[at] if at < len(reply) else None
    gap = None
    if one is not None and other is not None:
        gap = engine.logit_gap([*plain.prompt, *plain.reply[:at]], one, other)
    return {"position": at, "vanilla": one, "speculative": other, "gap": gap}
