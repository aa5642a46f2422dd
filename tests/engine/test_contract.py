"""The contract of runners and sequences (engine/runner.py), held by every one: the same words with drafting on or off,
token for token, and the bits behind it."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_cost import DraftCost, FreeRows, LatencyCurve
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.proposer import JointDrafter, Proposer
from hierchat.drafting.source import Source
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.cuda.cuda_runner import REGIMES
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.engine.torch.plain import PlainRunner
from hierchat.models.formats.blocks import pack
from tests.engine.drafters import Adversary, Buried, Noise, Oracle
from tests.engine.test_cuda_runner import runner_of
from tests.engine.test_cuda_runner import target_of as cuda_target
from tests.testing import tiny
from tests.testing.architectures import CONFIGS, FAMILIES, model_of
from tests.testing.tiny import VOCABULARY, bits, fresh_steps, path_to, random_tokens, text_of, tokens_of

LENGTH = 240
STATES = ("lfm2", "qwen3_5_text", "granitemoehybrid")
"""A convolution alone, Gated DeltaNet, and Mamba 2."""
KERNELS = ("gemma3", "gemma3, a wide window", "qwen3 moe", "gpt-oss", *FAMILIES)
"""Windows within a chunk and over several; experts, with biases and sinks; whatever else a family needs."""


@cache
def _on_blocks(name: str) -> Any:
    model = tiny.block_model(model_of(CONFIGS[name]), lambda floats: pack(floats, 4))
    return CpuRunner(model, context_length=tiny.CONTEXT, threads=2).open()


@cache
def _over_graphs(kind: str) -> Any:
    return runner_of(REGIMES[0], kind, 1, LENGTH).open()


TARGETS: dict[str, Callable[[], Any]] = {
    **{backend: partial(tiny.tiny_target, backend) for backend in tiny.BACKENDS},
    **{f"cuda {regime}": partial(cuda_target, regime) for regime in REGIMES},
    "plain": lambda: PlainRunner(tiny.tiny_model(), context_length=tiny.CONTEXT).open(),
}
MODELS: dict[str, Callable[[], Any]] = {
    **{f"kernels, {name}": partial(_on_blocks, name) for name in KERNELS},
    **{f"cuda, {kind}": partial(_over_graphs, kind) for kind in STATES},
}
ELSEWHERE = {name: made for name, made in MODELS.items() if name.removeprefix("kernels, ") not in FAMILIES}
"""Models whose bits are compared at other places, too, than those of the self-test, which each passes first."""
EVERY = TARGETS | MODELS
DRAFTERS: dict[str, Callable[[Sequence[int]], Proposer]] = {
    "context": lambda reply: Drafter(),
    "context+history": lambda reply: Drafter([Source.of([reply[:20], reply[10:]])]),
    "noise": Noise,
    "oracle": partial(Oracle, nodes=7),
    "by cost": lambda reply: Drafter([Source.of([reply])], latency=LatencyCurve()),
    "adversary": Adversary,
    "buried": Buried,
    "joint": lambda reply: JointDrafter(
        Drafter(), [Oracle(reply), Noise(nodes=12), Adversary(reply)], DraftCost(FreeRows(24))
    ),
}
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.3}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy, penalties": PENALTIES,
    "warm": {"temperature": 0.8},
    "hot": {"temperature": 3.0},
    "top-k": {"temperature": 0.8, "top_k": 5},
    "top-p": {"temperature": 2.0, "top_p": 0.7},
    "min-p": {"temperature": 2.0, "min_p": 0.1},
    "penalties": {"temperature": 0.8, **PENALTIES},
    "all": {
        "temperature": 1.5,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.02,
        "logit_bias": {3: 2.0, 5: -4.0},
        **PENALTIES,
    },
}
FEW = settings(deadline=None, max_examples=4, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


def filled(name: str, tokens: Sequence[int] = ()) -> Any:
    """A sequence that holds these tokens."""
    target = EVERY[name]()
    if not target.runner.exact:
        assert not name.startswith("kernels")
        pytest.skip("no row quantum makes this processor's products exact")
    target.rollback(0)
    if tokens:
        target.read(tokens)
    return target


def assert_same_words(name: str, kind: str, length: int, drafters: Iterable[str]) -> None:
    engine = LocalEngine(filled(name), (), text_of)
    wanted = GenerationSettings(max_new_tokens=16, seed=length + len(kind), **SETTINGS[kind])
    prompt = random_tokens(length, len(kind), vocabulary=12)
    plain = tokens_of(fresh_steps(engine, prompt, wanted))
    assert len(plain) == wanted.max_new_tokens
    for drafter in drafters:
        steps = fresh_steps(engine, prompt, wanted, DRAFTERS[drafter](plain))
        assert tokens_of(steps) == plain, drafter
        brought = {len(step.tokens) for step in steps if step.tokens}
        assert drafter != "oracle" or brought == ({8} if engine.runner.drafts else {1})
        assert drafter != "adversary" or brought == {1}


@pytest.mark.parametrize("kind", SETTINGS)
def test_drafts_change_no_word(kind: str) -> None:
    """From the first token on, and across the border of a chunk of attention."""
    for length in (1, 117):
        assert_same_words("llama-blocks", kind, length, DRAFTERS)


@pytest.mark.parametrize("name", EVERY)
def test_drafts_change_no_word_of_any_model(name: str) -> None:
    """What is right is accepted, eight tokens a forward; what is wrong wins nothing."""
    for kind in ("greedy", "all") if name in TARGETS else ("all",):
        assert_same_words(name, kind, 117, ("noise", "oracle", "adversary", "buried"))


# Bits


def one_by_one(target: Any, path: Sequence[int]) -> np.ndarray:
    """Logits after the last token of `path`, each token committed in a forward of its own."""
    for token in path:
        (row,) = bits(target, [token], [-1])
        target.commit([0])
    return row


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """(tokens, parents), with one root as the engine asks, or with several."""
    size, lowest = draw(st.integers(1, 14)), draw(st.sampled_from([-1, 0]))
    parents = [-1, *(draw(st.integers(lowest, node - 1)) for node in range(1, size))]
    return draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=size, max_size=size)), parents


STARTS = st.sampled_from([0, 1, 2, 120, 126, 127, 128, 129, 250, 255, 256])
BRANCHES = random_tokens(9, 1), [-1, 0, 0, 1, -1, 4, 2, 6, 3]


def assert_tree_is_its_paths(name: str, tree: tuple[list[int], list[int]], start: int, pick: int) -> None:
    """A node has the bits of single forwards; after a branch is committed nothing tells it from a chain."""
    tokens, parents = tree
    prompt = random_tokens(start)
    target = filled(name, prompt)
    block = bits(target, tokens, parents)
    path = path_to(pick % len(tokens), parents)
    chosen = [tokens[node] for node in path]
    target.commit(path)
    assert target.tokens == prompt + chosen
    after = bits(target, [5, 9, 6, 9, 7], [-1, 0, 0, 1, 2])

    for leaf in {path[-1], *(set(range(len(tokens))) - set(parents))}:
        target = filled(name, prompt)
        for node in path_to(leaf, parents):
            assert np.array_equal(one_by_one(target, [tokens[node]]), block[node])
        if leaf == path[-1]:
            for token, node in ((5, 0), (6, 2), (7, 4)):
                assert np.array_equal(one_by_one(target, [token]), after[node])


@pytest.mark.parametrize("name", TARGETS)
@FEW
@given(tree=trees(), start=STARTS, pick=st.integers(0, 13))
@example(tree=BRANCHES, start=127, pick=7)
def test_a_tree_has_the_bits_of_its_paths(
    name: str, tree: tuple[list[int], list[int]], start: int, pick: int
) -> None:
    assert_tree_is_its_paths(name, tree, start, pick)


def assert_read_in_pieces(name: str, length: int, cuts: set[int]) -> None:
    prompt = random_tokens(length)
    whole = bits(filled(name, prompt), [7, 8, 9], [-1, 0, 0])
    target = filled(name)
    for begin, end in pairwise([0, *sorted(cuts), length]):
        target.read(prompt[begin:end])
    assert np.array_equal(bits(target, [7, 8, 9], [-1, 0, 0]), whole)


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "plain"])
@FEW
@given(cuts=st.sets(st.integers(1, 299), max_size=6))
def test_a_prompt_may_be_read_in_any_pieces(name: str, cuts: set[int]) -> None:
    assert_read_in_pieces(name, 300, cuts)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_bits_of_any_model_are_those_of_its_text(name: str) -> None:
    for start, pick in ((0, 8), (127, 7)):
        assert_tree_is_its_paths(name, BRANCHES, start, pick)
    assert_read_in_pieces(name, 200, {1, 2, 60, 128, 131})


@pytest.mark.parametrize("name", TARGETS | ELSEWHERE)
def test_rows_tell_their_likeliest_tokens_and_a_text_goes_back(name: str) -> None:
    text = random_tokens(60)
    target = filled(name, text[:20])
    rows = target.forward(random_tokens(5, seed=1), [-1, 0, 1, 1, 0])
    found, kept = rows.likeliest([0, 4, 2], 4), [np.array(rows[node]) for node in range(5)]
    for node, best in zip((0, 4, 2), found, strict=True):
        assert best.tolist() == np.argsort(-kept[node], kind="stable")[:4].tolist()
        assert rows.best(node) in (-1, best[0])
    expected = bits(target, [5], [-1])
    target.read(text[20:])
    target.rollback(20)
    assert target.tokens == text[:20]
    assert np.array_equal(bits(target, [5], [-1]), expected)


@pytest.mark.parametrize("name", ["llama-packed", "qwen3-blocks", "cuda (16, 16)", "cuda, lfm2"])
def test_the_second_turn_reuses_the_first_and_changes_nothing(name: str) -> None:
    engine = LocalEngine(filled(name), (), text_of)
    wanted = GenerationSettings(temperature=0.8, max_new_tokens=14)
    prompt, drafter = random_tokens(100), Drafter()
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
        same = [one == other for one, other in zip(held, second, strict=False)]
        common = same.index(False) if False in same else len(same)
        assert steps[0].prompt_read == min(common, len(second) - 1)
        assert tokens_of(steps) == fresh
