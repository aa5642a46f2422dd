"""Measure what a history costs by its size: lookups, appending, memory, start-up, sorting and merging."""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from hierchat.checks.runs import RequestError, machine
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.growing.kernel_arrays import HISTORY
from hierchat.drafting.source import Source
from hierchat.drafting.suffix_index import BREAK, SuffixIndex, merged, suffix_order
from hierchat.runtime.history_index import Histories, UserHistory
from hierchat.store import Store

SIZES = (100_000, 1_000_000)
REPLY = 500
"""Tokens of a reply."""
VOCABULARY = 49_152
LOOKUPS, APPENDS, STARTS = 1_000, 300, 3
CONTEXT = 64
_MODEL = "bench"

Tokens = NDArray[np.int32]


def measure(args: argparse.Namespace) -> int:
    """Measure a history's costs, print a table and write the figures. Raises RequestError."""
    _measured(10 * REPLY, args.corpus)  # what compiles, compiles here
    figures = [
        _measured(size, args.corpus)
        for size in sorted({size for size in SIZES if size < args.tokens} | {args.tokens})
    ]
    table = Table("", *(f"{row['tokens']:,}" for row in figures))
    for key in [*figures[0]][1:]:
        table.add_row(key.replace("_", " "), *(f"{row[key]:,}" for row in figures))
    Console().print(table)
    result = {"machine": machine(), "corpus": args.corpus and args.corpus.name, "sizes": figures}
    args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


def _measured(size: int, corpus: Path | None) -> dict[str, float]:
    rng = np.random.default_rng(size)
    stream = _from(corpus, size, rng) if corpus else _synthetic(size, rng)
    replies = stream[: size // REPLY * REPLY].reshape(-1, REPLY)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.db"
        with Store.open(path) as store:
            user = _write(store, replies)
            histories = Histories(store)
            sorting = _seconds(lambda: histories.held(user, _MODEL).wait())
            histories.close()
        megabytes = sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e6
        starts = []
        for _ in range(STARTS):
            with Store.open(path) as store:
                starts.append(_seconds(lambda: _held(store, user)))
        with Store.open(path) as store:
            held = _held(store, user)
            lookups, trees = _lookups(held, stream, rng)
            index = held.written.index
            merge = _merge(index)
            appends = _appends(index, rng.permutation(stream)[: APPENDS * REPLY].reshape(-1, REPLY))
    return {
        "tokens": replies.size,
        "lookup_ms": _ms(np.median(lookups)),
        "lookup_p99_ms": _ms(np.quantile(lookups, 0.99)),
        "tree_ms": _ms(np.median(trees)),
        "tree_p99_ms": _ms(np.quantile(trees, 0.99)),
        "append_ms": _ms(np.median(appends)),
        "append_max_ms": _ms(max(appends)),
        "bytes_per_token": round(index.nbytes / len(index), 1),
        "start_seconds": round(float(np.median(starts)), 3),
        "sort_seconds": round(sorting, 2),
        "merge_seconds": round(merge, 2),
        "file_mb": round(megabytes, 1),
    }


def _held(store: Store, user: int) -> UserHistory:
    return Histories(store).held(user, _MODEL)


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _ms(seconds: float) -> float:
    return round(float(seconds) * 1e3, 3)


def _lookups(held: UserHistory, stream: Tokens, rng: np.random.Generator) -> tuple[list[float], list[float]]:
    """Time looking up one place and a whole tree, behind contexts that were there and go on."""
    drafter = Drafter(held.sources)
    found: tuple[list[float], list[float]] = ([], [])
    for place in rng.integers(CONTEXT, stream.size - 1, LOOKUPS + 20):
        for limit, times in zip((1, None), found, strict=True):
            drafter.begin(stream[place - CONTEXT : place].tolist())
            times.append(_seconds(lambda: drafter.propose(limit)))  # noqa: B023 - called at once
    return found[0][20:], found[1][20:]


def _appends(index: SuffixIndex, replies: Tokens) -> list[float]:
    """Time appending each reply to the index; what is left to the thread goes on beside the next."""
    times = [_seconds(lambda: index.append(reply)) for reply in replies]  # noqa: B023 - called at once
    index.wait()
    return times


def _merge(index: SuffixIndex) -> float:
    """Time merging two halves of the index's token log."""
    tokens = index.arrays.tokens
    (breaks,) = np.nonzero(tokens == BREAK)
    half = int(breaks[breaks.size // 2]) + 1
    older, newer = suffix_order(tokens[:half]), suffix_order(tokens[half:]) + np.int32(half)
    return _seconds(lambda: merged(tokens, older, newer))


def _write(store: Store, replies: Tokens) -> int:
    """Store a user to whom a model wrote these replies, past the store's own way, which takes a while; return the
    user's id."""
    user = store.users.ensure("bench")
    conversation = store.chats.create(user, "bench")
    ids = range(1, len(replies) + 1)
    with store.connection.write() as db:
        db.conn.executemany(
            "INSERT INTO messages (id, conversation_id, role, text, state, created_at)"
            " VALUES (?, ?, 'assistant', 'x', 'complete', 0)",
            [(id, conversation) for id in ids],
        )
        db.conn.executemany(
            "INSERT INTO turns (message_id, writer_pid, writer_started, model, model_key, settings, seed, drafted)"
            " VALUES (?, 0, 0, ?, ?, '{}', 0, 1)",
            [(id, _MODEL, _MODEL) for id in ids],
        )
        db.conn.executemany(
            "INSERT INTO token_log (message_id, ids) VALUES (?, ?)",
            [(id, reply.tobytes()) for id, reply in zip(ids, replies, strict=True)],
        )
    return user


def _synthetic(size: int, rng: np.random.Generator) -> Tokens:
    """Make tokens as frequent as in language, in phrases: most are seldom repeated, some often."""
    lengths = rng.integers(2, 41, size // 40 + 1)
    tokens = _zipf(int(lengths.sum()), VOCABULARY, rng)
    return _resampled(tokens, np.cumsum(lengths) - lengths, lengths, size, rng)


def synthetic_history(size: int) -> Source:
    """Make a history of `size` tokens, as frequent and as repeated as in language."""
    rng = np.random.default_rng(size)
    tokens = np.append(_synthetic(size, rng), np.int32(BREAK))
    return Source(HISTORY, SuffixIndex.from_sorted(tokens, suffix_order(tokens)))


def _from(corpus: Path, size: int, rng: np.random.Generator) -> Tokens:
    """Draw runs of words of a text, each word a token."""
    try:
        words = re.findall(r"\w+|\W", corpus.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise RequestError(f"{corpus} cannot be read: {error.strerror}") from error
    tokens = np.unique(words, return_inverse=True)[1].astype(np.int32)
    if tokens.size < 1_000:
        raise RequestError(f"{corpus} has only {tokens.size} words.")
    starts = rng.integers(0, tokens.size - 200, size // 100 + 1)
    return _resampled(tokens, starts, rng.integers(20, 200, starts.size), size, rng)


def _resampled(tokens: Tokens, starts: Any, lengths: Any, size: int, rng: np.random.Generator) -> Tokens:
    """Concatenate pieces of `tokens`, the first ones drawn most often."""
    drawn = _zipf(size // int(lengths.min()) + 1, starts.size, rng)
    drawn = drawn[: int(np.searchsorted(np.cumsum(lengths[drawn]), size)) + 1]
    taken = lengths[drawn]
    within = np.arange(taken.sum()) - np.repeat(np.cumsum(taken) - taken, taken)
    return tokens[np.repeat(starts[drawn], taken) + within][:size].astype(np.int32)


def _zipf(size: int, kinds: int, rng: np.random.Generator) -> Tokens:
    """Draw numbers below `kinds`, the n-th as often as 1 / n."""
    return np.minimum(np.exp(rng.random(size) * np.log(kinds)) - 1, kinds - 1).astype(np.int32)
