"""Lines that the user types, with the earlier ones at hand, where the system has readline."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

try:
    import readline
except ImportError:  # Windows
    readline = None  # type: ignore[assignment]

FIRST, MORE = "> ", ". "
_AGAIN_SECONDS = 0.05


class Lines:
    """Asks for one message after the other."""

    def __init__(self, earlier: Sequence[str], complete: Callable[[str], list[str]]) -> None:
        """`earlier`: oldest first, nothing of it is written to a file; `complete`: what a line may become."""
        self._complete = complete
        self._typed = ""
        """What stood in the line that Ctrl-C ended."""
        if readline is not None:
            for line in earlier:
                readline.add_history(line)
            readline.set_completer_delims("")
            readline.set_completer(self._completion)
            edit = "libedit" in (readline.__doc__ or "")
            readline.parse_and_bind("bind ^I rl_complete" if edit else "tab: complete")

    def read(self) -> str | None:
        r"""The next message; None where the user leaves. A line that ends with \ goes on in the next one.

        Ctrl-C takes back what was typed; where nothing was, it leaves, as Ctrl-D does.
        """
        parts: list[str] = []
        while True:
            try:
                line = self._line(MORE if parts else FIRST)
            except EOFError:
                print(file=sys.stderr)
                return None
            except KeyboardInterrupt:
                print(file=sys.stderr)
                if not parts and not self._typed:
                    return None
                parts = []
                continue
            if line.endswith("\\"):
                parts.append(line[:-1])
                continue
            return "\n".join([*parts, line])

    def _completion(self, text: str, state: int) -> str | None:
        found = self._complete(text)
        return found[state] if state < len(found) else None

    def _line(self, prompt: str) -> str:
        """Raises EOFError, KeyboardInterrupt."""
        self._typed = ""
        before = signal.signal(signal.SIGINT, self._interrupted)
        try:
            if sys.stdout.isatty():
                with _signals_heard():
                    return input(prompt)
            sys.stderr.write(prompt)  # standard output is for replies
            sys.stderr.flush()
            return input()
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if readline is not None:  # which forgets it before the exception arrives
            self._typed = readline.get_line_buffer()
        raise KeyboardInterrupt


@contextmanager
def _signals_heard() -> Iterator[None]:
    """Have a signal end the reading of a line whenever it comes. Python's readline looks for signals, then waits for a
    key: it would notice one that came between the two at the next key only. Another signal ends that wait."""
    if readline is None or not hasattr(signal, "SIGWINCH"):
        yield
        return
    reader = threading.get_ident()
    ours, pythons = socket.socketpair()
    over = threading.Event()

    def wake() -> None:
        if ours.recv(1):
            while not over.wait(_AGAIN_SECONDS):
                signal.pthread_kill(reader, signal.SIGWINCH)  # readline draws the line anew, no more

    pythons.setblocking(False)
    before = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=wake, name="signals at the prompt", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        with suppress(OSError):
            pythons.close()
        thread.join()
        ours.close()
