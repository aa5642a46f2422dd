"""Draft heads: in step with the text, changing no word, and dropped when they compute no numbers."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_cost import DraftCost, FreeRows
from hierchat.drafting.draft_tree import DraftTree
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.proposer import PROMPT_STATES, JointDrafter, drafted
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.draft_head import DraftHead, Floats, HeadDrafter
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import Segment
from hierchat.models.formats.blocks import pack
from tests.engine.drafters import assert_changes_no_word
from tests.testing.tiny import CONTEXT, block_model, random_tokens, text_of, tiny_model, tokens_of

TARGET = block_model(tiny_model(), lambda floats: pack(floats, 8))
SIZE = TARGET.config["hidden_size"]


class RandomHead(DraftHead):
    """A layer of random weights over a token's embedding and the state before it."""

    def __init__(self, scale: float = 1.0) -> None:
        model = tiny_model(seed=7)
        model.model.layers = model.model.layers[:1]
        model.config.num_hidden_layers = 1
        model.model.norm.weight.mul_(scale)
        self._layer = block_model(model, lambda floats: pack(floats, 8))
        super().__init__(CpuRunner(self._layer, context_length=CONTEXT, sequences=4))

    def joined(self, tokens: Sequence[int], states: Floats) -> Floats:
        return self._layer.embedding.floats(np.asarray(tokens)) + states


def engine(places: int = 1) -> LocalEngine:
    return LocalEngine(
        CpuRunner(TARGET, context_length=CONTEXT, threads=2, sequences=places).open(), (), text_of, places
    )


def drafter(of: DraftHead, settings: GenerationSettings | None = None, width: int = 8) -> HeadDrafter:
    return HeadDrafter(of, DraftCost(FreeRows(width)), settings)


def test_states_of_a_prompt_are_those_of_its_rows_alone_and_beside_others() -> None:
    runner = CpuRunner(TARGET, context_length=CONTEXT, threads=2, sequences=2)
    one, other = runner.open(), runner.open()
    text = random_tokens(30)
    expected = one.forward(text, range(-1, 29)).hidden(range(30))
    one.rollback(0)
    states = one.read(text, hidden=True)
    assert states is not None
    np.testing.assert_array_equal(states, expected)
    assert one.read([1]) is None
    one.rollback(0)
    chunk = Segment(one, text, range(-1, 29), logits=False, hidden=True)
    without = Segment(other, [3, 4], [-1, 0], logits=False)
    rows = runner.forward([without, chunk])
    np.testing.assert_array_equal(rows[1].hidden(range(30)), expected)
    assert rows[0].hidden([0]) is None
    for width in (1, 2, 3, 7, 8, 9, 17):
        writing = Segment(other, random_tokens(width, 1), range(-1, width - 1))
        alone = np.array(runner.forward([writing])[0])
        for length in (1, 2, 6, 7, 8, 30):
            chunk = Segment(one, text[:length], range(-1, length - 1), logits=False, hidden=True)
            for order in ([chunk, writing], [writing, chunk]):
                rows = runner.forward(order)
                np.testing.assert_array_equal(
                    rows[order.index(chunk)].hidden(range(length)), expected[:length]
                )
                np.testing.assert_array_equal(np.array(rows[order.index(writing)]), alone)


def test_a_head_that_knows_nothing_changes_no_word() -> None:
    assert_changes_no_word(CpuRunner(TARGET, context_length=CONTEXT, threads=2), RandomHead())


def test_in_a_batch_no_word_changes_either(monkeypatch: pytest.MonkeyPatch) -> None:
    local, random, together = engine(3), RandomHead(), list[int]()
    forward = random.forward
    monkeypatch.setattr(random, "forward", lambda wanted: together.append(len(wanted)) or forward(wanted))
    prompts = [random_tokens(40 + 60 * number, number) for number in range(3)]

    def reply(number: int, drafts: bool) -> list[int]:
        settings = GenerationSettings(temperature=0.8 if number else 0.0, seed=number, max_new_tokens=50)
        first = Drafter(width=4, settings=settings)
        joint = JointDrafter(first, [HeadDrafter(random, first.cost, settings)], first.cost)
        return tokens_of(
            local.generate(GenerationRequest(prompts[number], settings, joint if drafts else None))
        )

    plain = [reply(number, False) for number in range(3)]
    local.clear()
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda number: reply(number, True), range(3))) == plain
    assert max(together) > 1  # one forward for several replies


@pytest.mark.parametrize("states", [(9, 13, 17), (70, 13, 70)], ids=["one forward", "more rows than one has"])
def test_replies_draft_together_what_each_drafts_alone(states: tuple[int, ...]) -> None:
    ours, rng = RandomHead(), np.random.default_rng(4)
    trees: list[list[DraftTree]] = []
    for together in (False, True):
        replies = [drafter(ours) for _ in states]
        for number, (one, seen) in enumerate(zip(replies, states, strict=True)):
            one.see(rng.normal(size=(seen, SIZE)).astype(np.float32), 0)
            one.begin(random_tokens(seen + 1, number))
        cost = DraftCost(FreeRows(8))
        trees.append(
            drafted([one.drafting(cost) for one in replies])
            if together
            else [one.propose() for one in replies]
        )
        rng = np.random.default_rng(4)
    for alone, beside in zip(*trees, strict=True):
        assert alone.tokens == beside.tokens
        assert alone.probabilities == beside.probabilities


def test_its_cache_follows_the_text() -> None:
    """Whatever was drafted and refused, it proposes what a new one would that reads the same states."""
    ours, rng = RandomHead(), np.random.default_rng(2)
    text, states = random_tokens(30), rng.normal(size=(200, SIZE)).astype(np.float32)
    followed = drafter(ours)
    followed.see(states[:29], 0)
    followed.begin(text)
    for taken in (1, 3, 2, 1, 4):
        tree = followed.propose()
        assert tree.tokens
        assert all(parent < node for node, parent in enumerate(tree.parents))
        new = random_tokens(taken, len(text))
        followed.see(states[len(text) - 1 : len(text) - 1 + taken], len(text) - 1)
        followed.observe(new)
        text += new
    fresh = drafter(ours)
    fresh.see(states[: len(text) - 1], 0)
    fresh.begin(text)
    one, other = followed.propose(), fresh.propose()
    assert one.tokens == other.tokens
    np.testing.assert_allclose(one.probabilities, other.probabilities, rtol=1e-3)


def test_it_learns_from_no_tree_that_it_was_not_asked_for() -> None:
    ours = RandomHead()
    one = drafter(ours)
    one.see(np.ones((9, SIZE), np.float32), 0)
    one.begin(random_tokens(10))
    likeliest = one.propose().tokens[0]
    one.observe([likeliest])
    learned = list(ours.right)
    assert learned[0] > 0.5
    one.observe([likeliest])
    assert ours.right == learned


def test_without_states_it_says_nothing_and_after_a_gap_it_begins_anew() -> None:
    ours, states = RandomHead(), np.ones((400, SIZE), np.float32)
    one = drafter(ours)
    one.begin(random_tokens(10))
    assert not one.propose()
    one.see(states[:1], 9)
    one.observe([4])
    assert one.propose()
    one.observe([5])  # of which no state was brought
    assert not one.propose()
    one.see(states[:300], 12)  # more than are kept
    one.observe(random_tokens(301))
    assert one.propose()
    assert len(one._sequence.tokens) <= PROMPT_STATES if one._sequence else False


def test_a_head_that_computes_no_numbers_drafts_no_more() -> None:
    with np.errstate(all="ignore"):
        local, broken = engine(), RandomHead(3e38)
    settings = GenerationSettings(max_new_tokens=20)
    prompt = random_tokens(20)
    plain = tokens_of(local.generate(GenerationRequest(prompt, settings)))
    with np.errstate(all="ignore"):
        steps = list(local.generate(GenerationRequest(prompt, settings, drafter(broken))))
    assert tokens_of(steps) == plain
    assert broken.broken
