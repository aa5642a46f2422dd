"""Carry files into and out of the page by one-time tickets. Gradio's own routes for files take part in neither.

Each lies in a folder that only this account of the machine can read, and has a ticket: a random word that is good for
one use, by the user for whom it was made. It goes with its use, after some minutes, and when the program ends; what a
process that died left there goes at the next start."""

import atexit
import errno
import os
import re
import secrets
import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response

from hierchat.access.login import USER, is_owner
from hierchat.config import data_dir, models_dir
from hierchat.language import _
from hierchat.store import LOCAL_USER
from hierchat.store.repository import is_running, this_process

LIFE_SECONDS = 600.0
"""How long a file waits for its use."""
MOST_BYTES = 4 << 30
"""Of a file that comes in (limits.py holds it)."""
_NAME = 80
_NOT_IN_NAMES = re.compile(r"[^\w .()-]+")


class TicketExpired(Exception):
    """Raised for a file's ticket that is unknown, used or too old. The message is for the page."""


class FileNotKept(OSError):
    """Raised where a file cannot be written on its way. The message is for the page."""

    def __str__(self) -> str:
        return _("The file could not be kept. Is the disk full?")


@dataclass(frozen=True, slots=True)
class _WaitingFile:
    path: Path
    owner: str
    timer: threading.Timer


class Files:
    """Holds uploads and downloads of the page under tickets until they are used."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` (None: one beside the user's data) is made with the first file."""
        self._folder = folder
        self._lock = threading.Lock()
        self._held: dict[str, _WaitingFile] = {}
        self._own: Path | None = None

    def place(self, name: str) -> Path:
        """Return a path where a file of this name can be written, in a new folder of its own. Raises FileNotKept."""
        found = _NOT_IN_NAMES.sub(" ", name.replace("\\", "/").rsplit("/", 1)[-1])[-_NAME:]
        found = " ".join(found.split()).strip(" .") or "file"
        try:
            folder = self._process_folder() / secrets.token_hex(16)
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise FileNotKept from error
        return folder / found

    def hold(self, path: Path, owner: str) -> str:
        """Keep a finished file for `owner`, and return its ticket."""
        ticket = secrets.token_urlsafe(24)
        timer = threading.Timer(LIFE_SECONDS, self._expire, [ticket])
        timer.daemon = True
        with self._lock:
            self._held[ticket] = _WaitingFile(path, owner, timer)
        timer.start()
        return ticket

    def take(self, ticket: str, owner: str) -> Path:
        """Redeem a ticket and return its file, which the caller has to `remove`. Raises TicketExpired."""
        with self._lock:
            held = self._held.get(ticket)
            if held is None or held.owner != owner:
                raise TicketExpired(_("This file is not here any more. Choose it, or export it, again."))
            del self._held[ticket]
        held.timer.cancel()
        return held.path

    def remove(self, path: Path) -> None:
        shutil.rmtree(path.parent, ignore_errors=True)

    def forget(self, owner: str) -> None:
        with self._lock:
            tickets = [ticket for ticket, held in self._held.items() if held.owner == owner]
        for ticket in tickets:
            self._expire(ticket)

    def sweep(self) -> None:
        """Remove the folders of processes that ended without doing so."""
        for left in self._all().glob("*"):
            if not in_use(left.name):
                shutil.rmtree(left, ignore_errors=True)

    def close(self) -> None:
        with self._lock:
            held, self._held = self._held, {}
            own, self._own = self._own, None
        for one in held.values():
            one.timer.cancel()
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)

    def _expire(self, ticket: str) -> None:
        with self._lock:
            held = self._held.pop(ticket, None)
        if held is not None:
            self.remove(held.path)

    def _all(self) -> Path:
        return self._folder or data_dir() / "transfer"

    def _process_folder(self) -> Path:
        with self._lock:
            if self._own is None:
                folder = self._all()
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                own = folder / own_name()
                own.mkdir(mode=0o700)
                self._own = own
                atexit.register(self.close)
            return self._own


def own_name() -> str:
    pid, started = this_process()
    return f"{pid}-{started}-{secrets.token_hex(8)}"


def in_use(name: str) -> bool:
    """Tell whether the process that named a file or folder so is still running."""
    with suppress(ValueError):
        pid, started, _ = name.split("-")
        return is_running(int(pid), float(started))
    return False


files = Files()


async def take_in(request: Request) -> Response:
    """Store the request's body as a file and answer with its ticket."""
    path = None
    try:
        path = await run_in_threadpool(files.place, request.query_params.get("name", ""))
        await _write(request, path)
    except (OSError, ClientDisconnect):
        if path:
            files.remove(path)
        return PlainTextResponse(str(FileNotKept()), 507)
    return JSONResponse({"ticket": files.hold(path, _owner(request))}, headers={"Cache-Control": "no-store"})


async def give_out(request: Request) -> Response:
    """Answer a download with the file of its ticket, which works once."""
    try:
        path = files.take(request.path_params["ticket"], _owner(request))
    except TicketExpired as gone:
        return PlainTextResponse(f"{gone}\n", 404, {"Cache-Control": "no-store"})
    attached = f"attachment; filename*=UTF-8''{quote(path.name)}"
    headers = {"Cache-Control": "no-store", "Content-Disposition": attached}
    done = BackgroundTask(files.remove, path)
    return FileResponse(path, media_type="application/octet-stream", headers=headers, background=done)


def _owner(request: Request) -> str:
    return str(request.scope.get(USER) or LOCAL_USER)


# GGUF files that were dropped on the page go into the models' folder.
_MODEL_NAME = re.compile(r"[\w][\w .()+-]{0,200}\.gguf", re.IGNORECASE)
_MAGIC = b"GGUF"
_SPARE = 2**28
"""Bytes that stay free on the disk."""


async def take_model(request: Request) -> Response:
    """Store the body of `PUT models/NAME` as a model file, for the owner's unshared page; answer 201 with the name."""
    try:
        if not is_owner(request.scope):
            raise HTTPException(403, _("Only the owner of this hierchat adds models."))
        if request.app.get_blocks().share_url:
            raise HTTPException(403, _("This page is shared by a public link, so it takes no files."))
        name = request.path_params["name"]
        if not _MODEL_NAME.fullmatch(name):
            raise HTTPException(400, _("Only GGUF files with plain names are taken. Rename the file."))
        target = models_dir() / name
        if target.exists():
            there = _("There is a file {name} in {folder} already. Add it by its path, or rename this.")
            raise HTTPException(409, there.format(name=name, folder=models_dir()))
        target.parent.mkdir(parents=True, exist_ok=True)
        length = request.headers.get("content-length", "0")
        if not _has_room(target, int(length) if length.isdecimal() else 0):
            full = _("The disk that holds {folder} has too little room for {name}.")
            raise HTTPException(507, full.format(folder=models_dir(), name=name))
        part = target.with_name(f".{own_name()}.part")
        try:
            await _write(request, part, _MAGIC)
            part.replace(target)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)
        return PlainTextResponse(name, 201)
    except HTTPException as refused:
        return PlainTextResponse(refused.detail, refused.status_code)
    except ClientDisconnect:
        return PlainTextResponse("", 400)
    except OSError as error:
        sentence = _("The file could not be written into {folder} ({why}).")
        return PlainTextResponse(sentence.format(folder=models_dir(), why=error.strerror), 507)


def sweep() -> None:
    """Remove uploads that processes left that were killed: files of the page, and models."""
    files.sweep()
    for part in models_dir().glob(".*.part"):
        if not in_use(part.name.removeprefix(".").removesuffix(".part")):
            with suppress(OSError):
                part.unlink()


def _has_room(target: Path, size: int = 0) -> bool:
    return size + _SPARE <= shutil.disk_usage(target.parent).free


async def _write(request: Request, path: Path, begins: bytes = b"") -> None:
    """Write the request's body into a new file, piece by piece. Raises OSError, HTTPException for another beginning."""
    with await run_in_threadpool(path.open, "xb") as file:
        head = b""
        async for piece in request.stream():
            # Who sends in chunks says no length, and the database is to be written, too.
            if not _has_room(path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            head += piece[: len(begins) - len(head)]
            if not begins.startswith(head):
                break
            await run_in_threadpool(file.write, piece)
    if head != begins:
        raise HTTPException(415, _("This is no GGUF file, whatever its name says."))
