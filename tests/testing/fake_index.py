"""A small package index on localhost: wheels with pieces of one file, served with or without Range."""

import hashlib
import threading
import time
import zipfile
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO

from hierchat.models.catalogue import Mirror

VERSION = "1.0"


def wheel(
    package: str, file: str, data: bytes, metadata: str = "", kind: int = zipfile.ZIP_STORED
) -> tuple[str, bytes]:
    """A wheel's name and bytes; the file is stored without compression, unless `kind` says otherwise."""
    info, packed = f"{package}-{VERSION}.dist-info", BytesIO()
    name = package.replace("_", "-")
    with zipfile.ZipFile(packed, "w", kind) as archive:
        archive.writestr(f"{package}/{file}", data)
        said = f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\n{metadata}"
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


class FakeIndex(ThreadingHTTPServer):
    """`cut` bodies end half way; `spoil` bodies have a byte changed; `slow` seconds pass between two blocks of one."""

    def __init__(self, whole: bytes, count: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        pieces = enumerate(pieces_of(whole, count), 1)
        self.wheels = dict(wheel(f"tiny_part{n}", f"piece{n:02}.bin", piece) for n, piece in pieces)
        self.cut, self.spoil, self.slow = 0, 0, 0.0
        self.ranges, self.hashes = True, True
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


class _Handler(BaseHTTPRequestHandler):
    server: FakeIndex

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        index, name = self.server, self.path.strip("/").split("/")[-1]
        index.asked.append((name, self.headers.get("Range")))
        if name in index.wheels:
            self._wheel(index.wheels[name])
        elif names := [file for file in index.wheels if file.split("-")[0].replace("_", "-") == name]:
            self._page(names)
        else:
            self.send_error(404)

    def _page(self, names: list[str]) -> None:
        hashes = {
            file: f"#sha256={hashlib.sha256(self.server.wheels[file]).hexdigest()}"
            if self.server.hashes
            else ""
            for file in names
        }
        older = [f'<a href="../../files/{file.replace(VERSION, "0.9")}">older</a>' for file in names]
        links = [f'<a href="../../files/{file}{hashes[file]}">{file}</a>' for file in names]
        page = f"<!DOCTYPE html><html><body>{''.join([*older, *links])}</body></html>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def _wheel(self, data: bytes) -> None:
        index = self.server
        asked = self.headers.get("Range") if index.ranges else None
        start = int((asked or "bytes=0-").removeprefix("bytes=").split("-")[0])
        if start >= len(data):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        with index.lock:
            cut, spoil = index.cut > 0, index.spoil > 0
            index.cut -= cut
            index.spoil -= spoil
        body = data[start:]
        if spoil:
            body = body[: len(body) // 2] + bytes([body[len(body) // 2] ^ 1]) + body[len(body) // 2 + 1 :]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        body = body[: len(body) // 2] if cut else body
        for place in range(0, len(body), 2**16):
            self.wfile.write(body[place : place + 2**16])
            time.sleep(index.slow)
