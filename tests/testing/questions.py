"""Questions for a tiny model."""

import json
from pathlib import Path

from hierchat.checks.runs import Question
from hierchat.config import GenerationSettings
from tests.testing.tiny_chat import END

SETTINGS = GenerationSettings(max_new_tokens=24, logit_bias={END: -100.0})


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
