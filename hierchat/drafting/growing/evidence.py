"""What the databases hold about the next token of a text.

A sorted index gives two estimates. The broad one samples the longest suffix that occurs more than CLOSE times. The
precise one looks at the occurrences of the suffix one longer, CLOSE at most, one by one, each with its match length. A
child's occurrences are among its parent's. Only where these become few, a shorter suffix is searched anew."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hierchat.drafting.growing import kernel
from hierchat.drafting.growing.gumbel_noise import LUCKY, gumbel
from hierchat.drafting.growing.kernel_arrays import (
    ALL_VOTES,
    BREAK,
    CANDIDATES,
    CLOSE,
    CONTEXT,
    COUNT,
    LENGTH,
    LONGEST,
    MAX_MATCH,
    NEWEST,
    OCCURRENCES,
    POPULATION,
    RECENT,
    RUN_LENGTH,
    RUN_ORDER,
    RUN_SIZE,
    RUN_SLOT,
    RUN_TOKENS,
    SAMPLE,
    SAMPLED,
    SAMPLES,
    SLOTS,
    SUCCESSORS,
    SUFFIX,
    VISITS,
    VOTES,
)
from hierchat.drafting.successors import find_pair

# Where a suffix of the text occurs in a sorted run.


@intrinsic
def peek(typing: Any, address: Any, index: Any) -> Any:
    """The int32 at `index` of an array at `address`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(32).as_pointer())
        return builder.load(builder.gep(pointer, [arguments[1]]))

    return types.int32(types.int64, types.int64), generate


@kernel
def compare(tokens, length, position, text, end, size):  # type: ignore[no-untyped-def]
    """Sign of the order of what stands at `position` and the last `size` tokens of text[:end]."""
    for i in range(size):
        at = position + i
        token = peek(tokens, at) if at < length else BREAK
        wanted = text[end - size + i]
        if token != wanted:
            return -1 if token < wanted else 1
    return 0


@kernel
def occurrences(tokens, length, order, count, text, end, size):  # type: ignore[no-untyped-def]
    """The range of the order whose suffixes begin with the last `size` tokens of text[:end]."""
    low, high = 0, count
    above = count
    while low < high:
        middle = (low + high) // 2
        sign = compare(tokens, length, peek(order, middle), text, end, size)
        if sign < 0:
            low = middle + 1
        else:
            high = middle
            if sign > 0:
                above = middle
    first = low
    high = above
    while low < high:
        middle = (low + high) // 2
        if compare(tokens, length, peek(order, middle), text, end, size) > 0:
            high = middle
        else:
            low = middle + 1
    return first, low


@kernel
def narrowed(tokens, length, order, low, high, offset, token):  # type: ignore[no-untyped-def]
    """The part of a range whose suffixes go on with `token` after `offset` tokens."""
    end = high
    while low < high:
        middle = (low + high) // 2
        at = peek(order, middle) + offset
        if (peek(tokens, at) if at < length else BREAK) < token:
            low = middle + 1
        else:
            high = middle
    first, high = low, end
    while low < high:
        middle = (low + high) // 2
        at = peek(order, middle) + offset
        if (peek(tokens, at) if at < length else BREAK) > token:
            high = middle
        else:
            low = middle + 1
    return first, low


@kernel
def matched(tokens, place, text, end, known):  # type: ignore[no-untyped-def]
    """How many tokens before `place` in the log equal the last ones of text[:end]; `known` do."""
    size = known
    while size < MAX_MATCH and size < end and size < place:
        token = text[end - 1 - size]
        if token == BREAK or peek(tokens, place - 1 - size) != token:
            break
        size += 1
    return size


MOST_VOTES = 7
"""A vote counts twice as much per further token matched, up to this length."""


@kernel
def look(databases, places, place, parent, text, end):  # type: ignore[no-untyped-def]
    """Fill row `place`: the next token of text[:end], whose last token was appended to row `parent`'s text (-1: none).

    The tail of the context and the path stand in `text`.
    """
    look_near(databases, places, place, text, end)
    look_far(databases, places, place, parent, text, end)


@kernel
def look_near(databases, places, place, text, end):  # type: ignore[no-untyped-def]
    """Begin row `place` with the evidence of the context."""
    places.candidates[place] = 0
    places.known[place, :, :RECENT] = 0.0
    places.suffix[place] = 0
    places.close[place] = 0
    _look_back(databases, places, place, text, end)


@kernel
def look_far(databases, places, place, parent, text, end):  # type: ignore[no-untyped-def]
    """Add the evidence of all other databases."""
    for slot in range(1, SLOTS):
        if slot == SUCCESSORS:
            _look_up(databases, places, place, text, end)
            continue
        some = False
        for run in range(len(databases.runs)):
            if databases.runs[run, RUN_SLOT] == slot:
                some = True
        if some:
            _find(databases.runs, places, place, parent, slot, text, end)
            _add_followers(databases.runs, places, place, slot)


@kernel
def _candidate(places, place, token):  # type: ignore[no-untyped-def]
    """The row of a token; -1 where there is no room."""
    count = places.candidates[place]
    for i in range(count):
        if places.tokens[place, i] == token:
            return i
    if count == CANDIDATES:
        return -1
    places.tokens[place, count] = token
    places.seen[place, count] = 0.0
    places.candidates[place] = count + 1
    return count


@kernel
def _add_occurrence(places, place, slot, token, length, first):  # type: ignore[no-untyped-def]
    """One occurrence of the suffix, followed by a token."""
    known = places.known[place, slot]
    vote = np.float32(2.0 ** (min(length, MOST_VOTES) - 1))
    known[OCCURRENCES] += 1
    known[ALL_VOTES] += vote
    known[LONGEST] = max(known[LONGEST], length)
    i = _candidate(places, place, token)
    if i >= 0:
        seen = places.seen[place, i, slot]
        seen[LENGTH] = max(seen[LENGTH], length)
        seen[COUNT] += 1
        seen[VOTES] += vote
        if first:
            seen[NEWEST] = 1.0


@kernel
def _count(places, place, slot, sampled, counts, number, total, suffix, population):  # type: ignore[no-untyped-def]
    """Tokens that follow the shorter suffix, `counts` times of `total` looked at. A token that was seen once is no
    candidate by that alone, but by its noise."""
    known = places.known[place, slot]
    key = places.keys[place]
    known[SUFFIX], known[SAMPLE], known[POPULATION] = suffix, total, population
    for j in range(number):
        if counts[j] > 1 or (key != 0 and gumbel(key, sampled[j]) > LUCKY):
            i = _candidate(places, place, np.int64(sampled[j]))
        else:
            i = -1
            for c in range(places.candidates[place]):
                if places.tokens[place, c] == sampled[j]:
                    i = c
        if i >= 0:
            places.seen[place, i, slot, SAMPLED] = counts[j]


@kernel
def _tally(sampled, counts, number, token):  # type: ignore[no-untyped-def]
    for j in range(number):
        if sampled[j] == token:
            counts[j] += 1
            return number
    sampled[number] = token
    counts[number] = 1
    return number + 1


@kernel
def _look_back(databases, places, place, text, end):  # type: ignore[no-untyped-def]
    """The context: all occurrences of the last token, newest first, up to VISITS."""
    last = text[end - 1]
    at = databases.newest[last] if last < len(databases.newest) else -1
    follow = np.empty(VISITS, np.int32)
    lengths = np.empty(VISITS, np.int64)
    ends = np.empty(VISITS, np.int64)
    sampled = np.empty(VISITS, np.int32)
    counts = np.empty(VISITS, np.int64)
    number = total = longest = 0
    context = len(databases.previous)
    for _ in range(VISITS):
        if at < 0:
            break
        token = databases.tokens[at + 1] if at + 1 < context else BREAK
        if token != BREAK:
            length = 1
            while (
                length < MAX_MATCH
                and length < end
                and at >= length
                and databases.tokens[at - length] == text[end - 1 - length]
            ):
                length += 1
            follow[total] = token
            lengths[total] = length
            ends[total] = at + 1
            longest = max(longest, length)
            number = _tally(sampled, counts, number, token)
            total += 1
        at = databases.previous[at]
    kept = 0
    for length in range(longest, 0, -1):
        for i in range(total):
            if lengths[i] == length and kept < CLOSE:
                _add_occurrence(places, place, CONTEXT, np.int64(follow[i]), length, kept == 0)
                places.close_run[place, CONTEXT, kept] = -1
                places.close_end[place, CONTEXT, kept] = ends[i]
                places.close_length[place, CONTEXT, kept] = length
                kept += 1
        if kept == CLOSE:
            break
    places.close[place, CONTEXT] = kept
    if total:
        _count(places, place, CONTEXT, sampled, counts, number, total, 1, total)


@kernel
def _find(runs, places, place, parent, slot, text, end):  # type: ignore[no-untyped-def]
    """The suffix to sample and the occurrences to look at, in all runs of a slot."""
    close = 0
    suffix = 0
    rows = len(runs)
    low = np.zeros(rows, np.int64)
    high = np.zeros(rows, np.int64)
    if parent >= 0 and 0 < places.suffix[parent, slot] < MAX_MATCH - 1:
        # One longer than the parent's: within its occurrences
        size = places.suffix[parent, slot]
        total = 0
        for run in range(rows):
            if runs[run, RUN_SLOT] == slot:
                low[run], high[run] = narrowed(
                    runs[run, RUN_TOKENS],
                    runs[run, RUN_LENGTH],
                    runs[run, RUN_ORDER],
                    places.low[parent, run],
                    places.high[parent, run],
                    size,
                    text[end - 1],
                )
                total += high[run] - low[run]
        if total > CLOSE:
            suffix = size + 1
            for run in range(rows):
                if runs[run, RUN_SLOT] == slot:
                    places.low[place, run], places.high[place, run] = low[run], high[run]
            # What the parent looked at and goes on with this token
            for j in range(places.close[parent, slot]):
                run = places.close_run[parent, slot, j]
                next_place = places.close_end[parent, slot, j]
                if (
                    next_place < runs[run, RUN_LENGTH]
                    and peek(runs[run, RUN_TOKENS], next_place) == text[end - 1]
                ):
                    places.close_run[place, slot, close] = run
                    places.close_end[place, slot, close] = next_place + 1
                    places.close_length[place, slot, close] = min(
                        places.close_length[parent, slot, j] + 1, MAX_MATCH
                    )
                    close += 1
        else:
            close = _take(runs, places, place, slot, low, high, size + 1, text, end)
            while size > 0:
                if _search(runs, slot, text, end, size, low, high) > CLOSE:
                    break
                close = _take(runs, places, place, slot, low, high, size, text, end)
                size -= 1
            suffix = size
            for run in range(rows):
                if runs[run, RUN_SLOT] == slot:
                    places.low[place, run], places.high[place, run] = low[run], high[run]
    else:
        # Pairs first: mostly they are common enough, and the last token alone need not be searched.
        size, rising = (2 if end > 1 and text[end - 2] != BREAK else 1), True
        while 0 < size <= min(MAX_MATCH, end) and text[end - size] != BREAK:
            total = _search(runs, slot, text, end, size, low, high)
            if total > CLOSE:
                suffix = size
                for run in range(rows):
                    if runs[run, RUN_SLOT] == slot:
                        places.low[place, run], places.high[place, run] = low[run], high[run]
                if not rising:
                    break
                size += 1
            else:
                close = _take(runs, places, place, slot, low, high, size, text, end)
                if suffix or size == 1:
                    break
                size, rising = 1, False
    places.suffix[place, slot] = suffix
    places.close[place, slot] = close


@kernel
def _search(runs, slot, text, end, size, low, high):  # type: ignore[no-untyped-def]
    """Where the last `size` tokens occur in each run of a slot; how often in all."""
    total = 0
    for run in range(len(runs)):
        if runs[run, RUN_SLOT] == slot:
            low[run], high[run] = occurrences(
                runs[run, RUN_TOKENS],
                runs[run, RUN_LENGTH],
                runs[run, RUN_ORDER],
                runs[run, RUN_SIZE],
                text,
                end,
                size,
            )
            total += high[run] - low[run]
    return total


@kernel
def _take(runs, places, place, slot, low, high, size, text, end):  # type: ignore[no-untyped-def]
    """Occurrences to be looked at one by one; how many there are."""
    close = 0
    for run in range(len(runs)):
        if runs[run, RUN_SLOT] == slot:
            for i in range(low[run], high[run]):
                after = peek(runs[run, RUN_ORDER], i) + size
                if close < CLOSE and after < runs[run, RUN_LENGTH]:
                    places.close_run[place, slot, close] = run
                    places.close_end[place, slot, close] = after
                    places.close_length[place, slot, close] = matched(
                        runs[run, RUN_TOKENS], after, text, end, size
                    )
                    close += 1
    return close


@kernel
def _add_followers(runs, places, place, slot):  # type: ignore[no-untyped-def]
    """Add what follows the occurrences that _find chose."""
    newest_length = newest_run = newest_end = 0
    newest = -1
    for j in range(places.close[place, slot]):
        run, after = places.close_run[place, slot, j], places.close_end[place, slot, j]
        token = peek(runs[run, RUN_TOKENS], after) if after < runs[run, RUN_LENGTH] else BREAK
        if token == BREAK:
            continue
        length = places.close_length[place, slot, j]
        _add_occurrence(places, place, slot, token, length, False)
        if length > newest_length or (
            length == newest_length and (run > newest_run or (run == newest_run and after > newest_end))
        ):
            newest, newest_length, newest_run, newest_end = token, length, run, after
    for i in range(places.candidates[place]):
        if newest >= 0 and places.tokens[place, i] == newest:
            places.seen[place, i, slot, NEWEST] = 1.0
    suffix = places.suffix[place, slot]
    if suffix == 0:
        return
    runs_of = np.empty(SAMPLES, np.int64)
    ends = np.empty(SAMPLES, np.int64)
    population = _spread(runs, places, place, slot, runs_of, ends)
    sample = min(population, SAMPLES)
    follow = np.empty(SAMPLES, np.int32)
    for j in range(sample):
        run = runs_of[j]
        follow[j] = peek(runs[run, RUN_TOKENS], ends[j]) if ends[j] < runs[run, RUN_LENGTH] else BREAK
    sampled = np.empty(SAMPLES, np.int32)
    counts = np.empty(SAMPLES, np.int64)
    number = total = 0
    for j in range(sample):
        if follow[j] != BREAK:
            number = _tally(sampled, counts, number, np.int64(follow[j]))
            total += 1
    if total:
        _count(places, place, slot, sampled, counts, number, total, suffix, population)


@kernel
def _spread(runs, places, place, slot, runs_of, ends):  # type: ignore[no-untyped-def]
    """Evenly spread occurrences of the shorter suffix, SAMPLES at most: the run of each, and where its next token
    stands. Returns how many occurrences there are in all."""
    population = 0
    for run in range(len(runs)):
        if runs[run, RUN_SLOT] == slot:
            population += places.high[place, run] - places.low[place, run]
    sample = min(population, SAMPLES)
    before = run = 0
    size = 0
    for j in range(sample):
        rank = (2 * j + 1) * population // (2 * sample)
        while True:
            size = places.high[place, run] - places.low[place, run] if runs[run, RUN_SLOT] == slot else 0
            if rank < before + size:
                break
            before += size
            run += 1
        runs_of[j], ends[j] = run, places.low[place, run] + rank - before
    # Each of these is far from the others in memory: asked for together, they are waited for once.
    for j in range(sample):
        ends[j] = peek(runs[runs_of[j], RUN_ORDER], ends[j]) + places.suffix[place, slot]
    return population


@kernel
def trace(databases, places, place, slot, token):  # type: ignore[no-untyped-def]
    """Where `token`, a candidate of row `place`, stands in a slot behind the longest match, the newest of several: how
    many tokens match, the run (-1: the context), and its position there. Position -1: in no text, or not looked at.

    What it reads was read a moment ago to find the candidate."""
    runs = databases.runs
    if slot == SUCCESSORS:
        seen = 0
        for i in range(places.candidates[place]):
            if places.tokens[place, i] == token:
                seen = 2 if places.seen[place, i, slot, 0] > 0 else 1
        return seen, -1, -1
    longest, in_run, position = 0, -1, -1
    for j in range(places.close[place, slot]):
        run, end = places.close_run[place, slot, j], places.close_end[place, slot, j]
        length = places.close_length[place, slot, j]
        if run < 0:
            following = databases.tokens[end]
        else:
            following = peek(runs[run, RUN_TOKENS], end) if end < runs[run, RUN_LENGTH] else BREAK
        if following == token and (
            length > longest or (length == longest and (run > in_run or (run == in_run and end > position)))
        ):
            longest, in_run, position = length, run, end
    if longest > 0:
        return longest, in_run, position
    if slot == CONTEXT:
        return 1, -1, -1
    if places.suffix[place, slot] == 0:
        return 0, -1, -1
    runs_of = np.empty(SAMPLES, np.int64)
    ends = np.empty(SAMPLES, np.int64)
    population = _spread(runs, places, place, slot, runs_of, ends)
    for j in range(min(population, SAMPLES)):
        run = runs_of[j]
        following = peek(runs[run, RUN_TOKENS], ends[j]) if ends[j] < runs[run, RUN_LENGTH] else BREAK
        if following == token:
            return places.suffix[place, slot], run, ends[j]
    return places.suffix[place, slot], -1, -1


@kernel
def _look_up(databases, places, place, text, end):  # type: ignore[no-untyped-def]
    """The target's own likeliest next tokens when it last stood behind these two tokens, and behind this one."""
    last = text[end - 1]
    known = places.known[place, SUCCESSORS]
    if end > 1 and len(databases.pair_keys):
        at = find_pair(databases.pair_keys, text[end - 2], last)
        if at >= 0:
            known[0] = 1.0
            for rank in range(databases.pairs.shape[1]):
                token = np.int64(databases.pairs[at, rank])
                i = _candidate(places, place, token) if token >= 0 else -1
                if i >= 0:
                    places.seen[place, i, SUCCESSORS, 0] = 1.0
                    places.seen[place, i, SUCCESSORS, 1] = np.log(np.float32(1 + rank))
    if last < len(databases.single) and databases.single[last, 0] >= 0:
        known[1] = 1.0
        for rank in range(databases.single.shape[1]):
            token = np.int64(databases.single[last, rank])
            i = _candidate(places, place, token) if token >= 0 and rank < 4 else -1
            if i >= 0:
                places.seen[place, i, SUCCESSORS, 2] = 1.0
                places.seen[place, i, SUCCESSORS, 3] = np.log(np.float32(1 + rank))
