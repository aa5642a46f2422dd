"""From an HTTP request to the replies that it asks for, and their books: what every address of the endpoint shares."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import ClientDisconnect, Request

from hierchat.accounts.bodies import Unsound, parsed
from hierchat.server.door import CALLER, Caller
from hierchat.server.errors import Refused
from hierchat.server.limits import Limits
from hierchat.server.models import require_here
from hierchat.server.requests import Asked, Wanted
from hierchat.server.running import Running
from hierchat.server.sampling import Strict
from hierchat.server.usage import tokens_used

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService

MOST_BYTES = 16 * 2**20
T = TypeVar("T", bound=Strict)


async def fields(request: Request, kind: type[T]) -> T:
    """The request's JSON. Raises Refused, or pydantic's ValidationError."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BYTES:
                raise Refused(413, f"The request is larger than {MOST_BYTES >> 20} MiB.")
        given = await asyncio.to_thread(parsed, bytes(body))
    except Unsound as error:
        raise Refused(400, str(error)) from error
    except ClientDisconnect as error:
        raise Refused(400, "The request broke off.") from error
    if not isinstance(given, dict):
        raise Refused(400, "The request's body has to be a JSON object.")
    return kind.model_validate(given)


class Desk:
    """Takes requests in, over one service."""

    def __init__(self, service: ChatService) -> None:
        self.service = service
        self._limits = Limits()
        self._noting: set[asyncio.Future[None]] = set()

    async def begin(self, request: Request, wanted: Sequence[Wanted], replies: int) -> Running:
        """So many replies to each of `wanted`, ready to be read. Raises Refused."""
        caller: Caller = request.scope[CALLER]
        await asyncio.to_thread(require_here, self.service, wanted[0].model)
        asked = [Asked(self.service, one, caller, number) for one in wanted for number in range(replies)]
        leave = self._limits.enter(caller.key, len(asked)) if caller.key else None

        def done() -> None:
            if leave and caller.key:
                leave()
                noting = asyncio.to_thread(
                    self.service.store.note_use, caller.key.id, sum(tokens_used(asked))
                )
                task = asyncio.ensure_future(noting)
                self._noting.add(task)  # the loop itself holds tasks weakly
                task.add_done_callback(self._noting.discard)

        return Running(asked, request.receive, done)
