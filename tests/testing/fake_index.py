"""A small package index on localhost: wheels with pieces of one file, served with or without Range."""

import hashlib
import threading
import time
import zipfile
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

from hierchat.models.catalogue import Mirror

VERSION = "1.0"


def wheel(package: str, file: str, data: bytes, kind: int = zipfile.ZIP_STORED) -> tuple[str, bytes]:
    """A wheel's name and bytes; the file is stored without compression, unless `kind` says otherwise. What it requires
    is nowhere."""
    info, packed = f"{package}-{VERSION}.dist-info", BytesIO()
    name = package.replace("_", "-")
    with zipfile.ZipFile(packed, "w", kind) as archive:
        archive.writestr(f"{package}/{file}", data)
        said = f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\nRequires-Dist: not-to-be-fetched\n"
        archive.writestr(f"{info}/METADATA", said)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return f"{package}-{VERSION}-py3-none-any.whl", packed.getvalue()


def pieces_of(whole: bytes, count: int) -> list[bytes]:
    length = -(-len(whole) // count)
    return [whole[start : start + length] for start in range(0, len(whole), length)]


def mirror_of(whole: bytes, count: int, **changed: object) -> Mirror:
    fields = {
        "package": "tiny-part{}",
        "version": VERSION,
        "file": "tiny_part{}/piece{:02}.bin",
        "pieces": count,
        "size": len(whole),
        "sha256": hashlib.sha256(whole).hexdigest(),
    }
    return Mirror.model_validate({**fields, **changed})


class FileHandler(BaseHTTPRequestHandler):
    """Answers by `_answer`, without a word in the terminal."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *args: object) -> None:
        pass

    def _send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        for place in range(0, len(body) if self.command == "GET" else 0, 2**16):
            self.wfile.write(body[place : place + 2**16])
            time.sleep(getattr(self.server, "slow", 0))

    def _send_file(self, data: bytes, asked: str | None, *, faulty: bool = True, **headers: str) -> None:
        """Send a file from where it is asked for on. If it is `faulty`, `cut` bodies of the server's end half way, and
        `spoil` bodies have a byte changed."""
        server: Any = self.server
        start = int((asked or "bytes=0-").removeprefix("bytes=").split("-")[0])
        body, middle = data[start:], (len(data) - start) // 2
        if start and not body:
            return self._send(416, Content_Range=f"bytes */{len(data)}")
        with server.lock:
            cut, spoil = faulty and server.cut > 0, faulty and server.spoil > 0
            server.cut -= cut
            server.spoil -= spoil
        if start:
            headers["Content_Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        sent = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :] if spoil else body
        length = str(len(body))
        self._send(206 if start else 200, sent[:middle] if cut else sent, Content_Length=length, **headers)


class FakeIndex(ThreadingHTTPServer):
    """`cut` bodies end half way; `spoil` bodies have a byte changed; `slow` seconds pass between two blocks of one."""

    def __init__(self, whole: bytes, count: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        pieces = enumerate(pieces_of(whole, count), 1)
        self.wheels = dict(wheel(f"tiny_part{n}", f"piece{n:02}.bin", piece) for n, piece in pieces)
        self.cut, self.spoil, self.slow = 0, 0, 0.0
        self.asked: list[tuple[str, str | None]] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple"

    @property
    def fetched(self) -> Counter[int]:
        """How often each piece was asked for."""
        names = list(self.wheels)
        return Counter(names.index(path) + 1 for path, _ in self.asked if path in names)

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that was killed


class _Handler(FileHandler):
    server: FakeIndex

    def _answer(self) -> None:
        index, name = self.server, self.path.strip("/").split("/")[-1]
        asked = self.headers.get("Range")
        index.asked.append((name, asked))
        if name in index.wheels:
            self._send_file(index.wheels[name], asked)
        elif names := [file for file in index.wheels if file.split("-")[0].replace("_", "-") == name]:
            self._send(200, self._page(names).encode(), Content_Type="text/html")
        else:
            self.send_error(404)

    def _page(self, names: list[str]) -> str:
        links = [f'<a href="../../files/{file.replace(VERSION, "0.9")}">older</a>' for file in names]
        for file in names:
            sha = hashlib.sha256(self.server.wheels[file]).hexdigest()
            links.append(f'<a href="../../files/{file}#sha256={sha}">{file}</a>')
        return f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>"
