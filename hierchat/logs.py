"""Record errors in a file beside the user's data that holds no text of conversations.

Records of hierchat's own loggers are written as they are said, so no text of a conversation may be put into one. Of
other libraries' records, whose messages quote what they work on, only their place is written; of exceptions, whose
messages do so too, only their kinds and the lines of code that raised them."""

import errno
import logging
import os
import sqlite3
import sys
import threading
import traceback
from contextlib import suppress
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import Any

from hierchat.config import APP, data_dir
from hierchat.language import later

log = logging.getLogger(__name__)
_MAX_BYTES, _OLDER_FILES = 1_000_000, 2


def log_path() -> Path:
    """Return the file in which errors are recorded; it is made with the first of them."""
    return data_dir() / "logs" / f"{APP}.log"


def set_up(verbose: bool = False) -> None:
    """Send log records to the file, and with `verbose` to the terminal as well, as they are."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _LogFile | _Terminal)]:
        root.removeHandler(handler)
        with suppress(OSError):
            handler.close()
    root.addHandler(_LogFile(log_path()))
    if verbose:
        root.addHandler(_Terminal())
    else:  # read when it is imported; it advises to install kernels where ours compute
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    root.setLevel(logging.INFO if verbose else logging.WARNING)
    logging.getLogger(APP).setLevel(logging.INFO)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


def take_over(name: str) -> None:
    """Make a library's logger that has handlers of its own write to ours instead."""
    library = logging.getLogger(name)
    library.handlers.clear()
    library.propagate = True


def error_message(error: BaseException, *, here: bool = False) -> str:
    """Return the sentence for the user about an exception; unknown ones are recorded. `here`: may name files."""
    text = str(error).strip()
    if text and type(error).__module__.split(".")[0] == APP:
        return text
    if isinstance(error, MemoryError):
        return later("Memory ran out. Close other programs, then try again.")
    log.error("unexpected", exc_info=error)
    return _unexpected(log_path() if here else later("The log"))


def _unexpected(where: object) -> str:
    return later(
        f"Something went wrong that hierchat did not expect. {where} says where, without any text of yours."
    )


def _uncaught(
    kind: type[BaseException], error: BaseException, where: TracebackType | None, thread: str = "main"
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, where)
        return
    log.critical("uncaught in thread %s", thread, exc_info=(kind, error, where))
    print(f"{APP}: {_unexpected(log_path())}", file=sys.stderr)


def _uncaught_in_thread(caught: threading.ExceptHookArgs) -> None:
    if caught.exc_value and not isinstance(caught.exc_value, SystemExit):
        name = caught.thread.name if caught.thread else "unknown"
        _uncaught(caught.exc_type, caught.exc_value, caught.exc_traceback, name)


class _Terminal(logging.StreamHandler):
    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))


class _LogFile(RotatingFileHandler):
    """Write the log, which only its owner can read. Where it cannot be written, the program goes on without."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            maxBytes=_MAX_BYTES,
            backupCount=_OLDER_FILES,
            encoding="utf-8",
            errors="replace",
            delay=True,
        )
        self.setFormatter(_WithoutText("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self.addFilter(lambda record: record.levelno >= logging.WARNING or _is_own(record))

    def _open(self) -> Any:
        path = Path(self.baseFilename)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return open(
            path, "a", encoding=self.encoding, errors=self.errors, opener=partial(os.open, mode=0o600)
        )

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass


class _WithoutText(logging.Formatter):
    """Format log records without what exceptions and other libraries say."""

    def format(self, record: logging.LogRecord) -> str:
        plain = logging.makeLogRecord(record.__dict__)
        plain.exc_info = plain.exc_text = plain.stack_info = None
        if _is_own(record):
            args = record.args if isinstance(record.args, tuple) else ()
            plain.args = tuple(kind(arg) if isinstance(arg, BaseException) else arg for arg in args)
        else:
            plain.msg, plain.args = f"{record.filename}, line {record.lineno}", ()
        error = record.exc_info[1] if record.exc_info else None
        return super().format(plain) + (f"\n{trace(error)}" if error else "")


def _is_own(record: logging.LogRecord) -> bool:
    return record.name.split(".")[0] == APP


def kind(error: BaseException) -> str:
    """Return an exception's class, and its code where it has one; never its message."""
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    if isinstance(error, OSError) and error.errno:
        return f"{name} {errno.errorcode.get(error.errno, error.errno)}"
    if isinstance(error, ImportError):
        return f"{name} {error.name or ''}".rstrip()
    code = getattr(error, "sqlite_errorname", "") if isinstance(error, sqlite3.Error) else ""
    return f"{name} {code}".rstrip()


def trace(error: BaseException) -> str:
    """Return where an exception was raised, and those behind it: lines of code, no values."""
    lines: list[str] = []
    seen: set[int] = set()
    waiting: list[tuple[str, BaseException]] = [("", error)]
    while waiting:
        lead, one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        lines += [f"{lead}{kind(one)}", "".join(traceback.format_tb(one.__traceback__)).rstrip()]
        if behind := one.__cause__ or (None if one.__suppress_context__ else one.__context__):
            waiting.append(("because of ", behind))
        if isinstance(one, BaseExceptionGroup):
            waiting += [("among them ", member) for member in one.exceptions]
    return "\n".join(line for line in lines if line)
