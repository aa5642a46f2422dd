"""What a request asks for, as vLLM's worker knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

USER, REPLY, LEARN = "hierchat_user", "hierchat_reply", "hierchat_learn"
DRAFTS, TEXTS = "hierchat_drafts", "hierchat_texts"
"""Names in `vllm_xargs`. They are trusted: whoever reaches vLLM's port can set them."""
LONGEST = 200
"""Characters of a name."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    reply: str
    """The name that the chat gave it, or vLLM's own."""
    user: str = ""
    """Whose history drafts and learns; empty: nobody's."""
    learn: bool = True
    most_drafts: int | None = None
    """Of one step; None: as many as pay."""
    texts: bool = True
    """Whether the texts that ship draft."""
    ends: frozenset[int] = frozenset()
    """Tokens that end the reply."""
    most_tokens: int | None = None
    """Of the reply."""


def asked(request_id: str, parameters: Any) -> Asked:
    """`parameters`: vLLM's SamplingParams, or None."""
    extra: Mapping[str, Any] = getattr(parameters, "extra_args", None) or {}
    most = extra.get(DRAFTS)
    user = _name(extra.get(USER))
    ends = set(getattr(parameters, "stop_token_ids", None) or ())
    if (end := getattr(parameters, "eos_token_id", None)) is not None:
        ends.add(end)
    return Asked(
        _name(extra.get(REPLY)) or request_id,
        user,
        bool(user) and extra.get(LEARN, 1) not in (0, False),
        max(int(most), 0) if isinstance(most, int | float) else None,
        extra.get(TEXTS, 1) not in (0, False),
        frozenset(ends),
        getattr(parameters, "max_tokens", None),
    )


def _name(value: Any) -> str:
    return value if isinstance(value, str) and len(value) <= LONGEST else ""
