"""Measure how long one waits for the first token: of a new chat, a follow-up, an edit, an old chat after a restart,
and questions about attached files. Beside llama.cpp, whose slots keep the last prompt, and are saved for a restart.

All of it goes through the service, as from the page: the files of what was read are written, and found again by a
second program on the same database.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers.arm import PeerArm, Weights, open_peer
from benchmarks.peers.environment import ArmError
from benchmarks.session import ready_slot
from hierchat.chat.in_progress import NewQuestion
from hierchat.chat.service import ChatService
from hierchat.chat.spare_time import NextQuestion
from hierchat.checks.runs import RequestError, machine, read_questions, say
from hierchat.config import GenerationSettings
from hierchat.engine.engine import GenerationRequest, Step
from hierchat.models.catalogue import read_catalogue
from hierchat.models.progress import ModelError
from hierchat.runtime.prompt import MessageTooLong
from hierchat.store import Store
from hierchat.store.records import Attachment

REPLY = GenerationSettings(max_new_tokens=16)
MESSAGE = 300
"""Tokens of a message of the long chat."""
ASKED = "What is the first thing that is said here? Answer in one sentence."
SETTLE_SECONDS = 300.0
"""How long is waited at most for what is read ahead and written in spare time."""
BEGUN_SECONDS = 1.0
"""Reading ahead has begun so long after it was asked for."""
QUIET_SECONDS = 2.0
"""The model is free for so long once nothing more is read ahead."""


class Program:
    """The program over one database, from a start to its end."""

    def __init__(self, path: Path, model: str | None) -> None:
        self.store = Store.open(path)
        self.slot = ready_slot(model)
        self.service = ChatService(self.store, self.slot)
        self.user = self.store.users.ensure("bench")
        assert self.slot.model is not None
        self.served, self.engine = self.slot.model, self.slot.model.local
        self.prompt: Sequence[int] = ()
        """Tokens of the last prompt."""
        generate = self.engine.generate

        def noting(request: GenerationRequest) -> Generator[Step, None, None]:
            self.prompt = request.prompt_ids
            return generate(request)

        self.engine.generate = noting  # type: ignore[method-assign]

    def close(self) -> None:
        """Write what is still to be written, and end."""
        self.settle()
        self.service.close()
        self.store.close()
        self.slot.model = None

    def ask(
        self, chat: int, parent: int | None, text: str, files: Sequence[Attachment] = ()
    ) -> tuple[dict[str, Any], int]:
        """Ask, and return the seconds until the first token, the tokens of the prompt and those of them that were
        read; and the message that answers."""
        began, first, last = time.perf_counter(), 0.0, None
        question = NewQuestion(chat, parent, text, files)
        for frame in self.service.send(self.user, question, REPLY, threading.Event()):
            if not first and frame.figures.tokens:
                first = time.perf_counter() - began
            last = frame
        if last is None or last.message_id is None:
            raise RequestError((last and last.notice) or "The model gave no reply.")
        turn = self.store.replies.turn(self.user, last.message_id)
        assert turn is not None
        assert turn.figures is not None
        figures = turn.figures
        said = {"seconds": round(first, 3), "prompt": figures.prompt_tokens, "read": figures.prompt_read}
        return said, last.message_id

    def read_ahead(self, chat: int | None, files: Sequence[Attachment] = ()) -> float:
        """Read the next prompt in spare time, as the page asks for; return the seconds until that is done."""
        began = time.monotonic()
        self.service.read_ahead(NextQuestion(self.user, chat, files=files))
        time.sleep(BEGUN_SECONDS)  # a model that was idle before looks free until then
        return max(self.settle() - began, 0.0)

    def settle(self) -> float:
        """Wait until nothing is read ahead and nothing written any more; return when the model became free."""
        until = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < until and self.slot.scheduler.idle_seconds < QUIET_SECONDS:
            time.sleep(0.1)
        return time.monotonic() - self.slot.scheduler.idle_seconds

    def chat(self) -> int:
        """Return a new chat."""
        return self.service.chats.create(self.user)


class Texts:
    """Texts of so many tokens, of the turns of a file of questions."""

    def __init__(self, questions: Path, program: Program) -> None:
        turns = [turn for question in read_questions(questions) for turn in question.turns]
        self._turns, self._encode = cycle(turns), program.served.prompts.tokenizer.encode

    def __call__(self, tokens: int) -> str:
        """Return the next text of about so many tokens."""
        text = next(self._turns)
        while (count := len(self._encode(text))) < tokens:
            text += "\n\n" + next(self._turns)
        return text[: len(text) * tokens // count]


class Measurement:
    """What is measured: each prompt by the program, then by the peer."""

    def __init__(self, path: Path, args: argparse.Namespace) -> None:
        import torch  # takes seconds

        self._path, self._model, self._threads = path, args.model, torch.get_num_threads()
        self._program = Program(path, args.model)
        self.texts = Texts(args.questions, self._program)
        self.rows: list[dict[str, Any]] = []
        self.absent = ""
        """Why there is no peer."""
        self._peer: PeerArm | None = None
        self._beside = bool(args.peers)
        self._open_peer()
        self.head = {"machine": machine(), "model": self._program.served.name}

    def run(self, chat_tokens: int, documents: Sequence[int]) -> None:
        """Measure everything."""
        chat, path = self._program.chat(), list[int]()
        self._ask("new chat", chat, None, self.texts(MESSAGE), into=path)
        while self.rows[-1]["prompt"] < chat_tokens:
            self._ask("follow-up", chat, path[-1], self.texts(MESSAGE), into=path)
        self._ask("follow-up of a few words", chat, path[-1], ASKED)
        self._ask("edit in the middle", chat, path[len(path) // 2], ASKED)
        self._ask("back in the first branch", chat, path[-1], ASKED)
        self._restart()
        self._ask("after a restart, at once", chat, path[-1], ASKED)
        self._restart()
        waited = self._program.read_ahead(chat)
        self._ask("after a restart, opened before", chat, path[-1], ASKED, ahead=waited)
        for tokens in documents:
            try:
                self._document(tokens)
            except MessageTooLong as error:
                say(f"Left out: a document of {tokens:,} tokens. {error}")

    def close(self) -> None:
        self._program.close()
        if self._peer:
            self._peer.close()

    def _document(self, tokens: int) -> None:
        name = f"document of {tokens:,}"
        files = [Attachment("text.txt", 0, self.texts(tokens))]
        self._ask(f"{name}, at once", self._program.chat(), None, ASKED, files)
        self._ask(f"{name}, again in another chat", self._program.chat(), None, "Who speaks?", files)
        files = [Attachment("text.txt", 0, self.texts(tokens))]
        waited = self._program.read_ahead(None, files)
        self._ask(f"{name}, attached before", self._program.chat(), None, ASKED, files, ahead=waited)
        self._restart()
        self._ask(f"{name}, again after a restart", self._program.chat(), None, "Who speaks?", files)

    def _ask(
        self,
        what: str,
        chat: int,
        parent: int | None,
        text: str,
        files: Sequence[Attachment] = (),
        into: list[int] | None = None,
        ahead: float | None = None,
    ) -> None:
        """Add a row; `ahead`: the seconds that were spent before it was asked."""
        said, message = self._program.ask(chat, parent, text, files)
        if into is not None:
            into.append(message)
        row: dict[str, Any] = {"what": what, **said}
        if ahead is not None:
            row["ahead_seconds"] = round(ahead, 2)
        self._program.settle()
        if self._peer:
            row["llama.cpp"] = round(self._peer.answer(self._program.prompt, REPLY).first_seconds, 3)
        self.rows.append(row)
        say(json.dumps(row))

    def _restart(self) -> None:
        """End both programs and start them again. The peer saves its slots and loads them: that is counted in its next
        reply."""
        saved = str(self._path.with_suffix(".llama"))
        if self._peer:
            self._peer.ask(do="save", path=saved)
            self._peer.close()
        self._program.close()
        self._program = Program(self._path, self._model)
        self._open_peer()
        if self._peer:
            self._peer.ask(do="load_at_next", path=saved)

    def _open_peer(self) -> None:
        self._peer = None
        if not self._beside:
            return
        try:
            entry = read_catalogue().entry(self._program.served.name)
            peer = open_peer("llama.cpp", Weights(entry, self._program.served), self._threads, say)
            assert isinstance(peer, PeerArm)
            self._peer = peer
        except (ArmError, ModelError, OSError) as error:
            self.absent = str(error)


def measure(args: argparse.Namespace) -> int:
    """Measure, print a table and write the figures. Return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        measurement = Measurement(Path(folder) / "prompts.db", args)
        try:
            measurement.run(args.chat_tokens, args.documents)
        finally:
            measurement.close()
    result = {**measurement.head, "absent": measurement.absent, "rows": measurement.rows}
    args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    table = Table("first token of", "prompt", "read", "seconds", "llama.cpp")
    for row in _medians(measurement.rows):
        table.add_row(
            row["what"], *(str(row.get(key, "")) for key in ("prompt", "read", "seconds", "llama.cpp"))
        )
    Console().print(table)
    return 0


def _medians(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a row for each thing that was measured: of several the medians."""
    for what in dict.fromkeys(row["what"] for row in rows):
        same = [row for row in rows if row["what"] == what]
        keys = [key for key in same[0] if key != "what"]
        yield {"what": what, **{key: round(median(row[key] for row in same), 3) for key in keys}}
