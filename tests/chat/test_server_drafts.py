"""Replies of a server with our drafter beside it: figures, deletion, comparison."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from hierchat.chat.comparison import ARMS, USUAL, Configuration, Pair
from hierchat.chat.completions import NotBegun
from hierchat.chat.frames import CompareFrame
from hierchat.chat.in_progress import NewQuestion
from hierchat.chat.service import ChatService
from hierchat.runtime.prompt import PromptMessage
from hierchat.store import Store
from tests.engine.remote.drafter import Drafter, step
from tests.testing.openai_server import Script

from .conftest import Talk, talking


@pytest.fixture(autouse=True)
def _only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.chat.deleted_texts.FORGET_SECONDS", 1e6)


@pytest.fixture
def script() -> Script:
    models = [{"id": "big", "owned_by": "vllm"}]
    return Script(models=models, counts=True, usage={"prompt_tokens": 7, "completion_tokens": 6})


@pytest.fixture
def drafter() -> Drafter:
    return Drafter(plain=[step([id], ["target"]) for id in IDS])


@pytest.fixture
def talk(store: Store, script: Script, drafter: Drafter) -> Iterator[Talk]:
    with talking(store, script, drafter) as talk:
        yield talk


@pytest.fixture
def undrafted(store: Store, script: Script) -> Iterator[Talk]:
    with talking(store, script) as talk:
        yield talk


def named(script: Script, at: int = -1) -> tuple[str, str]:
    told = script.asked[at]["vllm_xargs"]
    return told.get("hierchat_user", ""), told["hierchat_reply"]


def forgotten(drafter: Drafter) -> list[tuple[str, str]]:
    return [(user, reply) for user, replies in drafter.forgot for reply in replies]


def test_figures_are_those_of_the_drafter(talk: Talk) -> None:
    last = talk.send("hello")
    figures = last.figures
    assert (last.text, figures.tokens, figures.tokens_per_forward) == ("Hello there.", 6, 2.0)
    assert figures.shares == pytest.approx({"target": 0.5, "history": 1 / 3, "context": 1 / 6})
    assert figures.acceptance_rate == 0.75
    assert figures.speedup is None
    stored = talk.service.figures(talk.user, last.message_id)
    assert (stored.shares, stored.tokens_per_forward) == (figures.shares, 2.0)
    assert stored.written.drafted


def test_users_are_told_apart_and_their_replies(talk: Talk, script: Script) -> None:
    other = talk.other("bob")
    talk.send("hello")
    other.send("hello")
    talk.again(talk.messages()[0].id)
    names = [named(script, at) for at in range(3)]
    assert len({user for user, _ in names}) == 2
    assert len(set(names)) == 3
    assert names[0][0] == names[2][0]
    assert script.asked[0]["cache_salt"] != script.asked[1]["cache_salt"]


def test_a_deleted_chat_drafts_no_later_reply(talk: Talk, drafter: Drafter, script: Script) -> None:
    talk.send("secret")
    name = named(script)
    other = talk.other("ann")
    other.send("hello")
    assert forgotten(drafter) == []
    talk.store.chats.hide(talk.user, talk.conversation)
    other.send("again", other.messages()[-1].id)
    assert forgotten(drafter) == [name]
    talk.store.chats.delete_hidden()
    other.send("again", other.messages()[-1].id)
    assert forgotten(drafter) == [name]


@pytest.mark.parametrize("when", ["while nobody writes", "at the end of the program"])
def test_what_is_deleted_is_forgotten_without_another_reply(
    talk: Talk, drafter: Drafter, script: Script, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    talk.send("hello")
    if when == "while nobody writes":
        monkeypatch.setattr("hierchat.chat.deleted_texts.FORGET_SECONDS", 0.01)
        service = ChatService(talk.store, talk.service.slot)
        talk.store.chats.hide(talk.user, talk.conversation)
        while not drafter.forgot:
            time.sleep(0.01)
        service.close()
    else:
        talk.service.forget_user(talk.user)
        talk.service.close()
    assert forgotten(drafter) == [named(script)]


def test_while_the_drafter_cannot_forget_nothing_of_the_user_is_named(
    talk: Talk, drafter: Drafter, script: Script
) -> None:
    talk.send("secret")
    name = named(script)
    other = talk.other("ann")
    talk.store.chats.hide(talk.user, talk.conversation)
    drafter.refuses = True
    assert other.send("hello").text == "Hello there."
    assert named(script)[0] == ""
    drafter.refuses = False
    other.send("hello", other.messages()[-1].id)
    assert named(script)[0] == name[0]
    assert forgotten(drafter) == [name]


@pytest.mark.parametrize("what", ["chat", "none", "incognito", "not stored"])
def test_where_earlier_chats_may_not_draft_nobody_is_named(talk: Talk, script: Script, what: str) -> None:
    if what == "not stored":
        list(talk.complete([PromptMessage("user", "hello")], talk.stop))
    else:
        if what == "incognito":
            talk.conversation = talk.store.chats.begin_incognito(talk.user)
        else:
            talk.store.users.choose(talk.user, drafts_from=what)
        talk.send("secret")
    told = script.asked[-1]["vllm_xargs"]
    assert "hierchat_user" not in told
    assert told.get("hierchat_drafts") == (0 if what == "none" else None)


IDS = [11, 12, 13, 14, 15, 16]
BOTH: Pair = {"first": Configuration(), "second": Configuration()}


def compared(talk: Talk, pair: Pair = USUAL, **settings: Any) -> CompareFrame:
    made = talk._settings(settings)
    *_, last = talk.service.compare(
        talk.user, NewQuestion(talk.conversation, None, "hello"), made, talk.stop, pair
    )
    return last


def test_the_plain_side_asks_for_no_drafts_and_is_nobodys(
    talk: Talk, script: Script, drafter: Drafter
) -> None:
    last = compared(talk, temperature=0)
    both = {"hierchat_drafts" not in asked["vllm_xargs"]: asked["vllm_xargs"] for asked in script.asked}
    assert both[False]["hierchat_drafts"] == 0
    assert "hierchat_user" not in both[False]
    assert both[True].keys() == {"hierchat_user", "hierchat_reply"}
    salts = {asked["cache_salt"] for asked in script.asked}
    assert len(salts) == 2
    assert both[True]["hierchat_user"] not in salts  # neither finds its prompt read
    assert [message.text for message in talk.messages()] == ["hello", "Hello there."]
    assert [last.arms[arm].figures.tokens_per_forward for arm in ARMS] == [1.0, 2.0]
    assert last.verdict.identical
    assert last.verdict.speedup is not None
    drafter.hangs_up = True
    assert compared(talk.other(), temperature=0).verdict.identical


def test_sampled_replies_may_have_other_words(talk: Talk, script: Script, drafter: Drafter) -> None:
    drafter.plain = [step([id], ["target"]) for id in (11, 12, 99, 14, 15, 16)]
    script.answers = lambda asked: (
        ("Hello ", "you.") if "hierchat_drafts" in asked["vllm_xargs"] else ("Hello ", "there.")
    )
    verdict = compared(talk, temperature=1.0).verdict
    assert verdict.sentence == (
        "Other words from word 2 on, as expected: the server draws anew where a draft is refused, each word as likely "
        "as without drafts. The replies were too short to measure."
    )
    greedy = compared(talk.other(), temperature=0).verdict
    assert greedy.sentence == "The words differ from word 2 on. The replies were too short to measure."


def test_a_side_that_drafts_and_does_not_stay_is_not_learned(
    talk: Talk, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hierchat.chat.comparison.secrets.randbelow", lambda below: 1)
    last = compared(talk, BOTH)
    first, second = (asked["vllm_xargs"] for asked in script.asked)
    assert first["hierchat_user"] == second["hierchat_user"]
    assert (first["hierchat_learn"], second.get("hierchat_learn")) == (0, None)
    assert second["hierchat_reply"] == f"m{talk.messages()[-1].id}" != first["hierchat_reply"]
    assert last.verdict.identical


def test_without_our_drafter_two_that_draft_can_be_and_speeds_tell_nothing(
    undrafted: Talk, script: Script
) -> None:
    with pytest.raises(NotBegun, match="The server of far drafts by itself or not at all"):
        compared(undrafted)
    assert undrafted.messages() == []
    script.usage = {"prompt_tokens": 7, "completion_tokens": 200}
    last = compared(undrafted, BOTH)
    assert len(script.asked) == 2
    assert (last.verdict.sentence, last.verdict.speedup) == ("Word for word the same.", None)
    script.answers = lambda asked: (f"Reply {len(script.asked)}.",)
    said = compared(undrafted.other(), BOTH).verdict
    assert said.sentence == "The words differ from word 2 on."
