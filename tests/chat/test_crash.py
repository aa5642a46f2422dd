"""The process is killed in mid-reply; the next one finds the reply and goes on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from hierchat.store import Store
from tests.testing.tiny_chat import ready_slot, tokenizer

from .conftest import talk_on

ROOT = Path(__file__).parents[2]


def test_a_killed_reply(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.chat.writer", str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        conversation = int(writer.stdout.readline())
        with Store.open(path) as store:
            user = store.users.ensure("ann")
            texts: set[str] = set()
            while len(texts) < 3:  # it has grown twice
                assert writer.poll() is None
                texts |= {
                    m.text
                    for m in store.messages.path(user, conversation)
                    if m.role == "assistant" and m.text
                }
                time.sleep(0.01)
            assert store.messages.path(user, conversation)[-1].state == "writing"
        writer.kill()
        writer.wait()
        said = [
            line.split() for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")
        ]
    finally:
        writer.kill()
        writer.wait()

    with Store.open(path) as store:
        reply = store.messages.path(user, conversation)[-1]
        tokens = store.replies.tokens(user, reply.id)
        assert reply.state == "interrupted"
        assert tokens
        assert reply.text == tokenizer().decode(tokens, skip_special_tokens=True).rstrip("\ufffd")
        a_second_before = float(said[-1][0]) - 1
        assert len(tokens) >= max(
            (int(count) for when, count in said if float(when) <= a_second_before), default=1
        )

        talk = talk_on(store, ready_slot())
        talk.conversation = conversation
        last = talk.send("go on", reply.id)
        assert last.finish == "length"
        assert [message.state for message in talk.messages()] == [
            "complete",
            "interrupted",
            "complete",
            "complete",
        ]
        held = talk.sequence.tokens
        assert any(held[at : at + len(tokens)] == tokens for at in range(len(held)))
