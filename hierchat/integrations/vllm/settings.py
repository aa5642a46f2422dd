"""What the drafter is told by environment variables: vLLM hands nothing else on to a proposer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hierchat.config import data_dir

PREFIX = "HIERCHAT_DRAFTER_"
LEAST_TOKEN = 16
"""Characters of the channel's secret."""
TOKENS = 2_000_000


class SettingsError(RuntimeError):
    """A variable is wrong; the text names it and says what to do."""


@dataclass(frozen=True, slots=True)
class Settings:
    file: Path
    """Where the users' tokens are kept."""
    model: str
    """The key under which they are kept."""
    statistics: tuple[Path, ...] = ()
    """Folders of corpora."""
    most_tokens: int = TOKENS
    """Kept of one user."""
    port: int | None = None
    """Of the channel on the loopback device; None: there is none."""
    token: str = ""
    """What the channel asks for."""


def read(environment: Mapping[str, str], model: str, replica: int = 0) -> Settings:
    """`model`: what vLLM calls it. `replica`: which one of data parallel ones; each has a port and a file of its own.
    Raises SettingsError."""
    port = _number(environment, "PORT", 0, 65535 - replica)
    token = environment.get(f"{PREFIX}TOKEN", "")
    if port is not None and len(token) < LEAST_TOKEN:
        raise SettingsError(
            f"Set {PREFIX}TOKEN to a secret of {LEAST_TOKEN} characters or more, or unset {PREFIX}PORT."
        )
    named = environment.get(f"{PREFIX}DB")
    file = Path(named).expanduser().absolute() if named else data_dir() / "vllm-drafts.db"
    return Settings(
        file.with_stem(f"{file.stem}-{replica}") if replica else file,
        environment.get(f"{PREFIX}MODEL") or model,
        tuple(
            Path(one).expanduser()
            for one in environment.get(f"{PREFIX}STATISTICS", "").split(os.pathsep)
            if one
        ),
        _number(environment, "TOKENS", 1, 2**31 - 1) or TOKENS,
        None if port is None else port + replica if port else 0,
        token,
    )


def _number(environment: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    if not (text := environment.get(PREFIX + name)):
        return None
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise SettingsError(f"{PREFIX}{name}={text}: give a whole number from {least} to {most}.")
    return int(text)
