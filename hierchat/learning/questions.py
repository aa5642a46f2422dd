"""What is asked: questions like the user's own, made from these here, and prompts that come with hierchat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, zip_longest

from hierchat.learning.templates import TEMPERATURE, Script, script, scripts
from hierchat.store import Store

OWN = "own"
"""The kind of conversations that were made from a user's questions."""
VARIATIONS = (
    ("{question}",),
    ("Write three other questions like this one, and answer each of them.\n\n{question}",),
    ("Answer in a few words.\n\n{question}",),
    ("{question}", "Give an example."),
    ("Answer step by step, and give the reason for each step.\n\n{question}",),
    ("{question}", "What are common mistakes here?"),
)
"""The first is asked as it was: its reply is sampled, so that it is another one than in the chat."""


@cache
def shipped_scripts() -> Sequence[Script]:
    """Those that come with hierchat; the first call takes some seconds."""
    return tuple(scripts())


def own_scripts(questions: Iterable[tuple[int, str]]) -> Iterator[Script]:
    """Conversations made of a user's questions: message and text, the latest first. Each question once, then each in
    another form."""
    questions = list(questions)
    for turns in VARIATIONS:
        for message, question in questions:
            asked = [turn.replace("{question}", question) for turn in turns]
            made = script(OWN, asked, origin=message)
            yield replace(made, temperature=TEMPERATURE) if turns == VARIATIONS[0] else made


def mixed(own: Iterable[Script], shipped: Iterable[Script]) -> Iterator[Script]:
    """One of each in turn, until both are at their end."""
    return (one for one in chain.from_iterable(zip_longest(own, shipped)) if one is not None)


def waiting_scripts(store: Store, user_id: int, model_key: str) -> list[Script]:
    """What is left to be asked for a user and a model, what was begun before first."""
    there = store.self_replies(user_id, model_key)
    everything = mixed(own_scripts(store.own_questions(user_id)), shipped_scripts())
    left = [one for one in everything if there.get(one.key, 0) < len(one.turns)]
    return sorted(left, key=lambda one: one.key not in there)
