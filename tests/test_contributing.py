"""The proposer of CONTRIBUTING.md does what is said of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.proposer import JointDrafter

from .testing.tiny import fresh_steps, random_tokens, tiny_engine, tokens_of

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_example_drafts_and_changes_no_word() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    names: dict[str, Any] = {}
    exec(example, names)
    engine, prompt = tiny_engine(), random_tokens(60, seed=3)
    settings = GenerationSettings(max_new_tokens=120)
    databases = Drafter([], width=6)
    drafter: Any = JointDrafter(databases, [names["Repeats"]()], databases.cost)
    plain = fresh_steps(engine, prompt, settings)
    drafted = fresh_steps(engine, prompt, settings, drafter)
    assert tokens_of(drafted) == tokens_of(plain)
    assert sum(step.proposed.get("repeats", 0) for step in drafted)
    alone: Any = names["Repeats"]()
    by_itself = fresh_steps(engine, prompt, settings, alone)
    assert tokens_of(by_itself) == tokens_of(plain)
    assert any("repeats" in step.sources for step in by_itself)
