"""Arms and peers that a test knows, and a run over them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hierchat.bench.arms import Answer
from hierchat.bench.decode import Result
from hierchat.bench.published import PUBLISHED
from hierchat.bench.questions import Question
from hierchat.config import GenerationSettings
from hierchat.engine.latency import LatencyCurve
from hierchat.engine.torch.runner import TorchRunner
from hierchat.hierarchy.planner import Hierarchy
from hierchat.runtime.hosted import Hosted
from hierchat.runtime.levels import Levels

from ..chat import tiny
from ..chat.tiny import END

SETTINGS = GenerationSettings(max_new_tokens=24, logit_bias={END: -100.0})


QUICK = [name for name in PUBLISHED if name != "arctic-suffix"]
"""Published methods that need not be compiled first; for the other see test_arctic.py."""


class FakeArm:
    """Answers at once; remembers what it was asked. `fails`: the answer that it dies of, from 0."""

    def __init__(self, name: str, log: list[str] | None = None, fails: int | None = None) -> None:
        self.name = name
        self.log = log if log is not None else []
        self.prompts: list[list[int]] = []
        self.history: list[list[int]] = []
        self.fails = fails
        self.closed = False
        self.asked = 0

    def answer(self, prompt: Sequence[int], settings: GenerationSettings) -> Answer:
        self.asked += 1
        if self.fails is not None and self.asked > self.fails:
            raise RuntimeError("out of breath")
        self.log.append(self.name)
        self.prompts.append(list(prompt))
        return Answer([5, 6, 7], 0.5, 0.25, 2, 1.0, {"target": 2, "history": 1})

    def learn(self, reply: Sequence[int]) -> None:
        self.history.append(list(reply))

    def forget(self) -> None:
        self.history = []

    def close(self) -> None:
        self.closed = True


NAMES = ("small", "middle", "tiny")
"""Draft models and target."""


def with_draft_models() -> Hosted:
    """Two draft models: one is another random model, one is the target's twin."""
    hosted = tiny.hosted()
    targets = tuple(TorchRunner(tiny.model(seed), context_length=tiny.CONTEXT).open() for seed in (1, 0))
    latencies = (LatencyCurve(), LatencyCurve())
    for latency, ms in zip(latencies, (0.1, 0.2), strict=True):
        latency.note(1, 0, ms)
    hosted.engine.latency = LatencyCurve()
    hosted.engine.latency.note(1, 0, 1.0)
    hierarchy = Hierarchy(NAMES, [*latencies, hosted.engine.latency], {(1, 2): 0.99})
    return replace(hosted, levels=Levels(targets, latencies, hierarchy))


def questions(count: int, turns: int = 1, group: str = "qa") -> list[Question]:
    return [
        Question(n, f"q{n}", tuple(f"question {n}, turn {t}" for t in range(turns)), group, day=n // 2)
        for n in range(count)
    ]


def result(folder: Path, names: Sequence[str]) -> Result:
    return Result(folder / "out.json", {"machine": {}, "settings": {}}, names)


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


FAKE_PEER = """
import json, sys
print(json.dumps({"versions": {"fake": "1"}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["seed"] == 13:
        print("unlucky", file=sys.stderr)
        sys.exit(3)
    if asked["seed"] == 14:
        said = {"error": "ValueError: too long"}
    else:
        said = {"tokens": asked["prompt"][:2] + asked["end_ids"], "seconds": 0.5, "first_seconds": 0.25}
    print(json.dumps(said), flush=True)
"""
