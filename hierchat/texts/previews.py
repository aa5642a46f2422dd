"""Preview the user's texts, and record which are watched, and how their files were when read: watched.json."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierchat.models.cache import write_whole
from hierchat.models.progress import Progress, Report, silent
from hierchat.texts.build import encoded
from hierchat.texts.corpora import corpora_dir
from hierchat.texts.text_files import LINES, PACKED, PDFS, TextReader, find, kind, size_of

EVERY = 30.0
"""Seconds from one look to the next."""


def is_watched(name: str) -> bool:
    return _file(name).is_file()


def any_watched() -> bool:
    return any(corpora_dir().glob("*/watched.json"))


def watch(name: str, on: bool) -> None:
    """Watch a corpus's files from now on, or no longer; changes since they were read are seen at the first look."""
    if on:
        write_whole(_file(name), b"{}")
    else:
        _file(name).unlink(missing_ok=True)


def stamp(sources: Sequence[str]) -> str:
    """Return a hash of the present state of these files and folders, which changes if a file comes, goes or
    changes. Raises CorpusError if one is gone."""
    digest = hashlib.sha256()
    for file in sorted(find([Path(source) for source in sources], [])):
        try:
            state = file.stat()
        except OSError:  # gone since
            continue
        digest.update(f"{file}\0{state.st_size}\0{state.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def was_read(name: str, model: str, state: str) -> None:
    """Record the state of the files (`stamp`) when their texts were read for this model."""
    if is_watched(name):
        write_whole(_file(name), json.dumps(stamps(name) | {model: state}).encode())


def _file(name: str) -> Path:
    return corpora_dir() / name / "watched.json"


def stamps(name: str) -> dict[str, str]:
    """Return the state of the files when they were last read, by model."""
    with suppress(OSError, ValueError):
        if isinstance(found := json.loads(_file(name).read_bytes()), dict):
            return found
    return {}


# What files and folders hold, before a corpus is made of them: found by looking at a few files only.

SAMPLES = 8
"""Files that are read for the estimate, at most."""
_SAMPLE, _JSON_SAMPLE = 1 << 16, 1 << 19
"""Characters of each: of JSON more, since it is read in large pieces."""
_SMALL = 1 << 23
"""Bytes of a file that is read to its end to find its charset without anybody noticing."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What files and folders hold. `size`: bytes. `tokens`: roughly, of all files but the `closed` ones,
    whose size does not tell how much text they hold: PDF, packed files."""

    files: int
    size: int
    tokens: int
    closed: int
    left_out: Mapping[str, int]
    """What of the folders is not read: how many, by what it is."""
    passed_over: tuple[str, ...]
    """What cannot be looked into, with the reason."""


def preview(paths: Iterable[Path], tokenizer: Any, report: Report = silent) -> Preview:
    """Preview files and folders. `report` is called between its parts. Raises CorpusError for missing paths."""
    passed_over: list[str] = []
    left_out: Counter[str] = Counter()
    files = find(paths, passed_over, left_out)
    report(Progress("reading", 0, None, ""))
    sizes = {file: size_of(file) for file in files}
    open_ones = [file for file in files if not _is_closed(file) and sizes[file]]
    read = tokens = 0
    small = [file for file in open_ones if sizes[file] <= _SMALL] or open_ones[:1]
    step = max(len(small) / SAMPLES, 1)
    for number in range(min(len(small), SAMPLES)):  # from first to last
        file = small[int(number * step)]
        report(Progress("reading", 0, None, ""))
        texts, done = _beginning(file)
        tokens += sum(map(len, encoded(tokenizer, texts))) if texts else 0
        read += done
    size = sum(sizes[file] for file in open_ones)
    return Preview(
        len(files),
        sum(sizes.values()),
        round(tokens / read * size) if read else 0,
        sum(map(_is_closed, files)),
        {what: count for what, count in left_out.most_common() if count},
        tuple(passed_over),
    )


def _is_closed(file: Path) -> bool:
    return kind(file) in PDFS or file.suffix.lower() in PACKED


def _beginning(file: Path) -> tuple[list[str], int]:
    """Return texts from the beginning of a file, and how many of its bytes they are."""
    reader = TextReader([file])
    if kind(file) not in LINES | {".json"}:
        text = next(iter(reader), "")[:_SAMPLE]
        return [text], len(text.encode())
    texts: list[str] = []
    characters = 0
    for text in reader:
        texts.append(text)
        characters += len(text)
        if characters >= _JSON_SAMPLE:
            break
    return texts, reader.done
