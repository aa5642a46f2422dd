"""A result as JSON: all that is needed to check what it claims."""

from __future__ import annotations

import json
import shlex
import time
from typing import Any

from hierchat.chat.comparison import ARMS, Comparison
from hierchat.chat.configuration import USUAL
from hierchat.config import GenerationSettings
from hierchat.language import _

_VARIED = ("temperature", "seed", "max_new_tokens")
"""What `verify` and `bench decode` can be told of a reply's settings."""


def export(result: Comparison) -> str:
    """One object. The times of each side are what changed since the moment before: milliseconds, tokens, characters."""
    whole: dict[str, Any] = {
        "hierchat_comparison": 1,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(result.at)),
        "question": result.question,
        **result.record(),
        "repeat": repeated(result),
    }
    return json.dumps(whole, ensure_ascii=False, indent=1)


def repeated(result: Comparison) -> dict[str, Any] | None:
    """The commands that repeat it, over a file with the line that is given. None where there are none: another pair
    than the usual one, a model of a server, a question that had others before it, or settings that the commands do not
    take."""
    settings = dict(result.sides["second"].settings)
    plain = GenerationSettings().model_dump(mode="json")
    usual = all(dict(result.sides[arm].configuration) == USUAL[arm].record() for arm in ARMS)
    if (
        not usual
        or result.sides["second"].revision.startswith("remote:")
        or not result.alone
        or any(settings[name] != plain[name] for name in plain if name not in _VARIED)
    ):
        return None
    options = (
        f"--questions question.jsonl --model {shlex.quote(result.sides['second'].model)}"
        f" --max-new-tokens {settings['max_new_tokens']} --temperature {settings['temperature']:g}"
        f" --seed {settings['seed']}"
    )
    return {
        "question.jsonl": json.dumps({"turns": [result.question], "category": "chat"}, ensure_ascii=False),
        "words": f"python -m hierchat verify {options} --json words.json",
        "speed": f"python -m hierchat bench decode {options} --arms vanilla,hierchat --json speed.json",
        "note": _(
            "These commands begin with an empty history, so fewer drafts are found than in a chat of yours."
        ),
    }
