"""What a chat sets, in the prompts of its replies; the same seed again; stop strings."""

from __future__ import annotations

from hierchat.store import Chat, ChatMessage, ChatSettings
from tests.testing.tiny_chat import SYSTEM, tokenizer

from .conftest import Talk


def prompt(talk: Talk) -> str:
    """What the model read and wrote last."""
    return tokenizer().decode(talk.sequence.tokens)


def set_prompt(talk: Talk, text: str) -> None:
    talk.store.chats.set_settings(talk.user, talk.conversation, ChatSettings(text, {}))


def test_the_system_prompt_stands_before_every_reply_and_may_change(talk: Talk) -> None:
    set_prompt(talk, "Obey.")
    first = talk.send("one")
    assert prompt(talk).startswith("<|im_start|>system\nObey.<|im_end|>\n<|im_start|>user\none")
    second = talk.send("two", first.message_id)
    assert prompt(talk).startswith("<|im_start|>system\nObey.<|im_end|>\n<|im_start|>user\none")
    set_prompt(talk, "Rebel.")
    talk.again(talk.messages()[2].id)
    assert prompt(talk).startswith("<|im_start|>system\nRebel.<|im_end|>\n<|im_start|>user\none")
    list(talk.comparing("three", second.message_id))
    assert prompt(talk).startswith("<|im_start|>system\nRebel.<|im_end|>\n<|im_start|>user\none")
    set_prompt(talk, "")
    talk.again(talk.messages()[2].id)
    assert prompt(talk).startswith(f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\none")


def test_a_reply_goes_on_under_the_system_prompt_that_it_began_with(talk: Talk) -> None:
    set_prompt(talk, "Obey.")
    whole = talk.send("one", max_new_tokens=40)
    question = talk.messages()[0].id
    cut = talk.again(question, max_new_tokens=12)
    set_prompt(talk, "Rebel.")
    seed = talk.store.replies.turn(talk.user, cut.message_id).begun.seed
    resumed = list(talk.service.resume(talk.user, cut.message_id, 28, talk.stop))[-1]
    assert prompt(talk).startswith("<|im_start|>system\nObey.")
    set_prompt(talk, "Obey.")
    assert seed != 7
    again = list(
        talk.service.regenerate(
            talk.user, question, talk._settings({"max_new_tokens": 40}), talk.stop, seed_of=cut.message_id
        )
    )[-1]
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
    assert prompt(talk).startswith("<|im_start|>system\nImported.<|im_end|>\n<|im_start|>user\none")
    set_prompt(talk, "Obey.")
    talk.send("two", last)
    assert prompt(talk).startswith("<|im_start|>system\nObey.<|im_end|>\n<|im_start|>user\none")
    set_prompt(talk, "")
    talk.send("two", last)
    assert prompt(talk).startswith(f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\none")


def test_the_same_seed_writes_the_same_words_again(talk: Talk) -> None:
    first = talk.send("hello")
    question = talk.messages()[0].id
    other = talk.again(question)
    assert other.text != first.text
    figures = talk.service.figures(talk.user, other.message_id)
    assert figures
    assert figures.seed == talk.store.replies.turn(talk.user, other.message_id).begun.seed
    for earlier in (first, other):
        again = list(
            talk.service.regenerate(
                talk.user, question, talk._settings({"seed": 99}), talk.stop, seed_of=earlier.message_id
            )
        )[-1]
        tokens = [talk.store.replies.tokens(talk.user, reply.message_id) for reply in (earlier, again)]
        assert tokens[0] == tokens[1]


def test_a_greedy_reply_names_no_seed(talk: Talk) -> None:
    reply = talk.send("hello", temperature=0)
    figures = talk.service.figures(talk.user, reply.message_id)
    assert figures
    assert figures.seed is None


def test_the_figures_tell_which_stop_string_ended_the_reply(talk: Talk) -> None:
    first = talk.send("hello")
    assert first.figures.stop_string is None
    stop = first.text[8:11]
    settings = talk._settings({"stop": ("never there", stop)})
    question = talk.messages()[0].id
    again = talk.service.regenerate(talk.user, question, settings, talk.stop, seed_of=first.message_id)
    last = list(again)[-1]
    assert last.finish == "stop"
    assert last.text == first.text[: first.text.index(stop)]
    assert last.figures.stop_string == stop
    stored = talk.service.figures(talk.user, last.message_id)
    assert stored
    assert stored.stop_string == stop
    turn = talk.store.replies.turn(talk.user, last.message_id)
    assert turn
    assert turn.begun.settings["stop"] == ["never there", stop]
