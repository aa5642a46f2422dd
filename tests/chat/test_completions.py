"""Replies without a store, and what stands in a prompt: files, system prompts, seeds, stop strings."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from hierchat.chat.completions import NoModel, ReplyOptions
from hierchat.config import GenerationSettings
from hierchat.runtime.drafters import Memory, default_drafter
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import MessageTooLong, PromptMessage
from hierchat.store import Chat, ChatMessage, Store
from hierchat.store.records import Attachment, ChatSettings
from hierchat.texts.attachments import with_files
from tests.testing.tiny_chat import CONTEXT, SYSTEM, catalogue, tokenizer

from .conftest import Talk, talk_on
from .test_service import LONG


def complete(talk: Talk, *said: PromptMessage, **settings: object) -> list:
    return list(talk.service.completions.complete(said, talk._settings(settings), talk.user, talk.stop))


@pytest.mark.usefixtures("every_frame")
def test_the_reply_is_the_one_that_the_chat_gives(talk: Talk) -> None:
    frames = complete(talk, PromptMessage("user", "hello"))
    assert talk.messages() == []
    assert talk.store.figures.totals(talk.user).tokens == 0
    told = talk.send("hello")
    last = frames[-1]
    assert (last.text, last.finish, last.figures.tokens) == (told.text, told.finish, told.figures.tokens)
    assert {frame.phase for frame in frames} == {"waiting", "reading", "writing", "done"}
    assert {frame.message_id for frame in frames} == {None}


def test_a_conversation_is_given_whole(talk: Talk) -> None:
    first = talk.send("hello")
    second = talk.send("go on", first.message_id)
    said = (
        PromptMessage("user", "hello"),
        PromptMessage("assistant", first.text),
        PromptMessage("user", "go on"),
    )
    tokens = tuple(talk.store.replies.tokens(talk.user, first.message_id))
    exactly = (said[0], PromptMessage("assistant", first.text, tokens), said[2])
    assert complete(talk, *exactly)[-1].text == second.text


def test_it_waits_in_the_same_queue_and_leaves_it(talk: Talk) -> None:
    with closing(talk.sending("hello", max_new_tokens=200)) as running:
        for frame in running:
            if frame.phase == "writing":
                break
        stop = threading.Event()
        frames = talk.service.completions.complete(
            [PromptMessage("user", "x")], talk._settings({}), talk.user, stop
        )
        assert [next(frames).ahead for _ in range(2)] == [1, 1]
        stop.set()
        assert list(frames) == []
    talk.stop.clear()  # leaving stopped the first
    assert complete(talk, PromptMessage("user", "x"))[-1].finish == "length"


def test_what_keeps_it_from_beginning_is_raised(talk: Talk, store: Store) -> None:
    with pytest.raises(MessageTooLong):
        complete(talk, PromptMessage("user", LONG * 4))
    with pytest.raises(NoModel):
        complete(talk_on(store, ModelSlot(catalogue("tiny"))), PromptMessage("user", "hello"))
    assert complete(talk, PromptMessage("user", "hello"))[-1].finish == "length"


FILE = Attachment("harbour.txt", 99, "The old lighthouse keeper counts 37 grey herons before breakfast.\n")


FENCED = f"File: harbour.txt\n```txt\n{FILE.text}```\n\nHow many?<|im_end|>"


def test_the_model_reads_the_file_before_the_question_in_every_turn(talk: Talk) -> None:
    first = talk.send("How many?", files=[FILE])
    assert f"user\n{FENCED}" in talk.held
    question = talk.messages()[0]
    assert (question.text, [file.name for file in question.attachments]) == ("How many?", ["harbour.txt"])
    talk.send("And after?", first.message_id)
    assert f"user\n{FENCED}" in talk.held
    talk.again(question.id)
    assert f"user\n{FENCED}" in talk.held


def drafted(talk: Talk, parent: int | None, files: list[Attachment]) -> str:
    """What the chat's own text proposes, and nothing else, where the model has begun to quote the file."""
    service, served = talk.service, talk.model
    path = [] if parent is None else talk.store.messages.path(talk.user, talk.conversation, parent)
    said = service._said(served, talk.user, path, None)
    if files:
        said.append(PromptMessage("user", FENCED.removesuffix("<|im_end|>")))
    options = ReplyOptions(talk.user, GenerationSettings(max_new_tokens=24), talk.stop)
    reply = service.completions.reply(served, said, options)
    drafter = default_drafter(served, Memory(), width=8)
    drafter.begin(reply.prompt_ids)
    drafter.observe(served.prompts.tokens(FILE.text)[:30])
    tree = drafter.propose()
    assert set(tree.sources) == {"context"}
    return str(tokenizer().decode(tree.tokens))


def test_what_it_says_drafts_in_this_chat_and_in_another_that_holds_it(talk: Talk) -> None:
    last = talk.send("How many?", files=[FILE])
    here = drafted(talk, last.message_id, [])
    there = drafted(talk.other(), None, [FILE])
    for found in (here, there):
        assert found
        assert FILE.text.startswith(tokenizer().decode(talk.model.prompts.tokens(FILE.text)[:30]) + found)


@pytest.mark.parametrize("prompt", ["", "Answer in rhymes."])
def test_the_number_of_tokens_too_many_is_one_and_the_same(talk: Talk, prompt: str) -> None:
    settings, files = (
        GenerationSettings(max_new_tokens=24),
        [Attachment("long.txt", 1, "herons " * (CONTEXT // 3))],
    )
    said = with_files("Why?", files)
    tokens, room = talk.service.tokens(said), talk.service.message_room(settings, prompt)
    with pytest.raises(MessageTooLong) as refused:
        talk.service.require_room(said, settings, prompt)
    assert (
        f"is {tokens[0] - room:,} tokens too long: it has {tokens[0]:,}, and the model has room for {room:,}."
        in str(refused.value)
    )
    with pytest.raises(MessageTooLong, match=r"is [\d,]+ tokens too long"):
        talk.send("Why?", files=files)
    assert talk.messages() == []  # before anything was stored
    short = "a " * room  # a token each
    while talk.service.tokens(short)[0] > room:
        short = short[:-2]
    talk.service.require_room(short, settings, prompt)


def begins(talk: Talk, system: str) -> bool:
    """Whether the last prompt begins with this system prompt and the first question."""
    return talk.held.startswith(f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\none")


def set_prompt(talk: Talk, text: str) -> None:
    talk.store.chats.set_settings(talk.user, talk.conversation, ChatSettings(text, {}))


def test_the_system_prompt_stands_before_every_reply_and_may_change(talk: Talk) -> None:
    set_prompt(talk, "Obey.")
    first = talk.send("one")
    assert begins(talk, "Obey.")
    second = talk.send("two", first.message_id)
    assert begins(talk, "Obey.")
    set_prompt(talk, "Rebel.")
    talk.again(talk.messages()[2].id)
    assert begins(talk, "Rebel.")
    list(talk.comparing("three", second.message_id))
    assert begins(talk, "Rebel.")
    set_prompt(talk, "")
    talk.again(talk.messages()[2].id)
    assert begins(talk, SYSTEM)


def test_a_reply_goes_on_under_the_system_prompt_that_it_began_with(talk: Talk) -> None:
    set_prompt(talk, "Obey.")
    whole = talk.send("one", max_new_tokens=40)
    question = talk.messages()[0].id
    cut = talk.again(question, max_new_tokens=12)
    set_prompt(talk, "Rebel.")
    seed = talk.store.replies.turn(talk.user, cut.message_id).begun.seed
    resumed = talk.resume(cut.message_id, 28)
    assert begins(talk, "Obey.")
    set_prompt(talk, "Obey.")
    assert seed != 7
    again = talk.again(question, seed_of=cut.message_id, max_new_tokens=40)
    assert again.text == resumed.text != whole.text


def test_an_imported_system_prompt_holds_until_the_chat_sets_one(talk: Talk) -> None:
    messages = [
        ChatMessage("s", None, "system", "Imported.", 1.0),
        ChatMessage("u", "s", "user", "one", 2.0),
        ChatMessage("a", "u", "assistant", "What is that?", 3.0),
    ]
    talk.store.transfer.import_chat(talk.user, Chat("elsewhere", "Imported", 1.0, 3.0, messages, "a"))
    chats = talk.store.chats.find(talk.user)
    talk.conversation = next(chat.id for chat in chats if chat.title == "Imported")
    last = talk.messages()[-1].id
    talk.send("two", last)
    assert begins(talk, "Imported.")
    set_prompt(talk, "Obey.")
    talk.send("two", last)
    assert begins(talk, "Obey.")
    set_prompt(talk, "")
    talk.send("two", last)
    assert begins(talk, SYSTEM)


def test_the_same_seed_writes_the_same_words_again(talk: Talk) -> None:
    first = talk.send("hello")
    question = talk.messages()[0].id
    other = talk.again(question)
    assert other.text != first.text
    reply = talk.store.messages.get(talk.user, other.message_id)
    assert reply.siblings == (first.message_id, other.message_id)
    figures = talk.service.figures(talk.user, other.message_id)
    assert figures.seed != 7
    assert figures.seed == talk.store.replies.turn(talk.user, other.message_id).begun.seed
    for earlier in (first, other):
        again = talk.again(question, seed_of=earlier.message_id, seed=99)
        assert talk.tokens(again) == talk.tokens(earlier)
