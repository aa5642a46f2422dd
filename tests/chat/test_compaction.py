"""Chats that outgrow the context: a summary stands in the prompt in place of the oldest turns."""

import re
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from hierchat.chat.summaries import SUMMARISE, NotSummarised
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
        self.text = self.summary if SUMMARISE in self.words.decode(request.prompt_ids) else ANSWER
        for number, step in enumerate(super().generate(request)):
            if self.text == self.summary and number == self.fails_at:
                raise MemoryError
            yield replace(step, finish="loop") if self.loops and step.finish else step

    @property
    def asked_for_summaries(self) -> list[str]:
        return [prompt for prompt in self.prompts if SUMMARISE in prompt]


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


def holds(talk: Talk, asked: list[str]) -> list[bool]:
    """Which of the questions the last prompt holds."""
    return [question in talk.model.engine.prompts[-1] for question in asked]


def summaries(talk: Talk) -> list[str]:
    return [message.summary for message in talk.messages() if message.summary]


def ask(talk: Talk, text: str = "And then?") -> str:
    """Ask below the last message; return the prompt."""
    talk.send(text, talk.messages()[-1].id, max_new_tokens=40)
    return talk.model.engine.prompts[-1]


def test_a_summary_stands_in_place_of_the_turns_that_would_fall_out(talk: Talk) -> None:
    """It is asked for behind the turns themselves, so that what was read of them need not be read again."""
    talk.send("hello", max_new_tokens=40)
    with pytest.raises(NotSummarised, match="Nothing has to be summarised"):
        summarise(talk)
    assert talk.model.engine.asked_for_summaries == []  # it fits
    talk = talk.other()
    asked = filled(talk)
    before, prompt = talk.messages(), talk.model.engine.prompts[-1]
    frames = summarise(talk)
    assert {frame.text for frame in frames} == {""}
    assert (frames[-1].phase, frames[-1].finish) == ("done", "end")
    (for_summary,) = talk.model.engine.asked_for_summaries
    read, _, rest = for_summary.partition(f"<|im_start|>user\n{SUMMARISE}")
    assert prompt.startswith(read)
    assert rest == ", in 15 to 30 words.<|im_end|>\n<|im_start|>assistant\n"  # by the length of the turns
    phases = list(dict.fromkeys(frame.phase for frame in frames))
    assert phases in (
        ["waiting", "summarising", "done"],
        ["waiting", "done"],
    )  # a short one may show no frame
    assert "oldest turns are summarised in 4 words" in frames[-1].notice

    path = talk.messages()
    assert [one.text for one in path] == [one.text for one in before]  # the turns stay as they were
    (at,) = [number for number, message in enumerate(path) if message.summary]
    assert path[at].summary == SUMMARY
    gone = (at + 1) // 2
    assert 0 < gone < len(asked)
    last = talk.send("And then?", path[-1].id, max_new_tokens=40)
    begun = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n{STANDS}<|im_end|>\n<|im_start|>user\n{asked[gone]}"
    assert talk.model.engine.prompts[-1].startswith(begun)
    assert holds(talk, asked) == [number >= gone for number in range(len(asked))]
    assert last.notice is None
    texts, _ = talk.store.history.texts(talk.user, talk.model.model_key, "written", Mark())
    assert len(texts) == len(asked) + 2  # all of them go on drafting
    talk.again(path[0].id, max_new_tokens=40)  # another branch is as it was
    assert holds(talk, asked) == [True] + [False] * (len(asked) - 1)
    assert SUMMARY not in talk.model.engine.prompts[-1]


def test_a_second_summary_stands_for_the_first_and_system_prompt_and_files_stay(talk: Talk) -> None:
    talk.store.chats.set_settings(talk.user, talk.conversation, ChatSettings("Obey.", {}))
    filled(talk, files=(FILE,))
    summarise(talk)
    prompt = ask(talk)
    assert prompt.startswith(
        "<|im_start|>system\nObey.<|im_end|>\n<|im_start|>user\nFile: map.txt\n```txt\na long river\n```"
    )
    assert f"Summary of the conversation so far:\n\n{SUMMARY}" in prompt
    talk.model.engine.summary = "Then of lakes."
    filled(talk)
    summarise(talk)
    assert SUMMARY in talk.model.engine.asked_for_summaries[-1]
    assert summaries(talk) == [SUMMARY, "Then of lakes."]
    prompt = ask(talk)
    assert "Then of lakes." in prompt
    assert SUMMARY not in prompt


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
    for word in ("Of lakes", SUMMARY):
        assert word.encode() not in on_disk(talk.store.path)
    talk.again(talk.messages()[-2].id, max_new_tokens=40)
    assert "Of lakes." not in talk.model.engine.prompts[-1]
    assert all(holds(talk, asked))
    assert summaries(talk) == []


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"fails_at": 3}, r"Memory ran out.* The chat is as it was\."),
        ({"stops_at": 3}, "was not finished. The chat is as it was"),
        ({"summary": "on and " * 200}, "was not finished. The chat is as it was"),
        ({"summary": " "}, "was not finished. The chat is as it was"),
    ],
    ids=["fails", "stopped", "cut", "empty"],
)
def test_a_summary_that_fails_leaves_the_chat_as_it_was(
    talk: Talk, broken: dict[str, Any], said: str
) -> None:
    filled(talk)
    before, engine = talk.messages(), vars(talk.model.engine)
    whole = {"fails_at": -1, "stops_at": None, "summary": SUMMARY}
    engine.update(whole | broken)
    with pytest.raises(NotSummarised, match=said):
        summarise(talk)
    assert talk.messages() == before
    failures, place = talk.service.summary_failures, (talk.user, talk.conversation)
    assert re.search(said, failures[place])  # for a page that is opened later
    talk.stop.clear()
    engine.update(whole)
    summarise(talk)
    assert summaries(talk) == [SUMMARY]
    assert place not in failures


def test_how_many_turns_the_next_prompt_leaves_out_is_known_before_it_is_sent(talk: Talk) -> None:
    place = talk.user, talk.conversation
    assert talk.service.left_out(*place) == 0
    asked = filled(talk)
    while talk.service.left_out(*place) == 0:
        asked.append(f"Question {len(asked)}: where does the longest river of this country end, and why?")
        talk.send(asked[-1], talk.messages()[-1].id, max_new_tokens=40)
    assert talk.service.left_out(*place) < len(asked)
    summarise(talk)
    assert talk.service.left_out(*place) == 0


def test_a_summary_of_a_part_says_how_many_turns_are_still_left_out(talk: Talk) -> None:
    talk.model.engine.summary = f"{SUMMARY} Of lakes, of boats and of fish, of all that swims in the sea."
    asked = filled(talk)
    for number in range(2 * len(asked)):
        question = f"Question {number}: where does the longest river of this country end, and why?"
        talk.send(question, talk.messages()[-1].id, max_new_tokens=40)
    done = summarise(talk)[-1]
    assert "turns after them are still left out: summarise once more" in done.notice
    assert done.outgrown  # the page offers it
    while done.outgrown:
        done = summarise(talk)[-1]
    assert done.notice.endswith("still reads in full. You can edit it.")
    assert talk.service.left_out(talk.user, talk.conversation) == 0


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("Of rivers (all). Of lakes: 3.5 of them! " + "and then " * 200, "Of rivers (all). Of lakes: 3.5 of them!"),
        ("1. Rivers\n2. Lakes\n3. " + "sea and " * 200, "1. Rivers\n2. Lakes"),
        ("川の話。「湖。」" + "海と" * 200, "川の話。「湖。」"),
        ("Of rivers. Of lakes. Of lakes. Of la", "Of rivers. Of lakes."),
    ],
    ids=["sentences", "lines", "without blanks", "loops"],
)  # fmt: skip
def test_a_summary_that_comes_to_its_limit_ends_with_its_last_whole_sentence(
    talk: Talk, written: str, kept: str
) -> None:
    filled(talk)
    before, engine = talk.messages(), talk.model.engine
    engine.summary, engine.loops = written, len(written) < 40
    last = summarise(talk)[-1]
    assert engine.asked[-1][1].max_new_tokens == MOST
    assert engine.loops or "It came to its limit" in last.notice
    (summed,) = [message for message in talk.messages() if message.summary]
    assert summed.summary == kept
    talk.service.chats.set_summary(talk.user, summed.id, "")
    assert talk.messages() == before


def test_thoughts_are_neither_summarised_nor_kept(store: Store) -> None:
    """Also where a model's template would show it its thoughts again."""
    talk = talking(store, thinker(KEEPS))
    talk.model.engine.summary = join_reasoning("What did they say?", SUMMARY)
    reply = talk.send("Question: where?", max_new_tokens=40).message_id
    with store.connection.write() as db:
        thought = join_reasoning("The user wants a river.", ANSWER)
        db.execute("UPDATE messages SET text = ? WHERE id = ?", [thought, reply])
    filled(talk)
    summarise(talk)
    (asked,) = talk.model.engine.asked_for_summaries
    assert "The user wants" not in asked
    assert ANSWER in asked
    assert summaries(talk) == [SUMMARY]


@pytest.mark.parametrize("fails", [False, True])
def test_by_itself_where_that_is_chosen(talk: Talk, fails: bool) -> None:
    asked = filled(talk)
    engine = talk.model.engine
    ask(talk, "more")
    assert engine.asked_for_summaries == []  # it is off
    talk.store.users.choose(talk.user, compacts=True)
    engine.fails_at = 3 if fails else -1
    last = talk.send("And then?", talk.messages()[-1].id, max_new_tokens=40)
    assert len(engine.asked_for_summaries) == 1
    assert last.finish == "end"
    assert [message.text for message in talk.messages()][-2:] == ["And then?", ANSWER]
    assert (SUMMARY in engine.prompts[-1]) is not fails
    assert not holds(talk, asked)[0]
    assert ("left out" in (last.notice or "")) is fails


def test_it_is_copied_exported_and_deleted_with_its_chat(talk: Talk) -> None:
    talk.model.engine.summary = "About a zymurgist."
    filled(talk)
    summarise(talk)
    store, path = talk.store, talk.messages()
    mine = [message.summary for message in path]
    exported = store.transfer.export_chat(talk.user, talk.conversation)
    assert [message.summary for message in exported.messages] == mine
    bob = store.users.ensure("bob")
    store.transfer.import_chat(bob, exported)
    fork = store.chats.fork(talk.user, path[-1].id)
    for user, chat in ((talk.user, fork), (bob, store.chats.find(bob)[0].id)):
        assert [message.summary for message in store.messages.path(user, chat)] == mine
    store.users.forget(bob)
    delete_for_good(store, talk.user, fork)
    assert b"zymurgist" in on_disk(store.path)
    delete_for_good(store, talk.user, talk.conversation)
    assert b"zymurgist" not in on_disk(store.path)
