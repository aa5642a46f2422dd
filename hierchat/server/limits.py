"""What a key may use: replies at once, requests a minute, tokens a day."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable

from hierchat.server.errors import Refused
from hierchat.store import Key

MINUTE = 60.0


class Limits:
    """Counts of this process. To be used in the event loop alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._writing: Counter[int] = Counter()
        self._times: defaultdict[int, deque[float]] = defaultdict(deque)

    def enter(self, key: Key, replies: int) -> Callable[[], None]:
        """Begin so many replies; what is returned ends them. Raises Refused where a limit stands against them."""
        if key.tokens_per_day is not None and key.today >= key.tokens_per_day:
            raise _refused(
                key, f"{key.tokens_per_day:,} tokens a day", "They are used up until midnight.", 3600
            )
        if key.at_once is not None and self._writing[key.id] + replies > key.at_once:
            raise _refused(key, f"{key.at_once} replies at once", "Wait for one to end.", 5)
        if key.per_minute is not None:
            self._count(key, key.per_minute)
        self._writing[key.id] += replies

        def leave() -> None:
            self._writing[key.id] -= replies

        return leave

    def _count(self, key: Key, most: int) -> None:
        times, now = self._times[key.id], self._clock()
        while times and times[0] <= now - MINUTE:
            times.popleft()
        if len(times) >= most:
            wait = math.ceil(times[len(times) - most] + MINUTE - now) if most else 3600
            raise _refused(key, f"{most} requests a minute", f"Ask again in {wait} seconds.", wait)
        times.append(now)


def _refused(key: Key, limit: str, advice: str, seconds: int) -> Refused:
    message = f"The key {key.name!r} may have {limit}. {advice}"
    return Refused(429, message, code="rate_limit_exceeded", headers={"Retry-After": str(seconds)})
