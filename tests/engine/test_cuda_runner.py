"""The CUDA target without a GPU: pages of several texts, blocks, views and parts; plain attention, pretended graphs."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import get_args

import numpy as np
import pytest
import torch

from benchmarks import plain_kernels
from hierchat.config import GenerationSettings
from hierchat.engine import pages
from hierchat.engine.cuda.cuda_runner import (
    FIRST_VIEW,
    PROMPT,
    REGIMES,
    CudaRunner,
    CudaSequence,
    Out,
)
from hierchat.engine.cuda.graphs import Graph, Graphs
from hierchat.engine.cuda.row_attention import DEPTH, PAGE, slot_shapes
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import Segment, TooManySequences
from hierchat.engine.torch.states import state_bytes
from hierchat.engine.torch.torch_runner import TorchRunner
from tests.engine.drafters import Buried, Noise
from tests.gguf_files.models import FAMILIES, tiny_module
from tests.testing.architectures import CONFIGS, model_of
from tests.testing.families import tiny_family
from tests.testing.tiny import (
    VOCABULARY,
    Kind,
    bits,
    fresh_steps,
    random_tokens,
    text_of,
    tiny_model,
    tokens_of,
)

assert plain_kernels  # by which the processor computes
LENGTH = 1200
"""Beyond two borders of views."""


def pretended(body: Callable[[], Out]) -> Graph[Out]:
    """A graph as on a device: its results lie where they lay at first, and only tensors tell replays apart."""
    out = body()

    def replay() -> None:
        again = body()
        if out is not None and again is not None:
            for old, new in zip(out, again, strict=True):
                old.copy_(new)

    return Graph(torch.inference_mode()(replay), out, 1)


def runner_of(
    regime: tuple[int, int], kind: str = "llama", sequences: int = 4, length: int = LENGTH
) -> CudaRunner:
    """Over a model of one of tiny's kinds, or of a family."""
    graphs = Graphs[Out](capture=pretended)
    model = tiny_model(kind) if kind in get_args(Kind) else tiny_family(kind)
    return CudaRunner(model, context_length=length, regime=regime, graphs=graphs, sequences=sequences)


@cache
def shared(regime: tuple[int, int], kind: Kind = "llama") -> CudaSequence:
    """Between the pages of other texts."""
    target, other = (runner := runner_of(regime, kind, 2)).open(), runner.open()
    for _ in range(3):
        target.read(random_tokens(PAGE))
        other.read(random_tokens(PAGE + 9, seed=1))
    return target


def target_of(regime: tuple[int, int], kind: Kind = "llama") -> CudaSequence:
    target = shared(regime, kind)
    target.rollback(0)
    return target


@pytest.mark.parametrize(
    ("kind", "regime"), [("qwen3", REGIMES[0]), *(("llama", regime) for regime in REGIMES)]
)
def test_logits_and_hidden_states_agree_with_those_of_dynamic_shapes(
    kind: Kind, regime: tuple[int, int]
) -> None:
    dynamic = TorchRunner(tiny_model(kind), packed=False, quantum=4, context_length=LENGTH).open()
    static = target_of(regime, kind)
    prompt, tree = random_tokens(FIRST_VIEW - 20), [-1, 0, 1, 0, 3, 1, 5]
    for _ in range(3):
        behind, states = (target.read(prompt, hidden=True) for target in (dynamic, static))
        assert behind is not None
        assert states is not None
        np.testing.assert_allclose(states, behind, atol=2e-4)
        tokens = random_tokens(len(tree), seed=len(dynamic.tokens))
        right, rows = (target.forward(tokens, tree) for target in (dynamic, static))
        best = [rows.best(node) for node in range(len(tree))]
        expected, found = (np.array([one[node] for node in range(len(tree))]) for one in (right, rows))
        np.testing.assert_allclose(found, expected, atol=2e-4)
        assert best == expected.argmax(axis=1).tolist()
        np.testing.assert_allclose(rows.hidden([0, 2, 4]), right.hidden([0, 2, 4]), atol=2e-4)
        for target in (dynamic, static):
            target.commit([0, 1, 5, 6])  # moves slots
        assert static.tokens == dynamic.tokens
        prompt = random_tokens(30, seed=5)


@pytest.mark.parametrize("name", ["gemma4", "gemma4, large", "gemma3n"])
def test_layers_may_differ_in_heads_and_share_keys(name: str) -> None:
    """Logits of a tree, and behind a branch of it whose slots have moved, are transformers' own; bits those of plain
    decoding, by the self-test."""
    model, same = (
        tiny_module(name) if name in FAMILIES else model_of(CONFIGS[name], vocab_size=VOCABULARY)
        for _ in "ab"
    )
    shapes = slot_shapes(model)
    assert None in shapes or len(set(shapes)) > 1
    runner = CudaRunner(model, context_length=200, graphs=Graphs(capture=pretended))
    assert runner.exact
    sequence, text = runner.open(), random_tokens(70)
    sequence.read(text)
    for path, more in (([0, 2], [5, 6, 7]), ([0], [8])):
        rows = sequence.forward(more, [-1, 0, 0][: len(more)])
        sequence.commit(path)
        with torch.inference_mode():
            expected = same(torch.tensor([sequence.tokens])).logits[0, -1].numpy()
        np.testing.assert_allclose(rows[path[-1]], expected, atol=1e-4 * float(np.abs(expected).max()))


def test_a_prompt_is_read_in_wide_forwards() -> None:
    target = CudaRunner(tiny_model(), context_length=LENGTH, graphs=Graphs(capture=pretended)).open()
    assert (target.runner.exact, target.runner.chunk) == (True, PROMPT)
    prompt = random_tokens(700, seed=3)
    engine = LocalEngine(target, (), text_of)
    request = GenerationRequest(prompt, GenerationSettings(max_new_tokens=1), None)
    read = [step.width for step in engine.generate(request) if not step.tokens and step.width]
    assert read == [PROMPT, 699 - PROMPT]


def test_graphs_are_few() -> None:
    """One per number of rows and view, whatever is in the block."""
    graphs = Graphs[Out](capture=pretended)
    target = CudaRunner(tiny_model(), context_length=LENGTH, regime=(16, 16), graphs=graphs).open()
    assert [target.forward([1], [-1]).recorded for _ in range(2)] == [True, False]
    engine = LocalEngine(target, (), text_of)
    for length in (20, 600):
        fresh_steps(engine, random_tokens(length), GenerationSettings(max_new_tokens=20), Noise())
    views = (FIRST_VIEW, 2 * FIRST_VIEW)
    assert set(graphs.held) == {(16, view, logits) for view in views for logits in (True, False)}


def test_rows_that_depend_on_their_number_need_one_width() -> None:
    """As cuBLAS is: another kernel for another number of rows, and the same for the same."""
    model = tiny_model()
    model.model.norm.register_forward_hook(lambda _, inputs, out: out * (1 + 1e-3 * inputs[0].shape[1]))
    target = CudaRunner(model, context_length=LENGTH, sequences=2).open()
    assert target.runner.exact
    assert target.runner.shares_forward
    assert (target.runner.quantum, target.runner.widest) == REGIMES[2]
    engine = LocalEngine(target, (), text_of)
    wanted = GenerationSettings(max_new_tokens=16)
    vanilla = tokens_of(fresh_steps(engine, [1, 2, 3], wanted))
    assert tokens_of(fresh_steps(engine, [1, 2, 3], wanted, Buried(vanilla))) == vanilla


def test_rows_that_depend_on_each_other_are_never_exact() -> None:
    model = tiny_model()
    model.model.norm.register_forward_hook(lambda _, inputs, out: out + 1e-3 * out.mean())
    target = CudaRunner(model, context_length=LENGTH, sequences=2).open()
    assert not target.runner.exact
    assert not target.runner.shares_forward
    assert len(bits(target, [1, 2], [-1, 0])) == 2


def test_slots_hold_the_whole_context_and_end_where_they_end() -> None:
    target = CudaRunner(tiny_model(), context_length=64).open()  # the self-test needs more than that
    assert target.runner.exact
    request = GenerationRequest([1, 2, 3], GenerationSettings(), Noise())
    steps = list(LocalEngine(target, (), text_of).generate(request))
    assert steps[-1].finish == "context"
    assert len(tokens_of(steps)) == 61
    count = PROMPT + PAGE
    with pytest.raises(ValueError, match=f"Behind 63 positions there is no room for {count} more"):
        target.forward([1] * count, range(-1, count - 1))


def chain(count: int) -> range:
    return range(-1, count - 1)


BAD = {
    f"at most {DEPTH}": ([1] * (DEPTH + 1), [-1] * (DEPTH + 1)),
    "no room for 0 more": ([], []),
    "none of the model's 97": ([5, VOCABULARY], [-1, 0]),
    "none of the model's": ([-1], [-1]),
}


@pytest.mark.parametrize("why", BAD)
def test_what_cannot_be_computed_is_refused_and_the_texts_stay(why: str) -> None:
    target, tokens = target_of(REGIMES[2]), random_tokens(70)
    target.read(tokens)
    before = bits(target, [3, 4], [-1, 0])
    with pytest.raises(ValueError, match=why):
        target.runner.forward([Segment(target, [1], [-1]), Segment(target, *BAD[why])])
    assert target.tokens == tokens
    assert np.array_equal(bits(target, [3, 4], [-1, 0]), before)


@pytest.mark.parametrize("regime", REGIMES)
def test_texts_share_a_forward_and_each_has_the_bits_that_it_has_alone(regime: tuple[int, int]) -> None:
    """Trees and a chain, a piece of a prompt whose states are wanted, and one of which nothing is; one copy for all."""
    runner = runner_of(regime)
    texts = [runner.open() for _ in range(4)]
    for number, length in enumerate((FIRST_VIEW + 30, 0, 70, PAGE - 3)):
        texts[number].read(random_tokens(length, number))
    parents = [[-1, 0, 1, 0, 3, 1, 5], [-1, -1, 0, 2], chain(20), chain(DEPTH + 30)]
    shapes = [(True, False), (True, False), (False, True), (False, False)]
    segments = [
        Segment(text, random_tokens(len(links), 9 + number), links, *wanted)
        for number, (text, links, wanted) in enumerate(zip(texts, parents, shapes, strict=True))
    ]
    alone = []
    for one in segments[:3]:
        rows, nodes = one.sequence.forward(one.tokens, one.parents), range(len(one.tokens))
        logits = np.array([rows[node] for node in nodes])
        alone.append((logits, rows.likeliest(nodes, 3), rows.hidden(nodes)))
    fetched: list[int] = []
    fetch = runner.fetch_rows
    runner.fetch_rows = lambda numbers: fetched.append(numbers.numel()) or fetch(numbers)  # type: ignore[method-assign]
    for _ in range(2):  # the second knows of what it will be asked
        fetched.clear()
        found = runner.forward(segments[::-1])[::-1]
        for rows, (logits, likeliest, hidden) in zip(found[:2], alone, strict=False):
            nodes = range(len(rows))
            rows.wait(best=True)
            assert [rows.best(node) for node in nodes] == logits.argmax(axis=1).tolist()
            assert np.array_equal(rows.likeliest(nodes, 3), likeliest)
            assert np.array_equal([rows[node] for node in nodes], logits)
            assert np.array_equal(rows.hidden(nodes), hidden)
        assert np.array_equal(found[2].hidden(range(20)), alone[2][2])
        assert found[3].hidden(range(9)) is None
    assert fetched == [(7 + 4) * (1 + 3 + VOCABULARY) + (7 + 4 + 20) * runner.model.config.hidden_size]
    texts[0].commit([0, 1, 5, 6])  # moves slots
    texts[3].commit(chain(len(segments[3].tokens) + 1)[1:])
    for text in (texts[0], texts[3]):
        fresh = runner_of(regime, sequences=1).open()
        fresh.read(text.tokens)
        assert np.array_equal(bits(text, [3, 4, 5], [-1, 0, 0]), bits(fresh, [3, 4, 5], [-1, 0, 0]))


def test_states_go_back_to_a_mark_and_what_lies_between_is_read_again() -> None:
    """Edited before the last piece of a prompt, within it, and in the middle of a reply."""
    runner, text = runner_of((16, 32), "qwen3_5_text", 2, 240), random_tokens(100)
    changed, other = runner.open(), runner.open()
    other.read(text[3:50])
    changed.read(text[:90])
    changed.forward(text[90:], chain(10))
    changed.commit(range(5))
    for length in (94, 91, 52):
        changed.rollback(length)
        fresh = runner_of((16, 32), "qwen3_5_text", 1, 240).open()
        fresh.read(text[:length])
        assert np.array_equal(bits(changed, [3, 4, 5], [-1, 0, 0]), bits(fresh, [3, 4, 5], [-1, 0, 0]))
        assert changed.tokens == text[:length]
    with pytest.raises(ValueError, match="take 96"):
        changed.forward([1] * 97, chain(97))
    assert not other.adopt(changed, [])
    states = runner.states
    assert states
    of_trees = [one[: states.pool] for one in (states.given, *states.steps)]
    held = (states.running, states.inputs, *states.after, *of_trees)
    assert 0.8 < state_bytes(runner.model) * 2 / sum(one.nbytes for one in held) < 1.5
    changed.rollback(0)
    changed.wipe()
    assert not states.running[:, changed.number].any()
    assert states.running[:, other.number].any()
    assert not states.steps.keys.any()


def test_a_chat_goes_on_and_a_reply_is_written_anew_without_reading_it_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sequence = runner_of(REGIMES[1], "qwen3_5_text", 1, 240).open()
    engine, settings = LocalEngine(sequence, (), text_of), GenerationSettings(max_new_tokens=12, seed=1)
    prompt = random_tokens(150, seed=5)
    first = tokens_of(fresh_steps(engine, prompt, settings))
    longer = [*prompt, *first, *random_tokens(10, seed=6)]
    expected = tokens_of(fresh_steps(engine, longer, settings))

    fresh_steps(engine, prompt, settings)
    computed: list[int] = []
    run = CudaRunner.run

    def counted(self: CudaRunner, segments: Sequence[Segment], **how: bool) -> Out:
        computed.append(sum(len(one.tokens) for one in segments))
        return run(self, segments, **how)

    monkeypatch.setattr(CudaRunner, "run", counted)
    assert tokens_of(engine.generate(GenerationRequest(prompt, settings))) == first  # anew
    assert computed == [1] * len(first)
    computed.clear()
    assert tokens_of(engine.generate(GenerationRequest(longer, settings))) == expected  # going on
    assert computed == [10, *[1] * len(expected)]
    computed.clear()
    # From within the prompt: from the last mark
    assert tokens_of(engine.generate(GenerationRequest([*longer[:140], 3], settings)))
    assert computed[:2] == [1, 140 - 128]


def written(runner: CudaRunner) -> int:
    """Slots that hold keys or values of a text."""
    (held,) = runner.slots.held.values()
    return int(held[..., PAGE:, :].abs().sum(dim=(0, 1, 2, 3, 5)).count_nonzero())


def test_pages_are_taken_as_texts_grow_given_back_and_overwritten() -> None:
    runner = runner_of(REGIMES[0], length=300)
    free, one, other = runner.pages.free, runner.open(), runner.open()
    one.read(random_tokens(2 * PAGE + 1, 1))
    other.read(random_tokens(30, 2))
    assert runner.pages.free == free - 4
    one.forward(random_tokens(PAGE, 3), chain(PAGE))  # rejected
    assert runner.pages.free == free - 5
    one.rollback(PAGE - 1)
    assert runner.pages.free == free - 2
    assert written(runner) == 3 * PAGE + 1 + 30
    one.wipe()
    assert written(runner) == PAGE - 1 + 30
    other.close()
    one.close()
    one.wipe()
    assert (written(runner), runner.pages.free) == (0, free)


def test_texts_that_begin_alike_hold_the_same_pages_and_none_sees_what_another_writes() -> None:
    runner = runner_of(REGIMES[0], length=300)
    free, text = runner.pages.free, random_tokens(2 * PAGE + 9)
    one, other, third = (runner.open() for _ in range(3))
    one.read(text)
    before = bits(one, [5, 6], [-1, 0])
    assert not other.adopt(one, [text[0] + 1, *text[1:]])
    assert not other.adopt(runner_of(REGIMES[0], sequences=1).open(), text)
    assert other.adopt(one, text)
    assert third.adopt(other, text[: PAGE + 1])
    assert (other.tokens, third.tokens) == (text[: 2 * PAGE], text[:PAGE])
    assert runner.pages.free == free - 3
    third.rollback(PAGE // 2)
    third.wipe()
    third.read(random_tokens(PAGE, 3))
    other.read(text[2 * PAGE :])
    fresh = runner_of(REGIMES[0], sequences=1).open()
    fresh.read(third.tokens)
    assert np.array_equal(bits(third, [5, 6], [-1, 0]), bits(fresh, [5, 6], [-1, 0]))
    assert np.array_equal(bits(other, [5, 6], [-1, 0]), before)
    assert np.array_equal(bits(one, [5, 6], [-1, 0]), before)


def test_memory_decides_how_many_texts_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    (each,) = (one.nbytes for one in runner_of(REGIMES[0], sequences=1).slots.held.values())
    for texts, free in ((1, 0), (3, 6.9 * each), (4, 99 * each)):
        monkeypatch.setattr(pages, "free_memory", lambda device, free=free: free)
        runner = runner_of(REGIMES[0])
        assert runner.most_sequences == texts
        held = [runner.open() for _ in range(texts)]
        with pytest.raises(TooManySequences, match=f"holds {texts} sequences"):
            runner.open()
        for one in held:  # each has room for a whole context
            one.read(random_tokens(LENGTH))
        held[0].close()
        runner.open().read([1])


class Recorder:
    """Records like a device: the body runs once, replays do not run it."""

    def __init__(self, size: int = 100) -> None:
        self.size = size
        self.recorded: list[str] = []
        self.replayed: list[str] = []

    def __call__(self, body: Callable[[], str]) -> Graph[str]:
        name = body()
        self.recorded.append(name)
        return Graph(lambda: self.replayed.append(name), name, self.size)


def test_the_first_run_records_and_above_the_cap_the_longest_unused_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hierchat.engine.cuda.graphs.CAP", 250)
    recorder = Recorder(size=100)
    graphs = Graphs[str](capture=recorder)
    for key in ("a", "b", "a", "c", "b"):
        assert graphs.run(key, lambda key=key: key) == key
    assert recorder.recorded == ["a", "b", "c", "b"]
    assert recorder.replayed == ["a", "b", "a", "c", "b"]
    assert list(graphs.held) == ["c", "b"]


@pytest.mark.parametrize("words", ["CUDA out of memory", "operation not permitted when stream is capturing"])
def test_where_nothing_can_be_recorded_bodies_run_as_they_are(words: str) -> None:
    recorder, runs, broken = Recorder(), [], False

    def capture(body: Callable[[], str]) -> Graph[str]:
        if broken:
            raise RuntimeError(words)
        return recorder(body)

    graphs = Graphs[str](capture=capture)
    graphs.run("a", lambda: "a")
    broken = True
    for _ in range(2):
        assert graphs.run("b", lambda: runs.append("b") or "b") == "b"
    assert runs == ["b", "b"]
    assert not graphs.held
    graphs.run("a", lambda: runs.append("a") or "a")
    assert runs[-1] == "a"
