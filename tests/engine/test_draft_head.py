"""Draft heads: computed as trained, in step with the text, changing no word, and are refused when broken."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_tree import DraftCost, DraftTree, FreeRows
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.proposer import PROMPT_STATES, JointDrafter, drafted
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.draft_head import SOURCE, HeadDrafter, TrainedHead
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import Segment
from hierchat.models.formats import head_files
from hierchat.models.formats.blocks import pack
from hierchat.models.formats.head_files import KNOWN, HeadCard, read_head, to_bytes
from hierchat.models.progress import BrokenFileError
from hierchat.runtime.head_training import HeadModule
from tests.testing.tiny import CONTEXT, block_model, random_tokens, text_of, tiny_model, tokens_of

TARGET = block_model(tiny_model(), lambda floats: pack(floats, 8))
SIZE = TARGET.config["hidden_size"]
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": SIZE,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}
KNOWN_TOKENS = np.array([token for token in range(TARGET.head.rows) if token % 7])
"""The head knows six tokens of seven."""


def module(seed: int = 0) -> HeadModule:
    torch.manual_seed(seed)
    made = HeadModule(CONFIG, len(KNOWN_TOKENS))
    made.out.copy_(torch.from_numpy(TARGET.head.floats(KNOWN_TOKENS)))
    return made


def tensors(made: HeadModule) -> dict[str, NDArray[Any]]:
    named = {HeadModule.NAMES[name]: one.detach().numpy() for name, one in made.named_parameters()}
    return {**named, KNOWN: KNOWN_TOKENS}


def file(made: HeadModule, **changed: Any) -> bytes:
    return to_bytes(HeadCard(target="tiny"), CONFIG, {**tensors(made), **changed})


def head(seed: int = 0, sequences: int = 4) -> TrainedHead:
    return TrainedHead(read_head(file(module(seed)), TARGET), CONTEXT, sequences)


def engine(places: int = 1) -> LocalEngine:
    return LocalEngine(
        CpuRunner(TARGET, context_length=CONTEXT, threads=2, sequences=places).open(), (), text_of, places
    )


def drafter(of: TrainedHead, settings: GenerationSettings | None = None, width: int = 8) -> HeadDrafter:
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


def test_it_computes_what_its_training_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells hold a token and the state before it; a chain goes on from the head's own normed states."""
    monkeypatch.setattr(head_files, "BITS", 8)
    made, text = module(), random_tokens(12)
    states = np.random.default_rng(1).normal(size=(12, SIZE)).astype(np.float32)
    embedded = torch.from_numpy(TARGET.embedding.floats(np.array(text)))[None]
    before = torch.from_numpy(np.concatenate([np.zeros((1, SIZE), np.float32), states[:-1]]))[None]
    with torch.no_grad():
        places = list(made(embedded, before, 3))
    ours = TrainedHead(read_head(file(made), TARGET), CONTEXT)
    sequence = ours.open()

    def step(token: int, state: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        rows = ours.runner.forward(
            [Segment(sequence, [token], [-1], embeddings=ours.joined([token], state[None]))]
        )[0]
        hidden = rows.hidden([0])
        assert hidden is not None
        found = rows[0].copy()
        sequence.commit([0])
        return found, hidden[0]

    for end in (5, 9):  # the text up to `end` by the target's states, then two places ahead by its own
        sequence.rollback(0)
        for at in range(end):
            logits, own = step(text[at], before[0, at].numpy())
        for place in range(3):
            expected = places[place][1][0, end - 1].numpy()
            assert np.corrcoef(logits, expected)[0, 1] > 0.999
            assert np.abs(logits - expected).max() < 0.05 * np.abs(expected).max()
            logits, own = step(text[end + place], own)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_head_that_knows_nothing_changes_no_word(temperature: float) -> None:
    local, random, mem = engine(), head(), []
    for seed in range(3):
        settings = GenerationSettings(
            temperature=temperature, seed=seed, max_new_tokens=60, repetition_penalty=1.0 + 0.1 * seed
        )
        prompt = random_tokens(20 + 90 * seed, seed)
        plain = tokens_of(local.generate(GenerationRequest(prompt, settings)))
        first = Drafter(width=8, settings=settings)
        joint = JointDrafter(first, [HeadDrafter(random, first.cost, settings)], first.cost)
        local.clear()
        steps = list(local.generate(GenerationRequest(prompt, settings, joint)))
        assert tokens_of(steps) == plain
        mem += [step.proposed.get(SOURCE, 0) for step in steps]
    assert sum(mem) > 100  # it was asked, and proposed


def test_in_a_batch_no_word_changes_either(monkeypatch: pytest.MonkeyPatch) -> None:
    local, random, together = engine(3), head(), list[int]()
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


def test_replies_draft_together_what_each_drafts_alone() -> None:
    ours, rng = head(), np.random.default_rng(4)
    trees: list[list[DraftTree]] = []
    for together in (False, True):
        replies = [drafter(ours) for _ in range(3)]
        for number, one in enumerate(replies):
            one.see(rng.normal(size=(9 + 4 * number, SIZE)).astype(np.float32), 0)
            one.begin(random_tokens(10 + 4 * number, number))
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
    ours, rng = head(), np.random.default_rng(2)
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
    ours = head()
    one = drafter(ours)
    one.see(np.ones((9, SIZE), np.float32), 0)
    one.begin(random_tokens(10))
    likeliest = one.propose().tokens[0]
    one.observe([likeliest])
    learned = list(ours.right)
    assert learned[0] > 0.5
    one.observe([likeliest])
    assert ours.right == learned


def test_a_small_file_is_the_same_head() -> None:
    small = to_bytes(HeadCard(target="tiny"), CONFIG, tensors(module()), small=True)
    assert len(small) < len(file(module())) / 2
    logits = []
    for data in (file(module()), small):
        ours = TrainedHead(read_head(data, TARGET), CONTEXT)
        inputs = ours.joined([5], np.ones((1, SIZE), np.float32))
        logits.append(ours.runner.forward([Segment(ours.open(), [5], [-1], embeddings=inputs)])[0][0].copy())
    assert np.corrcoef(logits)[0, 1] > 0.999


def test_without_states_it_says_nothing_and_after_a_gap_it_begins_anew() -> None:
    ours, states = head(), np.ones((400, SIZE), np.float32)
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


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"fc.weight": np.ones((SIZE, SIZE), np.float32)}, "fc.weight has the shape"),
        ({"enorm.weight": np.full(SIZE, np.nan, np.float32)}, "holds what is no number"),
        ({KNOWN: np.arange(len(KNOWN_TOKENS)) + 90}, "names tokens that the model's"),
        ({KNOWN: np.zeros(0, np.int64)}, "names tokens"),
        ({"model.layers.0.self_attn.q_proj.weight": np.ones((3, 3), np.float32)}, "does not fit its"),
    ],
)
def test_a_damaged_head_is_refused_in_a_sentence(changed: dict[str, NDArray[Any]], why: str) -> None:
    with pytest.raises(BrokenFileError, match=why):
        read_head(file(module(), **changed), TARGET)


def test_a_head_of_another_model_or_a_file_that_is_none_is_refused() -> None:
    wrong = {**CONFIG, "hidden_size": 32}
    with pytest.raises(BrokenFileError, match="of a model of 32"):
        read_head(to_bytes(HeadCard(target="x"), wrong, tensors(module())), TARGET)
    whole = file(module())
    lacking = {name: one for name, one in tensors(module()).items() if name != "hnorm.weight"}
    with pytest.raises(BrokenFileError, match=r"lacks hnorm\.weight"):
        read_head(to_bytes(HeadCard(target="x"), CONFIG, lacking), TARGET)
    for data in (b"", b"\0" * 64, whole[:200], whole[: len(whole) // 2], json.dumps({}).encode()):
        with pytest.raises(BrokenFileError, match="Train it again"):
            read_head(data, TARGET)


def test_a_head_that_computes_no_numbers_drafts_no_more() -> None:
    made = module()
    with torch.no_grad():
        made.norm.mul_(3e38)  # finite in the file
    local, broken = engine(), TrainedHead(read_head(file(made), TARGET), CONTEXT)
    settings = GenerationSettings(max_new_tokens=20)
    prompt = random_tokens(20)
    plain = tokens_of(local.generate(GenerationRequest(prompt, settings)))
    with np.errstate(all="ignore"):
        steps = list(local.generate(GenerationRequest(prompt, settings, drafter(broken))))
    assert tokens_of(steps) == plain
    assert broken.broken
