"""How a message holds the files that were sent with it, in the prompt and in exports."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

from hierchat.store import Attachment

_FENCES = re.compile(r"`{3,}")
_SUFFIX = re.compile(r"\.[A-Za-z0-9+]{1,12}")


def with_files(text: str, files: Iterable[Attachment]) -> str:
    """The files, each in a Markdown fence under its name, then the text: a file that is asked about once more stands
    at the beginning as it did before."""
    return "\n\n".join([*map(fenced, files), *([text] if text else [])])


def fenced(file: Attachment) -> str:
    """One file. The fence is longer than any inside, so that nothing in the file ends it."""
    longest = max((len(run) for run in _FENCES.findall(file.text)), default=2)
    fence = "`" * (longest + 1)
    suffix = PurePath(file.name).suffix
    language = suffix[1:].lower() if _SUFFIX.fullmatch(suffix) else ""
    return f"File: {file.name}\n{fence}{language}\n{file.text.rstrip()}\n{fence}"
