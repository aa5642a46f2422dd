"""The promise: the same words with drafting on or off, token for token, and the bits behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_tree import DraftCost, FreeRows
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.proposer import JointDrafter, Proposer
from hierchat.drafting.source import Source
from hierchat.engine.cuda.cuda_runner import REGIMES
from hierchat.engine.draft_model import FewerTokens
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.latency import LatencyCurve
from hierchat.engine.torch.segment_attention import CHUNK
from hierchat.engine.torch.torch_runner import TorchRunner
from tests.engine.drafters import Adversary, Buried, Noise, Oracle, TreeDrafter
from tests.engine.test_cuda_runner import target_of as cuda_target
from tests.testing.tiny import (
    BACKENDS,
    VOCABULARY,
    Backend,
    fresh_steps,
    random_tokens,
    tiny_engine,
    tiny_target,
    tokens_of,
)

DRAFTERS: dict[str, Callable[[Sequence[int]], Proposer]] = {
    "context": lambda reply: Drafter(),
    "context+history": lambda reply: Drafter([Source.of([reply[:20], reply[10:]])]),
    "noise": lambda reply: Noise(nodes=12),
    "oracle": lambda reply: Oracle(reply),
    "by cost": lambda reply: Drafter([Source.of([reply])], latency=LatencyCurve()),
    "random trees": lambda reply: TreeDrafter(),
    "adversary": lambda reply: Adversary(reply),
    "buried": lambda reply: Buried(reply),
    "joint": lambda reply: JointDrafter(
        Drafter(), [Oracle(reply), Noise(nodes=12), Adversary(reply)], DraftCost(FreeRows(24))
    ),
}
SETTINGS: dict[str, dict[str, object]] = {
    "greedy": {},
    "greedy, penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    "warm": {"temperature": 0.8},
    "hot": {"temperature": 3.0},
    "top-k": {"temperature": 0.8, "top_k": 5},
    "top-p": {"temperature": 2.0, "top_p": 0.7},
    "min-p": {"temperature": 2.0, "min_p": 0.1},
    "penalties": {
        "temperature": 0.8,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
    },
    "all": {
        "temperature": 1.5,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.2,
        "logit_bias": {3: 2.0, 5: -4.0},
    },
}
FEW = settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


def assert_same_words(backend: Backend, prompt: Sequence[int], wanted: GenerationSettings) -> None:
    engine = tiny_engine(backend)
    vanilla = tokens_of(fresh_steps(engine, prompt, wanted))
    assert len(vanilla) == wanted.max_new_tokens
    for name, drafter in DRAFTERS.items():
        assert tokens_of(fresh_steps(engine, prompt, wanted, drafter(vanilla))) == vanilla, name


@pytest.mark.parametrize("length", [1, 117])  # decodes across the border of a chunk of attention
@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        *(("llama-packed", kind) for kind in SETTINGS),
        *(
            (backend, kind)
            for backend in BACKENDS
            for kind in ("greedy", "warm", "all")
            if backend != "llama-packed"
        ),
    ],
)
def test_speculative_equals_vanilla(backend: Backend, kind: str, length: int) -> None:
    seed = length + len(kind)
    wanted = GenerationSettings(max_new_tokens=12, seed=seed, **SETTINGS[kind])  # type: ignore[arg-type]
    assert_same_words(backend, random_tokens(length, seed, vocabulary=12), wanted)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("length", [2, 126, 127, 128, 129, 240])
def test_context_drafts_at_the_borders_of_chunks(length: int, temperature: float) -> None:
    engine = tiny_engine("llama-packed")
    for seed in range(2):
        prompt = random_tokens(length, seed, vocabulary=12)  # few different tokens, so that suffixes recur
        wanted = GenerationSettings(temperature=temperature, max_new_tokens=24, seed=seed)
        vanilla = tokens_of(fresh_steps(engine, prompt, wanted))
        assert tokens_of(fresh_steps(engine, prompt, wanted, Drafter())) == vanilla


@pytest.mark.parametrize("name", ["oracle", "buried"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_true_drafts_save_forwards(name: str, temperature: float) -> None:
    engine = tiny_engine()
    wanted = GenerationSettings(temperature=temperature, max_new_tokens=64)
    prompt = random_tokens(20)
    vanilla = tokens_of(fresh_steps(engine, prompt, wanted))
    steps = fresh_steps(engine, prompt, wanted, DRAFTERS[name](vanilla))
    forwards = [step for step in steps if step.tokens]
    assert tokens_of(steps) == vanilla
    assert len(forwards) <= 8  # seven drafts a forward or more, all accepted
    assert len(set(vanilla)) > 10  # and the text is no monotone one


def test_adversary_wins_nothing() -> None:
    engine = tiny_engine()
    wanted = GenerationSettings(max_new_tokens=16)
    vanilla = tokens_of(fresh_steps(engine, [1, 2, 3], wanted))
    steps = fresh_steps(engine, [1, 2, 3], wanted, Adversary(vanilla))
    assert [len(step.tokens) for step in steps if step.tokens] == [1] * 16


def test_seeds_and_settings_matter() -> None:
    """Otherwise the comparisons above would show little."""
    engine = tiny_engine()
    replies = {
        tuple(
            tokens_of(
                fresh_steps(engine, [1, 2, 3], GenerationSettings(max_new_tokens=24, seed=seed, **kind))
            )
        )  # type: ignore[arg-type]
        for seed in range(3)
        for kind in SETTINGS.values()
    }
    assert len(replies) > len(SETTINGS)


# The contract of a sequence (engine/runner.py), held by every runner.

ALL = 150
KNOWN = np.sort(np.random.default_rng(3).permutation(ALL)[: VOCABULARY - 1])
"""Tokens of a larger vocabulary that a model knows; its last number stands for all others."""
TARGETS: dict[str, Callable[[], Any]] = {
    **{backend: partial(tiny_target, backend) for backend in BACKENDS},
    **{f"cuda {regime[0]}": partial(cuda_target, regime) for regime in REGIMES},
    "fewer tokens": lambda: FewerTokens(tiny_target("llama-blocks"), KNOWN, ALL),
}
every_target = pytest.mark.parametrize("name", TARGETS)


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def filled(name: str, tokens: Sequence[int] = ()) -> Any:
    """A sequence that holds these tokens."""
    target = TARGETS[name]()
    if tokens:
        target.read(tokens)
    return target


def bits(target: Any, tokens: Sequence[int], parents: Sequence[int]) -> np.ndarray:
    rows = target.forward(tokens, parents)
    return np.array([rows[node] for node in range(len(tokens))])


def one_by_one(target: Any, path: Sequence[int]) -> np.ndarray:
    """Logits after the last token of `path`, each token committed in a forward of its own."""
    for token in path:
        (row,) = bits(target, [token], [-1])
        target.commit([0])
    return row


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """(tokens, parents), with one root as the engine asks, or with several."""
    size = draw(st.integers(1, 14))
    lowest = draw(st.sampled_from([-1, 0]))
    parents = [-1, *(draw(st.integers(lowest, node - 1)) for node in range(1, size))]
    tokens = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=size, max_size=size))
    return tokens, parents


STARTS = st.sampled_from([0, 1, 2, 120, 126, 127, 128, 129, 250, 255, 256])


@every_target
@FEW
@given(tree=trees(), start=STARTS)
def test_tree_has_the_bits_of_single_forwards(
    name: str, tree: tuple[list[int], list[int]], start: int
) -> None:
    target, (tokens, parents) = filled(name, random_tokens(start)), tree
    block = bits(target, tokens, parents)
    for leaf in set(range(len(tokens))) - set(parents):
        target.rollback(start)
        for node in path_to(leaf, parents):
            assert np.array_equal(one_by_one(target, [tokens[node]]), block[node])


@every_target
@FEW
@given(tree=trees(), start=STARTS, pick=st.integers(0, 13))
def test_after_a_branch_is_committed_nothing_tells_it_from_a_chain(
    name: str, tree: tuple[list[int], list[int]], start: int, pick: int
) -> None:
    tokens, parents = tree
    path = path_to(pick % len(tokens), parents)
    prompt, chosen = random_tokens(start), [tokens[node] for node in path]

    target = filled(name, prompt)
    target.forward(tokens, parents)
    target.commit(path)
    assert target.tokens == prompt + chosen
    after = [one_by_one(target, [token]) for token in (5, 6, 7)]
    target.rollback(start + len(path))
    block = bits(target, [5, 9, 6, 9, 7], [-1, 0, 0, 1, 2])

    target = filled(name, prompt)
    one_by_one(target, chosen)
    assert np.array_equal([one_by_one(target, [token]) for token in (5, 6, 7)], after)
    assert np.array_equal(block[[0, 2, 4]], after)


@every_target
@FEW
@given(cuts=st.sets(st.integers(1, 299), max_size=6))
def test_prompt_may_be_read_in_any_pieces(name: str, cuts: set[int]) -> None:
    prompt = random_tokens(300)
    whole = bits(filled(name, prompt), [7, 8, 9], [-1, 0, 0])
    target = filled(name)
    for begin, end in pairwise([0, *sorted(cuts), 300]):
        target.read(prompt[begin:end])
    assert np.array_equal(bits(target, [7, 8, 9], [-1, 0, 0]), whole)


@every_target
def test_prompt_may_be_read_token_by_token(name: str) -> None:
    prompt = random_tokens(140)
    whole = bits(filled(name, prompt), [7], [-1])
    target = filled(name)
    one_by_one(target, prompt)
    assert np.array_equal(bits(target, [7], [-1]), whole)


@every_target
def test_rows_tell_their_likeliest_tokens(name: str) -> None:
    rows = filled(name, random_tokens(20)).forward(random_tokens(5, seed=1), [-1, 0, 1, 1, 0])
    found, kept = rows.likeliest([0, 4, 2], 4), rows.kept()
    for node, best in zip((0, 4, 2), found, strict=True):
        order = np.argsort(-kept[node], kind="stable")
        assert best.tolist() == order[:4].tolist()
        assert rows.best(node) in (-1, best[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_second_turn_reuses_the_first_and_changes_nothing(backend: Backend, temperature: float) -> None:
    engine = tiny_engine(backend)
    wanted = GenerationSettings(temperature=temperature, max_new_tokens=30)
    prompt = random_tokens(100)
    drafter = Drafter()
    first = tokens_of(fresh_steps(engine, prompt, wanted, drafter))
    for second in (
        [*prompt, *first, *random_tokens(20, seed=1)],  # the conversation goes on
        [*prompt[:50], *random_tokens(20, seed=2)],  # the question was edited
        [*prompt, *first[:10]],  # all of it is held
        prompt,  # asked again
        [96 - prompt[0]],  # something else
    ):
        fresh = tokens_of(fresh_steps(engine, second, wanted))
        assert tokens_of(fresh_steps(engine, prompt, wanted, drafter)) == first
        steps = list(engine.generate(GenerationRequest(second, wanted, drafter)))
        held = [*prompt, *first][:-1]  # the last token has no keys yet
        common = next(
            (i for i, pair in enumerate(zip(held, second, strict=False)) if pair[0] != pair[1]), len(held)
        )
        assert steps[0].prompt_read == min(common, len(second) - 1)
        assert tokens_of(steps) == fresh


def test_slots_that_grow_keep_what_they_hold() -> None:
    target = tiny_target()
    small = TorchRunner(target.runner.model, quantum=target.runner.quantum, packed=False).open()
    small.slots.__init__(len(small.slots.layers), 1, CHUNK)  # type: ignore[misc]
    capacity = small.slots.capacity
    prompt = random_tokens(400)
    for begin in range(0, 400, 50):
        small.read(prompt[begin : begin + 50])
    assert small.slots.capacity > capacity
    target.read(prompt)
    assert np.array_equal(small.forward([1, 2], [-1, 0]), target.forward([1, 2], [-1, 0]))


def test_rollback_cannot_go_forward() -> None:
    target = tiny_target()
    with pytest.raises(ValueError, match="roll back"):
        target.rollback(1)
