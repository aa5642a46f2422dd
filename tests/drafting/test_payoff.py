"""Whether drafting is worth its time, step by step."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_tree import DraftTree
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.payoff import (
    MOST_DOUBLED,
    REPEATED,
    SHORTEST_PAUSE,
    TRIALS,
    TRIALS_AGAIN,
    DraftingGate,
    Payoff,
    payoff_of_drafting,
)
from tests.engine.drafters import Adversary, Oracle
from tests.testing import tiny
from tests.testing.tiny import fresh_steps, random_tokens, tokens_of


@pytest.fixture
def drafting_pays() -> None:
    """Nothing is taken for granted here."""


def replied(
    payoff: Payoff | None, reply: Sequence[int], accepted: int, took_ms: float = 0.1
) -> tuple[DraftingGate, list[bool]]:
    """Write a reply, a token a step, in which each step with drafts has so many accepted ones; return its gate, and
    which steps had drafts."""
    gate, asked = DraftingGate(payoff), list[bool]()
    gate.begin()
    for place, token in enumerate(reply):
        asked.append(step(gate, reply[:place], token, accepted, took_ms))
    return gate, asked


def step(gate: DraftingGate, text: Sequence[int], token: int, accepted: int, took_ms: float = 0.1) -> bool:
    if opens := gate.opens(token_ms=1.0):
        gate.missed.clear()
        gate.learn(accepted, took_ms, rows_ms=0.0)
    else:
        gate.rest(text, [token])
    return opens


def test_drafts_that_are_never_right_are_hardly_asked_for() -> None:
    payoff = payoff_of_drafting()
    _, asked = replied(payoff, range(4000), accepted=0)
    runs = [(opens, len(list(group))) for opens, group in groupby(asked)]
    again = (True, TRIALS_AGAIN)
    pauses = [(False, SHORTEST_PAUSE << number) for number in range(3)]
    assert runs[:6] == [(True, TRIALS), pauses[0], again, pauses[1], again, pauses[2]]
    assert max(length for opens, length in runs if not opens) == SHORTEST_PAUSE << MOST_DOUBLED
    assert sum(asked) < 0.02 * len(asked)
    for _ in range(4):  # each reply after it tries a few steps, since its text may be of another kind
        assert sum(replied(payoff, range(32), accepted=0)[1]) == TRIALS_AGAIN


def test_drafts_that_pay_are_always_asked_for() -> None:
    payoff = payoff_of_drafting()
    assert all(replied(payoff, range(500), accepted=1)[1])
    assert not all(replied(payoff, range(500), accepted=1, took_ms=1.5)[1])


def test_without_a_payoff_nothing_is_left_out() -> None:
    assert all(replied(None, range(500), accepted=0, took_ms=9.0)[1])


def test_a_text_that_repeats_itself_ends_a_pause() -> None:
    """Within as many steps as show that it does."""
    new = list(range(400))
    gate, asked = replied(payoff_of_drafting(), new, accepted=0)
    assert not any(asked[-40:])
    text, asked = new, []
    for token in new[20:40]:
        asked.append(step(gate, text, token, accepted=3))
        text = [*text, token]
    assert asked == [False] * REPEATED + [True] * (20 - REPEATED)


def test_what_was_missed_is_kept_in_order() -> None:
    gate, observed, text = DraftingGate(payoff_of_drafting()), list[int](), list(range(300))
    for place, token in enumerate(text):
        missed = list(gate.missed)
        if step(gate, text[:place], token, accepted=0):
            observed += [*missed, token]
    assert [*observed, *gate.missed] == text
    assert 0 < len(gate.missed) < len(text)


@pytest.mark.parametrize("kind", [Drafter, Adversary, Oracle])
def test_a_reply_is_drafted_while_it_pays_and_no_token_is_missed(kind: Any) -> None:
    """No word changes with it, and what is observed is the reply, in order."""
    engine = tiny.tiny_engine("llama-blocks")
    wanted = GenerationSettings(max_new_tokens=200, seed=1, temperature=3.0)
    prompt = random_tokens(5)
    plain = tokens_of(fresh_steps(engine, prompt, wanted))
    asked, observed = list[int](), list[int]()
    proposer: Any = kind(plain) if kind is not Drafter else Drafter()
    propose, observe = proposer.propose, proposer.observe

    def noted(limit: int | None = None) -> DraftTree:
        asked.append(len(observed))
        return propose(limit)

    def kept(tokens: Sequence[int], top: Any = None) -> None:
        observed.extend(tokens)
        observe(tokens, top)

    proposer.propose, proposer.observe = noted, kept
    payoff = payoff_of_drafting()
    steps = fresh_steps(engine, prompt, wanted, proposer, payoff)
    assert tokens_of(steps) == plain
    assert observed == plain[: len(observed)]
    assert asked[1:] == sorted(set(asked[1:]))
    assert payoff.silent == len(plain) - len(observed)
    assert kind is not Adversary or len(asked) < 60
