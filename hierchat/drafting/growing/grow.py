"""The draft tree, grown best-first by path probability for as long as a node can pay."""

from __future__ import annotations

import numpy as np

from hierchat.drafting.growing import kernel
from hierchat.drafting.growing.acceptance_model import copy, first_choices, learn, match_of, score, slot_of
from hierchat.drafting.growing.evidence import look_far, look_near, trace
from hierchat.drafting.growing.gumbel_noise import place_key
from hierchat.drafting.growing.kernel_arrays import MAX_MATCH, NODES, RECENT, SLOTS

TAIL = MAX_MATCH + 1
"""Tokens before the tree that a match may reach back to."""


@kernel
def grow(  # type: ignore[no-untyped-def]
    databases, places, model, noise, recent, tail, limit, extra, onward, worth, lookup, tree, considered
):
    """Fills `tree`; returns how many nodes to keep and how many places were looked at.

    noise: what is known of how tokens are chosen (layout.SamplingNoise).
    tail int32: the end of the committed text. extra [limit + 1], onward [limit]: milliseconds that so many drafts
    add to a step, and the least that one more can cost (cost.DraftCost). worth: milliseconds that a token is worth.
    lookup: milliseconds of a lookup in all databases. Where the context leaves too little probability open to pay for
    that, the others are not asked.
    considered int64 [nodes + 1]: the row of `places` behind each node, -1 where there was no lookup.
    """
    length = len(tail)
    text = np.empty(length + NODES, np.int32)
    copy(text, tail, length)
    depth = np.zeros(NODES + 1, np.int64)
    upcoming = np.zeros(NODES + 1, np.int64)
    path = np.zeros(NODES + 1)
    path[0] = 1.0
    looked = 1
    copy(places.known[0, :, RECENT], recent, SLOTS)
    position = len(databases.previous)
    places.keys[0] = _key(noise, position)
    _consider(databases, places, 0, -1, text, length, model, noise, worth, lookup)
    considered[0] = 0
    owner = np.zeros(NODES + 1, np.int64)  # the node that a row stands behind
    owner[0] = -1
    chosen = size = 0
    total = best = 0.0
    while chosen < limit:
        row = -1
        highest = 0.0
        for place in range(looked):
            if upcoming[place] < places.candidates[place]:
                chance = path[place] * places.chances[place, places.ranked[place, upcoming[place]]]
                if chance > highest:
                    highest, row = chance, place
        if row < 0 or highest * worth <= onward[chosen]:
            break
        candidate = places.ranked[row, upcoming[row]]
        upcoming[row] += 1
        tree.tokens[chosen] = places.tokens[row, candidate]
        tree.parents[chosen] = owner[row]
        slot = slot_of(places, row, candidate)
        tree.slots[chosen] = slot
        tree.paths[chosen] = highest
        tree.lengths[chosen], tree.runs[chosen], tree.positions[chosen] = trace(
            databases, places, row, slot, places.tokens[row, candidate]
        )
        chosen += 1
        considered[chosen] = -1
        total += highest
        profit = total - extra[chosen] / worth
        if profit > best:
            best, size = profit, chosen
        if chosen < limit and highest * worth > onward[chosen]:
            depth[looked] = depth[row] + 1
            path[looked] = highest
            owner[looked] = chosen - 1
            node = chosen - 1
            for d in range(depth[looked] - 1, -1, -1):
                text[length + d] = tree.tokens[node]
                node = tree.parents[node]
            copy(places.known[looked, :, RECENT], recent, SLOTS)
            places.keys[looked] = _key(noise, position + depth[looked])
            _consider(
                databases,
                places,
                looked,
                row,
                text,
                length + depth[looked],
                model,
                noise,
                highest * worth,
                lookup,
            )
            considered[chosen] = looked
            looked += 1
    return size, looked


@kernel
def _key(noise, position):  # type: ignore[no-untyped-def]
    """Return the key of the noise at a position; 0: none is known."""
    return place_key(noise.key, position) if noise.key != 0 else np.uint64(0)


@kernel
def _consider(  # type: ignore[no-untyped-def]
    databases, places, place, parent, text, end, model, noise, worth, lookup
):
    """Find what may stand at a place; `worth` milliseconds if it is right."""
    look_near(databases, places, place, text, end)
    if places.candidates[place] > 0:
        score(places, place, model, noise.noise_weight)
        if (1.0 - places.chances[place, places.ranked[place, 0]]) * worth < lookup:
            return
    look_far(databases, places, place, parent, text, end)
    score(places, place, model, noise.noise_weight)


@kernel
def teach(  # type: ignore[no-untyped-def]
    places, model, prior, recent, considered, tree, size, tokens, rate, forget, recency, curve, matches
):
    """`tokens` followed the committed text: a lesson at every place that they passed.

    curve [SLOTS, bins, 3]: of the likeliest candidates, by source and by estimated chance: how many there were, the sum
    of their chances, how many were right. matches [SLOTS, MAX_MATCH + 1, 2]: of the likeliest candidate of each place,
    by source and by the length of its match: how many there were, how many were right.
    """
    row = 0
    node = -1
    firsts = np.empty(SLOTS, np.int32)
    bins = curve.shape[1]
    for token in tokens:
        for rank in range(min(places.candidates[row], 4)):
            i = places.ranked[row, rank]
            chance = places.chances[row, i]
            slot = slot_of(places, row, i)
            one = curve[slot, min(int(chance * bins), bins - 1)]
            one[0] += 1
            one[1] += chance
            right = places.tokens[row, i] == token
            if right:
                one[2] += 1
            if rank == 0:
                match = matches[slot, min(match_of(places, row, i, slot), MAX_MATCH)]
                match[0] += 1
                if right:
                    match[1] += 1
        learn(places, row, model, prior, token, rate, forget)
        first_choices(places, row, firsts)
        for slot in range(SLOTS):
            if firsts[slot] >= 0:
                hit = np.float32(1.0) if firsts[slot] == token else np.float32(0.0)
                recent[slot] += recency * (hit - recent[slot])
        following = -1
        for child in range(size):
            if tree.parents[child] == node and tree.tokens[child] == token:
                following = child
        if following < 0 or considered[following + 1] < 0:
            return
        node, row = following, considered[following + 1]
