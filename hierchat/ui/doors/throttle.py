"""How long to wait after wrong passwords."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

from hierchat.store.names import normal

FORGET_SECONDS = 15 * 60


@dataclass(frozen=True, slots=True)
class Lane:
    """Attempts that are counted together: some are free, then each wait is twice the last one."""

    name: str
    free: int = 4
    longest_seconds: float = 60


HERE = Lane("this machine")
# All from elsewhere together. Short waits: who floods it must not lock everybody out for long.
ELSEWHERE = Lane("elsewhere", free=20, longest_seconds=8)


def of_account(name: str, here: bool) -> Lane:
    """Attempts at one name, whether or not there is such an account: those from elsewhere at most two a minute, from
    however many addresses. No longer, since whoever floods it makes its owner wait, too."""
    return Lane(f"account {normal(name)} {HERE.name if here else ELSEWHERE.name}", free=8, longest_seconds=30)


class Throttle:
    """Wrong attempts by lane."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wrong: dict[str, tuple[int, float]] = {}
        """Lane -> how many, and when the last one was."""

    def wait(self, lanes: list[Lane]) -> float:
        """Seconds until the next attempt counts; 0 if it does now."""
        return max(self._wait(lane) for lane in lanes)

    def failed(self, lanes: list[Lane]) -> None:
        """One more wrong attempt."""
        now = self._clock()
        self._wrong = {name: it for name, it in self._wrong.items() if it[1] + FORGET_SECONDS > now}
        for lane in lanes:
            count, _ = self._wrong.get(lane.name, (0, now))
            self._wrong[lane.name] = (count + 1, now)

    def succeeded(self, lanes: list[Lane]) -> None:
        """The right password: the waits of these lanes begin anew, but for what all share."""
        for lane in lanes:
            if lane is not ELSEWHERE:
                self._wrong.pop(lane.name, None)

    def _wait(self, lane: Lane) -> float:
        count, last = self._wrong.get(lane.name, (0, 0.0))
        if count < lane.free:
            return 0.0
        seconds = min(2.0 ** min(count - lane.free, 16), lane.longest_seconds)
        return max(last + seconds - self._clock(), 0.0)


def network(client: str) -> str:
    """Whose attempts and connections count together: an IPv6 user has 2**64 addresses."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return client
