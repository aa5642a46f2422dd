"""Make the prompts that come with hierchat from templates and lists in prompts/*.yaml: for texts that ship,
and for texts that a model generates while idle.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from hierchat.config import shipped
from hierchat.store import Store

FOLDER = shipped("assets") / "prompts"
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
    origin: int | None = None
    """The message of the user's from which it was made; None where it comes with hierchat."""


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


def script(kind: str, turns: Sequence[str], seed: int = 0, origin: int | None = None) -> Script:
    """Return the script of a conversation with these questions; most are answered greedily."""
    digest = hashlib.sha256("\0".join([str(seed), *turns]).encode()).digest()
    return Script(
        key=digest.hex()[:16],
        kind=kind,
        turns=tuple(turns),
        temperature=TEMPERATURE if digest[-1] < SAMPLED * 256 else 0.0,
        seed=int.from_bytes(digest[8:12]),
        origin=origin,
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


# What is asked: questions like the user's own, made from these here, and prompts that come with hierchat.
OWN = "own"
"""The kind of conversations that were made from a user's questions."""
VARIATIONS = (
    ("{question}",),
    ("Write three other questions like this one, and answer each of them.\n\n{question}",),
    ("Answer in a few words.\n\n{question}",),
    ("{question}", "Give an example."),
    ("Answer step by step, and give the reason for each step.\n\n{question}",),
    ("{question}", "What are common mistakes here?"),
)
"""The first is asked as it was: its reply is sampled, so that it is another one than in the chat."""


@cache
def shipped_scripts() -> Sequence[Script]:
    """Return the prompts that come with hierchat; the first call takes some seconds."""
    return tuple(scripts())


def own_scripts(questions: Iterable[tuple[int, str]]) -> Iterator[Script]:
    """Yield conversations made of a user's questions (message id, text): each once, then each in other forms."""
    questions = list(questions)
    for turns in VARIATIONS:
        for message, question in questions:
            asked = [turn.replace("{question}", question) for turn in turns]
            made = script(OWN, asked, origin=message)
            yield replace(made, temperature=TEMPERATURE) if turns == VARIATIONS[0] else made


def mixed(own: Iterable[Script], shipped: Iterable[Script]) -> Iterator[Script]:
    """Yield scripts of both in turn, until both are at their end."""
    return (one for one in chain.from_iterable(zip_longest(own, shipped)) if one is not None)


def waiting_scripts(store: Store, user_id: int, model_key: str) -> list[Script]:
    """Return the scripts not yet answered for a user and a model, those begun before first."""
    there = store.generated.replies(user_id, model_key)
    everything = mixed(own_scripts(store.generated.questions(user_id)), shipped_scripts())
    left = [one for one in everything if there.get(one.key, 0) < len(one.turns)]
    return sorted(left, key=lambda one: one.key not in there)
