"""What a request used, and how fast it was answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hierchat.server.requests import Asked

FINISH = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}
"""Why a reply ended, as OpenAI calls it."""


def tokens_used(asked: Sequence[Asked]) -> tuple[int, int]:
    """Tokens of the prompts, each counted once however many replies it got, and of the replies."""
    begun = [(one.wanted, one.reply) for one in asked if one.reply is not None]
    prompts = {id(wanted): reply.prompt_tokens for wanted, reply in begun}
    return sum(prompts.values()), sum(len(reply.statistics.tokens) for _, reply in begun)


def thought_tokens(asked: Sequence[Asked]) -> int:
    """Of the tokens of the replies, those of what was thought."""
    return sum(one.reply.statistics.thought_tokens for one in asked if one.reply is not None)


def usage(asked: Sequence[Asked]) -> dict[str, Any]:
    """In OpenAI's form; `hierchat` is ours."""
    prompt, written = tokens_used(asked)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "hierchat": figures(asked),
    }


def figures(asked: Sequence[Asked]) -> dict[str, Any]:
    """How the replies were drafted. The speed-up is told for one reply alone, where it was measured."""
    replies = [one.reply for one in asked if one.reply is not None]
    told = [reply.statistics.figures() for reply in replies]
    forwards, written = sum(one.forwards for one in told), sum(one.tokens for one in told)
    alone = told[0] if len(told) == 1 else None
    return {
        "drafted": sum(sum(reply.statistics.proposed.values()) for reply in replies),
        "accepted": sum(sum(reply.statistics.accepted.values()) for reply in replies),
        "tokens_per_forward": written / forwards if forwards else None,
        "tokens_per_second": alone and alone.tokens_per_second,
        "waited_seconds": alone and alone.waited_seconds,
        "speedup": alone and alone.deserved_speedup,
        "sources": dict(alone.shares) if alone else {},
        "seeds": [one.seed for one in told],
        "load_seconds": max((one.load_seconds for one in asked), default=0.0),
    }
