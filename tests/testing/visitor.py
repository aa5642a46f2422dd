"""The page without a browser: what its script would send is given to the handlers, and what they draw is kept."""

import asyncio
import html
import json
import re
import secrets
import time
from collections.abc import Awaitable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import gradio as gr

from hierchat.access.files import files
from hierchat.language import translated
from hierchat.page.guard import RUNNING
from hierchat.page.page_app import build_app


def visible(markup: str) -> str:
    """The words of HTML."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", str(markup)))).strip()


def done(given: Mapping[Any, Any] | Awaitable[Mapping[Any, Any]]) -> Mapping[Any, Any]:
    """What an event is answered, once all that it has begun is done."""

    async def whole() -> Mapping[Any, Any]:
        answer, here = await given, asyncio.get_running_loop()
        await asyncio.gather(*(one for one in RUNNING if one.get_loop() is here))
        return answer

    return given if isinstance(given, Mapping) else asyncio.run(whole())


@lru_cache(2)
def _app_over(service: Any) -> Any:
    """All that look at the same service look at one page, though a test between them has a service of its own."""
    return build_app(service)


class Visitor:
    """One open page. What is joined to an action runs to its end before the next one."""

    def __init__(self, service: Any, **address: str) -> None:
        """`address`: the parts behind the question mark."""
        self.app = _app_over(service)
        self.key = secrets.token_hex(8)
        self._request = gr.Request(username=None, session_hash=self.key, query_params=address)
        self._components = {block._id: block for block in self.app.blocks.values()}
        labels = ((block, translated(str(getattr(block, "label", "")))) for block in self.app.blocks.values())
        self._labels = {block._id: label for block, label in labels}
        self._values = {id: getattr(block, "value", None) for id, block in self._components.items()}
        self._properties: dict[int, dict[str, Any]] = {}
        self._sent, self._number = "", 0
        self._run(None, "load")

    def press(self, act: str, **data: Any) -> None:
        """Press a button of generated HTML: `id`, `text` and what else it carries."""
        self._run("hc-bus", act, {"id": 0, "text": "", **data})

    def steps(self, act: str, **data: Any) -> Iterator[None]:
        """The same, one answer after the other."""
        yield from self._steps("hc-bus", act, {"id": 0, "text": "", **data})

    def give(self, control: str, value: Any, event: str = "") -> None:
        """Change a control, by its id or its label, and tell of it by this event."""
        self._values[self._find(control)._id] = value
        if event:
            self._run(control, event)

    def click(self, control: str) -> None:
        """Click a control of Gradio's."""
        self._run(control, "click")

    def ask(self, text: str) -> str:
        """Send, wait for the end, and the thread as shown."""
        self.send(text)
        return self.says("hc-thread")

    def send(self, text: str | None = None) -> None:
        """Send a text, or what stands in the box, and wait for the end of the reply."""
        if text is not None:
            self.give("hc-box", text)
        self._sent, self._number = self.html("hc-box"), self._number + 1
        self.press("hc_send", text=self._sent, step=self._number)

    def details(self) -> str:
        """Open the details of the last reply; the thread as shown."""
        self.press(
            "hc_details", id=int(re.findall(r'hc-foot" data-message="(\d+)"', self.html("hc-thread"))[-1])
        )
        return self.says("hc-thread")

    def html(self, control: str) -> str:
        """What stands in a control, or came by the stream for an element."""
        if control in self.shows:
            return self.shows[control]
        return str(self._values[self._find(control)._id] or "")

    def value(self, control: str) -> Any:
        """The value of a control."""
        return self._values[self._find(control)._id]

    def all(self) -> Iterator[Any]:
        """All that the browser was told: what stands in every control, and what came by the stream."""
        return iter([*self._values.values(), *self.shows.values()])

    def chosen(self, control: str) -> str:
        """The words of what a list has chosen."""
        part = self._find(control)
        choices = self._properties.get(part._id, {}).get("choices") or part.choices
        return next(said for said, value in choices if value == self._values[part._id])

    def says(self, control: str) -> str:
        """The words that stand there."""
        return visible(self.html(control))

    def hidden(self, control: str) -> bool:
        """Whether it was taken away from the eye."""
        if control in ("hc-stop", "hc-send"):
            return bool(self.shows["busy"]) == (control == "hc-send")
        if control in ("hc-empty", "hc-chat", "hc-versus"):
            return self.shows["stage"] != control.removeprefix("hc-")
        return self._properties.get(self._find(control)._id, {}).get("visible") == "hidden"

    @property
    def shows(self) -> Mapping[str, str]:
        """What came by the stream, by the id of an element or the name of a word."""
        session = self.app.page_events.sessions.find(self.key)
        return session.page.parts if session else {}

    @property
    def place(self) -> str:
        """What stands there: a chat by its number, 0 for a new one, or a panel."""
        return self.shows["place"]

    def tick(self) -> None:
        """A second goes by."""
        for function in self.app.fns.values():
            if any(event == "tick" for _id, event in function.targets):
                list(self._called(function, None))
        self.look()

    def look(self) -> None:
        """The stream catches up with what happened by itself, and the page fetches values of its controls."""
        if (session := self.app.page_events.sessions.find(self.key)) is None:
            return
        self.app.page_events.catch_up(session)
        if session.pending:
            (fetch,) = (one for one in self.app.fns.values() if ("hc_fetch" in str(one.targets)))
            list(self._called(fetch, None))

    def leave(self) -> None:
        """Close the page."""
        if (session := self.app.page_events.sessions.find(self.key)) is not None:
            self.app.page_events.close(session)

    def ticket(self, name: str, raw: bytes) -> str:
        """A file that was sent to the server."""
        place = files.place(name)
        place.write_bytes(raw)
        return files.hold(place, "local")

    def _find(self, control: str) -> Any:
        named = [
            block
            for id, block in self._components.items()
            if control in (getattr(block, "elem_id", None), self._labels[id])
        ]
        assert len(named) == 1, (control, named)
        return named[0]

    def _run(self, control: str | None, event: str, data: Mapping[str, Any] | None = None) -> None:
        for _step in self._steps(control, event, data):
            pass

    def _steps(
        self, control: str | None, event: str, data: Mapping[str, Any] | None = None
    ) -> Iterator[None]:
        """`control`: None for what happens to the whole page."""
        on = (None, self.app._id) if control is None else (self._find(control)._id,)
        targets = {(id, event) for id in on}
        joined = [one for one in self.app.fns.values() if one.fn and targets & set(one.targets)]
        assert joined, (control, event)
        answered = self.shows.get("answered")
        for function in joined:
            yield from self._called(function, data)
            for after in self.app.fns.values():
                if after.fn and after.trigger_after == function._id:
                    yield from self._called(after, data)
        self.look()
        if answered is not None and self.shows.get("answered") != answered:
            yield from self._followed()

    def _followed(self) -> Iterator[None]:
        """The stream draws the reply that was asked for, to its end."""
        session = self.app.page_events.sessions.find(self.key)
        reply = next(reversed(session.following), None)
        while reply in session.following:
            before = self.shows
            self.look()
            if before is not self.shows:
                yield
            time.sleep(0.005)

    def _called(self, function: Any, data: Mapping[str, Any] | None) -> Iterator[None]:
        for alone in self.app.fns.values():  # in the browser: one control carries the values of others
            if not alone.fn and alone.outputs:
                carried = [self._values[part._id] for part in alone.inputs]
                self._values[alone.outputs[0]._id] = json.dumps(carried)
        values = [self._values[component._id] for component in function.inputs]
        given = function.fn(self._request, gr.EventData(None, data), *values)
        self._draw(done(given))
        yield

    def _draw(self, update: Mapping[Any, Any]) -> None:
        for component, drawn in update.items():
            if isinstance(drawn, dict) and drawn.get("__type__") == "update":
                self._properties.setdefault(component._id, {}).update(drawn)
                if "value" in drawn:
                    self._values[component._id] = drawn["value"]
            elif not isinstance(drawn, gr.Timer):
                self._values[component._id] = drawn
        if self._sent and self.shows.get("answered") == f"{self._number} taken":  # as unsent.js does
            box = self._find("hc-box")
            self._values[box._id] = self.html("hc-box").removeprefix(self._sent)
            self._sent = ""
