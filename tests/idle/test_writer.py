"""What is written in spare time: the replies of plain decoding, whatever interrupts them."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import pytest

from hierchat.chat import idle_writer
from hierchat.chat.prompts import VARIATIONS, mixed, own_scripts
from hierchat.config import GenerationSettings
from hierchat.engine.engine import GenerationRequest
from hierchat.runtime.prompt import PromptMessage
from hierchat.store import Store
from tests.testing.tiny_chat import END, tokenizer

from .conftest import ASKED, Writing


def plain(writing: Writing) -> dict[str, list[tuple[int, ...]]]:
    """Each conversation alone, one reply after the other."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for script in ASKED:
        said: list[PromptMessage] = []
        for turn in script.turns:
            if "{reply}" in turn:
                turn, said = turn.replace("{reply}", said[-1].text), []
            said.append(PromptMessage("user", turn))
            settings = GenerationSettings(temperature=script.temperature, seed=script.seed, max_new_tokens=20)
            if len(turn) > 900:
                break
            prompt = writing.model.prompts.build(said, 20, {END}).ids
            steps = writing.model.local.generate(GenerationRequest(prompt, settings))
            ids = tuple(token for step in steps for token in step.tokens)
            found.setdefault(script.key, []).append(ids)
            said.append(PromptMessage("assistant", tokenizer().decode(ids, skip_special_tokens=True), ids))
    return found


def test_replies_are_those_of_plain_decoding_and_share_forwards(writing: Writing) -> None:
    together: list[int] = []
    runner = writing.model.local.runner
    forward = runner.forward
    runner.forward = lambda segments, **named: together.append(len(segments)) or forward(segments, **named)
    made = writing.write(ASKED)
    runner.forward = forward
    assert max(together) == made.streams == 3  # the fourth place is that of a chat
    assert writing.texts() == plain(writing)
    assert made.tokens == writing.store.generated.size(writing.user).tokens
    assert made.replies == sum(map(len, writing.texts().values()))


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("steps", [6, 17])
def test_interrupted_again_and_again_it_comes_to_the_same(
    writing: Writing, tmp_path: Path, steps: int, keep: bool
) -> None:
    """With and without what was half there: a killed process keeps less."""
    writing.write(ASKED)
    with Store.open(tmp_path / "again.db") as store:
        again = Writing(store, writing.model)
        for _ in range(300):
            numbers = count(1)
            before = again.texts()
            again.write(ASKED, lambda numbers=numbers: next(numbers) < steps + (0 if keep else 40), keep=keep)
            if again.texts() == writing.texts():
                break
            assert keep or again.texts() != before
        assert again.texts() == writing.texts()
        assert (
            again.store.generated.size(again.user).tokens == writing.store.generated.size(writing.user).tokens
        )


def test_half_replies_are_kept_on_the_way(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_writer, "KEEP_SECONDS", 0.0)
    numbers = count(1)
    writing.write(ASKED, lambda: next(numbers) < 6, keep=False)
    halves = [
        text
        for one in ASKED
        for text in writing.store.generated.texts(writing.user, writing.model.model_key, one.key)
        if not text.done
    ]
    assert len(halves) == 3
    assert all(text.ids for text in halves)


def test_no_forward_begins_once_it_is_stopped(writing: Writing) -> None:
    """Nor does it leave anything in slots, which are the first to be taken then."""
    stop = threading.Event()
    runner, computed = writing.model.local.runner, []
    forward = runner.forward

    def stopping(segments, **named):
        computed.append(len(segments))
        if len(computed) == 5:
            stop.set()
        return forward(segments, **named)

    runner.forward = stopping
    made = writing.writer(stop)
    made.write(ASKED, lambda: True)
    assert len(computed) == 5
    assert writing.model.local.sequence.tokens == []


def test_a_chat_stays_in_its_slots_meanwhile(writing: Writing) -> None:
    engine = writing.model.local
    prompt = writing.model.prompts.build([PromptMessage("user", "Where does it end?")], 20).ids
    list(engine.generate(GenerationRequest(prompt, GenerationSettings(max_new_tokens=8), user=writing.user)))
    held = engine.shared(prompt, writing.user)
    assert held >= len(prompt)
    writing.write(ASKED)
    assert engine.shared(prompt, writing.user) == held


def test_what_was_begun_before_a_deletion_is_not_kept(writing: Writing) -> None:
    """It may be made from what was deleted."""
    numbers = count(1)

    def deleting() -> bool:
        if next(numbers) == 3:
            writing.store.generated.delete(writing.user)
        return True

    made = writing.write(ASKED, deleting)
    assert made.stopped
    assert writing.store.generated.size(writing.user).texts == 0


def test_questions_like_the_users_own() -> None:
    asked = list(own_scripts([(7, "Why is {reply} blue?"), (3, "Why {question}?")]))
    assert len(asked) == 2 * len(VARIATIONS) == len({one.key for one in asked})
    assert [one.origin for one in asked[:4]] == [7, 3, 7, 3]
    assert asked[1].turns == ("Why {question}?",)
    assert all(one.temperature > 0 for one in asked[:2])  # not once more what stands in the chat
    assert all("Why is {reply} blue?" in one.turns[0] for one in asked if one.origin == 7)
    assert [one.key for one in mixed(asked[:2], ASKED)][:4] == [asked[0].key, "k0", asked[1].key, "k1"]
