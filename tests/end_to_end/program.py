"""The program in a process of its own, as a user starts it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.testing.ports import free_port

ROOT = Path(__file__).parents[2]
START_SECONDS = 400  # the first start fetches and converts the model
REPLY_MS = 240_000


class Program:
    """The chat over one database; can be killed and started again. By default app.py of this checkout."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str | Path] = (sys.executable, "app.py"),
        cwd: Path = ROOT,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.database = folder / "chat.db"
        self.log = folder / "log"
        self.port = free_port()
        self._command, self._cwd, self.environment = command, cwd, dict(environment)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, until: str = "is ready") -> None:
        """And wait until it has said that."""
        command = [*self._command, "--port", str(self.port), "--db", str(self.database)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=self._cwd, env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )
        give_up = time.monotonic() + START_SECONDS
        while until not in self.log.read_text(errors="replace"):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < give_up, self.log.read_text()
            time.sleep(0.2)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(30)
