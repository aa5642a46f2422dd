"""A server of OpenAI's protocol as what answers."""

from __future__ import annotations

import threading

import pytest

from hierchat.chat.frames import Frame
from hierchat.cli.answering import ServerModel
from hierchat.cli.options import CommandError
from hierchat.runtime.prompt import PromptMessage
from tests.testing.openai_server import Script, serving

SAID = [PromptMessage("system", "You help."), PromptMessage("user", "Hello?")]


def frames(server: ServerModel, sampling: dict | None = None) -> list[Frame]:
    return list(server.complete(SAID, sampling or {}, threading.Event()))


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_the_reply_comes_piece_by_piece(url: str, ending: str) -> None:
    server = ServerModel(url + ending)
    server.choose()
    got = frames(server)
    assert [one.phase for one in got] == ["waiting", "writing", "writing", "done"]
    assert [one.text for one in got] == ["", "Hello ", "Hello there.", "Hello there."]
    assert got[-1].finish == "end"


def test_what_it_thought_stands_in_front_and_is_not_sent_again(url: str, script: Script) -> None:
    script.pieces_apart = [{"reasoning_content": "Hm"}, {"reasoning": "."}]
    server = ServerModel(url)
    server.choose()
    got = frames(server)
    assert [one.text for one in got][:3] == ["", "<think>\nHm", "<think>\nHm."]
    assert got[-1].text == "<think>\nHm.\n</think>\n\nHello there."
    said = [
        *SAID,
        PromptMessage("assistant", got[-1].text),
        PromptMessage("user", "<think>And?"),
        PromptMessage("assistant", "<think>\nHm"),
    ]
    list(server.complete(said, {}, threading.Event()))
    assert [one["content"] for one in script.asked[1]["messages"][2:]] == [
        "Hello there.",
        "<think>And?",
        "<think>\nHm",
    ]


def test_how_much_it_thinks_is_sent_and_left_out_where_it_is_refused(url: str, script: Script) -> None:
    server = ServerModel(url)
    server.choose()
    assert frames(server, {"reasoning": "high"})[-1].notice is None
    script.unknown = "reasoning_effort"
    last = frames(server, {"reasoning": "off"})[-1]
    assert [asked.get("reasoning_effort") for asked in script.asked] == ["high", "none", None]
    assert (last.text, last.finish) == ("Hello there.", "end")
    assert (
        last.notice
        == f"The server at {url} does not let one choose how much this model thinks, so that was left out."
    )
    script.unknown, script.refuses = "", (400, "The prompt is too long.")
    with pytest.raises(CommandError, match="The prompt is too long"):
        frames(server, {"reasoning": "off"})


def test_another_program_tells_tokens_alone(url: str, script: Script) -> None:
    script.usage = {"prompt_tokens": 7, "completion_tokens": 100}
    figures = frames(ServerModel(url))[-1].figures
    assert figures.tokens == 100
    assert figures.tokens_per_second
    assert figures.first_token_seconds
    assert figures.deserved_speedup is None
    script.usage = None
    assert frames(ServerModel(url))[-1].text == "Hello there."


def test_a_key_opens(url: str, script: Script) -> None:
    script.key = "secret"
    ServerModel(url, "secret").choose()
    for key in (None, "wrong"):
        server = ServerModel(url, key)
        assert not server.is_hierchat()
        with pytest.raises(CommandError, match="--key or in HIERCHAT_KEY"):
            server.choose()
        with pytest.raises(CommandError, match="--key or in HIERCHAT_KEY"):
            frames(server)


@pytest.mark.parametrize("raw", ["data: <html>\n\n", "data: 3\n\n", 'data: {"choices": [3]}\n\n'])
def test_another_protocol_is_named(url: str, script: Script, raw: str) -> None:
    script.raw = raw
    with pytest.raises(CommandError, match="does not speak OpenAI's protocol"):
        frames(ServerModel(url))


def test_nothing_answers() -> None:
    with serving(Script()) as url:
        server = ServerModel(url)
    assert not server.is_hierchat()
    for call in (server.choose, lambda: frames(server)):
        with pytest.raises(CommandError, match=r"Nothing answers at .*hierchat with --api"):
            call()


@pytest.mark.parametrize("address", ["ftp://x", "http://", "http://x:port"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(CommandError, match="is no address"):
        ServerModel(address)


@pytest.mark.parametrize(
    "figures", ["much", [1], {"drafted": 3}, {"tokens_per_second": "fast"}, {"sources": 3}]
)
def test_figures_of_another_form_are_not_taken(url: str, script: Script, figures: object) -> None:
    script.usage = {"prompt_tokens": 7, "completion_tokens": 9, "hierchat": figures}
    with pytest.raises(CommandError, match="does not speak OpenAI's protocol"):
        frames(ServerModel(url))
