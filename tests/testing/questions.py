"""Questions for a tiny model, and the model with draft models below it."""

import json
from dataclasses import replace
from pathlib import Path

from hierchat.checks.runs import Question
from hierchat.config import GenerationSettings
from hierchat.drafting.draft_cost import LatencyCurve
from hierchat.hierarchy.planner import Hierarchy
from hierchat.runtime.served_model import Levels, LoadedLevel, ServedModel
from tests.testing import tiny_chat as tiny
from tests.testing.tiny_chat import END

SETTINGS = GenerationSettings(max_new_tokens=24, logit_bias={END: -100.0})
NAMES = ("small", "middle", "tiny")
"""Draft models and target."""


def with_draft_models() -> ServedModel:
    """Two draft models: one is another random model, one is the target's twin."""
    served = tiny.served()
    targets = tuple(tiny.runner(seed).open() for seed in (1, 0))
    latencies = (LatencyCurve(), LatencyCurve())
    for latency, ms in zip(latencies, (0.1, 0.2), strict=True):
        latency.note(1, 0, ms)
    served.engine.latency = LatencyCurve()
    served.engine.latency.note(1, 0, 1.0)
    hierarchy = Hierarchy(NAMES, [*latencies, served.engine.latency], {(1, 2): 0.99})
    models = tuple(map(LoadedLevel, NAMES, targets, latencies))
    return replace(served, levels=Levels(models, hierarchy))


def questions(count: int, turns: int = 1, group: str = "qa") -> list[Question]:
    return [
        Question(n, f"q{n}", tuple(f"question {n}, turn {t}" for t in range(turns)), group, day=n // 2)
        for n in range(count)
    ]


def questions_file(folder: Path, count: int = 4) -> Path:
    path = folder / "questions.jsonl"
    lines = [
        {"question_id": n, "category": ("qa", "math", "coding", "rag")[n % 4], "turns": [f"what is {n}?"]}
        for n in range(count)
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def tell(doing: str, advance: int = 0) -> None:
    pass
