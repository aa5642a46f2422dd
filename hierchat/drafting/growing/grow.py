"""The draft tree, grown best-first by path probability for as long as a node can pay."""

from __future__ import annotations

import numpy as np

from hierchat.drafting.growing import kernel
from hierchat.drafting.growing.acceptance_model import (
    copy,
    first_choices,
    learn,
    match_of,
    place_key,
    score,
    slot_of,
)
from hierchat.drafting.growing.evidence import look_far, look_near, trace
from hierchat.drafting.growing.kernel_arrays import MAX_MATCH, NODES, RECENT, SLOTS, Lookup

TAIL = MAX_MATCH + 1
"""Tokens before the tree that a match may reach back to."""


@kernel
def grow(databases, growth, scorer, prices, tail):  # type: ignore[no-untyped-def]
    """Grow a tree behind `tail`, the end of the committed text; return how many nodes to keep and how many places were
    looked at."""
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
    return size, looked


@kernel
def _key(noise, position):  # type: ignore[no-untyped-def]
    """Return the key of the noise at a position; 0: none is known."""
    return place_key(noise.key, position) if noise.key != 0 else np.uint64(0)


@kernel
def _consider(at, parent, scorer, prices, chance):  # type: ignore[no-untyped-def]
    """Find what may stand at a place that is reached with this chance."""
    places, place = at.places, at.place
    copy(places.known[place, :, RECENT], scorer.recent, SLOTS)
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
