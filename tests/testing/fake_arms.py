"""Arms and peers that a test knows, and a run over them; questions.py has what they are asked."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.arms import Answer
from benchmarks.decode import Measured
from benchmarks.published import PUBLISHED
from hierchat.config import GenerationSettings

QUICK = [name for name in PUBLISHED if name != "arctic-suffix"]
"""Published methods that need not be compiled first."""


class FakeArm:
    """Answers at once; remembers what it was asked."""

    def __init__(self, name: str, log: list[str] | None = None) -> None:
        self.name = name
        self.log = log if log is not None else []
        self.prompts: list[list[int]] = []
        self.history: list[list[int]] = []
        self.asked = 0

    def answer(self, prompt: Sequence[int], settings: GenerationSettings) -> Answer:
        self.asked += 1
        self.log.append(self.name)
        self.prompts.append(list(prompt))
        return Answer([5, 6, 7], 0.5, 0.25, 2, 1.0, {"target": 2, "history": 1})

    def learn(self, reply: Sequence[int], lead: Sequence[int]) -> None:
        self.history.append(list(reply))

    def forget(self) -> None:
        self.history = []

    def close(self) -> None:
        pass


def result(folder: Path, names: Sequence[str]) -> Measured:
    return Measured(folder / "out.json", {"machine": {}, "settings": {}}, names)


FAKE_PEER = """
import json, sys
print(json.dumps({"versions": {"fake": "1"}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["seed"] == 13:
        print("unlucky", file=sys.stderr)
        sys.exit(3)
    said = {"tokens": asked["prompt"][:2] + asked["end_ids"], "seconds": 0.5, "first_seconds": 0.25}
    print(json.dumps(said), flush=True)
"""
