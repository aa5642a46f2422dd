"""The prompts of the texts that ship."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from hierchat.chat.prompts import REPLY, Script, scripts

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


def folder(path: Path, section: str = SECTION) -> Path:
    (path / "lists.yaml").write_text(LISTS)
    (path / "pets.yaml").write_text(section)
    return path


def test_templates_are_filled(tmp_path: Path) -> None:
    turns = {one.turns for one in scripts(folder(tmp_path))}
    assert {one for one in turns if "Feed" in one[0]} == {
        (f"Feed the {pet}.", "Why?") for pet in ("cat", "dog", "owl")
    }
    both = {one[0] for one in turns if "toys" in one[0]}
    assert both == {
        f"The {one} and the {other} have {number} toys."
        for one in ("cat", "dog", "owl")
        for other in ("cat", "dog", "owl")
        for number in (2, 3)
        if one != other
    }
    assert ("Describe the owl.", f"Shorter: {REPLY}") in turns  # its second turn is its own


def test_a_new_template_moves_nothing(tmp_path: Path) -> None:
    before = scripts(folder(tmp_path))
    after = scripts(folder(tmp_path, SECTION.replace("templates:", "templates:\n    - Call the {pet}.")))
    assert len(after) > len(before)
    assert [one for one in after if one in before] == before
    assert scripts(tmp_path, seed=1) != after


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [("{pet2}", "{cow}", "cow"), ("2..3", "many", "range"), ("count: 40", "count: 0", "count")],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        scripts(folder(tmp_path, SECTION.replace(old, new)))


def test_the_prompts_that_ship_are_many_and_well_spread() -> None:
    everything = scripts()
    assert len(everything) == len({one.turns for one in everything}) > 12_000
    sampled = sum(one.temperature > 0 for one in everything) / len(everything)
    assert 0.27 < sampled < 0.33
    long = sum(REPLY in one.turns[-1] for one in everything) / len(everything)
    assert 0.02 < long < 0.15
    assert not [one for one in everything if any("{" in turn and _open(turn) for turn in one.turns)]
    kinds, beginning = _shares(everything), _shares(everything[:3000])
    assert len(kinds) > 15
    assert all(abs(beginning[kind] - share) < 0.03 for kind, share in kinds.items())


def _open(turn: str) -> bool:
    """Whether a placeholder was not filled."""
    return any(
        f"{{{name}}}" in turn for name in ("name", "do", "topic", "name2", "city", "sentence", "number")
    )


def _shares(some: list[Script]) -> dict[str, float]:
    return {kind: count / len(some) for kind, count in Counter(one.kind for one in some).items()}
