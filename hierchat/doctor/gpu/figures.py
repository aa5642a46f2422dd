"""What is asked of a way to compute: the same words with drafts, tokens a second, milliseconds of a forward."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from hierchat.config import GenerationSettings
from hierchat.runtime.drafters import Memory, reply_drafter
from hierchat.runtime.hosted import Hosted
from hierchat.verify.asking.dialogue import Dialogue
from hierchat.verify.asking.questions import Question
from hierchat.verify.check import Compared, check

ASKED = (
    "Name five trees that grow in the north, each with one sentence.",
    "Write a short Python function that counts the words of a text.",
    "Repeat word for word: The river rises in the hills, runs past three villages and ends in a lake. In spring the "
    "river floods the meadows, and in summer children wade through it.",
)
DRAFTERS = ("default", "random", "adversarial")
SETTINGS = GenerationSettings(max_new_tokens=48)
WARM = GenerationSettings(max_new_tokens=8)
WIDTHS = (1, 2, 4, 8, 16, 32)
FORWARDS = 9
"""Of each width; the median counts."""


def figures(hosted: Hosted) -> dict[str, Any]:
    """Of a model that was just loaded. Without drafts nothing is compared, and forwards have one row."""
    engine, runner = hosted.local, hosted.local.runner
    found: dict[str, Any] = {
        "rung": hosted.rung,
        "backend": runner.backend,
        "exact": runner.exact,
        "quantum": getattr(runner, "quantum", 1),
        "way": getattr(runner, "way", ""),
        "note": hosted.note,
    }
    if runner.drafts:
        found["verify"] = _verified(hosted)
    engine.clear()
    found["plain"], _ = _speed(hosted, drafts=False)
    if runner.drafts:
        found["drafted"], found["per_forward"] = _speed(hosted, drafts=True)
    found["forward_ms"] = _forwards(hosted)
    return found


def _verified(hosted: Hosted) -> dict[str, int]:
    questions = [Question(number, str(number), (text,)) for number, text in enumerate(ASKED)]
    with TemporaryDirectory() as folder:
        compared = Compared(Path(folder) / "verify.json", {}, DRAFTERS)
        check(hosted, questions, SETTINGS, compared, lambda doing, done: None)
    said = compared.as_dict()
    return {"tokens": said["tokens"], "mismatches": said["mismatches"]}


def _speed(hosted: Hosted, *, drafts: bool) -> tuple[float, float]:
    """Tokens a second behind the prompt, and tokens per forward."""
    memory = Memory()
    tokens = forwards = 0
    seconds = 0.0
    for settings, asked in ((WARM, ASKED[:1]), (SETTINGS, ASKED)):
        tokens, forwards, seconds = 0, 0, 0.0
        for text in asked:
            prompt = Dialogue(hosted, settings.max_new_tokens).ask(text)
            drafter = reply_drafter(hosted, memory, settings, Event()) if drafts else None
            began = time.perf_counter()
            for step in hosted.engine.generate(prompt, settings, drafter, padded=drafts):
                now = time.perf_counter()
                if step.tokens:
                    tokens, forwards, seconds = tokens + len(step.tokens), forwards + 1, seconds + now - began
                began = now
    return tokens / max(seconds, 1e-9), tokens / max(forwards, 1)


def _forwards(hosted: Hosted) -> dict[str, float]:
    """Median milliseconds by the number of rows, behind the last prompt."""
    sequence = hosted.local.sequence
    found = {}
    for width in WIDTHS if sequence.runner.drafts else WIDTHS[:1]:
        times = []
        for _ in range(FORWARDS + 1):  # the first one may have to prepare something
            began = time.perf_counter()
            rows = sequence.forward((sequence.tokens[-1],) * width, range(-1, width - 1), padded=width > 1)
            rows.best(0)  # waits for the device
            times.append((time.perf_counter() - began) * 1e3)
        found[str(width)] = sorted(times[1:])[FORWARDS // 2]
    return found
