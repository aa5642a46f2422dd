"""Thousands of seeds: drafts that were chosen by the sampler's noise change no token, and the tokens have the right
distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hierchat.config import GenerationSettings
from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.source import Source
from hierchat.engine.sampling.sampler import choose, processed
from hierchat.engine.verification import ArrayRows, Sampler, verify
from tests.engine.test_sampler_distribution import RIGHT, p_value

VOCABULARY, TOKENS = 12, 2
LOGITS = np.random.default_rng(3).normal(0, 1.3, (VOCABULARY, VOCABULARY)).astype(np.float32)
"""Of a model that looks at the last token alone."""
PROMPT = [4, 7, 1]
ASKED = [({"temperature": 0.8}, 4_000), ({"temperature": 0.7, "top_p": 0.8, "top_k": 20}, 1_500)]


def plain(settings: GenerationSettings) -> list[int]:
    text = list(PROMPT)
    while len(text) < len(PROMPT) + TOKENS:
        text.append(choose(LOGITS[text[-1]], len(text), settings.seed, settings))
    return text[len(PROMPT) :]


def drafted(settings: GenerationSettings, drafter: Drafter) -> tuple[list[int], int]:
    """The same with drafts, and how many of them were accepted."""
    text, accepted = list(PROMPT), 0
    drafter.begin(PROMPT)
    while len(text) < len(PROMPT) + TOKENS:
        tree = drafter.propose()
        rows = ArrayRows(LOGITS[[text[-1], *tree.tokens]])
        found = verify(rows, tree, len(text), Sampler(settings))
        accepted += len(found.tokens) - 1
        drafter.observe(found.tokens)
        text += found.tokens
    return text[len(PROMPT) :][:TOKENS], accepted


def earlier() -> list[Sequence[int]]:
    """Replies of the model to other seeds."""
    return [plain(GenerationSettings(temperature=1.0, seed=10**6 + seed)) for seed in range(60)]


@pytest.mark.parametrize(("flags", "seeds"), ASKED)
def test_the_same_tokens_and_the_right_distribution(flags: dict[str, float], seeds: int) -> None:
    source, acceptance = Source.of([[*PROMPT, *reply] for reply in earlier()]), Acceptance()
    firsts, kept, blind = np.zeros(VOCABULARY), 0, 0
    for seed in range(seeds):
        settings = GenerationSettings(**flags, seed=seed)  # type: ignore[arg-type]
        reply, accepted = drafted(settings, Drafter([source], acceptance, width=3, settings=settings))
        assert reply == plain(settings)
        kept += accepted
        firsts[reply[0]] += 1
        if seed < 500:
            blind += drafted(settings, Drafter([source], width=3))[1]
    expected = np.exp(processed(LOGITS[PROMPT[-1]], settings))
    assert p_value(firsts, expected / expected.sum()) > RIGHT
    assert kept / seeds > blind / 500
