"""The length of a draft, and how much of it the level above accepts."""

from __future__ import annotations

import numpy as np

from hierchat.hierarchy import kernel


@kernel
def pass_up(corrected, bonus, least, if_kept, if_corrected, if_bonus):  # type: ignore[no-untyped-def]
    """A draft of at least `least` tokens, made of forwards (plan.Yield), before a level that accepts tokens by how they
    came about.

    Returns the forwards that it takes on average; the chances of its sizes least, least + 1, ... [longest run]; and
    the run of the level above, (corrected, bonus) [largest size + 1].
    """
    longest = len(corrected)
    most = least - 1 + longest
    reached = np.zeros(most + 1)  # that the draft is so long after some forward
    agreed = np.zeros(most + 1)  # the same, and all of it is accepted above
    wrong = np.zeros(most + 1)  # that so many are accepted, and the next is not
    reached[0] = agreed[0] = 1.0
    forwards = 0.0
    for size in range(least):
        forwards += reached[size]
        accepted = agreed[size]  # and `kept` more, so far
        remaining = 1.0
        for kept in range(longest):
            ends = corrected[kept] + bonus[kept]
            end = size + kept + 1
            reached[end] += reached[size] * ends
            good = corrected[kept] * if_corrected + bonus[kept] * if_bonus
            agreed[end] += accepted * good
            wrong[end - 1] += accepted * (ends - good)
            remaining -= ends
            if kept + 1 < longest:
                wrong[end - 1] += accepted * remaining * (1.0 - if_kept)
            accepted *= if_kept
    right = np.zeros(most + 1)
    right[least:] = agreed[least:]
    return forwards, reached[least:].copy(), wrong, right
