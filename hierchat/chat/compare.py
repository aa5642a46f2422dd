"""Vanilla and speculative decoding of one prompt, one after the other, and what the comparison found."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace

from hierchat.chat.frames import DESERVED_TOKENS, Arm, CompareFrame, Frame, Verdict
from hierchat.chat.record import Record
from hierchat.chat.reply import Reply
from hierchat.engine.decoding import common_prefix
from hierchat.engine.engine import Compares


class CannotCompare(ValueError):
    """The engine answers a prompt in one way only."""


def compare_arms(
    vanilla: Reply, speculative: Reply, record: Record, stop: threading.Event
) -> Generator[CompareFrame, None, None]:
    """Run both in random order from the same slots, then judge. The speculative reply is what `record` keeps."""
    frames: dict[Arm, Frame] = {"vanilla": Frame("waiting"), "speculative": Frame("waiting")}
    order: list[Arm] = ["vanilla", "speculative"]
    if secrets.randbelow(2):
        order.reverse()
    engine = vanilla.hosted.engine
    if not isinstance(engine, Compares):
        raise CannotCompare(
            f"{vanilla.hosted.name} is computed elsewhere and cannot answer the same prompt twice."
        )
    shared = engine.shared(vanilla.prompt_ids)
    for arm in order:
        if stop.is_set():
            break
        engine.forget(shared)  # neither arm profits from the other's reading
        runner = vanilla if arm == "vanilla" else record
        with closing(runner.frames(stop, measure=arm == "speculative")) as running:
            for frame in running:
                frames[arm] = frame
                yield CompareFrame(dict(frames), arm)
        _set_baselines(vanilla, speculative)
    replies: dict[Arm, Reply] = {"vanilla": vanilla, "speculative": speculative}
    for arm, reply in replies.items():
        frames[arm] = replace(frames[arm], figures=reply.statistics.figures())
    yield CompareFrame(
        dict(frames), None, replace(_verdict(vanilla, speculative, engine), exact=engine.exact)
    )


def _set_baselines(vanilla: Reply, speculative: Reply) -> None:
    """A whole plain reply is the better baseline than a few plain forwards."""
    plain = vanilla.statistics
    if plain.tokens and plain.finish != "stopped":
        for reply in (vanilla, speculative):
            reply.statistics.set_baseline(plain.decode_ms / len(plain.tokens), "measured")


def _verdict(vanilla: Reply, speculative: Reply, engine: Compares) -> Verdict:
    plain, drafted = vanilla.statistics, speculative.statistics
    same = common_prefix(plain.tokens, drafted.tokens)
    total = max(len(plain.tokens), len(drafted.tokens))
    stopped = "stopped" in (plain.finish, drafted.finish) or not (plain.tokens and drafted.tokens)
    if stopped:
        compared = min(len(plain.tokens), len(drafted.tokens))
        if same == compared:
            sentence = f"Stopped. Identical so far, {same:,} of {compared:,} tokens." if same else "Stopped."
            return Verdict(True, same, None, None, sentence)
    speedup = None
    if plain.decode_ms and drafted.decode_ms and not stopped:
        plain_speed = len(plain.tokens) / plain.decode_ms
        speedup = len(drafted.tokens) / drafted.decode_ms / plain_speed
    if same == total:
        sentence = f"Identical, {same:,} of {total:,} tokens.{_pace(speedup, total)}"
        return Verdict(True, same, None, speedup, sentence)
    gap = None
    if same < min(len(plain.tokens), len(drafted.tokens)):
        context = [*vanilla.prompt_ids, *plain.tokens[:same]]
        gap = engine.logit_gap(context, plain.tokens[same], drafted.tokens[same])
    noted = "" if gap is None else f" (logit gap {gap:.4f})"
    return Verdict(
        False, same, gap, speedup, f"First difference at token {same + 1:,}{noted}.{_pace(speedup, total)}"
    )


def _pace(speedup: float | None, tokens: int) -> str:
    if speedup is None or tokens < DESERVED_TOKENS:
        return ""
    if speedup >= 1:
        return f" {speedup:.1f}\u00d7 faster."
    return f" {1 / speedup:.1f}\u00d7 slower."
