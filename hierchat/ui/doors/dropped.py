"""Takes GGUF files that were dropped on the page into the models' folder: piece by piece, never whole into memory."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path

from anyio import to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from hierchat.config import models_dir
from hierchat.language import _
from hierchat.ui.doors.files import in_use, own_name
from hierchat.ui.doors.login import is_owner

_NAME = re.compile(r"[\w][\w .()+-]{0,200}\.gguf", re.IGNORECASE)
_MAGIC = b"GGUF"
_SPARE = 2**28
"""Bytes that stay free on the disk."""
_PIECE = 2**22
"""Bytes that are written at a time."""


class Refused(Exception):
    """The file is not taken; status and sentence are for the page."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


async def take_model(request: Request) -> Response:
    """`PUT models/NAME` keeps the body as a file of that name and answers 201 with the name. Only the owner's
    page is heard, and none that is shared by a public link."""
    try:
        if not is_owner(request.scope):
            raise Refused(403, _("Only the owner of this hierchat adds models."))
        if request.app.get_blocks().share_url:
            raise Refused(403, _("This page is shared by a public link, so it takes no files."))
        return PlainTextResponse(await _take(request, request.path_params["name"]), 201)
    except Refused as refused:
        return PlainTextResponse(str(refused), refused.status)
    except ClientDisconnect:
        return PlainTextResponse("", 400)
    except OSError as error:
        sentence = _("The file could not be written into {folder} ({why}).").format(
            folder=models_dir(), why=error.strerror
        )
        return PlainTextResponse(sentence, 507)


def sweep() -> None:
    """Remove halves of files that processes left that died."""
    for part in models_dir().glob(".*.part"):
        if not in_use(part.name.removeprefix(".").removesuffix(".part")):
            with suppress(OSError):
                part.unlink()


async def _take(request: Request, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Refused(400, _("Only GGUF files with plain names are taken. Rename the file."))
    target = models_dir() / name
    if target.exists():
        raise Refused(
            409,
            _("There is a file {name} in {folder} already. Add it by its path, or rename this.").format(
                name=name, folder=models_dir()
            ),
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    length = request.headers.get("content-length", "0")
    _require_room(target, int(length) if length.isdecimal() else 0)
    part = target.with_name(f".{own_name()}.part")
    try:
        await _write(request, part, target)
        part.replace(target)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return name


def _require_room(target: Path, size: int) -> None:
    """Raises Refused where the disk cannot take so many bytes more."""
    if size + _SPARE > shutil.disk_usage(target.parent).free:
        raise Refused(
            507,
            _("The disk that holds {folder} has too little room for {name}.").format(
                folder=models_dir(), name=target.name
            ),
        )


async def _write(request: Request, part: Path, target: Path) -> None:
    """Raises Refused as soon as it shows that this is no GGUF file, or that the disk gets full."""
    with await to_thread.run_sync(part.open, "xb") as file:
        waiting, checked = bytearray(), False
        async for chunk in request.stream():
            waiting += chunk
            if not checked and len(waiting) >= len(_MAGIC):
                if waiting[: len(_MAGIC)] != _MAGIC:
                    raise Refused(415, _("This is no GGUF file, whatever its name says."))
                checked = True
            if len(waiting) >= _PIECE:
                _require_room(target, len(waiting))  # who sends in chunks says no length
                await to_thread.run_sync(file.write, bytes(waiting))
                waiting.clear()
        if not checked:
            raise Refused(415, _("This is no GGUF file, whatever its name says."))
        await to_thread.run_sync(file.write, bytes(waiting))
