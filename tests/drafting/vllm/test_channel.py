"""The channel: who may ask, what is answered, what is forgotten."""

import json
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from hierchat.drafting.vllm.custom_proposer import LONGEST_LINE, ChannelServer
from hierchat.drafting.vllm.drafter_settings import DrafterSettingsError
from hierchat.drafting.vllm.user_state import UserStateFile
from tests.drafting.vllm.conftest import TOKEN
from tests.drafting.vllm.fake_runner import END, Engine, recites
from tests.drafting.vllm.test_proposer import OTHER, POEM, steps_of

Ask = Callable[..., dict[str, Any]]


class Line:
    """A connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.file = self.socket.makefile("rwb")

    def send(self, line: bytes) -> dict[str, Any] | None:
        """The answer; None where the connection is closed."""
        self.file.write(line + b"\n")
        self.file.flush()
        answer = self.file.readline()
        return json.loads(answer) if answer else None

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.fixture
def line(engine: Engine) -> Iterator[Line]:
    made = Line(engine.proposer.channel.port)
    yield made
    made.close()


@pytest.fixture
def ask(line: Line) -> Ask:
    def asked(method: str, **fields: Any) -> dict[str, Any]:
        answer = line.send(json.dumps({"token": TOKEN, "method": method, **fields}).encode())
        assert answer is not None
        return answer

    return asked


def test_it_says_what_it_is(ask: Ask) -> None:
    hello = ask("hello")
    assert hello.pop("hierchat")
    drafter = {"model": "tiny", "most_drafts": 8, "learns": True}
    assert hello == {"ok": True, "protocol": 1, "vllm": "0.32.0", **drafter}


def test_others_are_refused(engine: Engine) -> None:
    for token in (None, "", "another secret, as long", 7):
        line = Line(engine.proposer.channel.port)
        answer = line.send(json.dumps({"token": token, "method": "hello"}).encode())
        assert answer
        assert (answer["ok"], answer["error"]) == (False, "unauthorised")
        assert line.file.readline() == b""  # closed behind the answer
        line.close()


def test_what_cannot_be_answered_gets_a_sentence(ask: Ask) -> None:
    for fields, sentence in (
        ({"method": "sing"}, "figures, forget, hello, reply"),
        ({"method": "reply", "user": "ann"}, "The field reply must be a text"),
        ({"method": "reply", "user": "ann", "reply": "1", "from": -1}, "0 or more"),
        ({"method": "forget", "user": "", "all": True}, "The field user must be a text"),
        ({"method": "forget", "user": "ann"}, '"all": true'),
        ({"method": "forget", "user": "ann", "replies": [1]}, '"all": true'),
        ({"method": "forget", "user": "ann", "replies": ["1"] * 10_001}, "10000 names"),
    ):
        answer = ask(**fields)
        assert answer["error"] == "bad_request"
        assert sentence in answer["message"]
        assert ask("hello")["ok"]  # the connection stays


def test_garbage_gets_a_sentence_and_a_line_without_end_closes_the_connection(line: Line, ask: Ask) -> None:
    for garbage in (b"no json", b"[1]", b"\xff\xfe", b""):
        answer = line.send(garbage)
        assert answer
        assert answer["error"] == "bad_request"
        assert ask("hello")["ok"]
    line.file.write(b"x" * (LONGEST_LINE + 1))
    line.file.flush()
    assert json.loads(line.file.readline())["error"] == "bad_request"
    assert line.file.readline() == b""


def test_a_reply_is_told_while_it_is_written(engine: Engine, ask: Ask) -> None:
    request = engine.ask([5, 6, 7], recites(POEM), user="ann", reply="1")
    for _ in range(10):
        engine.step()
    first = ask("reply", user="ann", reply="1")
    assert (first["state"], first["prompt_tokens"], first["first"]) == ("writing", 3, 0)
    engine.finish()
    rest = ask("reply", user="ann", reply="1", **{"from": first["next"]})
    assert rest["state"] == "ended"
    steps = [*first["steps"], *rest["steps"]]
    assert [token for step in steps for token in step["tokens"]] == request.tokens
    assert ask("reply", user="ben", reply="1")["error"] == "unknown_reply"
    engine.proposer._users.wait()
    found = ask("figures")
    assert (found["users"], found["writing"], found["replies"]) == (1, 0, 1)
    assert found["tokens"] == len([5, 6, 7, *POEM, END])
    assert found["step_ms"] == sorted(found["step_ms"])
    assert found["propose_ms"] > 0


def test_what_is_forgotten_drafts_no_longer_and_is_in_no_file(
    engine: Engine, ask: Ask, tmp_path: Path
) -> None:
    """Some replies of one user are forgotten, and all of another's, for every model."""
    first = steps_of(engine, [5, 6, 7], POEM, user="ann", reply="1")
    steps_of(engine, [5, 6, 8], OTHER, user="ann", reply="2")
    steps_of(engine, [5, 6, 7], POEM, user="ben", reply="1")
    other = UserStateFile(tmp_path / "drafts.db")
    other.keep("ann", "another model", "1", POEM, b"x")
    other.close()
    assert ask("forget", user="ann", replies=["1", "never"]) == {"ok": True, "forgotten": 1}
    assert ask("forget", user="ann", replies=["1"])["forgotten"] == 0
    assert ask("reply", user="ann", reply="1")["error"] == "unknown_reply"
    assert steps_of(engine, [5, 6, 7], POEM, user="ann", reply="3", learn=0) == first
    assert steps_of(engine, [5, 6, 8], OTHER, user="ann", reply="4", learn=0) < first / 3
    assert steps_of(engine, [5, 6, 7], POEM, user="ben", reply="2", learn=0) < first / 3
    assert ask("forget", user="ben", all=True)["forgotten"] == 2  # with the one that was not kept
    assert steps_of(engine, [5, 6, 7], POEM, user="ben", reply="3", learn=0) == first
    engine.proposer.close()
    poem = b"".join(token.to_bytes(4, "little") for token in POEM[:8])
    assert not any(poem in file.read_bytes() for file in tmp_path.glob("drafts.db*"))


def test_what_is_being_written_is_not_learned_once_forgotten(engine: Engine, ask: Ask) -> None:
    engine.ask([5, 6, 7], recites(POEM), user="ann", reply="1")
    for _ in range(10):
        engine.step()
    assert ask("forget", user="ann", all=True)["forgotten"] == 1
    assert ask("reply", user="ann", reply="1")["state"] == "forgotten"
    engine.finish()
    assert ask("figures")["replies"] == 0
    assert ask("reply", user="ann", reply="1")["error"] == "unknown_reply"


def test_a_file_that_cannot_be_used_is_told(
    engine: Engine, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_of(engine, [5, 6, 7], POEM, user="ann", reply="1")
    with monkeypatch.context() as full:
        full.setattr(engine.proposer._users._file, "_db", _Full())
        steps_of(engine, [5, 6, 7], POEM, user="ann", reply="2")
        assert not ask("hello")["learns"]
        answer = ask("forget", user="ann", all=True)
    assert answer["error"] == "storage"
    assert "disk is full" in answer["message"]


class _Full(nullcontext[None]):
    def execute(self, *rest: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DrafterSettingsError, match=f"port {port} .*HIERCHAT_DRAFTER_PORT"):
            ChannelServer({}, TOKEN, port)
