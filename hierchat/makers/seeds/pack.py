"""The file of texts that ships: JSON lines, each {"text": ...}, in xz."""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterable
from pathlib import Path


def write_texts(path: Path, texts: Iterable[str]) -> int:
    """In place of what is there; how many texts it holds. Empty ones are left out."""
    lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts if text.strip()]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(lzma.compress("".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))
    os.replace(part, path)
    return len(lines)
