"""Measure how often BM25 finds the passage that answers a question: 100 questions about docs/*.md. With
--questions, write each with the passages that go with it, for `benchmarks decode`: how fast is a reply that quotes?"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from hierchat.checks.runs import RequestError
from hierchat.store import Store
from hierchat.store.documents import Documents
from hierchat.store.records import Document, Passage
from hierchat.texts.attachments import with_files
from hierchat.texts.passages import BUDGET, cut, fitting
from hierchat.texts.text_files import TextReader, kind

DOCS = Path("docs")
WRITTEN = Path(__file__).with_suffix(".tsv")
"""Questions by hand: the question, the file that answers it, and words of the passage that does."""
QUESTIONS, FOUND = 100, (5, 12)
"""How many are asked, and among how many of the first passages the answer is looked for."""
CHARACTERS = 4
"""Of a token, roughly: the passages are chosen without a model."""
_ROW = re.compile(r"\| `?([^|`]{4,60})`? \| ([^|]{16,}) \|")


class Asked(NamedTuple):
    """Question, and the document and words that answer it."""

    kind: str
    question: str
    file: str
    answer: str


def questions() -> Iterator[Asked]:
    """Yield up to QUESTIONS, by hand, then by rule: what a table row's first cell means, which the second says."""
    lines = WRITTEN.read_text(encoding="utf-8").splitlines()
    yield from (Asked("by hand", *line.split("\t")) for line in lines)
    rows = [
        Asked("by rule", f"What is {row[1]}?", file.name, row[2])
        for file in sorted(DOCS.glob("*.md"))
        for row in map(_ROW.fullmatch, file.read_text(encoding="utf-8").splitlines())
        if row
    ]
    yield from rows[:: max(len(rows) // (QUESTIONS - len(lines)), 1)][: QUESTIONS - len(lines)]


def answers(asked: Asked, found: Sequence[Passage]) -> bool:
    """Tell whether one of the passages answers, whatever stands between its words."""
    wanted = " ".join(asked.answer.split())
    return any(one.name == asked.file and wanted in " ".join(one.text.split()) for one in found)


def measure(args: argparse.Namespace) -> int:
    """Read the documents, ask, print the share of questions whose answer was found. Raises RequestError."""
    files = sorted(DOCS.glob("*.md"))
    if not files:
        raise RequestError("There are no docs/*.md here: run it in a checkout.")
    passages = [one for file in files for one in cut(file.name, kind(file), TextReader([file]))]
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder, "h.db")) as store:
        user = store.users.ensure("retrieval")
        chat, documents = store.chats.create(user), Documents(store.connection)
        documents.add(user, Document(0, "docs", 0, 0, False, False), chat, iter(passages))
        asked = [one for one in questions() if answers(one, passages)]
        found = [documents.find(user, chat, one.question, [], max(FOUND)) for one in asked]
    if args.questions:
        asking = [
            {"turns": [_with_passages(*one)], "category": one[0].kind}
            for one in zip(asked, found, strict=True)
        ]
        args.questions.write_text("".join(f"{json.dumps(one)}\n" for one in asking), encoding="utf-8")
    figures: dict[str, object] = {"passages": len(passages)}
    for name in dict.fromkeys(one.kind for one in asked):
        of_kind = [(one, best) for one, best in zip(asked, found, strict=True) if one.kind == name]
        hits = {most: sum(answers(one, best[:most]) for one, best in of_kind) for most in FOUND}
        figures[name] = {"questions": len(of_kind), "hits": hits}
        said = ", ".join(f"{count} among the first {most}" for most, count in hits.items())
        Console().print(f"{name}, {len(of_kind)} questions: {said}")
    args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 0


def _with_passages(asked: Asked, found: Sequence[Passage]) -> str:
    """Return a question as a chat with these documents sends it."""
    return with_files(asked.question, fitting(found, 1, BUDGET, lambda text: len(text) // CHARACTERS))
