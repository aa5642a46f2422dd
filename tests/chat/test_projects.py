"""Projects and notes in the service: what new chats begin with, what the model is told, deletion with undo."""

from __future__ import annotations

import threading

import pytest

from hierchat.chat.conversations import NOTES
from hierchat.runtime.template import PromptError
from hierchat.store import NotFound
from hierchat.store.records import ChatSettings, Project
from tests.testing.tiny_chat import SYSTEM

from .conftest import Talk


def told(talk: Talk) -> str:
    """What the model was told before the question."""
    talk.send("one", max_new_tokens=2)
    text = talk.model.prompts.tokenizer.decode(talk.sequence.tokens)
    return text.split("<|im_end|>")[0].removeprefix("<|im_start|>system\n")


def test_notes_stand_in_the_prompt_of_each_chat_that_does_not_leave_them_out(talk: Talk) -> None:
    chats, notes = talk.store.chats, "I grow roses."
    assert told(talk) == SYSTEM
    talk.store.users.set_notes(talk.user, notes)
    assert told(talk.other()) == NOTES + notes
    terse = talk.other()
    chats.set_settings(talk.user, terse.conversation, ChatSettings("Be terse.", {}))
    assert told(terse) == f"Be terse.\n\n{NOTES}{notes}"
    without = talk.other()
    chats.set_settings(talk.user, without.conversation, ChatSettings("Be terse.", {}, notes=False))
    assert told(without) == "Be terse."
    assert told(talk.other("ben")) == SYSTEM


def test_notes_longer_than_the_context_are_told_in_one_sentence(talk: Talk) -> None:
    talk.store.users.set_notes(talk.user, "rose " * 790)
    with pytest.raises(PromptError, match="leaves no room for a message"):
        talk.send("one")
    assert talk.messages() == []


def test_a_new_chat_begins_as_its_project_says(talk: Talk) -> None:
    chats, user = talk.service.chats, talk.user
    warm = talk.service.presets.create(
        user, "Warm", ChatSettings("Be kind.", {"temperature": 0.5, "seed": None})
    )
    usual = talk.service.presets.create(user, "Usual", ChatSettings("Be brief.", {"seed": 3}))
    talk.service.presets.set_default(user, usual)
    save = talk.service.projects.save
    for project, prompt, preset in (
        (Project(0, "A"), "Be brief.", usual),
        (Project(0, "B", "Of plants."), "Of plants.", usual),
        (Project(0, "C", preset_id=warm), "Be kind.", warm),
        (Project(0, "D", "Of plants.", preset_id=warm), "Of plants.", warm),
    ):
        begins = chats.settings(user, None, save(user, project))
        assert (begins.system_prompt, begins.preset_id) == (prompt, preset)
    assert chats.settings(user, None, 10**6).preset_id == usual  # deleted in another tab


def test_a_deleted_project_can_be_brought_back_until_the_next_deletion(talk: Talk) -> None:
    chats, user = talk.service.chats, talk.user
    garden, empty = (talk.service.projects.save(user, Project(0, name)) for name in ("Garden", "Empty"))
    inside = Talk(talk.service, user, chats.create(user, project=garden))
    inside.send("one", max_new_tokens=2)
    deleted = chats.delete_project(user, garden)
    assert (deleted.title, deleted.project, chats.has(user, inside.conversation)) == ("Garden", True, False)
    chats.restore_project(user, garden)
    assert [one.id for one in chats.find(user, "", 9, unfolded=garden).inside] == [inside.conversation]
    chats.delete_project(user, garden)
    chats.delete_project(user, empty)  # the other deletion is final now
    left = 1
    while left:  # a thread deletes it
        with talk.store.connection.read() as db:
            left = db.execute("SELECT count(*) FROM projects WHERE name = 'Garden'").fetchone()[0]
        threading.Event().wait(0.02)
    with pytest.raises(NotFound, match="deleted for good"):
        chats.restore_project(user, garden)
    with pytest.raises(NotFound):
        chats.restore_project(talk.other("ben").user, empty)
    chats.restore_project(user, empty)
    assert [one.name for one in talk.service.projects.all(user)] == ["Empty"]


def test_the_list_holds_chats_of_projects_where_they_are_sought(talk: Talk) -> None:
    chats, user = talk.service.chats, talk.user
    garden = talk.service.projects.save(user, Project(0, "Garden"))
    inside = Talk(talk.service, user, chats.create(user, project=garden))
    inside.send("Where do roses grow?", max_new_tokens=2)
    assert [one.id for one in chats.find(user, "", 9).conversations] == [talk.conversation]
    found = chats.find(user, "roses", 9, unfolded=garden)
    assert ([one.id for one in found.conversations], list(found.inside)) == ([inside.conversation], [])
