"""Plans tried by hand: the arms plan:databases+NAME=8+NAME=12, lowest level first, each with its draft length."""

from __future__ import annotations

from collections.abc import Sequence

from hierchat.bench.errors import ArmError
from hierchat.hierarchy.plan import Plan
from hierchat.hierarchy.search import MOST

DATABASES = "databases"


def parse_plan(text: str, names: Sequence[str]) -> Plan:
    """A plan of the levels called `names`, of which the last is the target. Raises ArmError."""
    parts = text.split("+")
    retrieval = parts[0] == DATABASES
    levels, lengths = [], []
    for part in parts[retrieval:]:
        name, _, length = part.rpartition("=")
        if name not in names[:-1]:
            there = ", ".join(names[:-1]) or "none"
            raise ArmError(
                f"no draft model is called {name or part!r} in the plan {text!r}; there is {there}"
            )
        if not length.isdecimal() or not 1 <= int(length) <= MOST:
            raise ArmError(f"{part!r}: a level is written NAME=LENGTH, with a length of 1 to {MOST}")
        levels.append(names.index(name))
        lengths.append(int(length))
    if sorted(set(levels)) != levels:
        raise ArmError(f"the levels of a plan rise: {', '.join(names)}")
    return Plan((*levels, len(names) - 1), tuple(lengths), retrieval)
