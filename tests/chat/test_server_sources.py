"""Where the words of a server's reply came from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hierchat.chat.origins import server_runs
from hierchat.engine.remote.openai_client import _MARK
from hierchat.page.reply_text import said
from hierchat.store import UNKNOWN, SourceSpan, Store
from tests.engine.remote.drafter import Drafter, step
from tests.testing.openai_server import Script

from .conftest import Talk
from .servers import talking

WORDS = {11: "Hello", 12: " th", 13: "er", 14: "e", 15: ".", 16: "<|end|>"}
FOUND = {"chances": [0.9, 0.7, 0.5], "matches": [[1, 4], [1, 5], [1, 6]]}


@pytest.fixture
def script() -> Script:
    models = [{"id": "big", "owned_by": "vllm"}]
    usage = {"prompt_tokens": 7, "completion_tokens": 6}
    return Script(models=models, counts=True, usage=usage, vocabulary=dict(WORDS))


@pytest.fixture
def drafter() -> Drafter:
    drafted = step([12, 13, 14], ["history"] * 3, {"history": 3}) | FOUND
    return Drafter([step([11], ["target"]), drafted, step([15, 16], ["target"] * 2)])


@pytest.fixture
def talk(store: Store, script: Script, drafter: Drafter) -> Iterator[Talk]:
    with talking(store, script, drafter) as talk:
        yield talk


def runs(talk: Talk, id: int) -> list[tuple[str, str]]:
    return [(run.text, run.source) for run in talk.service.runs(talk.user, id)]


def test_words_are_marked_by_what_drafted_them(talk: Talk, script: Script) -> None:
    id = talk.send("hello").message_id or 0
    assert runs(talk, id) == [("Hello", "target"), (" there", "history"), (".", "target")]
    drafted = talk.service.runs(talk.user, id)[1]
    assert (drafted.origin.slot, drafted.origin.matched) == ("history", 4)
    assert said(drafted) == (
        "From your earlier chats. The 4 tokens before it are the same there. "
        "Each token was expected to be right with a chance of 70 %."
    )
    assert len(script.texts_asked) == 2  # drawn twice, asked once


def test_a_server_that_tells_no_texts_is_asked_again(talk: Talk, script: Script) -> None:
    script.vocabulary = None
    id = talk.send("hello").message_id or 0
    assert runs(talk, id) == []
    script.vocabulary = dict(WORDS)
    assert "".join(text for text, _ in runs(talk, id)) == "Hello there."


def test_other_words_than_those_of_the_reply_are_not_shown(talk: Talk, script: Script) -> None:
    script.vocabulary = dict(WORDS) | {12: " when"}
    assert runs(talk, talk.send("hello").message_id or 0) == []


def test_a_mark_in_the_reply_is_no_mark(talk: Talk, script: Script) -> None:
    script.vocabulary = dict(WORDS) | {12: _MARK}
    assert runs(talk, talk.send("hello").message_id or 0) == []


def test_tokens_that_were_only_counted_are_not_coloured(talk: Talk, drafter: Drafter) -> None:
    drafter.hangs_up = True
    assert runs(talk, talk.send("hello").message_id or 0) == []


@pytest.mark.parametrize(
    ("texts", "text", "pieces"),
    [
        (["One ", "two"], "One two", ["One ", "two"]),
        (["One ", "two<|end|>", "more"], "One two", ["One ", "two"]),  # behind a stop string
        (["Gr\ufffd", "\ufffd\u00dfe"], "Gr\u00fc\u00dfe", ["Gr", "\u00fc\u00dfe"]),
        (["a\ufffd", "\ufffd", "\ufffdb"], "a\U0001f642b", ["a", "\U0001f642b"]),
        (["a\ufffd", "\ufffd"], "a\U0001f642", []),  # half of the last character is no text
        (["One", "two"], "One two", []),
        (["One two"], "One two three", []),
        ([], "One", []),
        (["One "], "", []),
    ],
)
def test_runs_make_up_the_text_or_there_are_none(texts: list[str], text: str, pieces: list[str]) -> None:
    spans = [SourceSpan(at, 1, "context", UNKNOWN) for at in range(len(texts))]
    found = [run.text for run in server_runs(spans, texts, text)]
    assert found == pieces
    assert "".join(found) in (text, "")
