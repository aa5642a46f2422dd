"""Questions made from the sources of Python's own library, so that nothing is downloaded."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hierchat.checks.runs import Question, RequestError
from hierchat.cli.options import terminal_progress
from hierchat.config import GenerationSettings
from hierchat.models.catalogue import ModelEntry
from hierchat.models.load.tokenizer_files import load_tokenizer


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Questions of one run; `name`: the file or workload; `sha256`: of its content."""

    questions: list[Question]
    name: str
    sha256: str


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
    """Make the questions of one of WORKLOADS from the sources of Python's own library, so that nothing is
    downloaded. `sizes`: the most tokens of a long context's prompts; by default as many as the model can hold
    with its replies. Raises RequestError for those that it cannot, and a ModelError."""
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
    """Return the questions of one of WORKLOADS; `most`: tokens that a prompt may have. Each of `sizes` is a
    category of its own."""
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
    """Return as many whole lines of a text's beginning as have at most `tokens` tokens."""
    lines = text.splitlines(keepends=True)
    counts = range(1, len(lines) + 1)
    return "".join(lines[: bisect_right(counts, tokens, key=lambda count: length("".join(lines[:count])))])
