"""Find what the databases hold about the next token of a text, in two estimates from a sorted index.
The broad one samples the longest suffix that occurs more than CLOSE times; the precise one looks at all
occurrences of the suffix one longer."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hierchat.drafting.growing import kernel
from hierchat.drafting.growing.gumbel import gumbel_of_one
from hierchat.drafting.growing.kernel_arrays import (
    BREAK,
    CANDIDATES,
    CLOSE,
    CONTEXT,
    MAX_MATCH,
    SAMPLES,
    SEEN,
    SLOTS,
    SUCCESSORS,
    VISITS,
    Known,
    Run,
    Seen,
)
from hierchat.drafting.source import find_pair

LUCKY = 2.0
"""Noise from which on a token that was seen once in a sample is a candidate by that alone: one token in eight."""


@intrinsic
def peek(typing: Any, address: Any, index: Any) -> Any:
    """Return the int32 at `index` of an array at `address`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(32).as_pointer())
        return builder.load(builder.gep(pointer, [arguments[1]]))

    return types.int32(types.int64, types.int64), generate


@kernel
def token_at(run, position):  # type: ignore[no-untyped-def]
    """Return the token at a position of a run's log; BREAK behind its end."""
    return peek(run[Run.TOKENS], position) if position < run[Run.LENGTH] else BREAK


@kernel
def compare(run, position, suffix, known):  # type: ignore[no-untyped-def]
    """Return the sign of the order of what stands at `position` and a suffix, whose first `known` tokens are equal."""
    log, length = run[Run.TOKENS], run[Run.LENGTH]
    for i in range(known, len(suffix)):
        token = peek(log, position + i) if position + i < length else BREAK
        if token != suffix[i]:
            return -1 if token < suffix[i] else 1
    return 0


@kernel
def occurrences(run, low, high, suffix, known):  # type: ignore[no-untyped-def]
    """Return the part of a run's order from `low` to `high` that begins with a suffix; `known` tokens of it do."""
    order = run[Run.ORDER]
    end = high
    while low < high:
        middle = (low + high) // 2
        sign = compare(run, peek(order, middle), suffix, known)
        if sign < 0:
            low = middle + 1
        else:
            high = middle
            if sign > 0:
                end = middle
    first, high = low, end
    while low < high:
        middle = (low + high) // 2
        if compare(run, peek(order, middle), suffix, known) > 0:
            high = middle
        else:
            low = middle + 1
    return first, low


@kernel
def occurs(runs, tokens):  # type: ignore[no-untyped-def]
    """Return whether some tokens occur, one after the other, in any of the runs."""
    for run in range(len(runs)):
        first, end = occurrences(runs[run], 0, runs[run, Run.SIZE], tokens, 0)
        if first < end:
            return True
    return False


@kernel
def matched(run, position, text, known):  # type: ignore[no-untyped-def]
    """Count the tokens before `position` in a run's log that equal the last ones of `text`; `known` do."""
    size = known
    while (
        size < MAX_MATCH
        and size < len(text)
        and size < position
        and peek(run[Run.TOKENS], position - 1 - size) == text[len(text) - 1 - size]
    ):
        size += 1
    return size


@kernel
def went_on(databases, before, last):  # type: ignore[no-untyped-def]
    """Return whether a token follows `last` anywhere in the context; if `before` is not -1, after a `before`."""
    at = databases.newest[last] if last < len(databases.newest) else -1
    while at >= 0:
        right = before < 0 or (at > 0 and databases.tokens[at - 1] == before)
        if right and at + 1 < len(databases.previous):
            return True
        at = databases.previous[at]
    return False


MOST_VOTES = 7
"""A vote counts twice as much per further token matched, up to this length."""


@kernel
def look_near(at):  # type: ignore[no-untyped-def]
    """Begin a row of `places` with the evidence of the context."""
    places, place = at.places, at.place
    places.candidates[place] = 0
    for slot in range(SLOTS):
        for kind in range(Known.RECENT):
            places.known[place, slot, kind] = 0.0
    places.suffix[place] = 0
    places.close[place] = 0
    _look_back(at)


@kernel
def look_far(at, parent):  # type: ignore[no-untyped-def]
    """Add the evidence of all other databases to a row of `places`."""
    runs = at.databases.runs
    for slot in range(1, SLOTS):
        if slot == SUCCESSORS:
            _look_up(at)
            continue
        some = False
        for run in range(len(runs)):
            if runs[run, Run.SLOT] == slot:
                some = True
        if some:
            _find(at, parent, slot)
            _add_followers(at, slot)


@kernel
def _candidate(places, place, token, new):  # type: ignore[no-untyped-def]
    """Return the row of a token; -1 where it has none, and is not to get a `new` one or there is no room."""
    count = places.candidates[place]
    for i in range(count):
        if places.tokens[place, i] == token:
            return i
    if count == CANDIDATES or not new:
        return -1
    places.tokens[place, count] = token
    for slot in range(SLOTS):
        for kind in range(SEEN):
            places.seen[place, count, slot, kind] = 0.0
    places.candidates[place] = count + 1
    return count


@kernel
def _add_occurrence(at, slot, token, length, first):  # type: ignore[no-untyped-def]
    places, place = at.places, at.place
    known = places.known[place, slot]
    vote = np.float32(1 << (min(length, MOST_VOTES) - 1))
    known[Known.OCCURRENCES] += 1
    known[Known.VOTES] += vote
    known[Known.LONGEST] = max(known[Known.LONGEST], length)
    i = _candidate(places, place, token, True)
    if i >= 0:
        seen = places.seen[place, i, slot]
        seen[Seen.LENGTH] = max(seen[Seen.LENGTH], length)
        seen[Seen.COUNT] += 1
        seen[Seen.VOTES] += vote
        if first:
            seen[Seen.NEWEST] = 1.0


@kernel
def _count(at, slot, follow, suffix, population):  # type: ignore[no-untyped-def]
    """Count the tokens that follow the shorter suffix. A token seen once is no candidate by that, but by its noise."""
    places, place = at.places, at.place
    sampled = np.empty(len(follow), np.int32)
    counts = np.empty(len(follow), np.int64)
    number = total = 0
    for token in follow:
        if token == BREAK:
            continue
        total += 1
        j = 0
        while j < number and sampled[j] != token:
            j += 1
        if j == number:
            sampled[j], counts[j] = token, 0
            number += 1
        counts[j] += 1
    if total == 0:
        return
    known = places.known[place, slot]
    key = places.keys[place]
    known[Known.SUFFIX], known[Known.SAMPLE], known[Known.POPULATION] = suffix, total, population
    for j in range(number):
        new = counts[j] > 1 or (key != 0 and gumbel_of_one(key, sampled[j]) > LUCKY)
        i = _candidate(places, place, np.int64(sampled[j]), new)
        if i >= 0:
            places.seen[place, i, slot, Seen.SAMPLED] = counts[j]


@kernel
def _look_back(at):  # type: ignore[no-untyped-def]
    """Look at the last token's occurrences in the context, newest first, up to VISITS."""
    databases, places, place, text = at.databases, at.places, at.place, at.text
    last = text[len(text) - 1]
    before = databases.newest[last] if last < len(databases.newest) else -1
    follow = np.empty(VISITS, np.int32)
    lengths = np.empty(VISITS, np.int64)
    ends = np.empty(VISITS, np.int64)
    total = longest = 0
    for _ in range(VISITS):
        if before < 0:
            break
        if before + 1 < len(databases.previous):
            length = 1
            while (
                length < MAX_MATCH
                and length < len(text)
                and before >= length
                and databases.tokens[before - length] == text[len(text) - 1 - length]
            ):
                length += 1
            follow[total] = databases.tokens[before + 1]
            lengths[total] = length
            ends[total] = before + 1
            longest = max(longest, length)
            total += 1
        before = databases.previous[before]
    kept = 0
    for length in range(longest, 0, -1):
        for i in range(total):
            if lengths[i] == length and kept < CLOSE:
                _add_occurrence(at, CONTEXT, np.int64(follow[i]), length, kept == 0)
                places.close_run[place, CONTEXT, kept] = -1
                places.close_end[place, CONTEXT, kept] = ends[i]
                places.close_length[place, CONTEXT, kept] = length
                kept += 1
        if kept == CLOSE:
            break
    places.close[place, CONTEXT] = kept
    _count(at, CONTEXT, follow[:total], 1, total)


@kernel
def _find(at, parent, slot):  # type: ignore[no-untyped-def]
    runs, places, place, text = at.databases.runs, at.places, at.place, at.text
    close = suffix = 0
    bounds = np.zeros((len(runs), 2), np.int64)
    if parent >= 0 and 0 < places.suffix[parent, slot] < MAX_MATCH - 1:
        # One longer than the parent's: within its occurrences
        size = places.suffix[parent, slot]
        if _search(at, parent, slot, size + 1, bounds) > CLOSE:
            suffix = size + 1
            # What the parent looked at and goes on with this token
            for j in range(places.close[parent, slot]):
                run, end = places.close_run[parent, slot, j], places.close_end[parent, slot, j]
                if token_at(runs[run], end) == text[len(text) - 1]:
                    places.close_run[place, slot, close] = run
                    places.close_end[place, slot, close] = end + 1
                    places.close_length[place, slot, close] = min(
                        places.close_length[parent, slot, j] + 1, MAX_MATCH
                    )
                    close += 1
        else:
            close = _take(at, slot, size + 1, bounds)
            while size > 0 and _search(at, -1, slot, size, bounds) <= CLOSE:
                close = _take(at, slot, size, bounds)
                size -= 1
            suffix = size
        _keep(at, slot, bounds)
    else:
        # Pairs first: mostly they are common enough, and the last token alone need not be searched.
        size, rising = min(2, len(text)), True
        while size <= min(MAX_MATCH, len(text)):
            if _search(at, -1, slot, size, bounds) > CLOSE:
                suffix = size
                _keep(at, slot, bounds)
                if not rising:
                    break
                size += 1
            else:
                close = _take(at, slot, size, bounds)
                if suffix or size == 1:
                    break
                size, rising = 1, False
    places.suffix[place, slot] = suffix
    places.close[place, slot] = close


@kernel
def _keep(at, slot, bounds):  # type: ignore[no-untyped-def]
    for run in range(len(bounds)):
        if at.databases.runs[run, Run.SLOT] == slot:
            at.places.bounds[at.place, run, 0] = bounds[run, 0]
            at.places.bounds[at.place, run, 1] = bounds[run, 1]


@kernel
def _search(at, parent, slot, size, bounds):  # type: ignore[no-untyped-def]
    """Find where the last `size` tokens occur in each run of a slot, among those of row `parent` (-1: anywhere);
    count them."""
    runs, total = at.databases.runs, 0
    suffix = at.text[len(at.text) - size :]
    for run in range(len(runs)):
        if runs[run, Run.SLOT] == slot:
            low, high, known = 0, runs[run, Run.SIZE], 0
            if parent >= 0:
                low, high = at.places.bounds[parent, run, 0], at.places.bounds[parent, run, 1]
                known = size - 1
            low, high = occurrences(runs[run], low, high, suffix, known)
            bounds[run, 0], bounds[run, 1] = low, high
            total += high - low
    return total


@kernel
def _take(at, slot, size, bounds):  # type: ignore[no-untyped-def]
    runs, places, place = at.databases.runs, at.places, at.place
    close = 0
    for run in range(len(runs)):
        if runs[run, Run.SLOT] == slot:
            for i in range(bounds[run, 0], bounds[run, 1]):
                after = peek(runs[run, Run.ORDER], i) + size
                if close < CLOSE and after < runs[run, Run.LENGTH]:
                    places.close_run[place, slot, close] = run
                    places.close_end[place, slot, close] = after
                    places.close_length[place, slot, close] = matched(runs[run], after, at.text, size)
                    close += 1
    return close


@kernel
def _add_followers(at, slot):  # type: ignore[no-untyped-def]
    runs, places, place = at.databases.runs, at.places, at.place
    newest_length = newest_run = newest_end = 0
    newest = -1
    for j in range(places.close[place, slot]):
        run, after = places.close_run[place, slot, j], places.close_end[place, slot, j]
        token = token_at(runs[run], after)
        if token == BREAK:
            continue
        length = places.close_length[place, slot, j]
        _add_occurrence(at, slot, token, length, False)
        if (length, run, after) > (newest_length, newest_run, newest_end):
            newest, newest_length, newest_run, newest_end = token, length, run, after
    for i in range(places.candidates[place]):
        if newest >= 0 and places.tokens[place, i] == newest:
            places.seen[place, i, slot, Seen.NEWEST] = 1.0
    if places.suffix[place, slot] > 0:
        _, _, follow, population = _spread(runs, places, place, slot)
        _count(at, slot, follow, places.suffix[place, slot], population)


@kernel
def _spread(runs, places, place, slot):  # type: ignore[no-untyped-def]
    """Spread SAMPLES at most over the shorter suffix's occurrences: run, position and next token; return their
    number."""
    population = 0
    for run in range(len(runs)):
        if runs[run, Run.SLOT] == slot:
            population += places.bounds[place, run, 1] - places.bounds[place, run, 0]
    sample = min(population, SAMPLES)
    runs_of = np.empty(sample, np.int64)
    ends = np.empty(sample, np.int64)
    follow = np.empty(sample, np.int32)
    before = run = 0
    for j in range(sample):
        rank = (2 * j + 1) * population // (2 * sample)
        while True:
            size = 0
            if runs[run, Run.SLOT] == slot:
                size = places.bounds[place, run, 1] - places.bounds[place, run, 0]
            if rank < before + size:
                break
            before += size
            run += 1
        runs_of[j], ends[j] = run, places.bounds[place, run, 0] + rank - before
    # Each of these is far from the others in memory: asked for together, they are waited for once.
    for j in range(sample):
        ends[j] = peek(runs[runs_of[j], Run.ORDER], ends[j]) + places.suffix[place, slot]
    for j in range(sample):
        follow[j] = token_at(runs[runs_of[j]], ends[j])
    return runs_of, ends, follow, population


@kernel
def trace(databases, places, place, slot, candidate):  # type: ignore[no-untyped-def]
    """Find the newest longest match of a candidate in a slot: run (-1: context), and position (-1: none)."""
    runs, token = databases.runs, places.tokens[place, candidate]
    longest, in_run, position = 0, -1, -1
    for j in range(places.close[place, slot]):
        run, end = places.close_run[place, slot, j], places.close_end[place, slot, j]
        length = places.close_length[place, slot, j]
        following = databases.tokens[end] if run < 0 else token_at(runs[run], end)
        if following == token and (length, run, end) > (longest, in_run, position):
            longest, in_run, position = length, run, end
    if longest == 0 and slot != CONTEXT and places.suffix[place, slot] > 0:
        runs_of, ends, follow, _ = _spread(runs, places, place, slot)
        for j in range(len(follow)):
            if follow[j] == token:
                return runs_of[j], ends[j]
    return in_run, position


@kernel
def _look_up(at):  # type: ignore[no-untyped-def]
    """Add the target's own likeliest next tokens when it last stood behind these two tokens, and behind this one."""
    databases, places, place, text = at.databases, at.places, at.place, at.text
    last = text[len(text) - 1]
    if len(text) > 1 and len(databases.pair_keys):
        pair = find_pair(databases.pair_keys, text[len(text) - 2], last)
        if pair >= 0:
            _add_successors(places, place, databases.pairs[pair], 0)
    if last < len(databases.single) and databases.single[last, 0] >= 0:
        _add_successors(places, place, databases.single[last, :4], 1)


@kernel
def _add_successors(places, place, tokens, kind):  # type: ignore[no-untyped-def]
    """Add tokens, the likeliest first, that stood behind these two tokens (0), or behind the last one (1)."""
    places.known[place, SUCCESSORS, kind] = 1.0
    for rank in range(len(tokens)):
        i = _candidate(places, place, np.int64(tokens[rank]), True) if tokens[rank] >= 0 else -1
        if i >= 0:
            places.seen[place, i, SUCCESSORS, 2 * kind] = 1.0
            places.seen[place, i, SUCCESSORS, 2 * kind + 1] = np.log(np.float32(1 + rank))
