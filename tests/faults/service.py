"""The service that is broken: eight users at once over a tiny model, who note down what they were told.

Runs in a fork of tests.faults, until it is killed. What a user does is noted before and after: what was told is owed.
"""

import ctypes
import json
import os
import random
import signal
import string
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import torch

from hierchat import logs
from hierchat.api.endpoint import Endpoint
from hierchat.chat import conversations, titles
from hierchat.chat.in_progress import NewQuestion, ReplyInProgress
from hierchat.chat.service import ChatService
from hierchat.config import GenerationSettings
from hierchat.models.progress import Report
from hierchat.page.page_app import Page, serve
from hierchat.runtime import template, template_program
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.served_model import ServedModel
from hierchat.store import Store, StoreError, connection
from hierchat.texts.importing import Import
from tests.testing.following import follow
from tests.testing.tiny_chat import END, catalogue, served, settle
from tests.texts.transfer.files import gpt_chat, gpt_node

USERS = 8
KINDS = {"full": 1, "errors": 2, "short": 4, "read-only": 8}
"""What the shim makes of writes, by its own numbers."""


@dataclass(frozen=True)
class Orders:
    """What one run of the service does, and what is done to it."""

    folder: Path
    seed: int
    fault: str = ""
    """Of KINDS: begins and ends again and again."""
    clock: int = 0
    """Seconds that the clock is set forward a moment after the start."""
    record: Path | None = None
    """Where writes are noted in their order."""
    nobody: bool = False
    """Whether it runs without the rights of root."""
    users: int = USERS
    notes: str = "notes"

    @property
    def database(self) -> Path:
        return self.folder / "chat.db"


class Notes:
    """Lines of JSON that outlive a kill, each written at once."""

    def __init__(self, file: Path, mark: Callable[[int], object]) -> None:
        self._fd = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666)
        self._mark, self._count, self._lock = mark, 0, threading.Lock()

    def __call__(self, what: str, **values: Any) -> None:
        with self._lock:
            line = json.dumps({"n": self._count, "what": what, "t": time.monotonic(), **values})
            os.write(self._fd, line.encode() + b"\n")
            self._mark(self._count)  # what was told before this is owed by what the disk holds later
            self._count += 1


def load(name: str, report: Report) -> ServedModel:
    return served(name, int(name[-1]))


def run(orders: Orders) -> None:
    """Serve, and use it, until killed."""
    os.umask(0)
    logs.set_up()
    library = ctypes.CDLL(None)
    library.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with who looks at it
    shim = library if hasattr(library, "faults_mark") else None
    if orders.nobody:
        os.setgid(65534)
        os.setuid(65534)
    if shim and orders.record:
        shim.faults_record(bytes(orders.database), bytes(orders.record))
    notes = Notes(orders.folder / orders.notes, shim.faults_mark if shim else lambda number: None)
    conversations.UNDO_SECONDS, connection.FOLD_SECONDS, titles.IDLE_SECONDS = 0.3, 0.5, 0.2
    fold = connection.Connection.fold

    def noted_fold(self: connection.Connection) -> bool:
        began = time.monotonic()
        done = fold(self)
        notes("folded", began=began, done=done)
        return done

    connection.Connection.fold = noted_fold  # type: ignore[method-assign]
    began = time.monotonic()
    store = Store.open(orders.database)
    store.keys.set_access("keys")
    slot = ModelSlot(catalogue("tiny-0", "tiny-1"), load=load, learned=store.learned)
    slot.start("tiny-0")
    service = ChatService(store, settle(slot))
    address = served_at(service)
    notes("ready", seconds=time.monotonic() - began)
    if shim:
        threading.Thread(target=_break, args=[shim, orders, notes], daemon=True).start()
    for number in range(orders.users):
        user = User(number, service, notes, random.Random(orders.seed * 100 + number), orders.folder, address)
        threading.Thread(target=user.live, daemon=True).start()
    threading.Event().wait()


def served_at(service: ChatService) -> str:
    """Serve the endpoint on a free port, and return the address."""
    with Page(title="bare", analytics_enabled=False) as app:  # a whole one takes a second
        pass
    return serve(app, None, before=lambda page, local: Endpoint(page, service, local))[0]


def _break(shim: Any, orders: Orders, notes: Notes) -> None:
    """Let the fault come and go, with a while of health between."""
    rng = random.Random(orders.seed)
    time.sleep(0.3)
    if orders.clock:
        shim.faults_clock(orders.clock)
    while orders.fault:
        notes("fault")
        kind, often = KINDS[orders.fault], rng.choice([20, 100, 500, 1000])
        shim.faults_arm(bytes(orders.database), kind, often, rng.getrandbits(32))
        time.sleep(rng.uniform(0.05, 0.4))
        shim.faults_disarm()
        notes("healed", failed=ctypes.c_long.in_dll(shim, "faults_count").value)
        time.sleep(rng.uniform(0.3, 0.6))


@dataclass
class User:
    """Somebody who does one thing after the other."""

    number: int
    service: ChatService
    notes: Notes
    rng: random.Random
    folder: Path
    address: str
    chats: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        acts = {
            self.ask: 10, self.name: 2, self.delete: 3, self.fork: 1, self.incognito: 1, self.bring: 1,
            self.read: 1, self.forget: 1, self.keep: 1, self.compare: 1,
        }  # fmt: skip
        if self.number == 0:
            acts[self.switch] = 1
        if self.number == 1:
            acts = {self.program: 1}
        self._acts, self._weights = list(acts), list(acts.values())
        self.files = (
            self.folder / "files"
        )  # the user's own: a fault of the database's folder is none of theirs
        self.files.mkdir(exist_ok=True)

    def live(self) -> None:
        """Go on whatever happens; what the user could not read as a sentence is noted."""
        self.user, self.key = 0, ""
        while True:
            try:
                self.user = self.user or self.service.users.ensure(f"user {self.number}")
                self.rng.choices(self._acts, self._weights)[0]()
            except StoreError as error:
                self.notes("refused", why=str(error))
                time.sleep(0.02)
            except Exception as error:
                self.notes("bug", why="".join(traceback.format_exception(error))[-1500:])
                time.sleep(0.05)

    def word(self) -> str:
        return "".join(self.rng.choices(string.ascii_lowercase, k=14))

    def chat(self) -> int:
        if not self.chats or self.rng.random() < 0.3:
            self.chats.append(self.service.chats.create(self.user))
        return self.rng.choice(self.chats)

    def ask(self, chat: int | None = None, user: int | None = None) -> str:
        user, chat, word, service = user or self.user, chat or self.chat(), self.word(), self.service
        settings = GenerationSettings(
            temperature=self.rng.choice([0.0, 1.0]), max_new_tokens=self.rng.choice([4, 4, 8, 8, 24, 120]),
            seed=self.rng.getrandbits(31), logit_bias={END: -100.0},
        )  # fmt: skip
        self.notes("asking", user=user, chat=chat, word=word)
        reply = ReplyInProgress(
            user, chat, f"Tell me of {word}", below=service.chats.last_message(user, chat)
        )
        service.in_progress.begin(
            reply, lambda stop: service.send(user, reply.question, settings, stop), waits=True
        )
        if reply.trouble:
            self.notes("refused", why=reply.trouble)
            return word
        if reply.held is not None:
            self.notes("asked", word=word)
        for state in follow(reply):
            if state.message_id and state.phase == "writing":
                self.notes("grown", id=state.message_id, chat=chat, tokens=state.figures.tokens)
        last = reply.latest
        if last is not None and last.phase == "done" and last.finish not in (None, "error"):
            self.notes(
                "answered",
                id=last.message_id,
                chat=chat,
                text=last.text,
                tokens=last.figures.tokens,
                finish=last.finish,
                notice=last.notice,
            )
        elif reply.trouble or (last is not None and last.notice):
            self.notes("refused", why=reply.trouble or last.notice)
        return word

    def name(self) -> None:
        chat, title = self.chat(), self.word()
        self.notes("naming", chat=chat, title=title)
        self.service.chats.rename(self.user, chat, title)
        self.notes("named", chat=chat, title=title)

    def delete(self) -> None:
        if not self.chats:
            return
        chat = self.chats.pop(self.rng.randrange(len(self.chats)))
        self.notes("deleting", chat=chat)
        if self.service.chats.delete(self.user, chat) is None:
            self.notes("gone", chat=chat)
            return
        self.notes("deleted", chat=chat)
        if self.rng.random() < 0.3:
            self.notes("restoring", chat=chat)
            self.service.chats.restore(self.user, chat)
            self.notes("restored", chat=chat)
            self.chats.append(chat)

    def fork(self) -> None:
        chat = self.chat()
        last = self.service.chats.last_message(self.user, chat)
        if last is not None:
            self.notes("forking", chat=chat)
            self.chats.append(self.service.chats.fork(self.user, last))
            self.notes("forked", chat=chat, fork=self.chats[-1])

    def incognito(self) -> None:
        chat = self.service.chats.create(self.user, incognito=True)
        self.notes("secret", words=[self.ask(chat)], chat=chat)
        self.service.chats.end_incognito(self.user, chat)

    def forget(self) -> None:
        name = f"{self.word()} {self.number}"
        user = self.service.users.ensure(name)
        word = self.ask(self.service.chats.create(user), user)
        self.notes("forgetting", words=[word, name])
        self.service.forget_user(user)
        self.notes("secret", words=[word, name])

    def bring(self) -> None:
        words = [self.word(), self.word()]
        chat = gpt_chat(
            gpt_node("root", None, None),
            gpt_node("q", "root", "user", [f"A question of {words[0]}"]),
            gpt_node("a", "q", "assistant", [f"A reply of {words[1]}"]),
            current="a", conversation_id=words[0], id=words[0],
        )  # fmt: skip
        file = self.files / f"import {self.number}.json"
        file.write_text(json.dumps([chat]))
        importing = Import(self.service.store, self.user, [file])
        for _ in importing:
            pass
        if importing.messages:
            self.notes("brought", words=words)

    def read(self) -> None:
        chat, word = self.chat(), self.word()
        file = self.files / f"about {self.number}.txt"
        file.write_text(f"All that is known about {word}.\n" * 3)
        self.service.documents.read(self.user, chat, [file], to_project=False, ours=False)
        reading = self.service.documents.readings[self.user]
        reading.ended.wait()
        if not reading.unread:
            self.notes("read", chat=chat, word=word)

    def keep(self) -> None:
        self.service.completions.keep(self.service.served, now=True)

    def compare(self) -> None:
        chat, settings = self.chat(), GenerationSettings(max_new_tokens=12, logit_bias={END: -100.0})
        self.notes("comparing", chat=chat)
        question = NewQuestion(chat, self.service.chats.last_message(self.user, chat), "Count.")
        for _frame in self.service.compare(self.user, question, settings, threading.Event()):
            pass

    def switch(self) -> None:
        self.service.slot.start(self.rng.choice(["tiny-0", "tiny-1"]))

    def program(self) -> None:
        """Ask the endpoint, as another program does."""
        if not self.key:
            self.key = self.service.keys.add(f"key {self.word()}", history=True)
        word = self.word()
        asked = {"messages": [{"role": "user", "content": f"Tell me of {word}"}], "max_tokens": 8}
        with httpx.Client(base_url=self.address, headers={"x-api-key": self.key}, timeout=60) as program:
            answer = program.post("v1/chat/completions", json=asked)
        if answer.status_code == 200:
            self.notes("served", word=word)
        else:
            self.notes("refused", why=answer.json()["error"]["message"])
            time.sleep(0.05)


def quiet(log: Path) -> None:
    """What the service says goes there."""
    file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = sys.stderr = os.fdopen(file, "w", buffering=1)


def warm() -> None:
    """Import, compile and measure once what every fork needs."""
    torch.set_num_threads(1)
    # In this process: a fork cannot wait for a process that is another one's child, and nobody may start one.
    template._renderer._exchange = template_program.answer  # type: ignore[method-assign]
    with TemporaryDirectory() as folder, Store.open(Path(folder) / "warm.db") as store:
        for name in ("tiny-0", "tiny-1"):
            slot = ModelSlot(catalogue(name), load=load)
            slot.start(name)
            service = ChatService(store, settle(slot))
            user = store.users.ensure("ann")
            for _ in range(2):
                question = NewQuestion(store.chats.create(user), None, "Tell me of this")
                for _frame in service.send(
                    user, question, GenerationSettings(max_new_tokens=40), threading.Event()
                ):
                    pass
            store.keys.set_access("open")
            address = served_at(service)
            asked = {"messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 8}
            httpx.post(f"{address}v1/chat/completions", json=asked).raise_for_status()
            service.close()
