"""The prompts of the texts that ship."""

import re
from collections import Counter
from itertools import permutations
from pathlib import Path

import pytest

from benchmarks.makers.scripts import REPLY, Script, scripts

LISTS = "pet: [cat, dog, owl]\nnext: ['Why?']\n"
SECTION = """
- kind: pets
  count: 40
  templates:
    - Feed the {pet}.
    - The {pet} and the {pet2} have {number} toys.
    - ["Describe the {pet}.", "Shorter: {reply}"]
  fill:
    number: 2..3
  then: next
  follow: 1
"""


def made(path: Path, section: str = SECTION, seed: int = 0) -> list[Script]:
    (path / "lists.yaml").write_text(LISTS)
    (path / "pets.yaml").write_text(section)
    return scripts(path, seed)


def test_templates_are_filled_and_a_new_one_moves_nothing(tmp_path: Path) -> None:
    before, pets = made(tmp_path), ("cat", "dog", "owl")
    turns = {one.turns for one in before}
    assert {one for one in turns if "Feed" in one[0]} == {(f"Feed the {pet}.", "Why?") for pet in pets}
    assert {one[0] for one in turns if "toys" in one[0]} == {
        f"The {one} and the {other} have {number} toys."
        for one, other in permutations(pets, 2)
        for number in (2, 3)
    }
    assert ("Describe the owl.", f"Shorter: {REPLY}") in turns  # its second turn is its own
    after = made(tmp_path, SECTION.replace("templates:", "templates:\n    - Call the {pet}."))
    assert len(after) > len(before)
    assert [one for one in after if one in before] == before
    assert made(tmp_path, seed=1) != before


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [("{pet2}", "{cow}", "cow"), ("2..3", "many", "range"), ("count: 40", "count: 0", "count")],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        made(tmp_path, SECTION.replace(old, new))


def test_the_prompts_that_ship_are_many_and_well_spread() -> None:
    everything = scripts()
    total = len(everything)
    assert total == len({one.turns for one in everything}) > 12_000
    assert 0.27 < sum(one.temperature > 0 for one in everything) / total < 0.33
    assert 0.02 < sum(REPLY in one.turns[-1] for one in everything) / total < 0.15
    unfilled = re.compile("{(name|do|topic|name2|city|sentence|number)}")
    assert not [turn for one in everything for turn in one.turns if unfilled.search(turn)]
    kinds, beginning = (Counter(one.kind for one in some) for some in (everything, everything[:3000]))
    assert len(kinds) > 15
    assert all(abs(beginning[kind] / 3000 - count / total) < 0.03 for kind, count in kinds.items())
