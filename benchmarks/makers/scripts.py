"""Make prompts for the texts that ship, from templates and lists in prompts/*.yaml.

lists.yaml holds lists by name, which every file may use. A file is a list of sections:

    kind: what the section is about
    count: how many conversations
    templates: texts with {placeholders}, or lists of texts: the turns of a conversation
    fill: lists of this section by placeholder's name; "2..9" is a range of numbers
    then: the name of a list of second turns, or the list itself
    follow: the share of conversations that get one of them

{name} and {name2} are different items of the same list. A later turn that holds {reply} opens a conversation of its
own, with the last reply in its place."""

import hashlib
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

FOLDER = Path(__file__).parent / "prompts"
REPLY = "{reply}"
TEMPERATURE = 0.7
SAMPLED = 0.3
"""Share of conversations at TEMPERATURE; the others are greedy."""
_PLACE = re.compile(r"\{([a-z_]+)(\d?)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")

Items = list[str] | str
Lists = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Script:
    """Questions of one conversation, turn by turn, and how the replies are sampled. `key` identifies all of it."""

    key: str
    kind: str
    turns: tuple[str, ...]
    temperature: float
    seed: int


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: str
    count: int = Field(gt=0)
    templates: list[str | list[str]] = Field(min_length=1)
    fill: dict[str, Items] = {}
    then: Items = []
    follow: float = Field(default=0.25, ge=0, le=1)


def scripts(folder: Path = FOLDER, seed: int = 0) -> list[Script]:
    """Return all conversations of the templates without repetitions, shuffled.
    A conversation's place, temperature and seed depend on its own text alone."""
    shared = {name: _items(items) for name, items in _yaml(folder / "lists.yaml").items()}
    files = sorted(set(folder.glob("*.yaml")) - {folder / "lists.yaml"})
    sections = [_Section.model_validate(section) for file in files for section in _yaml(file)]
    found = {
        one.key: one
        for section in sections
        for turns in _expand(section, shared)
        for one in [script(section.kind, turns, seed)]
    }
    return [found[key] for key in sorted(found)]


def script(kind: str, turns: Sequence[str], seed: int = 0) -> Script:
    """Return the script of a conversation with these questions; most are answered greedily."""
    digest = hashlib.sha256("\0".join([str(seed), *turns]).encode()).digest()
    return Script(
        key=digest.hex()[:16],
        kind=kind,
        turns=tuple(turns),
        temperature=TEMPERATURE if digest[-1] < SAMPLED * 256 else 0.0,
        seed=int.from_bytes(digest[8:12]),
    )


def _expand(section: _Section, shared: Lists) -> Iterator[list[str]]:
    lists = {**shared, **{name: _items(items) for name, items in section.fill.items()}}
    then = lists[section.then] if isinstance(section.then, str) else section.then
    streams = [
        _fillings([template] if isinstance(template, str) else template, lists, section.count)
        for template in section.templates
    ]
    made = 0
    while streams and made < section.count:
        for stream in list(streams):
            turns = next(stream, None)
            if turns is None:
                streams.remove(stream)
            elif made < section.count:
                made += 1
                chance = random.Random(turns[0])
                more = len(turns) == 1 and then and chance.random() < section.follow
                yield [*turns, chance.choice(then)] if more else turns


def _fillings(turns: Sequence[str], lists: Lists, most: int) -> Iterator[list[str]]:
    places = sorted(
        {
            (name, number)
            for turn in turns
            for name, number in _PLACE.findall(turn)
            if f"{{{name}{number}}}" != REPLY
        }
    )
    if missing := {name for name, _ in places} - set(lists):
        raise ValueError(f"No list is called {', '.join(sorted(missing))}, in {turns[0]!r}.")
    sizes = [len(lists[name]) for name, _ in places]
    everything = math.prod(sizes)
    order = random.Random("\n".join(turns))
    for number in order.sample(range(everything), min(everything, 2 * most)):
        chosen = dict[str, str]()
        for (name, which), size in zip(places, sizes, strict=True):
            number, item = divmod(number, size)
            chosen[f"{name}{which}"] = lists[name][item]
        if len({(name, chosen[f"{name}{which}"]) for name, which in places}) == len(places):
            filled = partial(
                _PLACE.sub, lambda match, chosen=chosen: chosen.get(match[1] + match[2], match[0])
            )
            yield [filled(turn) for turn in turns]


def _items(items: Items) -> list[str]:
    if isinstance(items, str):
        match = _RANGE.fullmatch(items)
        if not match:
            raise ValueError(f"{items!r} is neither a list nor a range such as 2..9.")
        return [str(number) for number in range(int(match[1]), int(match[2]) + 1)]
    return [str(item) for item in items]


def _yaml(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))
