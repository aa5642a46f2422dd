"""`python -m hierchat corpus add | list | remove`. All return the process's exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hierchat.models.cache import gigabytes, size_of
from hierchat.models.catalogue import Catalogue, read_catalogue
from hierchat.models.load.tokenizer_files import known_tokens, load_tokenizer, tokens_sha256
from hierchat.models.progress import ModelError, terminal_progress
from hierchat.texts.build import PREFIX, fetch
from hierchat.texts.corpora import Stored, add, listed, name_of, remove, require_free_name
from hierchat.texts.text_files import CorpusError, Reader, find

_NAMED = 10
"""Files that are named at most, of those that were not read as usual."""


def add_corpus(paths: Sequence[str], model: str | None, name: str | None, replace: bool) -> int:
    """Builds a corpus out of files, folders and datasets of the hub, with a progress bar."""
    name = name or _name(paths[0])
    try:
        entry = read_catalogue().entry(model)
        with terminal_progress() as report:
            passed_over: list[str] = []
            here = find(
                [Path(path).expanduser() for path in paths if not path.startswith(PREFIX)], passed_over
            )
            tokenizer = load_tokenizer(entry, report)
            require_free_name(name, tokens_sha256(tokenizer), replace)
            fetched = [fetch(path, report) for path in paths if path.startswith(PREFIX)]
            reader = Reader([*here, *find(fetched, passed_over)], passed_over)
            sources = [path if path.startswith(PREFIX) else str(Path(path).absolute()) for path in paths]
            made = add(name, reader, tokenizer, entry.name, sources, report, replace)
    except (CorpusError, ModelError, MemoryError) as error:
        return _failed(error)
    except KeyboardInterrupt:
        _say("Stopped. Nothing was stored.")
        return 130
    for said in (reader.notes, [f"not read: {file}" for file in reader.passed_over]):
        for line in said[:_NAMED]:
            _say(line)
        if len(said) > _NAMED:
            _say(f"and {len(said) - _NAMED} more")
    print(f"{name}: {made.order.size:,} tokens for {entry.name}. They draft from the next start on.")
    return 0


def list_corpora() -> int:
    """Prints what is stored, and for which models."""
    try:
        catalogue = read_catalogue()
    except ModelError as error:
        return _failed(error)
    if not (corpora := listed()):
        print("There are none yet: python -m hierchat corpus add PATH")
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("corpus", "texts", "tokens", "size", "for", "added", "from"):
        table.add_column(column, justify="right" if column in ("texts", "tokens", "size") else "left")
    for corpus in corpora:
        table.add_row(*_row(corpus, catalogue))
    Console().print(table)
    return 0


def remove_corpus(name: str) -> int:
    """Deletes a corpus, for all models."""
    try:
        freed = remove(name)
    except CorpusError as error:
        return _failed(error)
    print(f"{name} is removed: {gigabytes(freed)} are free again.")
    return 0


def _row(corpus: Stored, catalogue: Catalogue) -> list[str]:
    size = gigabytes(size_of(corpus.folder))
    trouble = f"damaged: {corpus.trouble}" if corpus.trouble else ""
    if not corpus.meta:
        return [corpus.name, "", "", size, trouble, "", ""]
    meta = corpus.meta
    same = [name for name, entry in catalogue.models.items() if known_tokens(entry) == meta.tokenizer]
    models = ", ".join(dict.fromkeys([meta.model, *same]))
    return [
        corpus.name,
        f"{meta.texts:,}",
        f"{meta.tokens:,}",
        size,
        trouble or models,
        f"{meta.made:%Y-%m-%d}",
        ", ".join(meta.sources),
    ]


def _name(path: str) -> str:
    """A corpus's name after the first thing in it."""
    return name_of(path.removeprefix(PREFIX) if path.startswith(PREFIX) else Path(path).absolute().name)


def _failed(error: Exception) -> int:
    said = str(error) or "Memory ran out. Close other programs, or add the corpus in parts."
    _say(f"Error: {said}")
    return 1


def _say(text: str) -> None:
    print(text, file=sys.stderr)
