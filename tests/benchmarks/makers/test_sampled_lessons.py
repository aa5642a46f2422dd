"""Made-up chance over recorded places: the winner is the sampler's."""

from __future__ import annotations

import numpy as np

from benchmarks.makers.lessons import OTHER, Chance
from hierchat.drafting.growing.gumbel_noise import gumbel
from hierchat.engine.sampling.sampler import processed

GENERATOR = np.random.default_rng(0)


def test_where_all_tokens_were_recorded_the_winner_is_the_samplers() -> None:
    chance = Chance(GENERATOR)
    winners = set()
    for _ in range(300):
        key = chance.draw()
        logits = np.sort(GENERATOR.normal(0, 2, 20))[::-1].astype(np.float32)
        chances = np.exp(logits) / np.exp(logits).sum()
        noise = [gumbel(key, token) for token in range(20)]
        expected = int((processed(logits, chance.settings) + noise).argmax())
        found = chance.winner(np.arange(20, dtype=np.int32), chances)
        assert found == expected
        winners.add(found)
    assert len(winners) > 3


def test_what_was_not_recorded_wins_as_often_as_it_is_likely() -> None:
    chance = Chance(GENERATOR)
    tokens, chances = np.arange(3, dtype=np.int32), np.array([0.3, 0.1, 0.1], np.float32)
    won = [chance.winner(tokens, chances) == OTHER for _ in range(2000) if _hot(chance)]
    assert 0.4 < np.mean(won) < 0.6


def _hot(chance: Chance) -> bool:
    """Other settings: temperature about 1, nothing cut off."""
    while True:
        chance.draw()
        if not chance.warm[2] and abs(chance.settings.temperature - 1.0) < 0.1:
            return True
