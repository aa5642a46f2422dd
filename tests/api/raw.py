"""Requests as bytes say them: with any headers, and as slowly or briefly as a test wants."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Any
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]


def ask(
    address: str, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
) -> Answer:
    """One request and its answer. A body that is neither text nor bytes is sent as JSON."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)
    sent = body if body is None or isinstance(body, str | bytes) else json.dumps(body)
    try:
        connection.request(method, path, sent, {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read().decode())
    finally:
        connection.close()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
