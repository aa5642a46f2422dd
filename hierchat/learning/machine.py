"""Whether the machine has time and power to spare."""

from __future__ import annotations

import time

import psutil

from hierchat.language import later

OTHERS = 0.25
"""Share of all cores; where other programs use more, one of them needs the processor."""
SECONDS = 1.0
"""Between two looks; shorter ones tell too little."""
ON_BATTERY = later("The machine runs on its battery.")
BUSY = later("Another program needs the processor.")


class OtherPrograms:
    """How much of the processor other programs use."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._looked, self._used = time.monotonic(), self._now()

    @property
    def seconds(self) -> float:
        """How long ago the last look was."""
        return time.monotonic() - self._looked

    def share(self) -> float:
        """Share of all cores that they used since the last look."""
        passed, before = self.seconds, self._used
        self._looked, self._used = time.monotonic(), self._now()
        machine, mine = (after - earlier for after, earlier in zip(self._used, before, strict=True))
        return max(machine - mine, 0.0) / max(passed, 1e-9) / (psutil.cpu_count() or 1)

    def _now(self) -> tuple[float, float]:
        """Processor seconds of all programs, and of this one."""
        machine, mine = psutil.cpu_times(), self._process.cpu_times()
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        # A guest's time stands in user and nice, too.
        guests = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)
        return sum(machine) - idle - guests, mine.user + mine.system


class Machine:
    """Looks at most once a second; between two looks the last answer counts."""

    def __init__(self) -> None:
        self._others = OtherPrograms()
        self._said = ""

    def trouble(self) -> str:
        """Why this is no time to compute something that nobody asked for, as a sentence; empty where it is one."""
        if self._others.seconds >= SECONDS:
            busy = self._others.share() > OTHERS
            self._said = ON_BATTERY if not on_mains() else BUSY if busy else ""
        return self._said


def on_mains() -> bool:
    """Whether the machine runs on mains power: one without a battery does; one of which it is not known does not."""
    look = getattr(psutil, "sensors_battery", None)
    battery = look() if look else None
    return battery is None or bool(battery.power_plugged)
