"""Stands between Playwright and a Firefox that it starts: answers what Firefox does not know yet, passes on the rest.

Playwright 1.65 sets the colour scheme of each page by a command that Firefox 153 lacks, and gives up without an answer.
`firefox_between.py FIREFOX [its arguments]` behaves as Firefox itself.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys

from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection, serve

LISTENING = re.compile(r"(WebDriver BiDi listening on )(ws://\S+)")
UNKNOWN = {"emulation.setMediaFeaturesOverride"}
OPEN = {"max_size": None, "ping_interval": None, "compression": None}


async def main() -> int:
    firefox = await asyncio.create_subprocess_exec(*sys.argv[1:], stderr=asyncio.subprocess.PIPE)
    assert firefox.stderr
    async for line in firefox.stderr:
        said = line.decode(errors="replace").rstrip()
        if found := LISTENING.search(said):
            said = f"{found[1]}ws://127.0.0.1:{await listen(found[2])}"
        print(said, file=sys.stderr, flush=True)
    return await firefox.wait()


async def listen(address: str) -> int:
    """Take Playwright's connection in Firefox's stead; the port."""

    async def join(playwright: ServerConnection) -> None:
        async with connect(f"{address}/session", **OPEN) as firefox:
            ways = [
                asyncio.create_task(way) for way in (there(playwright, firefox), back(firefox, playwright))
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)

    server = await serve(join, "127.0.0.1", 0, **OPEN)
    return server.sockets[0].getsockname()[1]


async def there(playwright: Connection, firefox: Connection) -> None:
    async for message in playwright:
        asked = json.loads(message)
        if asked["method"] in UNKNOWN:
            await playwright.send(json.dumps({"type": "success", "id": asked["id"], "result": {}}))
        else:
            await firefox.send(message)


async def back(firefox: Connection, playwright: Connection) -> None:
    async for message in firefox:
        await playwright.send(message)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
