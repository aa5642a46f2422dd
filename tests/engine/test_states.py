"""Layers that keep a running state: what is kept of it, and how it is computed. test_contract.py holds their
words and bits, tests/fuzz/sequence_machine.py those of texts that are taken back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from hierchat.config import GenerationSettings
from hierchat.engine.cpu.multiply import Multiplier
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.engine.torch import states
from hierchat.engine.torch.states import LayerState, Share, StateLayer, StateSlots, alone, scan
from hierchat.engine.torch.torch_runner import TorchRunner, TorchSequence
from tests.testing.families import tiny_family
from tests.testing.tiny import fresh_steps, random_tokens, text_of, tokens_of

LENGTH = 240


@cache
def runner_of(kind: str) -> TorchRunner:
    return TorchRunner(tiny_family(kind), context_length=LENGTH)


def opened(kind: str) -> TorchSequence:
    runner = runner_of(kind)
    if not runner.exact:
        pytest.skip("no row quantum makes this processor's products exact")
    return runner.open()


def read(kind: str, text: Sequence[int]) -> TorchSequence:
    sequence = opened(kind)
    sequence.read(text)
    return sequence


def settings(**kind: Any) -> GenerationSettings:
    return GenerationSettings(**{"max_new_tokens": 12, "seed": 1, **kind})


def test_a_chat_goes_on_and_a_reply_is_written_anew_without_reading_it_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = LocalEngine(opened("qwen3_5_text"), (), text_of)
    prompt = random_tokens(150, seed=5)
    first = tokens_of(fresh_steps(engine, prompt, settings()))
    longer = [*prompt, *first, *random_tokens(10, seed=6)]
    expected = tokens_of(fresh_steps(engine, longer, settings()))

    fresh_steps(engine, prompt, settings())
    computed: list[int] = []
    run = TorchRunner.run

    def counted(
        self: TorchRunner, slots: Any, tokens: Sequence[int], *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        computed.append(len(tokens))
        return run(self, slots, tokens, *args, **kwargs)

    monkeypatch.setattr(TorchRunner, "run", counted)
    assert tokens_of(engine.generate(GenerationRequest(prompt, settings()))) == first  # anew
    assert computed == [1] * len(first)
    computed.clear()
    assert tokens_of(engine.generate(GenerationRequest(longer, settings()))) == expected  # going on
    assert computed == [10, *[1] * len(expected)]
    computed.clear()
    assert tokens_of(
        engine.generate(GenerationRequest([*longer[:140], 3], settings()))
    )  # from within the prompt: from the last mark
    assert computed[0] == 140 - 128


def test_a_text_that_is_taken_back_within_its_last_steps_keeps_their_states() -> None:
    """As a draft model is, each time that the target chose otherwise."""
    sequence = read("lfm2", random_tokens(20, seed=9))
    slots = sequence.slots
    assert isinstance(slots, StateSlots)
    lengths = []
    for _ in range(3):
        for token in (1, 2, 3, 4):
            sequence.forward([token], [-1])
            sequence.commit([0])
        sequence.rollback(len(sequence.tokens) - 2)
        lengths.append(len(sequence.tokens) - slots.length)
    assert lengths == [2, 0, 0]  # what is to be read again


@pytest.mark.parametrize("kind", ["qwen3_5_text", "granitemoehybrid"])
def test_the_kernel_follows_the_rule_of_the_module(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which computes a state where there is no processor to compile for."""
    tree = [7, 8, 9, 10, 11], [-1, 0, 0, 2, -1]
    sequence = read(kind, random_tokens(30, seed=10))
    expected = np.array(sequence.forward(*tree))
    monkeypatch.setattr(states, "PROCESSOR", "none")
    found = np.array(read(kind, random_tokens(30, seed=10)).forward(*tree))
    assert np.abs(found - expected).max() < 1e-3 * expected.std()
    assert not np.array_equal(found, expected)  # otherwise one was compared with itself


@pytest.mark.parametrize("corrects", [True, False], ids=["Gated DeltaNet", "Mamba 2"])
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_branches_leave_a_state_its_bits(threads: int, corrects: bool) -> None:
    groups, heads, size, width = 3, 6, 18, 20
    parents = [-1, 0, 1, 0, 3, -1, 5]
    random = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(2, len(parents), groups, size, generator=random)
    values = torch.randn(len(parents), heads, width, generator=random)
    fades, rates = torch.rand(2, len(parents), heads, generator=random)
    running = torch.randn(1, heads, size, width, generator=random)
    given = queries, keys, values, fades, rates

    def over(nodes: list[int], follows: list[int], share: Share, before: StateLayer | None) -> Any:
        slots = StateSlots([True], 128, 128, share)
        slots.begin(follows, follows, reading=False)
        (layer,) = slots.layers
        assert isinstance(layer, StateLayer)
        layer.state = before.state if before else LayerState(running=running)
        return layer, scan(layer, *(tensor[nodes] for tensor in given), corrects=corrects)

    share = Multiplier(threads).share
    for path in ([0, 1, 2], [0, 3, 4], [5, 6], [0]):
        tree, together = over(list(range(len(parents))), parents, share, None)
        tree.commit(path[-1])
        one = None
        for node in path:
            one, out = over([node], [-1], alone, one)
            one.commit(0)
            assert torch.equal(together[node], out[0])
        assert torch.equal(tree.state.running, one.state.running)
    assert not torch.equal(tree.state.running, running)
