"""Tell how busy the machine is, and run the threads that work while nobody needs it."""

import threading
import time
from collections.abc import Callable

import psutil


class OtherPrograms:
    """Measures how much of the processor other programs use."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._looked, self._used = time.monotonic(), self._now()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._looked

    def share(self) -> float:
        """Return the share of all cores that other programs used since the last look."""
        passed, before = self.seconds, self._used
        self._looked, self._used = time.monotonic(), self._now()
        machine, mine = (after - earlier for after, earlier in zip(self._used, before, strict=True))
        return max(machine - mine, 0.0) / max(passed, 1e-9) / (psutil.cpu_count() or 1)

    def _now(self) -> tuple[float, float]:
        machine, mine = psutil.cpu_times(), self._process.cpu_times()
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        # A guest's time stands in user and nice, too.
        guests = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)
        return sum(machine) - idle - guests, mine.user + mine.system


def on_battery() -> bool:
    """Tell whether the machine runs on its battery. It does, where it has one and that is not known."""
    look = getattr(psutil, "sensors_battery", None)
    battery = look() if look else None
    return battery is not None and not battery.power_plugged


class SpareTimeThread:
    """Thread that calls `look` every few seconds, from `wake` on until it returns False: nothing is left to do."""

    def __init__(
        self, name: str, seconds: float, look: Callable[[], bool], failed: Callable[[Exception], None]
    ) -> None:
        self._name = name
        self._seconds = seconds
        self._look = look
        self._failed = failed
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._again = False
        self.closed = threading.Event()

    def wake(self) -> None:
        """Start the thread if it is not running: there may be something to do."""
        with self._lock:
            self._again = True
            if self._thread is None and not self.closed.is_set():
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def wait(self) -> None:
        if (thread := self._thread) is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._again or self.closed.is_set():
                    self._thread = None
                    return
                self._again = False
            try:
                while not self.closed.wait(self._seconds) and self._look():
                    pass
            except Exception as error:
                self._failed(error)
