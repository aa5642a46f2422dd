"""Questions for checks and measurements: a file of JSON lines with `turns`, or a workload made here."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierchat.chat.reply_stream import reply_text
from hierchat.config import GenerationSettings
from hierchat.models.catalogue import ModelEntry, nearest
from hierchat.models.load.tokenizer_files import load_tokenizer
from hierchat.models.progress import terminal_progress
from hierchat.runtime.prompt import PromptMessage
from hierchat.runtime.served_model import ServedModel


class RequestError(Exception):
    """A run cannot be done, or not in this way; the text is for the user."""


def unreadable(path: Path, error: OSError | ValueError) -> str:
    """Say why a file could not be read, or is not what it should be."""
    if isinstance(error, OSError):
        return f"{path} cannot be read ({error.strerror})."
    if isinstance(error, UnicodeDecodeError):
        return f"{path} is no text in UTF-8. Is it the right file?"
    return f"{path} is no JSON ({error}). Is it the right file?"


def unknown(what: str, name: str, known: Iterable[str]) -> RequestError:
    """Return the error about a name that is none of `known`, with the nearest of them."""
    return RequestError(f"No {what} is called {name!r}. {nearest(name, known)}")


MT_BENCH = frozenset(
    ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]
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
        """Return the category; all of MT-Bench's together."""
        return "mt_bench" if self.category in MT_BENCH else self.category


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Questions of one run; `name`: the file or workload; `sha256`: of its content."""

    questions: list[Question]
    name: str
    sha256: str


def read_questions(path: Path) -> list[Question]:
    """Read all questions of a file, in order. Raises RequestError."""
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
    """Take one question of each group in turn, and of each category within a group, so that any beginning of the list,
    such as its first `limit`, holds about equally many of each."""
    groups: dict[str, list[Question]] = {}
    for question in _in_turn(questions, [question.category for question in questions]):
        groups.setdefault(question.group, []).append(question)
    by_group = [question for group in groups.values() for question in group]
    return _in_turn(by_group, [question.group for question in by_group])[:limit]


def _in_turn(questions: Sequence[Question], keys: Sequence[str]) -> list[Question]:
    """Order by the first of each key, the second of each, ...; keys in order of their appearance."""
    seen: dict[str, int] = {}
    ranked = []
    for at, (question, key) in enumerate(zip(questions, keys, strict=True)):
        rank = seen[key] = seen.get(key, -1) + 1
        ranked.append((rank, list(seen).index(key), at, question))
    return [question for *_, question in sorted(ranked, key=lambda item: item[:3])]


LONG_CONTEXT = "long-context"
WORKLOADS = ("copy", LONG_CONTEXT)
COPY_TOKENS = 1_500
"""Tokens of a text to be copied with a change."""
LONG_TOKENS = 8_192
"""Tokens of a prompt about a long text, less where the context is shorter; reply and template come on top."""
MOST = 8_192
"""Tokens of a prompt and its reply where the catalogue does not say what a model can hold."""
SPARE = 256
"""Tokens for the template, the question and what a cut leaves over."""
COPIES = (
    ("textwrap", "TextWrapper", "LineWrapper"),
    ("shlex", "shlex", "shell_lexer"),
    ("heapq", "heap", "pile"),
    ("bisect", "lo", "low"),
    ("calendar", "weekday", "day_of_week"),
    ("queue", "maxsize", "capacity"),
    ("fnmatch", "pat", "pattern"),
    ("string", "Template", "Pattern"),
)
"""A module, and a name in it that is to be changed."""
LONG = (
    (("argparse", "shlex"), "What does the class ArgumentParser do? Answer in a few sentences."),
    (("textwrap", "difflib"), "Repeat the docstring of the function `wrap` in `textwrap`, word for word."),
    (("heapq", "statistics"), "List the public functions of `heapq`, each with one sentence."),
    (("calendar", "datetime"), "Write a short program that uses these modules to print this month."),
)
"""Modules whose sources stand in the prompt, and what is asked about them."""
Length = Callable[[str], int]
"""Tokens of a text."""


def question_set(
    workload: str, entry: ModelEntry, settings: GenerationSettings, sizes: Sequence[int] = ()
) -> QuestionSet:
    """Make one of WORKLOADS out of the sources of Python's own library, so that nothing is downloaded. `sizes`: the
    most tokens of a long context's prompts; by default as many as the model can hold with its replies. Raises
    RequestError for those that it cannot, and a ModelError."""
    holds = entry.context_length or MOST
    most = holds - settings.max_new_tokens
    for size in sizes:
        if not 2 * SPARE <= size <= most:
            raise RequestError(
                f"--prompt-tokens: {size:,} is not {2 * SPARE:,} to {most:,}. {entry.name} holds {holds:,} tokens, "
                f"{settings.max_new_tokens:,} of them for the reply."
            )
    with terminal_progress() as report:
        tokenizer = load_tokenizer(entry, report)
    questions = questions_of(
        workload, lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"]), most, sizes
    )
    texts = "\n".join(text for question in questions for text in question.turns)
    return QuestionSet(questions, workload, hashlib.sha256(texts.encode()).hexdigest())


def questions_of(workload: str, length: Length, most: int, sizes: Sequence[int] = ()) -> list[Question]:
    """List the questions of one of WORKLOADS; `most`: tokens that a prompt may have. Each of `sizes` is a category of
    its own."""
    if workload == "copy":
        asked = [(workload, text) for text in _copies(length, most)]
    elif sizes:
        asked = [(f"{workload}-{size}", text) for size in sizes for text in _long(length, size)]
    else:
        asked = [(workload, text) for text in _long(length, min(LONG_TOKENS, most))]
    return [
        Question(number, f"{workload}-{number}", (text,), category)
        for number, (category, text) in enumerate(asked)
    ]


def _copies(length: Length, most: int) -> list[str]:
    return [
        f"Repeat this file word for word, but rename `{old}` to `{new}` everywhere. Write nothing else.\n\n"
        f"```python\n{_beginning(_source(module), min(COPY_TOKENS, most - SPARE), length)}```"
        for module, old, new in COPIES
    ]


def _long(length: Length, size: int) -> list[str]:
    texts = ((question, "\n".join(map(_source, modules))) for modules, question in LONG)
    return [
        f"```python\n{_beginning(text, size - SPARE, length)}```\n\n{question}" for question, text in texts
    ]


def _source(module: str) -> str:
    return inspect.getsource(importlib.import_module(module))


def _beginning(text: str, tokens: int, length: Length) -> str:
    """Return as many whole lines as have at most so many tokens."""
    lines = text.splitlines(keepends=True)
    counts = range(1, len(lines) + 1)
    return "".join(lines[: bisect_right(counts, tokens, key=lambda count: length("".join(lines[:count])))])


class Dialogue:
    """Holds one conversation as the chat would: every prompt contains what was said before. `room`: tokens that a
    prompt leaves for its reply, where the context has them."""

    def __init__(self, served: ServedModel, room: int) -> None:
        self._served = served
        self._room = room
        self._said: list[PromptMessage] = []
        self._opened = False
        """Whether the last prompt ended where the model begins to think."""

    def ask(self, text: str) -> list[int]:
        """Return the prompt of the next turn. Raises MessageTooLong."""
        self._said.append(PromptMessage("user", text))
        prompt = self._served.prompts.build(self._said, self._room, self._served.end_ids)
        self._opened = prompt.thinking
        return prompt.ids

    def answered(self, reply: Sequence[int]) -> None:
        """Add what the model wrote."""
        text = reply_text(self._served, reply, opened=self._opened)
        self._said.append(PromptMessage("assistant", text, tuple(reply)))
