"""Visit the page without a browser, by Gradio's own protocol: for what is done often, or by many at once."""

from __future__ import annotations

import json
import secrets
from itertools import islice
from typing import Any

import httpx

PATIENCE_SECONDS = 300
_API = "/gradio_api"


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
        beat = self._http.build_request("GET", f"{_API}/heartbeat/{self.key}")
        self._beat = self._http.send(beat, stream=True)
        for act in asked:
            if act["targets"][0][1] == "load":
                self._call(act)

    @property
    def chat(self) -> int:
        """Return the number of the chat on the screen."""
        return int(self._values[self._ids["hc-bus"]].split()[-1])

    def fire(
        self, place: str, event: str, value: Any = None, messages: int | None = None, **data: Any
    ) -> None:
        """Send the event of a click or a key, to its end or until `messages` messages came. `value`: of the
        component."""
        if value is not None:
            self._values[self._ids[place]] = value
        self._call(self._acts[self._ids[place], event], data, messages)

    def pulse(self) -> None:
        """Send the event that an open page sends once a second."""
        (act,) = (act for (_, event), act in self._acts.items() if event == "tick" and not act["queue"])
        self._http.post(f"{_API}/run/predict", json=self._sent(act)).raise_for_status()

    def leave(self, *, logout: bool = False) -> None:
        """Close the tab."""
        self._beat.close()
        if logout:
            self._http.post("/logout")
        self._http.close()

    def _sent(self, act: dict[str, Any], data: Any = None) -> dict[str, Any]:
        carried = [self._values[id] for id in self._carrying["inputs"]]
        self._values[self._carrying["outputs"][0]] = json.dumps(carried)
        values = [self._values[id] for id in act["inputs"]]
        return {"fn_index": act["id"], "data": values, "event_data": data, "session_hash": self.key}

    def _call(self, act: dict[str, Any], data: Any = None, messages: int | None = None) -> None:
        self._http.post(f"{_API}/queue/join", json=self._sent(act, data)).raise_for_status()
        self.said = ""
        bus = self._ids["hc-bus"]  # whose value ends with the number of the chat
        with self._http.stream("GET", f"{_API}/queue/data", params={"session_hash": self.key}) as answer:
            for line in islice(filter(None, answer.iter_lines()), messages):
                self.said += line
                output = json.loads(line.removeprefix("data:")).get("output") or {}
                shown = dict(zip(act["outputs"], output.get("data") or (), strict=False))
                if isinstance(shown.get(bus), str):
                    self._values[bus] = shown[bus]
