"""Replies without a store, what stands in a prompt (files, system prompts, notes), and models that think."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierchat.chat.conversations import NOTES
from hierchat.config import GenerationSettings
from hierchat.reasoning import join_reasoning, split_reasoning
from hierchat.runtime.prompt import MessageTooLong
from hierchat.store import Chat, ChatMessage, Store
from hierchat.store.records import Attachment, ChatSettings
from hierchat.texts.attachments import with_files
from tests.testing.scripted_engine import ScriptedEngine, served
from tests.testing.thinkers import DEEPSEEK, QWEN3, thinker
from tests.testing.tiny_chat import CONTEXT, SYSTEM, ready_slot

from .conftest import Talk, talk_on

FILE = Attachment("harbour.txt", 99, "The old lighthouse keeper counts 37 grey herons before breakfast.\n")
FENCED = f"File: harbour.txt\n```txt\n{FILE.text}```\n\nHow many?<|im_end|>"


def test_the_model_reads_the_file_before_the_question_in_every_turn(talk: Talk) -> None:
    first = talk.send("How many?", files=[FILE], max_new_tokens=4)
    assert f"user\n{FENCED}" in talk.held
    question = talk.messages()[0]
    assert (question.text, [file.name for file in question.attachments]) == ("How many?", ["harbour.txt"])
    talk.send("And after?", first.message_id, max_new_tokens=4)
    assert f"user\n{FENCED}" in talk.held


@pytest.mark.parametrize("prompt", ["", "Answer in rhymes."])
def test_the_number_of_tokens_too_many_is_one_and_the_same(talk: Talk, prompt: str) -> None:
    settings = GenerationSettings(max_new_tokens=24)
    files = [Attachment("long.txt", 1, "herons " * (CONTEXT // 3))]
    said = with_files("Why?", files)
    prompts = talk.model.prompts
    tokens = prompts.count([said])
    room = prompts.message_room(settings.max_new_tokens, prompt, talk.model.end_ids, settings.reasoning)
    with pytest.raises(MessageTooLong) as refused:
        talk.service.require_room(said, settings, prompt)
    many = f"is {tokens - room:,} tokens too long: it has {tokens:,}, and the model has room for {room:,}."
    assert many in str(refused.value)
    with pytest.raises(MessageTooLong, match=r"is [\d,]+ tokens too long"):
        talk.send("Why?", files=files)
    assert talk.messages() == []  # before anything was stored
    short = "a " * room  # a token each
    while prompts.count([short]) > room:
        short = short[:-2]
    talk.service.require_room(short, settings, prompt)


def begins(talk: Talk, system: str) -> bool:
    """Whether the last prompt begins with this system prompt and the first question."""
    return talk.held.startswith(f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\none")


def set_prompt(talk: Talk, text: str) -> None:
    talk.store.chats.set_settings(talk.user, talk.conversation, ChatSettings(text, {}))


def test_the_system_prompt_stands_before_every_reply_and_may_change(talk: Talk) -> None:
    set_prompt(talk, "Obey.")
    first = talk.send("one", max_new_tokens=4)
    second = talk.send("two", first.message_id, max_new_tokens=4)
    assert begins(talk, "Obey.")
    set_prompt(talk, "Rebel.")
    list(talk.comparing("three", second.message_id, max_new_tokens=4))
    assert begins(talk, "Rebel.")
    set_prompt(talk, "")
    talk.again(talk.messages()[2].id, max_new_tokens=4)
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
    talk.conversation = talk.store.chats.find(talk.user, "Imported")[0].id
    last = talk.messages()[-1].id
    for own, in_force in ((None, "Imported."), ("Obey.", "Obey."), ("", SYSTEM)):
        if own is not None:
            set_prompt(talk, own)
        talk.send("two", last, max_new_tokens=4)
        assert begins(talk, in_force)


def test_notes_stand_in_the_prompt_of_each_chat_that_does_not_leave_them_out(talk: Talk) -> None:
    def told(talk: Talk, settings: ChatSettings | None = None) -> str:
        """What the model was told before the question."""
        if settings:
            talk.store.chats.set_settings(talk.user, talk.conversation, settings)
        talk.send("one", max_new_tokens=2)
        return talk.held.split("<|im_end|>")[0].removeprefix("<|im_start|>system\n")

    assert told(talk) == SYSTEM
    talk.store.users.set_notes(talk.user, "I grow roses.")
    assert told(talk.other()) == NOTES + "I grow roses."
    assert told(talk.other(), ChatSettings("Be terse.", {})) == f"Be terse.\n\n{NOTES}I grow roses."
    assert told(talk.other(), ChatSettings("Be terse.", {}, notes=False)) == "Be terse."
    assert told(talk.other("ben")) == SYSTEM


def test_the_same_seed_writes_the_same_words_again(talk: Talk) -> None:
    first = talk.send("hello")
    question = talk.messages()[0].id
    other = talk.again(question)
    assert other.text != first.text
    reply = talk.store.messages.get(talk.user, other.message_id)
    assert reply.siblings == (first.message_id, other.message_id)
    seed = talk.service.figures(talk.user, other.message_id).seed
    assert seed == talk.store.replies.turn(talk.user, other.message_id).begun.seed != 7
    for earlier in (first, other):
        again = talk.again(question, seed_of=earlier.message_id, seed=99)
        assert talk.tokens(again) == talk.tokens(earlier)
    greedy = [talk.again(question, temperature=0) for _ in range(2)]
    assert greedy[0].text == greedy[1].text
    assert talk.store.replies.turn(talk.user, greedy[1].message_id).begun.seed == 7


THOUGHT, ANSWER = "The user asks.", "Thank you."


def talk_with(store: Store, template: str, text: str) -> tuple[Talk, ScriptedEngine]:
    engine = ScriptedEngine(text, thinker(template))
    model = served(engine, "thinker")
    return talk_on(store, ready_slot(lambda name, report: model)), engine


@pytest.fixture(params=[QWEN3, DEEPSEEK], ids=["says that it thinks", "is told to think"])
def both(request: pytest.FixtureRequest, store: Store) -> tuple[Talk, ScriptedEngine]:
    text = join_reasoning(THOUGHT, ANSWER)
    return talk_with(store, request.param, text if request.param == QWEN3 else text.removeprefix("<think>\n"))


def test_a_reply_is_stored_whole_and_answered_without_its_thought(both: tuple[Talk, ScriptedEngine]) -> None:
    talk, engine = both
    last = talk.send("one")
    assert last.text == join_reasoning(THOUGHT, ANSWER)
    reply = talk.messages()[-1]
    assert reply.text == last.text
    turn = talk.store.replies.turn(talk.user, reply.id)
    assert turn.figures.thought_ms < turn.figures.seconds * 1e3
    figures = talk.service.figures(talk.user, reply.id)
    assert figures.thought_seconds == turn.figures.thought_ms / 1e3 == last.figures.thought_seconds
    runs = talk.service.runs(talk.user, reply.id)
    assert "".join(run.text for run in runs) == last.text  # the sources of all of it
    talk.send("two", reply.id)
    assert ANSWER in engine.prompts[-1]
    assert THOUGHT not in engine.prompts[-1]


def test_a_thought_that_was_cut_goes_on(both: tuple[Talk, ScriptedEngine]) -> None:
    talk, engine = both
    cut = talk.send("one", max_new_tokens=4)
    assert split_reasoning(cut.text).thinking
    assert cut.finish == "length"
    whole = talk.resume(cut.message_id, 1000)
    assert whole.text == join_reasoning(THOUGHT, ANSWER)
    assert engine.prompts[-1].startswith(engine.prompts[0])
    spent = (cut.figures.thought_seconds, whole.figures.thought_seconds, whole.figures.seconds)
    assert None not in spent
    assert list(spent) == sorted(spent)  # type: ignore[type-var]
    if talk.service.thinks == ("off", "on"):  # what was chosen is stored with the reply
        cut = talk.other().send("one", reasoning="off", max_new_tokens=2)
        assert engine.prompts[-1].endswith("<think>\n\n</think>\n\n")
        talk.resume(cut.message_id, 1000)
        assert engine.prompts[-1].startswith(engine.prompts[-2])


@pytest.mark.parametrize(
    ("text", "thought", "answer", "thinking"),
    [
        ("<think>\nSo.\n</think>\n\nYes.", "So.", "Yes.", False),
        ("<think>\nSo it", "So it", "", True),
        ("<think>\n\n</think>\n\nYes.", "", "Yes.", False),
        *((text, "", text, False) for text in ("Yes.", "", "Write <think> and </think>.", "a</think>b")),
    ],
)
def test_a_text_in_two(text: str, thought: str, answer: str, thinking: bool) -> None:
    parts = split_reasoning(text)
    assert (parts.thought, parts.answer, parts.thinking) == (thought, answer, thinking)
    assert text[parts.thought_at :].startswith(thought)
    assert thinking or text[parts.answer_at :] == answer
    assert join_reasoning("", answer) == answer


pieces = st.text(st.sampled_from("ab <\n"), min_size=1)


@given(pieces, pieces)
def test_both_grow_at_their_end_alone(thought: str, answer: str) -> None:
    text = join_reasoning(thought, answer)
    before = split_reasoning("<think>")
    for end in range(len("<think>"), len(text) + 1):
        parts = split_reasoning(text[:end])
        if not parts.thinking or not text[:end].endswith(tuple("</think>"[:n] for n in range(1, 8))):
            assert parts.thought.startswith(before.thought)
            assert parts.answer.startswith(before.answer)
            before = parts
    assert (before.thought, before.answer) == (thought.strip(), answer.lstrip())
