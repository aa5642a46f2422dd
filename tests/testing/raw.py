"""Requests as an attacker would write them: every header by hand, Host too."""

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> dict[str, Any]:
        """What an answer of the endpoint says that is no reply."""
        return self.json["error"]

    @property
    def cookie(self) -> str:
        """What a browser would send back."""
        return (self.headers["Set-Cookie"] or "").partition(";")[0]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def netloc(address: str) -> str:
    return urlsplit(address).netloc


def ask_endpoint(
    address: str, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
) -> Answer:
    """One request to the endpoint. A body that is neither text nor bytes is sent as JSON."""
    sent = body if body is None or isinstance(body, str | bytes) else json.dumps(body)
    raw = sent.encode() if isinstance(sent, str) else sent
    return ask(address, method, path, {"Content-Type": "application/json", **(headers or {})}, raw=raw)


def ask(
    address: str,
    method: str,
    path: str,
    headers: dict[str, str] | None = None,
    json_body: object = None,
    form: dict[str, str] | None = None,
    read: int | None = None,
    raw: bytes | None = None,
) -> Answer:
    """One request on a connection of its own; `read` bounds what is read of an endless answer."""
    connection = http.client.HTTPConnection(netloc(address), timeout=120)
    sent = {"Host": netloc(address)} | (headers or {})
    body = raw or b""
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
