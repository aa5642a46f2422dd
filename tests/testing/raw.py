"""Requests as an attacker would write them: every header by hand, Host too."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def cookie(self) -> str:
        """What a browser would send back."""
        return (self.headers["Set-Cookie"] or "").partition(";")[0]


def netloc(address: str) -> str:
    return urlsplit(address).netloc


def ask(
    address: str,
    method: str,
    path: str,
    headers: dict[str, str] | None = None,
    json_body: object = None,
    form: dict[str, str] | None = None,
    read: int | None = None,
) -> Answer:
    """One request on a connection of its own; `read` bounds what is read of an endless answer."""
    connection = http.client.HTTPConnection(netloc(address), timeout=20)
    sent = {"Host": netloc(address)} | (headers or {})
    body = b""
    if json_body is not None:
        body = json.dumps(json_body).encode()
        sent = {"Content-Type": "application/json"} | sent
    if form is not None:
        body = urlencode(form).encode()
        sent = {"Content-Type": "application/x-www-form-urlencoded"} | sent
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in sent.items():
            connection.putheader(name, value)
        if body:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read(read).decode(errors="replace"))
    finally:
        connection.close()
