"""The prompts of the texts that ship."""

from itertools import permutations
from pathlib import Path

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
