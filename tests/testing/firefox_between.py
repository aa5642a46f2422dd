"""Stands between Playwright and a Firefox that it starts, and passes on what they say.

Playwright 1.65 gives up where Firefox does not know a command: 153 cannot set the colour scheme of a page, and the 140
of Debian 12 cannot record what comes over the network or name a folder for downloads. None of it is needed here, so
what Firefox does not know counts as done.
`firefox_between.py FIREFOX [its arguments]` behaves as Firefox itself.
"""

import asyncio
import json
import re
import sys

from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection, serve

LISTENING = re.compile(r"(WebDriver BiDi listening on )(ws://\S+)")
RESULTS = {"network.addDataCollector": {"collector": "none"}}
"""What is expected back of those that are not known; of the others nothing."""
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
            asked: dict[int, str] = {}
            ways = [
                asyncio.create_task(way)
                for way in (there(playwright, firefox, asked), back(firefox, playwright, asked))
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)

    server = await serve(join, "127.0.0.1", 0, **OPEN)
    return server.sockets[0].getsockname()[1]


async def there(playwright: Connection, firefox: Connection, asked: dict[int, str]) -> None:
    """`asked`: the command of each number that has no answer yet."""
    async for message in playwright:
        command = json.loads(message)
        asked[command["id"]] = command["method"]
        await firefox.send(message)


async def back(firefox: Connection, playwright: Connection, asked: dict[int, str]) -> None:
    async for message in firefox:
        answer = json.loads(message)
        method = asked.pop(answer.get("id"), "")
        if answer.get("error") == "unknown command":
            result = RESULTS.get(method, {})
            message = json.dumps({"type": "success", "id": answer["id"], "result": result})
        await playwright.send(message)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
