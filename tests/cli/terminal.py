"""`hierchat chat` in a process of its own, on a terminal that the test types into."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "hierchat", "chat"]
SECONDS = 300
"""More than any machine needs: a test fails then."""
CTRL_C, CTRL_D = "\x03", "\x04"
_STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def places(folder: Path) -> dict[str, str]:
    """The environment of a process with folders of its own."""
    mine = {f"HIERCHAT_{name}": str(folder / name) for name in ("CACHE", "CONFIG", "DATA")}
    return {**os.environ, **mine, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}


def configure(folder: Path, url: str) -> None:
    """Have a server at `url` compute the models `scripted`, the default one, and `other`."""
    entry = "  {0}: {{default: {1}, engine: {{openai: {{url: '{2}', model: {0}}}}}}}\n"
    (folder / "CONFIG").mkdir(parents=True, exist_ok=True)
    models = entry.format("scripted", "true", url) + entry.format("other", "false", url)
    (folder / "CONFIG" / "models.yaml").write_text(f"models:\n{models}")


class Terminal:
    """A terminal of 80 columns and 24 rows."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._screen, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C reaches it
        )
        os.close(inside)
        self.raw = ""

    def type(self, text: str, then: str) -> str:
        """Press keys, and read on until the pattern `then` is there; what was drawn since."""
        self.raw = ""
        os.write(self._screen, text.encode())
        return self.until(then)

    def interrupt(self, then: str) -> str:
        """Press Ctrl-C at a prompt, as `type` does, but not before the program waits for keys: CPython asks for
        signals where it waits, so one that comes while readline draws a key would be seen at the next key only."""
        while psutil.Process(self.process.pid).status() == psutil.STATUS_RUNNING:
            time.sleep(0.01)
        return self.type(CTRL_C, then)

    def until(self, pattern: str) -> str:
        """Read on until a pattern stands in what was drawn; that, without what steers the terminal."""
        give_up = time.monotonic() + SECONDS
        while not re.search(pattern, drawn := _STEERING.sub("", self.raw), re.DOTALL):
            assert time.monotonic() < give_up, drawn
            assert self._read(), drawn
        return drawn

    def ended(self) -> int:
        """Wait for its end; the exit code."""
        give_up = time.monotonic() + SECONDS
        while self._read():
            assert time.monotonic() < give_up, self.raw
        return self.process.wait(SECONDS)

    def _read(self) -> bool:
        """More of what is drawn; False at the end."""
        if not select.select([self._screen], [], [], 1.0)[0]:
            return True
        try:
            self.raw += os.read(self._screen, 65536).decode(errors="replace")
        except OSError:  # Linux says so where nobody is inside any more
            return False
        return True

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SECONDS)
        os.close(self._screen)


@contextmanager
def terminal(folder: Path, *arguments: str) -> Iterator[Terminal]:
    """The program on a terminal."""
    opened = Terminal([*COMMAND, *arguments], places(folder))
    try:
        yield opened
    finally:
        opened.close()
