"""Ask a program that may die without harm: a JSON line for each request, within limits of time and memory."""

import atexit
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from hierchat.config import process_environment

PATIENCE_SECONDS = 60
"""Maximum time of one request, whatever the system counts of the processor."""
_MEMORY = 2**30
_PIECE = 2**16
"""Bytes of an answer that are read at once: as many as a pipe holds."""
_READY = b"ready\n"
"""First line that the program writes."""
TOO_MUCH = '{"too_much": '
"""Beginning of an answer after which the program is ended: its memory may be used up."""


def most_bytes(request: bytes) -> int:
    """Return the maximum size of an answer: a prompt holds its request, and some words around each message."""
    return 8 * len(request) + 2**16


class ChildProcess:
    """Runs one module of hierchat that calls `serve`."""

    def __init__(self, module: str, seconds: int) -> None:
        """Prepare the process. `seconds`: maximum time of the processor for one request, where the system counts it."""
        self._module = module
        self.seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def ask(self, request: Mapping[str, Any]) -> Any:
        """Send one request at a time, and return its answer; {"too_much": "time"} if the process died or was ended."""
        line = json.dumps(request).encode() + b"\n"
        try:
            with self._lock:
                return json.loads(self._exchange(line))
        except ValueError:  # it ended in the middle or before
            return {"too_much": "time"}

    def _exchange(self, line: bytes) -> bytearray:
        process = self._running()
        assert process.stdin
        assert process.stdout
        patience = threading.Timer(PATIENCE_SECONDS, process.kill)
        patience.daemon = True
        patience.start()
        answer, rest = bytearray(), memoryview(line)
        try:
            while rest:
                rest = rest[os.write(process.stdin.fileno(), rest) :]
            while not answer.endswith(b"\n") and len(answer) <= most_bytes(line):
                if not (piece := os.read(process.stdout.fileno(), _PIECE)):
                    break
                answer += piece
        except OSError:
            pass
        finally:
            patience.cancel()
            if not answer.endswith(b"\n") or answer.startswith(TOO_MUCH.encode()):
                self._end()
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process and self._process.poll() is not None:
            self._end()  # something else ended it
        if not self._process:
            self._process = subprocess.Popen(
                # -P: no module of the folder that hierchat was started in
                [sys.executable, "-P", "-m", self._module, str(self.seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,  # a buffer would keep texts that are deleted later
                env=process_environment(),
            )
            assert self._process.stdout
            if self._process.stdout.readline() != _READY:
                self._end()
                raise RuntimeError(f"{self._module} does not start")
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process:
            process.kill()
            process.communicate()

    def renew(self) -> None:
        """Replace the process, after the request that it answers, by one that was asked nothing yet."""
        with self._lock:
            if self._process:
                self._end()
                with suppress(OSError, RuntimeError):  # the next request tries again, and says so
                    self._running()

    def close(self) -> None:
        if self._process:
            self._process.kill()


def serve(answer: Callable[[bytes], bytes], stack: int = 0) -> None:
    """Answer the requests of a ChildProcess until standard input ends. `stack`: bytes of stack."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that asks
    threading.stack_size(stack)
    thread = threading.Thread(target=_answer_all, args=(answer, int(sys.argv[1])))
    thread.start()  # before the limits, which forbid it
    thread.join()


def _answer_all(answer: Callable[[bytes], bytes], seconds: int) -> None:
    # Bounds memory, and forbids to open files and start programs, where the system knows such limits
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    for request in sys.stdin.buffer:
        _bound_time(seconds)
        sys.stdout.buffer.write(answer(request))
        sys.stdout.buffer.flush()


def _bound_time(seconds: int) -> None:
    with suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + seconds, hard))
