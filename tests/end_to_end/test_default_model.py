"""Promise 1 on the default model: the same words with drafting on or off, token for token."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.source import Source
from hierchat.engine.backends import make_runner
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.models.catalogue import Backend, read_catalogue
from hierchat.models.load.load_model import load
from hierchat.runtime.prompt import PromptBuilder, PromptMessage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

QUESTIONS = (
    "Name five trees that grow in the north.",
    "How do I boil an egg so that the yolk stays soft?",
    "Write a Python function that reverses a string.",
    "Now write the same function in JavaScript.",
    "What is a lighthouse for?",
    "Count from one to twenty in words.",
    "Explain to a child why the sky is blue.",
    "List the months of the year.",
    "List the months of the year in reverse.",
    "Write a polite note that cancels a dinner.",
    "What should I pack for a day by the sea?",
    "Give me a recipe for pancakes.",
    "Repeat this sentence three times: the ferry leaves at noon.",
    "Translate 'good morning, my friend' into French and Spanish.",
    "What is the difference between a list and a tuple in Python?",
    "Write an HTML table with two rows of three cells.",
    "Say in one sentence what a glacier is.",
    "Write a short poem about an old bicycle.",
    "How many minutes are there in a week? Show the steps.",
    "Make a JSON object for a book with title, author and year.",
    "Suggest three names for a grey cat.",
)
TOKENS = 64


class Chat:
    """The default model, asked single questions."""

    def __init__(self, backend: Backend) -> None:
        entry = read_catalogue().entry()
        loaded = load(entry, "cpu", backend=backend)
        self.engine = LocalEngine(make_runner(loaded).open(), loaded.end_ids, loaded.tokenizer.decode)
        self._prompts = PromptBuilder(loaded.tokenizer, loaded.context_length, entry.system_prompt)

    def prompt(self, question: str) -> list[int]:
        return self._prompts.build([PromptMessage("user", question)], TOKENS, self.engine.end_ids).ids

    def answer(
        self, question: str, settings: GenerationSettings, drafter: Drafter | None = None, padded: bool = True
    ) -> tuple[list[int], int]:
        """Tokens of the reply, and how many of them were drafted."""
        steps = list(
            self.engine.generate(GenerationRequest(self.prompt(question), settings, drafter, padded=padded))
        )
        drafted = sum(source != "target" for step in steps for source in step.sources)
        return [token for step in steps for token in step.tokens], drafted


@pytest.fixture(
    scope="module",
    params=["blocks", *(pytest.param(kind, marks=pytest.mark.large) for kind in ("float32", "float16"))],
)
def chat(request: pytest.FixtureRequest) -> Chat:
    return Chat(request.param)


def settings(temperature: float, seed: int = 0) -> GenerationSettings:
    return GenerationSettings(max_new_tokens=TOKENS, temperature=temperature, seed=seed)


def test_the_target_proved_row_invariance(chat: Chat) -> None:
    assert chat.engine.sequence.exact


@pytest.mark.parametrize(("temperature", "first"), [(0.0, 0), (0.8, 1)], ids=["greedy", "warm"])
def test_speculative_is_vanilla_token_for_token(chat: Chat, temperature: float, first: int) -> None:
    """Every other question greedily, and those between them sampled."""
    history = Source()
    total = accepted = 0
    asked = QUESTIONS[first :: 2 if chat.engine.backend == "blocks" else 4]  # torch is slower
    for seed, question in enumerate(asked):
        vanilla, _ = chat.answer(question, settings(temperature, seed))
        drafter = Drafter([history])
        speculative, drafted = chat.answer(question, settings(temperature, seed), drafter)
        assert speculative == vanilla, question
        history.add(speculative)
        total, accepted = total + len(vanilla), accepted + drafted
    assert total > len(asked) * TOKENS / 2  # replies long enough to mean something
    assert accepted > 0  # and drafts that were put to the test


def test_a_question_that_was_asked_before_is_drafted_from_history(chat: Chat) -> None:
    vanilla, _ = chat.answer(QUESTIONS[2], settings(0.8))
    again, drafted = chat.answer(QUESTIONS[2], settings(0.8), Drafter([Source.of([vanilla])]))
    assert again == vanilla
    assert drafted > len(vanilla) / 2


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    if list(one) == list(other):
        return None
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )


def test_the_fastest_plain_decoding_differs_at_most_in_a_tie(chat: Chat) -> None:
    """The baseline of every speed-up does not pad: bits may differ, choices only where two logits are equal."""
    for question in QUESTIONS[: 10 if chat.engine.backend == "blocks" else 4]:
        padded, _ = chat.answer(question, settings(0))
        unpadded, _ = chat.answer(question, settings(0), padded=False)
        at = first_difference(padded, unpadded)
        if at is not None:
            context = [*chat.prompt(question), *padded[:at]]
            assert chat.engine.logit_gap(context, padded[at], unpadded[at]) < 1e-3, question
