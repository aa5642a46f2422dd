"""A model in several GGUF files, NAME-00001-of-00003.gguf and so on, as llama.cpp's tools cut it.

All of them lie in one folder. The first says what model it is; each says where its own tensors are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from hierchat.models.errors import MissingError

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)


def shard_names(name: str) -> list[str]:
    """The names of all files of the model that `name` belongs to, in order; of a whole file, its own."""
    if not (found := _SHARD.search(name)):
        return [name]
    count = int(found[2])
    return [_SHARD.sub(f"-{number:05}-of-{count:05}", name) for number in range(1, count + 1)] or [name]


def shards(path: Path) -> list[Path]:
    """The same of a file; they need not be there."""
    return [path.with_name(name) for name in shard_names(path.name)]


def require_shards(path: Path) -> list[Path]:
    """The same. Raises MissingError, naming those that are not there."""
    files = shards(path)
    missing = [file.name for file in files if not file.is_file()]
    if missing and len(files) > 1:
        named = [*missing[:3], *([f"{len(missing) - 3} more"] if len(missing) > 3 else [])]
        raise MissingError(
            f"{path.name} is one of the {len(files)} files of a model, and {', '.join(named)} "
            f"{'is' if len(missing) == 1 else 'are'} missing in {path.parent}. Fetch or copy all of them."
        )
    return files


def whole_models(names: Collection[str]) -> Iterator[tuple[str, list[str]]]:
    """Of GGUF files in one place those that a model begins with, where all its files are among them, and these.

    A name may claim 99,999 files: what claims more than there are is passed over before they are named."""
    there = set(names)
    for name in names:
        found = _SHARD.search(name)
        if found and int(found[2]) > len(there):
            continue
        parts = shard_names(name)
        if parts[0] == name and there.issuperset(parts):
            yield name, parts


def without_number(name: str) -> str:
    """The name that the model would have in one file."""
    return _SHARD.sub("", name)
