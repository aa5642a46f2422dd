"""Grow the draft tree best-first by path probability for as long as a node can pay.
A multinomial logistic regression over the evidence gives the chances of all candidates at a place and of "none of
them"; it learns from every place whose next token is known, and drifts back to what was fitted."""

from __future__ import annotations

import numpy as np

from hierchat.drafting.growing import kernel
from hierchat.drafting.growing.evidence import look_far, look_near, trace, went_on
from hierchat.drafting.growing.gumbel import gumbel_of_one, place_key
from hierchat.drafting.growing.kernel_arrays import (
    CONTEXT,
    HIDDEN,
    INPUTS,
    KNOWN,
    MAX_MATCH,
    NODES,
    SLOTS,
    SUCCESSORS,
    Known,
    Lookup,
    Seen,
    add_scaled,
)

LEAST = np.float32(1e-3)
ONE = np.float32(1.0)


@kernel
def copy(goal, source, count):  # type: ignore[no-untyped-def]
    """Copy the first numbers of one array into another: assigning a slice takes two seconds longer to compile."""
    for i in range(count):
        goal[i] = source[i]


@kernel
def read(seen, known, out):  # type: ignore[no-untyped-def]
    """Compute the features of a candidate: seen [SLOTS, SEEN], known [SLOTS, KNOWN], out [SLOTS * INPUTS]."""
    out[:] = 0.0
    for slot in range(SLOTS):
        x, one, all_ = out[slot * INPUTS : (slot + 1) * INPUTS], seen[slot], known[slot]
        if slot == SUCCESSORS:
            copy(x, one, 4)
            continue
        if one[Seen.COUNT] > 0:
            share = one[Seen.VOTES] / all_[Known.VOTES]
            x[0] = ONE
            x[1] = np.log(one[Seen.LENGTH])
            x[2] = np.log(max(share, LEAST))
            x[3] = np.log(one[Seen.COUNT])
            x[4] = one[Seen.NEWEST]
            x[8] = np.log(ONE + all_[Known.OCCURRENCES] - one[Seen.COUNT])
            x[9] = share
        elif all_[Known.OCCURRENCES] > 0:
            x[11] = ONE
            x[12] = np.log(all_[Known.LONGEST])
        if one[Seen.SAMPLED] > 0:
            share = one[Seen.SAMPLED] / all_[Known.SAMPLE]
            x[5] = ONE
            x[6] = np.log(max(share, LEAST))
            x[7] = all_[Known.SUFFIX] / np.float32(4.0)
            x[10] = share
        elif all_[Known.SAMPLE] > 0:
            x[13] = ONE


@kernel
def read_around(known, out):  # type: ignore[no-untyped-def]
    """Compute the features of a place: known [SLOTS, KNOWN], out [SLOTS * KNOWN]."""
    out[:] = 0.0
    for slot in range(SLOTS):
        z, all_ = out[slot * KNOWN : (slot + 1) * KNOWN], known[slot]
        z[6] = all_[Known.RECENT]
        if slot == SUCCESSORS:
            copy(z, all_, 2)
            continue
        if all_[Known.OCCURRENCES] > 0:
            z[0] = ONE
            z[1] = np.log(all_[Known.LONGEST])
            z[2] = np.log(all_[Known.OCCURRENCES])
        if all_[Known.POPULATION] > 0:
            z[3] = ONE
            z[4] = all_[Known.SUFFIX] / np.float32(4.0)
            z[5] = np.log(all_[Known.POPULATION]) / np.float32(4.0)


@kernel
def score(places, place, model, noise_weight):  # type: ignore[no-untyped-def]
    """Compute the chances and order of the candidates of row `place`; `noise_weight` weighs what their noise tells."""
    around = np.empty(SLOTS * KNOWN, np.float32)
    read_around(places.known[place], around)
    common = model.bias.copy()
    aside = model.none_bias.copy()
    for j in range(len(around)):
        value, row = around[j], j * HIDDEN * 4
        if value != 0:
            add_scaled(common.ctypes.data, model.surroundings.ctypes.data + row, value)
            add_scaled(aside.ctypes.data, model.none_inputs.ctypes.data + row, value)
    none = model.none[HIDDEN]
    for h in range(HIDDEN):
        aside[h] = max(aside[h], np.float32(0.0))
        places.none[place, h] = aside[h]
        none += aside[h] * model.none[h]
    count = places.candidates[place]
    scores = np.empty(count, np.float32)
    highest = none
    last = HIDDEN + SLOTS * INPUTS
    unit = np.empty(HIDDEN, np.float32)
    for i in range(count):
        x = places.inputs[place, i]
        read(places.seen[place, i], places.known[place], x)
        copy(unit, common, HIDDEN)
        score, worth = model.score[last], noise_weight[last]
        for j in range(len(x)):
            value = x[j]
            if value != 0:
                score += value * model.score[HIDDEN + j]
                worth += value * noise_weight[HIDDEN + j]
                add_scaled(unit.ctypes.data, model.inputs.ctypes.data + j * HIDDEN * 4, value)
        for h in range(HIDDEN):
            unit[h] = max(unit[h], np.float32(0.0))
            score += unit[h] * model.score[h]
            worth += unit[h] * noise_weight[h]
        if places.keys[place] != 0:
            places.noise[place, i] = gumbel_of_one(places.keys[place], places.tokens[place, i])
            score += max(worth, np.float32(0.0)) * places.noise[place, i]
        copy(places.hidden[place, i], unit, HIDDEN)
        scores[i] = score
        highest = max(highest, score)
    total = np.exp(none - highest)
    for i in range(count):
        scores[i] = np.exp(scores[i] - highest)
        total += scores[i]
    for i in range(count):
        chance = scores[i] / total
        places.chances[place, i] = chance
        j = i
        while j > 0 and places.chances[place, places.ranked[place, j - 1]] < chance:
            places.ranked[place, j] = places.ranked[place, j - 1]
            j -= 1
        places.ranked[place, j] = i


@kernel
def learn(places, place, lessons, token):  # type: ignore[no-untyped-def]
    """Learn that `token` followed at row `place`. Returns the candidate that it was, or -1."""
    model, prior, rate, forget = lessons.model, lessons.prior, lessons.rate, lessons.forget
    right = -1
    count = places.candidates[place]
    none = np.float32(1.0)
    for i in range(count):
        if places.tokens[place, i] == token:
            right = i
        none -= places.chances[place, i]
    for j in range(len(model.score)):
        model.score[j] -= forget * (model.score[j] - prior.score[j])
    for j in range(len(model.none)):
        model.none[j] -= forget * (model.none[j] - prior.none[j])
    for i in range(count):
        error = rate * ((ONE if i == right else np.float32(0.0)) - places.chances[place, i])
        if abs(error) < rate * LEAST:
            continue
        for h in range(HIDDEN):
            model.score[h] += error * places.hidden[place, i, h]
        x = places.inputs[place, i]
        for j in range(len(x)):
            if x[j] != 0:
                model.score[HIDDEN + j] += error * x[j]
        model.score[len(model.score) - 1] += error
    error = rate * ((ONE if right < 0 else np.float32(0.0)) - none)
    for h in range(HIDDEN):
        model.none[h] += error * places.none[place, h]
    model.none[HIDDEN] += error
    return right


@kernel
def first_choices(places, place, out):  # type: ignore[no-untyped-def]
    """Find the first choice of each slot by itself, -1 where it has none: out [SLOTS]."""
    for slot in range(SLOTS):
        best = np.float32(0.0)
        out[slot] = -1
        for i in range(places.candidates[place]):
            one = places.seen[place, i, slot]
            if slot == SUCCESSORS:
                value = (
                    np.float32(10.0) * one[0] - one[1] + one[2] - one[3] + (one[2] + one[0]) * np.float32(5.0)
                )
            else:
                value = one[Seen.VOTES] + np.float32(0.01) * one[Seen.SAMPLED]
            if value > best:
                best, out[slot] = value, places.tokens[place, i]


@kernel
def slot_of(places, place, candidate):  # type: ignore[no-untyped-def]
    """Return the slot of highest locality that names a candidate."""
    for slot in range(SLOTS):
        one = places.seen[place, candidate, slot]
        if slot == SUCCESSORS:
            if one[0] > 0 or one[2] > 0:
                return slot
        elif one[Seen.COUNT] > 0 or one[Seen.SAMPLED] > 0:
            return slot
    return SLOTS - 1


@kernel
def match_of(places, place, candidate, slot):  # type: ignore[no-untyped-def]
    """Count the tokens before a candidate that stand before it in a slot, too: the longest match that names it."""
    one = places.seen[place, candidate, slot]
    if slot == SUCCESSORS:
        return 2 if one[0] > 0 else 1
    return int(one[Seen.LENGTH]) if one[Seen.COUNT] > 0 else int(places.known[place, slot, Known.SUFFIX])


TAIL = MAX_MATCH + 1
"""Tokens before the tree that a match may reach back to."""


@kernel
def grow(databases, growth, scorer, prices, tail):  # type: ignore[no-untyped-def]
    """Grow a tree behind `tail`, the end of the committed text; return how many nodes to keep, and places looked at."""
    places, tree, considered = growth.places, growth.tree, growth.considered
    length, worth = len(tail), prices.token_ms
    text = np.empty(length + NODES, np.int32)
    copy(text, tail, length)
    depth = np.zeros(NODES + 1, np.int64)
    upcoming = np.zeros(NODES + 1, np.int64)
    path = np.zeros(NODES + 1)
    path[0] = 1.0
    position = len(databases.previous)
    looked = 1
    places.keys[0] = _key(scorer.noise, position)
    _consider(Lookup(databases, places, looked - 1, text[:length]), -1, scorer, prices, 1.0)
    considered[0] = 0
    owner = np.zeros(NODES + 1, np.int64)  # the node that a row stands behind
    owner[0] = -1
    chosen = size = 0
    total = best = 0.0
    while chosen < prices.most:
        row = -1
        highest = 0.0
        for place in range(looked):
            if upcoming[place] < places.candidates[place]:
                chance = path[place] * places.chances[place, places.ranked[place, upcoming[place]]]
                if chance > highest:
                    highest, row = chance, place
        if row < 0 or highest * worth <= prices.onward[chosen]:
            break
        candidate = places.ranked[row, upcoming[row]]
        upcoming[row] += 1
        slot = slot_of(places, row, candidate)
        tree.tokens[chosen] = places.tokens[row, candidate]
        tree.parents[chosen] = owner[row]
        tree.slots[chosen] = slot
        tree.paths[chosen] = highest
        tree.lengths[chosen] = match_of(places, row, candidate, slot)
        tree.runs[chosen], tree.positions[chosen] = trace(databases, places, row, slot, candidate)
        chosen += 1
        considered[chosen] = -1
        total += highest
        profit = total - prices.extra[chosen] / worth
        if profit > best:
            best, size = profit, chosen
        if chosen < prices.most and highest * worth > prices.onward[chosen]:
            depth[looked] = depth[row] + 1
            path[looked] = highest
            owner[looked] = node = chosen - 1
            for d in range(depth[looked] - 1, -1, -1):
                text[length + d] = tree.tokens[node]
                node = tree.parents[node]
            places.keys[looked] = _key(scorer.noise, position + depth[looked])
            at = Lookup(databases, places, looked, text[: length + depth[looked]])
            _consider(at, row, scorer, prices, highest)
            considered[chosen] = looked
            looked += 1
    for node in range(size):
        tree.credits[node] = _credit(databases, tree, node)
    return size, looked


@kernel
def _credit(databases, tree, node):  # type: ignore[no-untyped-def]
    """Return the slot that a node counts for; likely tokens count for the context if it has the n-gram before them."""
    if tree.slots[node] != SUCCESSORS:
        return tree.slots[node]
    above, before = tree.parents[node], np.int64(-1)
    if tree.lengths[node] > 1:
        before = _token(databases, tree, tree.parents[above] if above >= 0 else above - 1)
    return CONTEXT if went_on(databases, before, _token(databases, tree, above)) else SUCCESSORS


@kernel
def _token(databases, tree, place):  # type: ignore[no-untyped-def]
    """Return the token of a node, or of the context if `place` is negative: -1 is its last."""
    return np.int64(tree.tokens[place] if place >= 0 else databases.tokens[len(databases.tokens) + place])


@kernel
def _key(noise, position):  # type: ignore[no-untyped-def]
    return place_key(noise.key, position) if noise.key != 0 else np.uint64(0)


@kernel
def _consider(at, parent, scorer, prices, chance):  # type: ignore[no-untyped-def]
    places, place = at.places, at.place
    copy(places.known[place, :, Known.RECENT], scorer.recent, SLOTS)
    look_near(at)
    if places.candidates[place] > 0:
        score(places, place, scorer.model, scorer.noise.noise_weight)
        worth = chance * prices.token_ms
        if (1.0 - places.chances[place, places.ranked[place, 0]]) * worth < prices.lookup_ms:
            return
    look_far(at, parent)
    score(places, place, scorer.model, scorer.noise.noise_weight)


@kernel
def teach(growth, lessons, size, tokens):  # type: ignore[no-untyped-def]
    """Learn at every place of the tree's first `size` nodes that the committed `tokens` passed."""
    places, tree, recent = growth.places, growth.tree, lessons.recent
    row = 0
    node = -1
    firsts = np.empty(SLOTS, np.int32)
    bins = lessons.curve.shape[1]
    for token in tokens:
        for rank in range(min(places.candidates[row], 4)):
            i = places.ranked[row, rank]
            chance = places.chances[row, i]
            slot = slot_of(places, row, i)
            one = lessons.curve[slot, min(int(chance * bins), bins - 1)]
            one[0] += 1
            one[1] += chance
            right = places.tokens[row, i] == token
            if right:
                one[2] += 1
            if rank == 0:
                match = lessons.matches[slot, min(match_of(places, row, i, slot), MAX_MATCH)]
                match[0] += 1
                if right:
                    match[1] += 1
        learn(places, row, lessons, token)
        first_choices(places, row, firsts)
        for slot in range(SLOTS):
            if firsts[slot] >= 0:
                hit = np.float32(1.0) if firsts[slot] == token else np.float32(0.0)
                recent[slot] += lessons.recency * (hit - recent[slot])
        following = -1
        for child in range(size):
            if tree.parents[child] == node and tree.tokens[child] == token:
                following = child
        if following < 0 or growth.considered[following + 1] < 0:
            return
        node, row = following, growth.considered[following + 1]
