"""Define the settings of one reply, and where hierchat keeps its files. Everything may import it."""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal

import platformdirs
from pydantic import BaseModel, Field

APP = "hierchat"
MOST_TOKENS = 1_000_000
"""The highest limit of a reply."""
Reasoning = Literal["", "off", "low", "medium", "on", "high"]
"""How much a model thinks before it answers; empty: as it does by itself. In order, "on" being as much as is usual."""


class FolderError(Exception):
    """A folder cannot be used; the text is for the user."""


class GenerationSettings(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Settings of one reply: how its tokens are chosen; greedy by default. Frozen, to be shared between threads.
    `model_copy` with `update` skips validation: use `GenerationSettings(**{**old.model_dump(), ...})`."""

    temperature: float = Field(default=0.0, ge=0, le=10)  # 0 is greedy
    top_k: int = Field(default=0, ge=0)  # keep the k likeliest tokens; 0 is off
    top_p: float = Field(default=1.0, gt=0, le=1)  # keep the smallest set of this probability; 1 is off
    min_p: float = Field(default=0.0, ge=0, le=1)  # drop below this share of the likeliest; 0 is off
    repetition_penalty: float = Field(default=1.0, gt=0, le=10)  # divides seen tokens' logits; 1 is off
    presence_penalty: float = Field(default=0.0, ge=-10, le=10)  # subtracted once per seen token
    frequency_penalty: float = Field(default=0.0, ge=-10, le=10)  # subtracted per occurrence
    logit_bias: dict[int, float] = Field(default_factory=dict)  # token id to added logit
    stop: tuple[str, ...] = ()  # strings that end the reply and are left out of it
    end_loops: bool = False  # end a reply that has come to repeat itself
    tools: bool = False  # in a chat: tools may be called, once the user allows it
    max_new_tokens: int = Field(default=1024, ge=1, le=MOST_TOKENS)
    seed: int = Field(default=0, ge=0, lt=2**63)
    reasoning: Reasoning = ""  # how much to think before the answer, where the template lets one choose
    grammar: str = ""  # what a reply has to follow (llguidance's JSON or Lark); empty: none

    @property
    def penalises(self) -> bool:
        """Tell whether tokens that the text has already are chosen less."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


def _directory(variable: str, default: Callable[[str], str]) -> Path:
    moved = os.environ.get(variable)
    return Path(moved).expanduser().absolute() if moved else Path(default(APP))


def cache_dir() -> Path:
    """Return where fetched and converted models lie; HIERCHAT_CACHE moves it. Safe to delete, not created here."""
    return _directory("HIERCHAT_CACHE", platformdirs.user_cache_dir)


def data_dir() -> Path:
    """Return where the database lies; HIERCHAT_DATA moves it. Not created here."""
    return _directory("HIERCHAT_DATA", platformdirs.user_data_dir)


def prefix_bytes() -> int:
    """Return how many bytes may be kept on disk of what models have read: HIERCHAT_PREFIX_GB, 2 by default."""
    try:
        return max(int(float(os.environ.get("HIERCHAT_PREFIX_GB", "2")) * 2**30), 0)
    except (ValueError, OverflowError):
        return 2 * 2**30


def database_file(given: Path | None = None) -> Path:
    """Return the database's path, or the file that was named. Raises FolderError where that has no folder."""
    if given is None:
        return data_dir() / "hierchat.db"
    path = given.expanduser().absolute()
    if not path.parent.is_dir():
        raise FolderError(f"There is no folder {path.parent}. Make it, or name another file with --db.")
    return path


def models_dir() -> Path:
    """Return where models lie that were dropped on the page; they are the user's own files. Not created here."""
    return data_dir() / "models"


def config_dir() -> Path:
    """Return where the user's own models.yaml lies; HIERCHAT_CONFIG moves it. Not created here."""
    return _directory("HIERCHAT_CONFIG", platformdirs.user_config_dir)


def process_environment() -> dict[str, str]:
    """Return the environment of a process that runs a module of hierchat, from wherever this one was started."""
    path = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def require_folders() -> None:
    """Raise FolderError where a folder cannot be used: all may be missing, the cache must be writable."""
    for variable, folder in (
        ("HIERCHAT_CACHE", cache_dir()),
        ("HIERCHAT_DATA", data_dir()),
        ("HIERCHAT_CONFIG", config_dir()),
    ):
        if folder.exists() and not folder.is_dir():
            raise FolderError(f"{folder} is a file, not a folder. Set {variable} to a folder.")
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=cache_dir()):
            pass
    except OSError as error:
        raise FolderError(
            f"Nothing can be written in the cache, {cache_dir()} ({error.strerror}). Make room or make it writable, "
            "or set HIERCHAT_CACHE to another folder."
        ) from error


def shipped(name: str) -> Path:
    """Find a file or folder that comes with hierchat: inside the package of a wheel, at the top of a checkout."""
    package = Path(__file__).resolve().parent
    return package / name if (package / name).exists() else package.parent / name
