"""Visit the page without a browser, by Gradio's own protocol: for what is done often, or by many at once."""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import httpx

PATIENCE_SECONDS = 120
_API = "/gradio_api"


class Stream:
    """Reads the stream of a page, in a thread."""

    def __init__(self, http: httpx.Client, key: str) -> None:
        """Open the stream, and wait for the whole screen."""
        self.shows: dict[str, str] = {}
        """HTML by the id of its element, and words by their names, as they are now."""
        self.seen: list[str] = []
        """All that was shown, one after the other."""
        self._news = threading.Condition()
        self._ended = False
        self._answer = http.send(http.build_request("GET", f"{_API}/page/{key}"), stream=True)
        self._answer.raise_for_status()
        threading.Thread(target=self._read, daemon=True).start()
        self.until(lambda: bool(self.shows))

    def until(self, true: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the screen is so. Raises TimeoutError, and ConnectionError if the server ended the stream."""
        with self._news:
            came = self._news.wait_for(lambda: true() or self._ended, seconds)
            if not came or not true():
                kind = TimeoutError if not came else ConnectionError
                raise kind(f"The page did not come there. It shows: {self.words()}")

    def words(self) -> dict[str, str]:
        """Return the beginning of all that is shown, but not of the chat and the list."""
        return {
            name: part[:1000] for name, part in self.shows.items() if name not in ("hc-thread", "hc-list")
        }

    def close(self) -> None:
        """End the stream, as a browser does whose page is left."""
        with suppress(OSError):  # the thread that reads is told so
            self._answer.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        with suppress(httpx.HTTPError, httpx.StreamError):
            for line in self._answer.iter_lines():
                if line.startswith("data:"):
                    self._take(json.loads(line.removeprefix("data:")))
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _take(self, news: Mapping[str, Any]) -> None:
        with self._news:
            for name, part in news.items():
                before = self.shows.get(name, "").encode("utf-16-le")
                begin, end, between = (0, 0, part) if isinstance(part, str) else part
                kept = before[: 2 * begin], before[len(before) - 2 * end :]
                self.shows[name] = kept[0].decode("utf-16-le") + between + kept[1].decode("utf-16-le")
                self.seen.append(self.shows[name])
            self._news.notify_all()


class Tab:
    """Act as one tab of a browser: send the server what Gradio's script would send."""

    def __init__(self, address: str, account: tuple[str, str] | None = None, most_tokens: int = 1024) -> None:
        """Open the page. `account`: name and password, where there is a login; `most_tokens`: of a reply."""
        self._http = httpx.Client(base_url=address, timeout=PATIENCE_SECONDS)
        if account is not None:
            given = dict(zip(("username", "password"), account, strict=True))
            self._http.post("/login", data=given).raise_for_status()
        self.said = ""
        """All that the server answered to the last event."""
        self.key = secrets.token_hex(6)
        """By which Gradio knows the tab."""
        self._http.get("/").raise_for_status()
        config = self._http.get("/config").raise_for_status().json()
        parts, acts = config["components"], config["dependencies"]
        asked = [act for act in acts if act["backend_fn"]]  # of the others, the page does all
        self._acts = {(place, event): act for act in asked for place, event in act["targets"]}
        self._ids = {one["props"].get("elem_id"): one["id"] for one in parts}
        self._values = {one["id"]: one["props"].get("value") for one in parts}
        self._values |= {one["id"]: "" for one in parts if one["type"] == "textbox"}
        self._values |= {one["id"]: most_tokens for one in parts if one["props"].get("info") == "In tokens"}
        # In a browser, one control carries the values of others.
        self._carrying = next(act for act in acts if not act["backend_fn"] and act["outputs"])
        for act in asked:
            if act["targets"][0][1] == "load":
                self._call(act)
        self._stream = Stream(self._http, self.key)
        self.shows = self._stream.shows

    @property
    def chat(self) -> int:
        """Return the number of the chat on the screen."""
        return int(self.shows["place"].split()[-1])

    def words(self) -> dict[str, str]:
        """Return the beginning of all that is shown, but not of the chat and the list."""
        return self._stream.words()

    def fire(self, place: str, event: str, value: Any = None, **data: Any) -> None:
        """Send the event of a click or a key, and wait for its answer. `value`: of the component."""
        if value is not None:
            self._values[self._ids[place]] = value
        self._call(self._acts[self._ids[place], event], data)

    def send(self, text: str, *, waits: bool = True) -> None:
        """Send a message, and wait for the end of the reply; without `waits`, for its first words."""
        begun = self.shows["begun"]
        self.fire("hc-bus", "hc_send", text=text)

        def there() -> bool:
            # A short reply may end before the stream draws its first words
            ahead = self.shows["busy"] and (waits or not self.shows["hc-growing"])
            return self.shows["begun"] != begun and not ahead

        self._stream.until(there)

    def leave(self, *, logout: bool = False) -> None:
        """Close the tab."""
        self._stream.close()
        if logout:
            self._http.post("/logout")
        self._http.close()

    def _sent(self, act: dict[str, Any], data: Any = None) -> dict[str, Any]:
        carried = [self._values[id] for id in self._carrying["inputs"]]
        self._values[self._carrying["outputs"][0]] = json.dumps(carried)
        values = [self._values[id] for id in act["inputs"]]
        return {"fn_index": act["id"], "data": values, "event_data": data, "session_hash": self.key}

    def _call(self, act: dict[str, Any], data: Any = None) -> None:
        answer = self._http.post(f"{_API}/run/predict", json=self._sent(act, data)).raise_for_status()
        self.said = answer.text
        bus = self._ids["hc-bus"]  # whose value ends with the chat whose settings the page shows
        shown = dict(zip(act["outputs"], answer.json()["data"], strict=False))
        if isinstance(shown.get(bus), str):
            self._values[bus] = shown[bus]
