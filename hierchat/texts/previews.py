"""Preview what files and folders hold, before a corpus is made of them, by looking at a few files only."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierchat.models.progress import Progress, Report, silent
from hierchat.texts.build import encoded
from hierchat.texts.text_files import LINES, PACKED, PDFS, TextReader, find, kind, size_of

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
