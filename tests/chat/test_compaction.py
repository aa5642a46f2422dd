"""Chats that outgrow the context: a summary stands in the prompt in place of the oldest turns."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hierchat.chat.compaction import ASK, NotSummarised
from hierchat.engine.engine import GenerationRequest, Step
from hierchat.reasoning import join_reasoning
from hierchat.store import Mark, Store
from hierchat.store.records import Attachment, ChatSettings
from tests.testing.deleting import delete_for_good, on_disk
from tests.testing.scripted_engine import ScriptedEngine, served
from tests.testing.thinkers import KEEPS, thinker
from tests.testing.tiny_chat import CONTEXT, SYSTEM, ready_slot

from .conftest import Talk, talk_on

MOST = CONTEXT // 4
"""Tokens that a summary may have."""
SUMMARY, ANSWER = "They asked of rivers.", "It ends in the sea."
STANDS = f"<|im_start|>user\nSummary of the conversation so far:\n\n{SUMMARY}"
FILE = Attachment("map.txt", 9, "a long river")


class Summarising(ScriptedEngine):
    """Answers with ANSWER; asked for a summary, with `summary`."""

    summary = SUMMARY
    fails_at = -1
    loops = False

    def generate(self, request: GenerationRequest) -> Generator[Step, None, None]:
        self.text = self.summary if ASK in self.words.decode(request.prompt_ids) else ANSWER
        for number, step in enumerate(super().generate(request)):
            if self.text == self.summary and number == self.fails_at:
                raise MemoryError
            yield replace(step, finish="loop") if self.loops and step.finish else step

    @property
    def asked_for_summaries(self) -> list[str]:
        return [prompt for prompt in self.prompts if ASK in prompt]


def talking(store: Store, words: Any = None) -> Talk:
    made = served(Summarising(ANSWER, words))
    return talk_on(store, ready_slot(lambda name, report: made))


@pytest.fixture
def talk(store: Store) -> Talk:
    return talking(store)


def filled(talk: Talk, files: tuple[Attachment, ...] = ()) -> list[str]:
    """Ask until the chat says that it is nearly full, the first question with files; return the questions."""
    asked: list[str] = []
    outgrown = False
    while not outgrown:
        path = talk.messages()
        asked.append(f"Question {len(asked)}: where does the longest river of this country end, and why?")
        below, sent = (path[-1].id, ()) if path else (None, files)
        outgrown = talk.send(asked[-1], below, sent, max_new_tokens=40).outgrown
    return asked


def summarise(talk: Talk) -> list[Any]:
    return list(talk.service.summarise(talk.user, talk.conversation, talk.stop))


def held(talk: Talk, asked: list[str]) -> list[bool]:
    """Which of the questions the last prompt holds."""
    return [question in talk.model.engine.prompts[-1] for question in asked]


def test_a_summary_stands_in_place_of_the_turns_that_would_fall_out(talk: Talk) -> None:
    asked = filled(talk)
    before = talk.messages()
    frames = summarise(talk)
    assert {frame.text for frame in frames} == {""}
    assert (frames[-1].phase, frames[-1].finish) == ("done", "end")
    path = talk.messages()
    assert [one.text for one in path] == [one.text for one in before]  # the turns stay as they were
    (at,) = [number for number, message in enumerate(path) if message.summary]
    assert path[at].summary == SUMMARY
    gone = (at + 1) // 2
    assert 0 < gone < len(asked)
    last = talk.send("And then?", path[-1].id, max_new_tokens=40)
    prompt = talk.model.engine.prompts[-1]
    assert prompt.startswith(
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n{STANDS}<|im_end|>\n<|im_start|>user\n{asked[gone]}"
    )
    assert held(talk, asked) == [number >= gone for number in range(len(asked))]
    assert last.notice is None
    texts, _ = talk.store.history.texts(talk.user, talk.model.model_key, "written", Mark())
    assert len(texts) == len(asked) + 1  # all of them go on drafting


def test_the_model_is_asked_behind_the_turns_themselves(talk: Talk) -> None:
    """So what it has read of them need not be read again."""
    filled(talk)
    prompt = talk.model.engine.prompts[-1]
    summarise(talk)
    (asked,) = talk.model.engine.asked_for_summaries
    before, _, rest = asked.partition(f"<|im_start|>user\n{ASK}")
    assert prompt.startswith(before)
    assert rest == f", in at most {MOST // 20 * 10} words.<|im_end|>\n<|im_start|>assistant\n"


def test_system_prompt_and_files_stay(talk: Talk) -> None:
    talk.store.chats.set_settings(talk.user, talk.conversation, ChatSettings("Obey.", {}))
    filled(talk, files=(FILE,))
    summarise(talk)
    talk.send("And then?", talk.messages()[-1].id, max_new_tokens=40)
    prompt = talk.model.engine.prompts[-1]
    assert prompt.startswith(
        "<|im_start|>system\nObey.<|im_end|>\n<|im_start|>user\nFile: map.txt\n```txt\na long river\n```"
    )
    assert f"Summary of the conversation so far:\n\n{SUMMARY}" in prompt


def test_a_second_summary_stands_for_the_first(talk: Talk) -> None:
    filled(talk)
    summarise(talk)
    talk.model.engine.summary = "Then of lakes."
    filled(talk)
    summarise(talk)
    assert SUMMARY in talk.model.engine.asked_for_summaries[-1]
    assert [one.summary for one in talk.messages() if one.summary] == [SUMMARY, "Then of lakes."]
    talk.send("And then?", talk.messages()[-1].id, max_new_tokens=40)
    assert "Then of lakes." in talk.model.engine.prompts[-1]
    assert SUMMARY not in talk.model.engine.prompts[-1]


def test_it_is_edited_and_taken_back(talk: Talk) -> None:
    asked = filled(talk)
    summarise(talk)
    (summed,) = [message for message in talk.messages() if message.summary]
    chats, place = talk.service.chats, (talk.user, summed.id)
    chats.set_summary(*place, " Of lakes. ")
    talk.again(talk.messages()[-2].id, max_new_tokens=40)
    assert "so far:\n\nOf lakes.<|im_end|>" in talk.model.engine.prompts[-1]
    assert b"Of lakes" in on_disk(talk.store.path)
    chats.set_summary(*place, "")
    assert b"Of lakes" not in on_disk(talk.store.path)
    assert SUMMARY.encode() not in on_disk(talk.store.path)
    talk.again(talk.messages()[-2].id, max_new_tokens=40)
    assert "Of lakes." not in talk.model.engine.prompts[-1]
    assert all(held(talk, asked))
    assert not any(message.summary for message in talk.messages())


def test_another_branch_is_as_it_was(talk: Talk) -> None:
    asked = filled(talk)
    summarise(talk)
    first = talk.messages()[0]
    talk.again(first.id, max_new_tokens=40)
    assert held(talk, asked) == [True] + [False] * (len(asked) - 1)
    assert SUMMARY not in talk.model.engine.prompts[-1]


@pytest.mark.parametrize("how", ["fails", "cut", "empty", "stopped"])
def test_a_summary_that_fails_leaves_the_chat_as_it_was(talk: Talk, how: str) -> None:
    filled(talk)
    before, engine = talk.messages(), talk.model.engine
    if how == "fails":
        engine.fails_at = 3
    elif how == "stopped":
        engine.stops_at = 3
    else:
        engine.summary = "on and " * 200 if how == "cut" else " "
    said = (
        r"Memory ran out.* The chat is as it was\."
        if how == "fails"
        else "was not finished. The chat is as it was"
    )
    with pytest.raises(NotSummarised, match=said):
        summarise(talk)
    assert talk.messages() == before
    talk.stop.clear()
    engine.fails_at, engine.stops_at, engine.summary = -1, None, SUMMARY
    summarise(talk)
    assert any(message.summary for message in talk.messages())


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("Of rivers (all). Of lakes: 3.5 of them! " + "and then " * 200, "Of rivers (all). Of lakes: 3.5 of them!"),
        ("1. Rivers\n2. Lakes\n3. " + "sea and " * 200, "1. Rivers\n2. Lakes"),
        ("川の話。「湖。」" + "海と" * 200, "川の話。「湖。」"),
    ],
    ids=["sentences", "lines", "without blanks"],
)  # fmt: skip
def test_a_summary_that_comes_to_its_limit_ends_with_its_last_whole_sentence(
    talk: Talk, written: str, kept: str
) -> None:
    filled(talk)
    before, engine = talk.messages(), talk.model.engine
    engine.summary = written
    last = summarise(talk)[-1]
    assert engine.asked[-1][1].max_new_tokens == MOST
    assert last.notice.startswith("The summary came to its limit")
    (summed,) = [message for message in talk.messages() if message.summary]
    assert summed.summary == kept
    talk.service.chats.set_summary(talk.user, summed.id, "")
    assert talk.messages() == before


def test_a_summary_that_loops_says_each_sentence_once(talk: Talk) -> None:
    filled(talk)
    engine = talk.model.engine
    engine.summary, engine.loops = "Of rivers. Of lakes. Of lakes. Of la", True
    summarise(talk)
    assert [message.summary for message in talk.messages() if message.summary] == ["Of rivers. Of lakes."]


def test_a_chat_that_fits_is_not_summarised(talk: Talk) -> None:
    talk.send("hello", max_new_tokens=40)
    with pytest.raises(NotSummarised, match="Nothing has to be summarised"):
        summarise(talk)
    assert talk.model.engine.asked_for_summaries == []


def test_thoughts_are_neither_summarised_nor_kept(store: Store) -> None:
    """Also where a model's template would show it its thoughts again."""
    talk = talking(store, thinker(KEEPS))
    talk.model.engine.summary = join_reasoning("What did they say?", SUMMARY)
    question = talk.send("Question: where?", max_new_tokens=40).message_id
    with store.connection.write() as db:
        thought = join_reasoning("The user wants a river.", ANSWER)
        db.execute("UPDATE messages SET text = ? WHERE id = ?", [thought, question])
    filled(talk)
    summarise(talk)
    (asked,) = talk.model.engine.asked_for_summaries
    assert "The user wants" not in asked
    assert ANSWER in asked
    assert [message.summary for message in talk.messages() if message.summary] == [SUMMARY]


@pytest.mark.parametrize("fails", [False, True])
def test_by_itself_where_that_is_chosen(talk: Talk, fails: bool) -> None:
    asked = filled(talk)
    engine = talk.model.engine
    talk.send("more", talk.messages()[-1].id, max_new_tokens=40)
    assert engine.asked_for_summaries == []  # it is off
    talk.store.users.choose(talk.user, compacts=True)
    engine.fails_at = 3 if fails else -1
    frames = list(talk.sending("And then?", talk.messages()[-1].id, max_new_tokens=40))
    assert len(engine.asked_for_summaries) == 1
    assert frames[-1].finish == "end"
    assert [message.text for message in talk.messages()][-2:] == ["And then?", ANSWER]
    assert (SUMMARY in engine.prompts[-1]) is not fails
    assert not held(talk, asked)[0]
    assert bool(frames[-1].notice and "left out" in frames[-1].notice) is fails


def test_it_is_copied_exported_and_deleted_with_its_chat(talk: Talk, tmp_path: Path) -> None:
    talk.model.engine.summary = "About a zymurgist."
    filled(talk)
    summarise(talk)
    store, path = talk.store, talk.messages()
    at = next(number for number, message in enumerate(path) if message.summary)
    exported = store.transfer.export_chat(talk.user, talk.conversation)
    assert exported.messages[at].summary == "About a zymurgist."
    bob = store.users.ensure("bob")
    store.transfer.import_chat(bob, exported)
    fork = store.chats.fork(talk.user, path[-1].id)
    mine = store.messages.path(bob, store.chats.find(bob)[0].id)
    for copy in (store.messages.path(talk.user, fork), mine):
        assert [message.summary for message in copy] == [message.summary for message in path]
    store.users.forget(bob)
    delete_for_good(store, talk.user, fork)
    assert b"zymurgist" in on_disk(store.path)
    delete_for_good(store, talk.user, talk.conversation)
    assert b"zymurgist" not in on_disk(store.path)
