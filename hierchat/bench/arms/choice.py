"""Which arms take part."""

from __future__ import annotations

from hierchat.bench.arms.names import DRAFT, PEERS, PLAN
from hierchat.bench.arms.own import OWN
from hierchat.verify.asking.errors import unknown


def parse_arms(text: str) -> list[str]:
    """Names out of "A,B,...", each once. Raises RequestError with the nearest names."""
    known = (*OWN, *PEERS)
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in known and not name.startswith((DRAFT, PLAN)):
            raise unknown("arm", name, known)
    if not names:
        raise unknown("arm", "", known)
    return names
