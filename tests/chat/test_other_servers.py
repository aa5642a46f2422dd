"""A tool server that others wrote, as it comes from the package index: its tools are listed, called and refused."""

import json
import subprocess
import venv
from pathlib import Path

import pytest

from hierchat.chat.tools import ToolServers
from hierchat.store import LOCAL_USER, Store
from tests.chat.test_calling import Talk, calls
from tests.chat.test_tools import NEVER, folder, name  # noqa: F401


@pytest.mark.large  # packages that are installed for it
def test_mcp_server_time(folder: Path) -> None:  # noqa: F811
    venv.create(folder / "venv", with_pip=True)
    bin = folder / "venv" / "bin"
    installed = subprocess.run(
        [bin / "pip", "install", "--quiet", "mcp-server-time"], capture_output=True, text=True
    )
    if installed.returncode:
        pytest.skip(f"mcp-server-time cannot be installed: {installed.stderr.strip().splitlines()[-1]}")
    entry = {
        "command": str(bin / "python"),
        "args": ["-m", "mcp_server_time", "--local-timezone", "Europe/Vienna"],
    }
    name(folder, time=entry)
    asked = calls("get_current_time", timezone="Europe/Vienna")
    with Store.open(folder / "chat.db") as store:
        store.users.choose(store.users.ensure(LOCAL_USER), tool_servers='["time"]')
        servers = ToolServers(store)
        found = {one.name: one for one in servers.tools("time", NEVER)}
        assert set(found) == {"get_current_time", "convert_time"}
        assert json.loads(found["get_current_time"].schema)["required"] == ["timezone"]
        state, said = servers.call(found["get_current_time"], {"timezone": "No/Where"}, NEVER)
        assert (state, "timezone" in said.lower()) == ("failed", True)
        servers.close()
        talk = Talk(store, asked, asked, asked)
        talk.send("once", text="What time is it in Vienna?")
        assert [call.state for call in talk.calls] == ["done", "repeated", "unanswered"]
        assert json.loads(talk.calls[-1].result)["timezone"] == "Europe/Vienna"
        talk.service.close()
