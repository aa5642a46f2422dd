"""Drafts that know the sampler's noise: the same noise as the sampler's, and used for the choice of drafts alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_tree import DraftTree
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.growing.evidence import gumbel, place_key, reply_key
from hierchat.drafting.source import Source
from hierchat.engine.sampling.gumbel import gumbel as sampler_gumbel
from hierchat.engine.sampling.gumbel import stream

FOLLOWERS = range(10, 18)
TEXT = [1, 2, 3]


def proposed(settings: GenerationSettings | None, width: int = 2, path: tuple[int, ...] = ()) -> DraftTree:
    """What is drafted behind a text that was followed by each of FOLLOWERS four times."""
    source = Source.of([[*TEXT, follower, 5, follower] for follower in FOLLOWERS for _ in range(4)])
    drafter = Drafter([source], width=width, settings=settings)
    drafter.begin([*TEXT, *path])
    return drafter.propose()


@pytest.mark.parametrize("seed", [0, 1, 2**62 + 12345, 2**63 - 1])
def test_noise_is_the_samplers_noise(seed: int) -> None:
    tokens = np.random.default_rng(seed % 97).integers(0, 200_000, 300)
    reply = np.uint64(reply_key(np.uint64(seed)))
    for position in (0, 1, 77, 8191):
        key = np.uint64(place_key(reply, position))
        assert int(key) == stream(seed, position)
        ours = [gumbel(key, token) for token in tokens]
        np.testing.assert_allclose(ours, sampler_gumbel(int(key), tokens), rtol=1e-5, atol=1e-6)


def test_of_equally_likely_drafts_the_luckier_ones_are_chosen() -> None:
    for seed in range(30):
        settings = GenerationSettings(temperature=0.8, seed=seed)
        noise = sampler_gumbel(stream(seed, len(TEXT)), np.array(FOLLOWERS))
        assert proposed(settings).tokens == (FOLLOWERS[int(noise.argmax())],)


def test_noise_is_that_of_the_position() -> None:
    for seed in range(10):
        settings = GenerationSettings(temperature=0.8, seed=seed)
        first = proposed(settings).tokens[0]
        tree = proposed(settings, 12)
        following = [tree.tokens[node] for node, parent in enumerate(tree.parents) if parent == 0]
        alone = proposed(settings, 2, (tree.tokens[0],)).tokens
        assert tree.tokens[0] == first
        assert not following or following[0] == alone[0]


@pytest.mark.parametrize("flags", [{}, {"temperature": 0.8, "top_k": 1}, {"seed": 7}])
def test_where_the_likeliest_token_is_chosen_drafts_are_as_without_settings(flags: dict[str, Any]) -> None:
    assert proposed(GenerationSettings(**flags), 12) == proposed(None, 12)
