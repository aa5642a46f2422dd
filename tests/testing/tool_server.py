"""A tool server over standard input and output, as people write them: it reads files of one folder, and misbehaves."""

import base64
import os
import sys
import time
from pathlib import Path

from mcp.server import MCPServer
from mcp.types import ImageContent

server = MCPServer("files")
folder = Path(sys.argv[1])


@server.tool()
def read_file(path: str) -> str:
    """Read a text file of the folder."""
    return (folder / path).read_text(encoding="utf-8")


@server.tool()
def list_files() -> list[str]:
    """List the files of the folder."""
    return sorted(one.name for one in folder.iterdir())


@server.tool()
def hang() -> str:
    """Never end."""
    time.sleep(10**6)
    return ""


@server.tool()
def big(megabytes: int) -> str:
    """Say a lot."""
    return "x" * (megabytes * 10**6)


@server.tool()
def picture() -> ImageContent:
    """Show a picture."""
    data = base64.b64encode(b"no picture").decode()
    return ImageContent(type="image", data=data, mime_type="image/png")


@server.tool()
def die() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
def learn() -> str:
    """Learn another tool."""
    server.add_tool(lambda: "here", name="later", description="New.")
    return "learned"


if __name__ == "__main__":
    server.run()
