"""A process that is killed in mid-reply, and one that still runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hierchat.store import NewMessage, NewTurn, Store, TurnFigures

TURN = NewTurn("tiny", "k", {}, 0, True)
# Says each number only once the append has returned: what was said is acknowledged.
WRITER = """
import sys
from pathlib import Path
from hierchat.store import NewMessage, NewTurn, Store
store = Store.open(Path(sys.argv[1]))
user = store.users.ensure("ann")
conversation = store.chats.create(user)
question = store.messages.add(user, conversation, NewMessage(None, "count"))
reply = store.replies.begin(user, conversation, question, NewTurn("tiny", "k", {}, 0, True))
print(reply, flush=True)
text = ""
for number in range(1_000_000):
    text += f"{number} "
    store.replies.append(reply, text, [number], ["target" if number % 3 else "history"])
    print(number, flush=True)
"""


def start(path: Path) -> tuple[subprocess.Popen[str], int]:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout
    return writer, int(writer.stdout.readline())


def kill(writer: subprocess.Popen[str]) -> int:
    """SIGKILL; how many appends were acknowledged and not read yet."""
    writer.kill()
    assert writer.stdout
    # Until it is a zombie, but do not reap it: a zombie must count as dead.
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
    return len([line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")])


def test_a_killed_writer_loses_only_what_was_not_acknowledged(path: Path) -> None:
    for acknowledged in (1, 50, 123):
        writer, reply = start(path)
        assert writer.stdout
        for _ in range(acknowledged):
            writer.stdout.readline()
        acknowledged += kill(writer)
        with Store.open(path) as store:
            writer.wait()
            user = store.users.ensure("ann")
            message = store.messages.get(user, reply)
            tokens = store.replies.tokens(user, reply)
            assert message.state == "interrupted"
            assert tokens == list(range(len(tokens)))
            assert len(tokens) in (acknowledged, acknowledged + 1)
            assert message.text == "".join(f"{number} " for number in tokens)
            sources = [span.source for span in store.replies.spans(user, reply) for _ in range(span.length)]
            assert sources == ["target" if number % 3 else "history" for number in tokens]
            assert store.replies.last(user, "k", 1) == [reply]
            assert reply in [
                m.id for c in store.chats.find(user, "count") for m in store.messages.path(user, c.id)
            ]
            assert store.chats.find(user, "0")[0].id == message.conversation_id
            assert store.replies.recover() == 0


def test_a_running_writer_keeps_its_reply(path: Path) -> None:
    writer, reply = start(path)
    try:
        with Store.open(path) as store:
            assert store.messages.get(store.users.ensure("ann"), reply).state == "writing"
            assert store.replies.recover() == 0
            kill(writer)
            assert store.replies.recover() == 1
    finally:
        writer.kill()
        writer.wait()


def test_closing_interrupts_what_this_store_was_writing(store: Store, user: int, path: Path) -> None:
    conversation = store.chats.create(user)
    question = store.messages.add(user, conversation, NewMessage(None, "question"))
    mine = store.replies.begin(user, conversation, question, TURN)
    with Store.open(path) as other:
        theirs = other.replies.begin(user, conversation, question, TURN)
        done = other.replies.begin(user, conversation, question, TURN)
        other.replies.finish(done, "done", "complete", TurnFigures())
    states = [store.messages.get(user, id).state for id in (mine, theirs, done)]
    assert states == ["writing", "interrupted", "complete"]
