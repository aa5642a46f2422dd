"""Every listener of the page with what no page sends: it is refused in a sentence, or does no harm."""

import json
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from hierchat.page.event_data import Foreign
from tests.isolation.conftest import Place
from tests.isolation.visitor import Visitor, defaults

HOSTILE = json.loads(r"""
    [null, "\ud800x\u0000", -1, 1.5, 1e308, 99999999999999999999999999999999, true, [[]], {"a": [1]},
     "9223372036854775808", "\u00b2", "[{}]", "{\"first\": 1}"]
""")
FIELDS = ["id", "text", "on", "tickets", "key", "name", "size", "pasted", "title", "chat", "data", "step"]
BODIES = [
    {"fn_index": "x"}, {"fn_index": -1}, {"fn_index": 10**30}, {"fn_index": 99999}, {"fn_index": None}, {"data": None},
    {"data": {}}, {"data": [1] * 999}, {"data": []}, {"trigger_id": -1}, {"trigger_id": 10**30}, {"event_id": 1},
    {"event_id": "x"}, {"batched": True}, {"batched": "x"}, {"simple_format": True}, {"event_data": 1}, {"request": 1},
    {"oauth_token": []}, {"session_hash": "x" * 10_000},
]  # fmt: skip


def targets(listener: dict[str, Any]) -> set[str]:
    return {target[1] for target in listener["targets"]}


def tries(
    config: dict[str, Any], listener: dict[str, Any], values: Sequence[Any] = HOSTILE
) -> Iterator[tuple[Any, Any]]:
    """Values and data of events that no page sends."""
    inputs = defaults(config, listener)
    for hostile in values:
        if any(event.startswith("hc_") for event in targets(listener)):
            yield inputs, dict.fromkeys(FIELDS, hostile)
        if "hc_open" in targets(listener):  # all read their fields alike
            yield inputs, hostile
        if inputs:
            yield [hostile] * len(inputs), {"id": 0, "text": "x"}


def test_no_handler_fails(place: Place) -> None:
    visitor = Visitor(place.address, "ben", place.visitors["ben"].password)
    visitor.open()
    config = visitor.config()
    asked = 0
    for listener in filter(lambda one: one["backend_fn"], config["dependencies"]):
        events = [*tries(config, listener)]
        for event, said in zip(events, visitor.calls(listener["id"], events), strict=True):
            asked += 1
            assert "did not expect" not in said, (targets(listener), event)
            assert '"data":' in said, said
    assert asked > 100 * len(HOSTILE)
    assert "hc-list" in visitor.open()  # and the page still works
    for foreign in ({"id": "x", "text": "y"}, {"text": "y"}):
        assert str(Foreign()) in visitor.act("hc_rename", foreign)


@pytest.mark.parametrize("name", ["ann", "ben"])
def test_an_address_in_an_event_is_not_asked(place: Place, name: str) -> None:
    visitor = Visitor(place.address, name, place.visitors[name].password)
    visitor.open()
    config = visitor.config()
    with socket.create_server(("127.0.0.1", 0)) as inside:
        here = f"127.0.0.1:{inside.getsockname()[1]}"
        said = [
            f"http://{here}/latest",
            f"//{here}/org/tiny",
            f"org/tiny@{here}",
            f"http://huggingface.co@{here}/org/tiny",
        ]
        said += [json.dumps({"path": said[0], "url": said[0], "meta": {"_type": "gradio.FileData"}})]
        for listener in filter(lambda one: one["backend_fn"], config["dependencies"]):
            files = [{"path": one, "url": one, "meta": {"_type": "gradio.FileData"}} for one in said[:2]]
            for _ in visitor.calls(listener["id"], [*tries(config, listener, [*said, *files])]):
                pass
        inside.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has called
            inside.accept()


@pytest.mark.parametrize("path", ["queue/join", "run/predict", "run/x"])
def test_no_route_of_gradio_fails(place: Place, path: str) -> None:
    visitor = place.visitors["ben"]
    usual = {"fn_index": 0, "data": [], "session_hash": visitor.hash, "event_id": "x"}
    for more in BODIES:
        answer = visitor.ask("POST", f"/gradio_api/{path}", usual | more, read=2000)
        assert answer.status < 500, (more, answer.text)
        assert "Traceback" not in answer.text, more
