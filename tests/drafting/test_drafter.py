"""The drafter: what it proposes, what it observes, and what it learns."""

import pkgutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import hierchat.drafting
from hierchat.drafting import suffix_index
from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.draft_cost import DraftCost, FreeRows
from hierchat.drafting.draft_tree import DOCUMENTS, NO_MATCH, DraftTree, Match, merge
from hierchat.drafting.drafter import LEAD, Drafter
from hierchat.drafting.growing.kernel_arrays import CORPUS, NODES, PROMPTS, SUCCESSORS
from hierchat.drafting.payoff import PAUSE, TRIALS, TRIALS_AGAIN
from hierchat.drafting.proposer import JointDrafter, Proposer
from hierchat.drafting.source import TOP, Source, Successors
from hierchat.drafting.suffix_index import BREAK
from tests.drafting.databases import Steps, followers, paths_of

texts = st.lists(st.integers(0, 2), max_size=30)
COSTS = Steps([5.0 + 0.8 * rows for rows in range(32)])


@settings(max_examples=40)
@given(
    prompt=texts,
    replies=st.lists(texts, max_size=3),
    observed=texts,
    width=st.integers(1, 99),
    limit=st.integers(-1, 70),
)
def test_width_and_limit_are_kept(
    prompt: list[int], replies: list[list[int]], observed: list[int], width: int, limit: int
) -> None:
    drafter = Drafter([Source.of(replies), Source.of(replies, CORPUS)], width=width)
    assert drafter.propose() == DraftTree()  # there is no text yet
    drafter.begin(prompt)
    for most in (limit, None):
        tree = drafter.propose(most)
        assert len(tree) <= min(width - 1, NODES, max(limit, 0) if most is not None else NODES)
        assert BREAK not in tree.tokens
        assert all(-1 <= parent < node for node, parent in enumerate(tree.parents))
        drafter.observe(observed)


HEAD = [90, 91, 92]
"""What a template writes before a reply; 90 is a control token."""


@pytest.mark.parametrize("where", ["history", "context"])
def test_what_is_asked_again_is_drafted_from_its_first_token(where: str) -> None:
    question, reply = list(range(10, 30)), list(range(30, 40))
    before = [*question, *HEAD]
    told = [[*before[-LEAD:], *reply]] if where == "history" else []
    prompt = [*before, *reply, *before] if where == "context" else [1, 2, 3, *before]
    drafter = Drafter([Source.of(told)], width=32, control={90})
    drafter.begin(prompt)
    tree = drafter.propose()
    assert [tree.tokens[node] for node in tree.path(reply)] == reply
    assert tree.matches[0].length >= LEAD
    drafter.begin([*prompt[:-4], 99, *HEAD])  # another question, which ends otherwise
    assert drafter.propose().matches[0].length == 2  # the end of the header


def test_a_templates_header_is_no_match() -> None:
    turns = [[*range(at, at + 8), *HEAD, 50, 51] for at in (10, 20, 30)]
    drafter = Drafter(width=8, control={90})
    drafter.begin([token for turn in turns for token in turn] + [1, *HEAD])
    assert drafter.propose().matches[0].length == 2
    drafter.begin([*HEAD, *range(10, 30), *range(10, 20)])  # the text goes on: no header before it
    assert drafter.propose().matches[0].length == 10


def test_the_target_teaches_its_successors() -> None:
    table = Successors()
    top = np.arange(2 * TOP, dtype=np.int32).reshape(2, TOP) + 20
    drafter = Drafter(successors=table)
    assert (drafter.top, Drafter().top) == (TOP, 0)
    drafter.begin([4, 5])
    drafter.observe([6, 7], top)
    assert followers(table, 5) == followers(table, 4, 5) == top[0].tolist()
    assert followers(table, 6) == followers(table, 5, 6) == top[1].tolist()
    drafter.begin([4, 5])
    tree = drafter.propose()
    assert tree.tokens[0] == top[0, 0]
    assert set(tree.sources) == {"history"}


def test_what_was_found_likely_is_of_this_chat_where_its_words_stand_here() -> None:
    """In the first reply of all there are no earlier chats."""
    table = Successors()
    drafter = Drafter(successors=table, width=40)
    drafter.begin([4, 5])
    drafter.observe([6, 4], np.array([[20] * TOP, [30] * TOP], np.int32))
    drafter.observe([5], np.full((1, TOP), 40, np.int32))
    tree = drafter.propose()  # behind 4, 5
    found = dict(zip(tree.tokens, tree.sources, strict=True))
    assert found[6] == found[20] == "context"
    assert tree.matches[tree.tokens.index(20)][:2] == (SUCCESSORS, 2)
    elsewhere = Drafter(successors=table, width=3)
    elsewhere.begin([4, 5])
    assert set(elsewhere.propose().sources) == {"history"}


def test_drafts_from_a_passage_are_of_the_documents() -> None:
    passage = [*range(100, 120)]
    quoted = [1, 2, 3, *passage, 4, 5, 60, 61, 62, 6, 7]
    documents = replace(Source.of([passage, [8, 9]], PROMPTS), origin=DOCUMENTS)
    for sources, prompt, source in (
        ([documents], [1, 2, *passage[6:9]], DOCUMENTS),
        ([documents], [*quoted, 60, 61], "context"),
        ([], [*quoted, *passage[6:9]], "context"),
        ([Source.of([passage], PROMPTS)], [1, 2, *passage[6:9]], "history"),
    ):
        drafter = Drafter(sources, width=4)
        drafter.begin(prompt)
        tree = drafter.propose()
        assert tree.sources[0] == source, (prompt, tree)


def test_a_history_that_lies_is_soon_not_drafted_from_and_can_win_back_its_place() -> None:
    """What was learned outlives the reply."""
    acceptance = Acceptance()

    def proposed(drafter: Drafter) -> DraftTree:
        drafter.begin([1, 2, 3])
        return drafter.propose()

    def drafter() -> Drafter:
        return Drafter([Source.of([[1, 2, 3, 4, 5, 6]])], acceptance, COSTS)

    for token, drafted in ((4, True), (9, False), (4, True)):
        taught = drafter()
        for _ in range(400):
            proposed(taught)
            taught.observe([token])
        assert bool(proposed(drafter())) == drafted


def test_observing_without_proposing_teaches_nothing() -> None:
    acceptance = Acceptance()
    drafter = Drafter([Source.of([[1, 2, 3, 4]])], acceptance)
    before = [*acceptance.model.score.tolist(), *acceptance.model.none.tolist()]
    drafter.begin([1])
    drafter.observe([2])
    drafter.observe([])
    drafter.propose()
    drafter.begin([1])
    drafter.observe([2])
    drafter.propose()
    drafter.propose(0)
    drafter.observe([3])
    assert [*acceptance.model.score.tolist(), *acceptance.model.none.tolist()] == before


def test_an_index_may_be_tidied_up_between_two_proposals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_index, "AT_ONCE", 12)
    source = Source()
    drafter = Drafter([source], width=24)
    drafter.begin([1, 2])
    with source.index.lock:
        for last in range(8):
            source.add([3, 1, 2, last, last])
        runs = len(source.runs())
        before = drafter.propose()
    source.index.wait()
    assert len(source.runs()) < runs
    after = drafter.propose()
    assert before.tokens == after.tokens
    assert set(range(8)) <= set(after.tokens)
    drafter.observe([7])
    assert drafter.propose().tokens[0] == 7


def test_what_is_forgotten_while_it_is_verified_is_not_drafted_again() -> None:
    source = Source()
    start = source.index.append([1, 2, 3, 4])
    source.add([7, 8, 9])
    drafter = Drafter([source])
    drafter.begin([1, 2])
    assert drafter.propose()
    source.index.remove([(start, 4)])
    drafter.observe([3, 4, 1, 2, 5, 1])
    other = Drafter([source])
    other.begin([1, 2])
    assert other.propose() == DraftTree()


def test_drafting_imports_no_torch() -> None:
    """Nor does what vLLM loads, in a Python that may have none of these."""
    package = hierchat.drafting
    every = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    names = [name for name in every if not name.startswith("hierchat.drafting.vllm")]
    assert "hierchat.drafting.growing.grow" in names
    vllm = [f"{package.__name__}.vllm.{name}" for name in ("custom_proposer", "worker")]
    # numba imports coverage where it is installed, and that brings sqlite3.
    code = "import sys; sys.modules['coverage'] = None\n"
    code += "\n".join(f"import {', '.join(some)}; print(*sys.modules)" for some in (names, vllm))
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded, in_vllm = (set(line.split()) for line in said.splitlines())
    others = {
        "torch", "transformers", "gradio", "sqlite_utils", "psutil", "safetensors", "huggingface_hub", "requests",
    }  # fmt: skip
    assert not {*others, "sqlite3"} & loaded
    assert not others & in_vllm
    assert {"numba", "numpy", "sqlite3"} <= in_vllm
    ours = {name for name in loaded if name.startswith("hierchat.") and not name.startswith(package.__name__)}
    assert ours == {"hierchat.jit", "hierchat.config"}


# Several proposers as one: merged trees, who is asked, what each is told.


FREE = np.zeros(64)


class Told(Proposer):
    """A proposer that says what it is given, and notes what it is told."""

    def __init__(self, tree: DraftTree, top: int = 0, seconds: float = 0.0) -> None:
        self.tree, self.top, self.seconds = tree, top, seconds
        self.begun: list[int] = []
        self.asked = 0
        self.told: list[tuple[list[int], tuple[int, ...] | None]] = []

    def begin(self, prompt: Sequence[int]) -> None:
        self.begun = list(prompt)

    def propose(self, limit: int | None = None) -> DraftTree:
        self.asked += 1
        time.sleep(self.seconds)
        return self.tree

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        self.told.append((list(tokens), None if top is None else top.shape))


class Head(Told):
    """One that reads hidden states."""

    reads_hidden = True

    def see(self, hidden: NDArray[np.float32], position: int) -> None:
        self.seen = hidden, position


def chain(*tokens: int, source: str = "a", chance: float = 0.9) -> DraftTree:
    size = len(tokens)
    return DraftTree(
        tokens, tuple(range(-1, size - 1)), (source,) * size, tuple(chance ** (i + 1) for i in range(size))
    )


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    size = draw(st.integers(0, 12))
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    chances: list[float] = []
    for parent in parents:
        above = 1.0 if parent < 0 else chances[parent]
        chances.append(above * draw(st.floats(0.05, 1.0)))
    tokens = tuple(draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))
    return DraftTree(tokens, tuple(parents), (draw(st.sampled_from("ab")),) * size, tuple(chances))


def paths(tree: DraftTree) -> dict[tuple[int, ...], float]:
    """The highest chance of each path."""
    found: dict[tuple[int, ...], float] = {}
    for path, chance in zip(paths_of(tree), tree.probabilities, strict=True):
        found[path] = max(chance, found.get(path, 0.0))
    return found


@given(st.lists(trees(), max_size=3))
def test_everything_is_in_the_merged_tree_once(given_trees: list[DraftTree]) -> None:
    tree = merge(given_trees, FREE, 1.0, 64)
    expected: dict[tuple[int, ...], float] = {}
    for one in given_trees:
        for path, chance in paths(one).items():
            expected[path] = max(chance, expected.get(path, 0.0))
    assert paths(tree) == expected
    assert len(tree) == len(expected)
    assert all(parent < node for node, parent in enumerate(tree.parents))


@given(st.lists(trees(), max_size=3), st.integers(0, 10), st.floats(0.0, 2.0))
def test_what_is_kept_are_the_likeliest_that_pay(
    given_trees: list[DraftTree], most: int, row_ms: float
) -> None:
    whole = merge(given_trees, FREE, 1.0, 64)
    tree = merge(given_trees, np.full(64, row_ms), 1.0, most)
    assert len(tree) == min(most, sum(chance > row_ms for chance in whole.probabilities))
    assert tree.probabilities == tuple(sorted(whole.probabilities, reverse=True))[: len(tree)]
    assert all(-1 <= parent < node for node, parent in enumerate(tree.parents))


def test_the_path_that_tokens_begin_with() -> None:
    tree = merge([chain(1, 2, 3), chain(1, 4, 5)], FREE, 1.0, 9)
    found = [len(tree.path(tokens)) for tokens in ([1, 4, 5, 6], [1, 2], [1, 9], [7], [])]
    assert found == [3, 2, 1, 0, 0]


def test_each_is_told_what_it_asked_for() -> None:
    first, plain, wants = Told(chain(1)), Told(chain(2)), Head(chain(3), top=2)
    joint = JointDrafter(first, [plain, wants], DraftCost(FreeRows(8)))
    assert (joint.top, joint.reads_hidden) == (2, True)
    assert not JointDrafter(first, [plain], DraftCost(FreeRows(8))).reads_hidden
    joint.begin([5, 6])
    assert (first.begun, plain.begun, wants.begun) == ([5, 6],) * 3
    assert sorted(joint.propose().tokens) == [1, 2, 3]
    joint.see(np.ones((2, 4), np.float32), 1)
    joint.observe([3, 7], np.zeros((2, 2), np.int32))
    assert first.told == plain.told == [([3, 7], None)]
    assert wants.told == [([3, 7], (2, 2))]
    assert (wants.seen[0].shape, *wants.seen[1:]) == ((2, 4), 1)


def test_one_that_brings_nothing_is_asked_now_and_then_and_one_that_pays_always() -> None:
    right, wrong = Told(chain(1, 2, 3)), Told(chain(9, 9), seconds=0.001)
    joint = JointDrafter(Told(chain(7)), [right, wrong], DraftCost(Steps([10.0 + row for row in range(32)])))
    joint.begin([5, 6, 7])
    steps = 4 * PAUSE
    for _ in range(steps):
        tree = joint.propose()
        assert {1, 2, 3} <= set(tree.tokens)
        assert tree.models_ms > 0
        joint.observe([1, 2, 3, 8])
    assert right.asked == steps
    # behind a pause, and one twice as long
    assert wrong.asked == TRIALS + 2 * TRIALS_AGAIN
    assert 9 not in joint.propose().tokens  # its chances were found out


def test_a_merged_node_tells_what_its_likelier_draft_was_found_by() -> None:
    found = [Match(0, length, -1, length) for length in (1, 2)]
    databases = DraftTree((1, 2), (-1, 0), ("history",) * 2, (0.9, 0.3), matches=tuple(found))
    model = DraftTree((1, 2, 3), (-1, 0, 1), ("model",) * 3, (0.8, 0.7, 0.6))
    merged = merge([databases, model], FREE, 1.0, 10)
    assert merged.matches == (found[0], NO_MATCH, NO_MATCH)
    assert [merged.chance(node) for node in range(3)] == [0.9, 0.7 / 0.9, 0.6 / 0.7]
    assert DraftTree((1,), (-1,), ("model",)).chance(0) is None
