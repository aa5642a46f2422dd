"""Split the text of a reply into thought and answer: the thought first, between <think> and </think>."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import get_args

from hierchat.config import Reasoning

CHOICES: tuple[Reasoning, ...] = tuple(choice for choice in get_args(Reasoning) if choice)
"""How much a model can be asked to think, from the least on."""
OPENS, CLOSES = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class SplitReply:
    """Thought and answer of a reply's text."""

    thought: str
    """Without the white space around it; empty where there is none."""
    answer: str
    thinking: bool = False
    """Whether the thought has not come to its end."""
    thought_at: int = 0
    """Where the thought begins in the text,"""
    answer_at: int = 0
    """and where the answer does."""


def split_reasoning(text: str) -> SplitReply:
    """Split a reply into thought and answer. Only its beginning is a thought. In a growing reply, both only grow."""
    begins = len(text) - len(text.lstrip())
    if not text.startswith(OPENS, begins):
        return SplitReply("", text)
    inside = begins + len(OPENS)
    ends = text.find(CLOSES, inside)
    thought = text[inside : ends if ends >= 0 else len(text)]
    at = inside + len(thought) - len(thought.lstrip())
    if ends < 0:
        return SplitReply(thought.strip(), "", True, at, len(text))
    rest = text[ends + len(CLOSES) :]
    answer = rest.lstrip()
    return SplitReply(thought.strip(), answer, False, at, len(text) - len(answer))


def nearest_effort(chosen: Reasoning, offered: Collection[Reasoning]) -> Reasoning:
    """Return the chosen effort, or of those a model offers the nearest to it. `chosen` is not empty."""
    wanted = CHOICES.index(chosen)
    return min(offered, key=lambda one: (abs(CHOICES.index(one) - wanted), CHOICES.index(one)))


def join_reasoning(thought: str, answer: str) -> str:
    """Return the text of a reply with this thought; that of the answer alone where there is none."""
    return f"{OPENS}\n{thought}\n{CLOSES}\n\n{answer}" if thought else answer
