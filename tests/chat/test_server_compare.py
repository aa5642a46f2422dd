"""A message answered twice by a server: with its drafter and without, or at two temperatures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hierchat.chat.comparing import CannotCompare
from hierchat.chat.comparison import USUAL, CompareFrame, Configuration, Pair
from hierchat.chat.in_progress import Question
from hierchat.page.comparison_view import repeated
from hierchat.runtime.drafters import Drafting
from hierchat.store import Store
from tests.engine.remote.drafter import Drafter, step
from tests.testing.openai_server import Script

from .conftest import Talk
from .servers import talking

IDS = [11, 12, 13, 14, 15, 16]
TEMPERATURES: Pair = {"first": Configuration(temperature=0.5), "second": Configuration(temperature=1.0)}


@pytest.fixture
def script() -> Script:
    models = [{"id": "big", "owned_by": "vllm"}]
    return Script(models=models, counts=True, usage={"prompt_tokens": 7, "completion_tokens": 6})


@pytest.fixture
def drafter() -> Drafter:
    return Drafter(plain=[step([id], ["target"]) for id in IDS])


@pytest.fixture
def drafted(store: Store, script: Script, drafter: Drafter) -> Iterator[Talk]:
    with talking(store, script, drafter) as talk:
        yield talk


@pytest.fixture
def undrafted(store: Store, script: Script) -> Iterator[Talk]:
    with talking(store, script) as talk:
        yield talk


def compared(talk: Talk, pair: Pair = USUAL, **settings: Any) -> CompareFrame:
    made = talk._settings(settings)
    *_, last = talk.service.compare(
        talk.user, Question(talk.conversation, None, "hello"), made, talk.stop, pair
    )
    return last


def told(script: Script) -> dict[bool, dict[str, Any]]:
    """Of both requests what vLLM was told, by whether drafts were allowed."""
    return {"hierchat_drafts" not in asked["vllm_xargs"]: asked["vllm_xargs"] for asked in script.asked}


def test_the_plain_side_asks_for_no_drafts_and_is_nobodys(drafted: Talk, script: Script) -> None:
    last = compared(drafted, temperature=0)
    both = told(script)
    assert both[False]["hierchat_drafts"] == 0
    assert "hierchat_user" not in both[False]
    assert both[True].keys() == {"hierchat_user", "hierchat_reply"}
    salts = {asked["cache_salt"] for asked in script.asked}
    assert len(salts) == 2
    assert both[True]["hierchat_user"] not in salts  # neither finds its prompt read
    assert [message.text for message in drafted.messages()] == ["hello", "Hello there."]
    assert last.arms["first"].figures.tokens_per_forward == 1.0
    assert last.arms["second"].figures.tokens_per_forward == 2.0


def test_greedy_replies_are_compared_token_by_token(drafted: Talk) -> None:
    last = compared(drafted, temperature=0)
    assert last.verdict is not None
    assert (last.verdict.identical, last.verdict.precise) == (True, "Identical, 6 of 6 tokens.")
    assert last.verdict.speedup is not None
    assert last.result is not None
    assert last.result.id > 0
    assert repeated(last.result) is None  # no command measures a server


def test_no_speedup_is_claimed_of_the_reply_itself(drafted: Talk) -> None:
    figures = compared(drafted, temperature=0).arms["second"].figures
    assert (figures.speedup, figures.baseline) == (None, None)


def test_sampled_replies_may_have_other_words(drafted: Talk, script: Script, drafter: Drafter) -> None:
    drafter.plain = [step([id], ["target"]) for id in (11, 12, 99, 14, 15, 16)]
    script.answers = lambda asked: (
        ("Hello ", "you.") if "hierchat_drafts" in asked["vllm_xargs"] else ("Hello ", "there.")
    )
    verdict = compared(drafted, temperature=1.0).verdict
    assert verdict is not None
    assert verdict.sentence == (
        "Other words from word 2 on, as expected: the server draws anew where a draft is refused, each word as likely "
        "as without drafts."
    )
    assert verdict.precise == "First difference at token 3."
    greedy = compared(drafted.other(), temperature=0).verdict
    assert greedy is not None
    assert greedy.sentence == "The words differ from word 2 on."


def test_a_side_that_drafts_and_does_not_stay_is_not_learned(
    drafted: Talk, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hierchat.chat.comparing.secrets.randbelow", lambda below: 1)
    last = compared(drafted, TEMPERATURES)
    first, second = (asked["vllm_xargs"] for asked in script.asked)
    assert [asked["temperature"] for asked in script.asked] == [0.5, 1.0]
    assert first["hierchat_user"] == second["hierchat_user"]
    assert (first["hierchat_learn"], second.get("hierchat_learn")) == (0, None)
    assert second["hierchat_reply"] == f"m{drafted.messages()[-1].id}" != first["hierchat_reply"]
    assert last.verdict is not None
    assert last.verdict.identical


def test_without_the_drafters_tokens_texts_are_compared(drafted: Talk, drafter: Drafter) -> None:
    drafter.hangs_up = True
    verdict = compared(drafted, temperature=0).verdict
    assert verdict is not None
    assert verdict.precise == "Both texts have the same characters."


@pytest.mark.parametrize("databases", ["chat", "replies"])
def test_what_its_drafter_cannot_leave_out_is_said(drafted: Talk, databases: Any) -> None:
    pair: Pair = {"first": Configuration(drafting=Drafting(databases)), "second": Configuration()}
    with pytest.raises(
        CannotCompare, match="The drafter of far drafts from all that it has, or from nothing"
    ):
        compared(drafted, pair)
    assert drafted.messages() == []


def test_without_our_drafter_drafts_cannot_be_compared(undrafted: Talk) -> None:
    with pytest.raises(CannotCompare, match="The server of far drafts by itself or not at all"):
        compared(undrafted)
    assert undrafted.messages() == []


def test_without_our_drafter_temperatures_can_be_and_speeds_tell_nothing(
    undrafted: Talk, script: Script
) -> None:
    script.usage = {"prompt_tokens": 7, "completion_tokens": 200}
    last = compared(undrafted, TEMPERATURES)
    assert sorted(asked["temperature"] for asked in script.asked) == [0.5, 1.0]
    assert last.verdict is not None
    assert (last.verdict.sentence, last.verdict.speedup) == ("Word for word the same.", None)
    script.answers = lambda asked: (f"At {asked['temperature']}.",)
    said = compared(undrafted.other(), TEMPERATURES).verdict
    assert said is not None
    assert said.sentence == "Other words from word 2 on, as expected: the temperatures differ."
