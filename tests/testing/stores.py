"""Databases and what stands in them: an empty one within milliseconds, a question with its reply in one line."""

import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TextIO

from hierchat.store import Mark, Store, TextKind
from hierchat.store.records import NewMessage, NewTurn, Project, TurnFigures
from hierchat.store.replies import FINISHED

TURN = NewTurn("m", "k", {}, 0, True)


@cache
def _empty() -> bytes:
    """Make a database's schema once in a process: that takes longer than most tests."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        Store.open(path).close()
        return path.read_bytes()


def new_store(path: Path, **how: Any) -> Store:
    """Open an empty database that is as `Store.open` would make it."""
    path.touch(0o600)
    path.write_bytes(_empty())
    return Store.open(path, **how)


def replied(
    store: Store,
    user: int,
    chat: int | None = None,
    text: str = "reply",
    *,
    asked: str = "question",
    parent: int | None = None,
    tokens: Sequence[int] = (1,),
    sources: Sequence[str] = (),
    turn: NewTurn = TURN,
    state: Literal["writing", "complete", "stopped"] = "complete",
    figures: TurnFigures | None = None,
) -> int:
    """Write a question and its reply, in a chat of their own where none is named; return the reply's id, which is the
    question's and one."""
    chat = store.chats.create(user) if chat is None else chat
    question = store.messages.add(user, chat, NewMessage(parent, asked))
    reply = store.replies.begin(user, chat, question, turn)
    store.replies.append(reply, text, tokens, sources or ["target"] * len(tokens))
    if state != "writing":
        store.replies.finish(reply, text, state, figures or TurnFigures())
    return reply


def project(store: Store, user: int, name: str, *chats: int) -> int:
    """Make a project with these chats."""
    made = store.projects.save(user, Project(0, name))
    for chat in chats:
        store.projects.move(user, chat, made)
    return made


def last_replies(store: Store, user: int, model_key: str, most: int) -> list[int]:
    """The ids of a model's last replies that are stored to their end, the newest first."""
    query = (
        f"SELECT message_id {FINISHED} AND model_key = ? AND length(ids) > 0 ORDER BY message_id DESC LIMIT ?"
    )
    with store.connection.read() as db:
        return [id for (id,) in db.execute(query, [user, model_key, most]).fetchall()]


def chat_of(store: Store, user: int, message: int) -> int:
    """Return the chat of a message."""
    return store.messages.get(user, message).conversation_id


def drafting(store: Store, user: int, kind: TextKind = "written") -> list[int]:
    """Return the messages whose texts draft."""
    return [one.id for one in store.history.texts(user, "k", kind, Mark())[0]]


@dataclass
class Child:
    """A process of its own that is killed in the middle of its work."""

    pid: int
    said: TextIO

    def kill(self) -> list[str]:
        """Kill it, and return the whole lines that it said and nobody read yet. It stays a zombie, which must count as
        dead."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        return [line for line in self.said.read().splitlines(keepends=True) if line.endswith("\n")]


@contextmanager
def child(work: Callable[[Callable[..., None]], object]) -> Iterator[Child]:
    """Begin some work in a process of its own, which says lines by the function that it gets, and kill that in the end.
    No database that it opens may be open here when it begins."""
    heard, told = os.pipe()
    if not (pid := os.fork()):
        with open(told, "w", buffering=1) as stream:
            try:
                held = work(partial(print, file=stream))  # noqa: F841  # what it returns is not closed
                signal.pause()
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            os._exit(1)
    os.close(told)
    with open(heard) as said:
        try:
            yield Child(pid, said)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def killed(work: Callable[[], object]) -> None:
    """Do something in a process of its own, which is killed then; what the work returns stays open until that."""

    def works(say: Callable[..., None]) -> object:
        done = work()
        say("done")
        return done

    with child(works) as process:
        assert process.said.readline()
