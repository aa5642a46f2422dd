"""The block: Markdown to paste into a report, with what docs/benchmarks.md needs to know of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hierchat.doctor.gpu.one import ANY
from hierchat.engine.backends import RUNGS

HEAD = (
    "model",
    "computed by",
    "self-test",
    "words compared",
    "tok/s plain",
    "with drafts",
    "T",
    "ms of a forward",
)


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of one model on one way; `found` as figures.py has it, or `failed` alone."""

    model: str
    rung: str
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether it works, and drafts changed no word where none may."""
        differ = self.found.get("verify", {}).get("mismatches", 0)
        return "failed" not in self.found and not (self.found["exact"] and differ)


def block(device: Sequence[str], tried: Sequence[Tried]) -> str:
    """`device`: what to say of it and of what it was tried with."""
    head = ["### hierchat doctor --gpu", "", *(f"- {line}" for line in device), ""]
    table = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    table += ["| " + " | ".join(_cells(one)) + " |" for one in tried]
    failed = [f"- {one.model}, {_way(one)}: {one.found['failed']}" for one in tried if "failed" in one.found]
    noted = [f"- {one.model}: {one.found['note']}" for one in tried if one.found.get("note")]
    below = ["", "T is tokens per forward. A forward is over 1, 2, 4, 8, 16 and 32 rows."]
    return "\n".join([*head, *table, *below, *([""] if failed or noted else []), *failed, *noted])


def _cells(one: Tried) -> list[str]:
    found = one.found
    if "failed" in found:
        return [one.model, _way(one), "failed", *["" for _ in HEAD[3:]]]
    verify = found.get("verify")
    words = f"{verify['tokens']:,} tokens, {verify['mismatches']} replies differ" if verify else "no drafts"
    exact = f"exact, multiples of {found['quantum']}" if found["exact"] else "not exact"
    return [
        f"{one.model}, {found['backend']}",
        _way(one),
        exact if verify else found["way"] or "no drafts",
        words,
        f"{found['plain']:.1f}",
        f"{found['drafted']:.1f}" if "drafted" in found else "",
        f"{found['per_forward']:.2f}" if "per_forward" in found else "",
        ", ".join(f"{ms:.2f}" for ms in found["forward_ms"].values()),
    ]


def _way(one: Tried) -> str:
    rung = one.found.get("rung", one.rung)
    return "the first that works" if rung == ANY else RUNGS.get(rung, "kernels of ours on the processor")
