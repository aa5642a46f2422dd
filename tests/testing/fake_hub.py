"""A small hub on localhost, for the hub library to ask: one repository, as a model and as a dataset."""

import hashlib
import json
import threading
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from tests.testing.fake_index import FileHandler

COMMIT = "1234567890123456789012345678901234567890"
REPO = "org/tiny"


class FakeHub(ThreadingHTTPServer):
    """Serves one repository. `cut` bodies of large files end half way; `spoil` bodies have a byte changed.

    `found`: what a search is answered, as JSON, or these very bytes; `told`: what more it says of its repository;
    `status`, `error_code`: what it answers to everything; `leads_to`: where it sends everybody; `keys`: those that it
    was shown; `answering`: nothing is answered while it is clear."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.gated, self.failing, self.cut, self.spoil = files, False, False, 0, 0
        self.found: list[object] | bytes = []
        self.told: dict[str, object] = {}
        self.status, self.error_code, self.leads_to = 0, "", ""
        self.keys: list[str | None] = []
        self.answering = threading.Event()
        self.answering.set()
        self.searches: list[dict[str, list[str]]] = []
        self.asked: list[tuple[str, str, str | None]] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(FileHandler):
    server: FakeHub

    def _answer(self) -> None:
        hub, path = self.server, self.path.split("?")[0].replace("/api/datasets/", "/api/models/")
        hub.asked.append((self.command, path, self.headers.get("Range")))
        hub.keys.append(self.headers.get("Authorization"))
        hub.answering.wait(60)
        if hub.leads_to:
            return self._send(302, Location=hub.leads_to)
        if hub.failing or hub.status:
            code = {"X_Error_Code": hub.error_code} if hub.error_code else {}
            return self._send(hub.status or 500, **code)
        if path == "/api/models":
            hub.searches.append(parse_qs(urlsplit(self.path).query))
            body = hub.found if isinstance(hub.found, bytes) else json.dumps(hub.found).encode()
            return self._send(200, body, Content_Type="application/json")
        if path.startswith("/api/"):
            revision = (path.split("/") + ["main"] * 5)[5]
        else:
            revision = path.split("/resolve/")[-1].split("/")[0]
        if REPO not in path:
            return self._send(404, X_Error_Code="RepoNotFound")
        if revision not in (COMMIT, "main", *path.split("/")[5:6]) or "no-such" in path:
            return self._send(404, X_Error_Code="RevisionNotFound")
        if path.startswith(f"/api/models/{REPO}/revision/") or path == f"/api/models/{REPO}":
            sized = "blobs" in parse_qs(urlsplit(self.path).query)
            files = [
                {"rfilename": name} | ({"size": len(data)} if sized else {})
                for name, data in hub.files.items()
            ]
            said = {"id": REPO, "sha": COMMIT, "siblings": files, **hub.told}
            return self._send(200, json.dumps(said).encode(), Content_Type="application/json")
        if "/tree/" in path:
            tree = [self._entry(name, data) for name, data in hub.files.items()]
            return self._send(200, json.dumps(tree).encode(), Content_Type="application/json")
        if hub.gated:
            return self._send(403, X_Error_Code="GatedRepo")
        return self._file(unquote(path.split(f"/resolve/{revision}/")[-1]))

    def _entry(self, name: str, data: bytes) -> dict:
        entry: dict = {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
        if name.endswith((".safetensors", ".gguf")):
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 100}
        return entry

    def _file(self, name: str) -> None:
        data, large = self.server.files[name], name.endswith((".safetensors", ".gguf"))
        etag = (hashlib.sha256 if large else hashlib.sha1)(data).hexdigest()
        about = {"ETag": f'"{etag}"', "X_Repo_Commit": COMMIT, "Accept_Ranges": "bytes"}
        self._send_file(data, self.headers.get("Range"), faulty=large and self.command == "GET", **about)
