"""vLLM as a process group of its own: started, waited for, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from hierchat import ending

END_SECONDS = 20.0
"""How long vLLM may take to end before it is killed."""
SAY_SECONDS = 15.0
_POLL_SECONDS = 0.2
_LINES = 12
"""Of the log that are shown where it ended by itself."""
Say = Callable[[str], None]


class VllmEnded(Exception):
    """It ended before it was ready; the text is for the user."""


class Vllm:
    """One run of it. What it says goes into `log`, which only its owner can read."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        """Raises VllmEnded where it cannot be started at all."""
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                env={**os.environ, **variables},
                start_new_session=True,  # Ctrl-C is for us; its workers end with it
            )
        except OSError as error:
            raise VllmEnded(f"{command[0]} cannot be started: {error.strerror}.") from error
        finally:
            os.close(written)
        ending.at_once.append(self._kill)

    def wait(self, url: str, say: Say) -> None:
        """Until it answers. Raises VllmEnded."""
        begun = said = time.monotonic()
        say(f"vLLM starts. That takes half a minute to several minutes; its log is {self._log}")
        while not _is_healthy(url):
            if self._process.poll() is not None:
                raise VllmEnded(
                    f"vLLM ended while it started, with the code {self._process.returncode}. "
                    f"The last lines of {self._log}:\n{self._tail()}"
                )
            if time.monotonic() - said >= SAY_SECONDS:
                said = time.monotonic()
                say(f"vLLM is starting: {said - begun:.0f} s")
            time.sleep(_POLL_SECONDS)
        say(f"vLLM is ready after {time.monotonic() - begun:.0f} s.")

    def end(self) -> None:
        """End it and all that it started."""
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._kill()  # what is left of the group
        self._process.wait()
        ending.at_once.remove(self._kill)

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _tail(self) -> str:
        with suppress(OSError):
            return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES:])
        return ""


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
