"""Levels over scripted models: blocks, rollback, and that every level stays in step with what was committed."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierchat.drafting.draft_tree import DraftTree
from hierchat.hierarchy.hierarchical_drafter import Ending, Level
from hierchat.hierarchy.plan import Provenance

END = 0


class Scripted:
    """Chooses by a rule over position and last token: models that agree often, not always."""

    def __init__(self, name: str, salt: int, room: int = 10_000) -> None:
        self.name, self._salt, self._room = name, salt, room
        self.text: list[int] = []
        self.forwards = 0
        self.read_ms = self.reading_ms = 0.0

    def choice(self, text: Sequence[int]) -> int:
        value = (31 * len(text) + 7 * text[-1] + sum(text[-3:])) % 23
        differs = (len(text) * 2654435761 + self._salt) % 100 < self._salt
        return 1 + (value + differs) % 23

    @property
    def length(self) -> int:
        return len(self.text)

    @property
    def room(self) -> int:
        return self._room - len(self.text)

    def begin(self, text: Sequence[int]) -> None:
        self.text = list(text)

    def verify(self, drafts: DraftTree) -> Sequence[int]:
        self.forwards += 1
        nodes = {pair: node for node, pair in enumerate(zip(drafts.parents, drafts.tokens, strict=True))}
        above, chosen = -1, []
        while True:
            token = self.choice(self.text)
            self.text.append(token)
            chosen.append(token)
            above = nodes.get((above, token), -2)
            if above == -2:
                return chosen

    def follow(self, length: int, tokens: Sequence[int]) -> None:
        del self.text[length:]
        self.text += tokens


class Watch:
    def __init__(self) -> None:
        self.runs: list[tuple[int, bool]] = []
        self.looks: list[tuple[list[Provenance], int]] = []

    def forwarded(self, kept: int, bonus: bool, ms: float) -> None:
        self.runs.append((kept, bonus))

    def looked_at(self, kinds: Sequence[Provenance], accepted: int) -> None:
        self.looks.append((list(kinds), accepted))


def stack(
    salts: Sequence[int], blocks: Sequence[int], stop: Event | None = None
) -> tuple[list[Level], list[Watch]]:
    levels: list[Level] = []
    watches = [Watch() for _ in salts]
    for number, (salt, block) in enumerate(zip(salts, blocks, strict=True)):
        below = levels[-1] if levels else None
        model = Scripted(f"m{number}", salt)
        levels.append(Level(model, below, block, watches[number], Ending({END}, stop or Event())))
    return levels, watches


def decode(target: Scripted, highest: Level | None, prompt: list[int], tokens: int) -> list[int]:
    target.begin(prompt)
    if highest:
        highest.begin(prompt)
    while len(target.text) < len(prompt) + tokens:
        drafts = highest.propose() if highest else DraftTree()
        chosen = target.verify(drafts)
        if highest:
            highest.observe(chosen)
    return target.text[len(prompt) : len(prompt) + tokens]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 6)), min_size=1, max_size=3),
    st.lists(st.integers(1, 23), min_size=1, max_size=5),
)
def test_the_words_are_the_targets_and_all_levels_stay_in_step(
    settings: list[tuple[int, int]], prompt: list[int]
) -> None:
    levels, _ = stack(*zip(*settings, strict=True))
    plain = decode(Scripted("target", 0), None, prompt, 40)
    target = Scripted("target", 0)
    assert decode(target, levels[-1], prompt, 40) == plain
    for level in levels:
        assert isinstance(level.model, Scripted)
        assert level.model.text == target.text


def test_a_block_is_as_long_as_asked_for_and_says_how_its_tokens_came_about() -> None:
    levels, watches = stack([0, 0], [2, 5])
    levels[-1].begin([5, 6])
    block = levels[-1].propose()
    # The same model twice: 2 drafts and a bonus, twice, make at least 5.
    assert len(block) == 6
    assert block.parents == (-1, 0, 1, 2, 3, 4)
    assert block.sources == ("m0", "m0", "m1", "m0", "m0", "m1")
    assert watches[1].runs == [(2, True), (2, True)]
    levels[-1].observe([*block.tokens[:4], 22])
    assert watches[1].looks == [(["kept", "kept", "bonus", "kept", "kept", "bonus"], 4)]


def test_a_block_ends_with_the_reply() -> None:
    class Finite(Scripted):
        def choice(self, text: Sequence[int]) -> int:
            return END if len(text) == 5 else super().choice(text)

    level = Level(Finite("m", 0), None, 10, Watch(), Ending({END}, Event()))
    level.begin([5, 6])
    assert level.propose().tokens[-1] == END
    assert level.model.length == 6


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_no_more_than_there_is_room_for(limit: int) -> None:
    levels, _ = stack([0, 0], [4, 8])
    levels[-1].begin([5, 6])
    assert len(levels[-1].propose(limit)) <= limit
    small = Level(Scripted("m", 0, room=4), None, 10, Watch(), Ending({END}, Event()))
    small.begin([5, 6])
    assert len(small.propose()) == 1


def test_stops() -> None:
    stop = Event()
    levels, _ = stack([0, 0], [4, 8], stop)
    levels[-1].begin([5, 6])
    stop.set()
    assert len(levels[-1].propose()) == 0
    assert all(isinstance(level.model, Scripted) and level.model.forwards == 0 for level in levels)
