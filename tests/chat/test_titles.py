"""Titles that the model writes in idle time: what becomes one, when, and that nothing else comes of it."""

import re
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest

from hierchat.chat import titles
from hierchat.chat.titles import clean_title
from hierchat.engine.engine import GenerationRequest, Step
from hierchat.engine.local import LocalEngine
from hierchat.store import Mark, Store
from hierchat.store.records import ChatSettings, Project
from tests.testing import tiny_chat
from tests.testing.scripted_engine import WORDS, ScriptedEngine, served
from tests.testing.tiny_chat import ready_slot

from .conftest import Talk, talk_on

TITLE = "The longest river"


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("Rivers of Norway", "Rivers of Norway"),
        (' **"Rivers of Norway."** \n\nIt is short.', "Rivers of Norway"),
        ("# Title: Rivers of Norway\n", "Rivers of Norway"),
        ("Here is a title:\n\n1. Rivers of Norway", "Rivers of Norway"),
        ("<think>\nHmm, a title:\n</think>\n\nRivers of Norway", "Rivers of Norway"),
        ("\N{LEFT DOUBLE QUOTATION MARK}Rivers\N{RIGHT DOUBLE QUOTATION MARK}<|im_end|>", "Rivers"),
        ("Norges lengste elver", "Norges lengste elver"),
        ("`List<int>` and I/O in C#", "List<int> and I/O in C#"),
        ("Rivers of\tNorway", "Rivers of Norway"),
        ("Two to six words that name its subject", None),
        ("", None),
        ("...", None),
        ("42", None),
        ("<think>\nThe user wants a title", None),
        ("Sure! I can help with that.", None),
        ("Here is a title:", None),
        ("I'm sorry, but I cannot do that.", None),
        ("The longest river of the country ends in the sea near the old harbour of the town", None),
    ],
)
def test_what_is_a_title(said: str, title: str | None) -> None:
    assert clean_title(said) == title
    assert clean_title("The longest river of the", cut=True) is None
    assert clean_title("The longest river\nof the", cut=True) == "The longest river"


class Scripted(ScriptedEngine):
    """Answers with WORDS; asked for a title, with `title`."""

    title = TITLE
    titles_asked = 0
    meanwhile: Callable[[], None] | None = None
    """Called once, while the title is written."""

    def generate(self, request: GenerationRequest) -> Generator[Step, None, None]:
        self.text = WORDS
        if titles.ASK in self.words.decode(request.prompt_ids):
            self.text = self.title
            self.titles_asked += 1
            if self.meanwhile is not None:
                once, self.meanwhile = self.meanwhile, None
                once()
        yield from super().generate(request)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(titles, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(titles, "_POLL_SECONDS", 0.005)


@pytest.fixture
def talk(store: Store) -> Talk:
    made = served(Scripted(WORDS, at_once=2, places=2))
    return talk_on(store, ready_slot(lambda name, report: made))


def title(talk: Talk) -> str:
    return talk.store.chats.get(talk.user, talk.conversation).title


@pytest.mark.parametrize(
    ("said", "shown"), [(TITLE, TITLE), ("Sure! Here is one.", "Where does it end?")], ids=["good", "useless"]
)
def test_a_new_chat_gets_a_title_once_and_nothing_else_comes_of_it(talk: Talk, said: str, shown: str) -> None:
    talk.model.engine.title = said
    talk.send("Where does it end?")
    figures, count = talk.store.figures.over_time(talk.user, 500), talk.store.changes.count(talk.user)
    talk.service.titles.wait()
    assert title(talk) == shown
    assert (talk.store.changes.count(talk.user) > count) == (said == TITLE)  # open pages show it
    assert [message.role for message in talk.messages()] == ["user", "assistant"]
    assert talk.store.figures.over_time(talk.user, 500) == figures
    texts, _ = talk.store.history.texts(talk.user, talk.model.model_key, "written", Mark())
    assert [one.id for one in texts] == [talk.messages()[-1].id]
    talk.send("And now?", talk.messages()[-1].id)
    talk.service.titles.wait()
    assert (title(talk), talk.model.engine.titles_asked) == (shown, 1)


def test_a_message_stops_it_at_once_and_it_is_tried_later(talk: Talk) -> None:
    """The reply does not wait for the title: it is asked for while the title is written, and told of nobody before."""
    other = talk.other()
    frames: list[Any] = []
    sent = threading.Thread(target=lambda: frames.extend(other.sending("Me first!")))

    def meanwhile() -> None:
        waiting = talk.service.slot.scheduler
        sent.start()
        while not waiting.waiting:
            time.sleep(0.001)

    talk.model.engine.meanwhile = meanwhile
    talk.send("Where does it end?")
    talk.service.titles.wait()
    sent.join()
    talk.service.titles.wait()
    assert talk.model.engine.stopped.is_set()
    assert {frame.ahead for frame in frames if frame.phase == "waiting"} <= {0}
    assert frames[-1].finish == "length"
    assert [title(talk), title(other)] == [TITLE, TITLE]


def test_it_comes_from_the_first_question_alone(talk: Talk) -> None:
    """Not from notes, the system prompt, a project or replies; a long question is cut."""
    store, user = talk.store, talk.user
    store.users.set_notes(user, "I am a beekeeper.")
    project = store.projects.save(user, Project(0, "Bees", "Speak of bees."))
    store.projects.move(user, talk.conversation, project)
    store.chats.set_settings(user, talk.conversation, ChatSettings("Obey the bees.", {}))
    first = talk.send("What is a boat? " + "It floats. " * 12)
    talk.send("And a ship?", first.message_id)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(titles, "_PART", 15)
        talk.service.titles.wait()
    (prompt,) = [one for one in talk.model.engine.prompts if titles.ASK in one]
    assert f"{titles.ASK}What is a boat?<|im_end|>" in prompt
    assert not re.search(f"(?i)bees|beekeeper|ship|floats|{WORDS[:12]}", prompt)
    assert title(talk) == TITLE


@pytest.mark.parametrize("places", [1, 2])
def test_it_is_written_in_slots_of_its_own(store: Store, places: int) -> None:
    """The chat's next message has nothing to read again; a model that has slots for one text writes no title."""
    engine = LocalEngine(tiny_chat.runner().open(), {tiny_chat.END}, tiny_chat.tokenizer().decode, places)
    made = replace(tiny_chat.served(), engine=engine)
    talk = talk_on(store, ready_slot(lambda name, report: made))
    talk.send("Where does it end?", max_new_tokens=12)
    held = list(talk.sequence.tokens)
    talk.service.titles.wait()
    assert engine.pool.shared(held, talk.user) == len(held)
    assert bool(store.chats.untitled(made.model_key, 0.0)) is (places == 1)


@pytest.mark.parametrize(("parameters", "asked"), [(999_999_999, 0), (1_500_000_000, 1), (None, 1)])
def test_a_small_model_writes_none_and_leaves_it_to_a_larger_one(
    store: Store, parameters: int | None, asked: int
) -> None:
    made = replace(served(Scripted(WORDS, at_once=2, places=2)), parameters=parameters)
    talk = talk_on(store, ready_slot(lambda name, report: made))
    question = "What is a boat, and how does it differ from a ship or from a raft that drifts?"
    talk.send(question)
    talk.service.titles.wait()
    assert talk.model.engine.titles_asked == asked
    assert title(talk) == (TITLE if asked else "What is a boat, and how does it differ from a ship or from…")
    assert bool(store.chats.untitled(talk.model.model_key, 0.0)) is not bool(asked)
