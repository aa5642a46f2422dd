"""Files in the chat: the model reads them, and what they say drafts, in every chat that holds them."""

from __future__ import annotations

import pytest

from hierchat.chat.completions import ReplyOptions
from hierchat.config import GenerationSettings
from hierchat.runtime.drafters import Memory, default_drafter
from hierchat.runtime.prompt import MessageTooLong, PromptMessage
from hierchat.store import Attachment
from hierchat.texts.attachments import with_files
from tests.testing.tiny_chat import CONTEXT, tokenizer

from .conftest import Talk

FILE = Attachment("harbour.txt", 99, "The old lighthouse keeper counts 37 grey herons before breakfast.\n")
FENCED = f"File: harbour.txt\n```txt\n{FILE.text}```\n\nHow many?<|im_end|>"


def read_by(talk: Talk) -> str:
    return str(tokenizer().decode(talk.sequence.tokens))


def test_the_model_reads_the_file_before_the_question_in_every_turn(talk: Talk) -> None:
    first = talk.send("How many?", files=[FILE])
    assert f"user\n{FENCED}" in read_by(talk)
    question = talk.messages()[0]
    assert (question.text, [file.name for file in question.attachments]) == ("How many?", ["harbour.txt"])
    talk.send("And after?", first.message_id)
    assert f"user\n{FENCED}" in read_by(talk)
    talk.again(question.id)
    assert f"user\n{FENCED}" in read_by(talk)


def test_a_file_alone_is_a_message(talk: Talk) -> None:
    assert talk.send("", files=[FILE]).finish == "length"
    assert f"```txt\n{FILE.text}```<|im_end|>" in read_by(talk)
    assert talk.store.chats.get(talk.user, talk.conversation).title == "harbour.txt"


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


def test_a_file_that_does_not_fit_is_refused_before_anything_is_stored(talk: Talk) -> None:
    long = Attachment("long.txt", 1, "herons " * (CONTEXT // 3))
    settings = GenerationSettings(max_new_tokens=24)
    with pytest.raises(MessageTooLong, match=r"is [\d,]+ tokens too long"):
        talk.service.require_room(with_files("Why?", [long]), settings)
    with pytest.raises(MessageTooLong, match=r"is [\d,]+ tokens too long"):
        talk.send("Why?", files=[long])
    assert talk.messages() == []
    talk.service.require_room(with_files("Why?", [FILE]), settings)


def test_tokens_are_counted_as_the_model_reads_them(talk: Talk) -> None:
    most = talk.model.prompts.most_counted
    assert talk.service.tokens("") == (0, most)
    assert talk.service.tokens(FILE.text) == (len(talk.model.prompts.tokens(FILE.text)), most)


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
    short = "a " * room  # a token each
    while talk.service.tokens(short)[0] > room:
        short = short[:-2]
    talk.service.require_room(short, settings, prompt)
