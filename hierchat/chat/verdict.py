"""What a comparison found, in plain words and in precise ones."""

from __future__ import annotations

from collections.abc import Mapping

from hierchat.chat.frames import DESERVED_TOKENS, Arm, Verdict
from hierchat.chat.reply import Reply
from hierchat.chat.words import pace, percent
from hierchat.engine.decoding import common_prefix
from hierchat.engine.engine import Compares, LearnsElsewhere
from hierchat.language import _
from hierchat.learning.machine import OTHERS


def verdict(
    replies: Mapping[Arm, Reply], names: Mapping[Arm, str], engine: Compares | None, others: float = 0.0
) -> Verdict:
    """Of two replies to one prompt. `engine`: the one of both, to ask how near the two choices were; None where it
    cannot tell, or each has its own. `others`: share of the processor that other programs used meanwhile."""
    first, second = replies["first"], replies["second"]
    left, right = first.statistics, second.statistics
    known = first.hosted is second.hosted and left.knows_tokens and right.knows_tokens
    same = common_prefix(left.tokens, right.tokens) if known else 0
    total = max(len(left.tokens), len(right.tokens))
    if "stopped" in (left.finish, right.finish) or not (left.tokens and right.tokens):
        compared = min(len(left.tokens), len(right.tokens))
        so_far = known and same and same == compared
        sentence = (
            _("Stopped. Word for word the same so far, {same:,} tokens.").format(same=same)
            if so_far
            else _("Stopped.")
        )
        return Verdict(same == compared, same, None, None, sentence)
    speeds = [statistics.figures().tokens_per_second for statistics in (left, right)]
    drafted = all(
        one.hosted.is_local or isinstance(one.hosted.engine, LearnsElsewhere) for one in (first, second)
    )
    # Of a server that drafts as it likes, two speeds tell nothing.
    speedup = speeds[1] / speeds[0] if drafted and speeds[0] and speeds[1] else None
    deserved = min(len(left.tokens), len(right.tokens)) >= DESERVED_TOKENS
    tempo = _pace(speedup, names["second"], others) if deserved else ""
    if (known and same == total) or (not known and left.text == right.text):
        precise = (
            _("Identical, {same:,} of {total:,} tokens.").format(same=same, total=total)
            if known
            else _("Both texts have the same characters.")
        )
        return Verdict(
            True, same, None, speedup, _("Word for word the same.{pace}").format(pace=tempo), precise=precise
        )
    word = first_difference(left.text, right.text) + 1
    reason = _reason(first, second)
    if reason:
        sentence = _("Other words from word {word:,} on, as expected: {reason}.{pace}").format(
            word=word, reason=reason, pace=tempo
        )
        precise = _("First difference at token {token:,}.").format(token=same + 1) if known else ""
        return Verdict(False, same, None, speedup, sentence, precise=precise)
    gap = None
    if engine and known and same < min(len(left.tokens), len(right.tokens)):
        context = [*first.prompt_ids, *left.tokens[:same]]
        gap = engine.logit_gap(context, left.tokens[same], right.tokens[same])
    noted = "" if gap is None else _(" (logit gap {gap:.4f})").format(gap=gap)
    precise = (
        _("First difference at token {token:,}{noted}.").format(token=same + 1, noted=noted) if known else ""
    )
    return Verdict(
        False,
        same,
        gap,
        speedup,
        _("The words differ from word {word:,} on.{pace}").format(word=word, pace=tempo),
        precise=precise,
    )


def first_difference(first: str, second: str) -> int:
    """The number of words that two texts begin with in common."""
    return common_prefix(first.split(), second.split())


def _reason(first: Reply, second: Reply) -> str:
    """Why two replies may have other words; empty where they may not."""
    if first.hosted.model_key != second.hosted.model_key:
        return _("the models differ")
    if first.settings.temperature != second.settings.temperature:
        return _("the temperatures differ")
    if first.settings.temperature and first.settings.seed != second.settings.seed:
        return _("the seeds differ")
    if first.settings.temperature and isinstance(first.hosted.engine, LearnsElsewhere):
        return _("the server draws anew where a draft is refused, each word as likely as without drafts")
    return ""


def _pace(speedup: float | None, name: str, others: float) -> str:
    """The second side, of this name, against the first."""
    if speedup is None:
        return ""
    told = pace(speedup)
    said = _(" “{name}” is {pace}.").format(name=name, pace=told) if told else _(" Both are as fast.")
    if others <= OTHERS:
        return said
    doubt = _(
        " Other programs used {share} of the processor meanwhile, and each side ran once: compare again before you "
        "rely on the speed."
    )
    return said + doubt.format(share=percent(others))
