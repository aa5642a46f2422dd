"""Make texts that ship: what a model replies to prompts that were written for this project.

`python -m benchmarks.makers.seeds --help`
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from benchmarks.makers.scripts import REPLY, Script, scripts
from hierchat.config import GenerationSettings
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.generation import (
    PERIODS,
    Detokenizer,
    Generation,
    GenerationRequest,
    common_prefix,
    repeats,
)
from hierchat.engine.runner import Runner
from hierchat.models.catalogue import ModelEntry, read_catalogue
from hierchat.models.load.load_model import LoadedModel, load_blocks
from hierchat.models.progress import ModelError
from hierchat.runtime.prompt import MessageTooLong, PromptBuilder, PromptMessage
from hierchat.texts.corpora import SUFFIX, seeds_dir

# The file of texts that ships: JSON lines, each {"text": ...}, in xz.


def write_texts(path: Path, texts: Iterable[str]) -> int:
    """Replace the texts in the file by these; return how many were written. Empty ones are left out."""
    lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts if text.strip()]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(lzma.compress("".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))
    os.replace(part, path)
    return len(lines)


# How far the writing has come: a bar in a terminal, else a line a minute.


EVERY = 60.0
"""Seconds between two lines where there is no terminal."""
PACE = 300.0
"""Seconds over which the rate is measured."""


class WritingProgress:
    """Show that `tokens` of `total` are written. A pause of the process slows the rate for a while, nothing else."""

    def __init__(self, total: int, tokens: int, waiting: int) -> None:
        self.tokens = tokens
        self._total = total
        self._waiting = waiting
        self._past = deque([(time.monotonic(), tokens)])
        self._told = time.monotonic()
        console = Console(stderr=True)
        columns = (BarColumn(bar_width=30), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, auto_refresh=False) if console.is_terminal else None
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task("", total=total, completed=tokens)
        else:
            print(self._line(), file=sys.stderr, flush=True)

    def add(self, tokens: int, finished: int) -> None:
        """Count tokens that were written, and show them now and then."""
        self.tokens += tokens
        self._waiting -= finished
        now = time.monotonic()
        if now - self._told < (1.0 if self._bar else EVERY):
            return
        self._told = now
        self._past.append((now, self.tokens))
        while now - self._past[0][0] > PACE and len(self._past) > 2:
            self._past.popleft()
        if self._bar:
            self._bar.update(self._task, completed=self.tokens, description=self._line(), refresh=True)
        else:
            print(self._line(), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the display of progress."""
        if self._bar:
            self._bar.stop()
        print(self._line(), file=sys.stderr, flush=True)

    def _line(self) -> str:
        (since, before), now = self._past[0], time.monotonic()
        rate = (self.tokens - before) / max(now - since, 1e-3)
        left = f", {(self._total - self.tokens) / rate / 60:.0f} min left" if rate > 1 else ""
        return (
            f"{self.tokens:,} of {self._total:,} tokens, {rate:.0f} a second{left}; "
            f"{self._waiting:,} conversations to go"
        )


# Plain decoding of many conversations at once, one row of a forward each. A further row costs a sixth of
# the first one, so this is the way to write much. Rows never mix: every conversation gets the tokens that
# it would get alone.


class Streams:
    """Decode `count` conversations, numbered from 0, each in a sequence of the runner."""

    def __init__(self, runner: Runner, count: int) -> None:
        self.count = count
        self._runner = runner
        self._sequences = [runner.open() for _ in range(count)]
        self._replies: dict[int, Generation] = {}

    def start(self, stream: int, prompt: Sequence[int], settings: GenerationSettings) -> None:
        """Begin another conversation in a stream, or the next turn of its own: what some stream has read of the prompt
        already is not read again. Raises generation.PromptTooLong."""
        reply = Generation(
            self._sequences[stream], GenerationRequest(prompt, settings), Detokenizer(_no_text)
        )
        self._take_over(stream, prompt[:-1])
        for _ in reply.read():
            pass
        self._replies[stream] = reply

    def stop(self, stream: int) -> None:
        """Stop the stream until its next start: the reply is finished."""
        self._replies.pop(stream, None)

    def step(self) -> list[tuple[int, int]]:
        """Write one more token for every active stream: (stream, token). A reply that ends stops its stream."""
        writing = sorted(self._replies.items())
        if not writing:
            return []
        for _, reply in writing:
            reply.propose()
        rows = self._runner.forward([reply.segment() for _, reply in writing])
        found = []
        for (stream, reply), mine in zip(writing, rows, strict=True):
            found.append((stream, reply.take(mine, alone=len(writing) == 1).tokens[0]))
            if reply.finish:
                self.stop(stream)
        return found

    def close(self) -> None:
        """Close the sequences of all streams."""
        for sequence in self._sequences:
            sequence.close()

    def _take_over(self, stream: int, prompt: Sequence[int]) -> None:
        """Forget what the stream holds beyond its longest common beginning with the prompt; where another stream has a
        longer one, take that over."""
        mine = self._sequences[stream]
        mine.rollback(common_prefix(mine.tokens, prompt))
        best = max(self._sequences, key=lambda other: common_prefix(other.tokens, prompt))
        shared = common_prefix(best.tokens, prompt)
        if shared > len(mine.tokens):
            mine.adopt(best, prompt[len(mine.tokens) : shared])


def _no_text(tokens: Sequence[int]) -> str:
    """Return no text: settings without stop strings need none."""
    return ""


# Writes the replies: many conversations at once, each kept as a line of JSON as soon as it is finished.


MOST_TOKENS = 256
"""Of a reply."""
LONGEST = 40
"""Tokens of the longest period that counts."""
SHORTEST_TAIL = 24
"""Tokens that must repeat, at least: a row of dashes or a number's zeros are no loop."""


def loop_at_end(text: Sequence[int]) -> int:
    """Count the tokens at the end that repeat those before them, period by period; 0 where there is no loop."""
    for period in range(1, min(LONGEST, len(text) // PERIODS) + 1):
        repeated = period * (max(PERIODS, -(-SHORTEST_TAIL // period)) - 1)
        if repeats(text, period, repeated):
            return repeated
    return 0


@dataclass(slots=True)
class _Talk:
    """Conversation that a stream is writing."""

    script: Script
    said: list[PromptMessage] = field(default_factory=list)
    replies: list[list[int]] = field(default_factory=list)


class WorkFile:
    """Store conversations that are finished, one a line. A torn line does not count."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def mend(self) -> None:
        """Remove the line that a crash cut off; no other process may be writing."""
        os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Return the conversations in the order in which they were written."""
        with self.path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):
                    yield json.loads(line)

    def add(self, script: Script, replies: list[list[int]]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**asdict(script), "replies": replies}) + "\n")


class Writer:
    """Write conversations in streams. `tell` hears of tokens that were written and conversations that
    were finished; it returns whether to go on."""

    def __init__(
        self,
        prompts: PromptBuilder,
        end_ids: Collection[int],
        streams: Streams,
        file: WorkFile,
        tell: Callable[[int, int], bool],
    ) -> None:
        self._prompts = prompts
        self._decode = prompts.tokenizer.decode
        self._end_ids = end_ids
        self._streams = streams
        self._file = file
        self._tell = tell
        self._talks = dict[int, _Talk]()

    def write(self, scripts: Iterable[Script]) -> None:
        """Write all scripts, as many at a time as there are streams; each is added to the file when it is finished."""
        waiting = iter(scripts)
        for stream in range(self._streams.count):
            self._begin(stream, waiting)
        going = True
        while self._talks and going:
            written = self._streams.step()
            finished = sum(self._take(stream, token) for stream, token in written)
            for stream in range(self._streams.count) if finished else ():
                if stream not in self._talks:
                    self._begin(stream, waiting)
            going = self._tell(len(written), finished)

    def _begin(self, stream: int, waiting: Iterator[Script]) -> None:
        """Start the next conversation whose first prompt fits in a stream."""
        for script in waiting:
            talk = _Talk(script)
            if self._ask(stream, talk):
                self._talks[stream] = talk
                return

    def _ask(self, stream: int, talk: _Talk) -> bool:
        """Ask the next turn of a conversation; False where there is none, or it does not fit."""
        turn = len(talk.replies)
        if turn == len(talk.script.turns):
            return False
        text = talk.script.turns[turn]
        if turn and REPLY in text:
            text = text.replace(REPLY, self._decode(talk.replies[-1], skip_special_tokens=True))
            talk.said = []
        talk.said.append(PromptMessage("user", text))
        try:
            prompt = self._prompts.build(talk.said, MOST_TOKENS, self._end_ids)
        except MessageTooLong:
            return False
        settings = GenerationSettings(temperature=talk.script.temperature, seed=talk.script.seed)
        self._streams.start(stream, prompt.ids, settings)
        talk.replies.append([])
        return True

    def _take(self, stream: int, token: int) -> bool:
        """Add a token to a reply; return whether that finished its conversation."""
        talk = self._talks[stream]
        reply = talk.replies[-1]
        reply.append(token)
        repeated = loop_at_end(reply)
        if not repeated and token not in self._end_ids and len(reply) < MOST_TOKENS:
            return False
        del reply[len(reply) - repeated :]
        self._streams.stop(stream)
        talk.said.append(PromptMessage("assistant", self._decode(reply), tuple(reply)))
        if self._ask(stream, talk):
            return False
        self._file.add(talk.script, talk.replies)
        del self._talks[stream]
        return True


# python -m benchmarks.makers.seeds FOLDER [--tokens N]: writes replies; --pack packs what is there, as it
# ships. The same command goes on where it was stopped.


CONTEXT = 1024
"""Positions of a conversation, reply included."""


def main() -> int:
    """Write the texts and return the exit code."""
    args = _parser().parse_args()
    try:
        entry = read_catalogue().entry(args.model)
        loaded = load_blocks(entry)
    except ModelError as error:
        print(f"hierchat: {error}", file=sys.stderr)
        return 2
    file = WorkFile(args.folder / f"{loaded.name}.jsonl")
    if args.pack:
        return _pack(loaded, file, args)
    try:
        _write(entry, loaded, file, args)
    except KeyboardInterrupt:
        print("Stopped. The same command goes on.", file=sys.stderr)
        return 130
    return 0


def _write(entry: ModelEntry, loaded: LoadedModel, file: WorkFile, args: argparse.Namespace) -> None:
    file.mend()
    done, there = set[str](), 0
    for row in file.rows():
        done.add(row["key"])
        there += sum(map(len, row["replies"]))
    everything = scripts(seed=args.seed)
    waiting = [one for one in everything if one.key not in done]
    progress = WritingProgress(args.tokens, there, len(waiting))
    if there >= args.tokens or not waiting:
        progress.close()
        return
    runner = CpuRunner(
        loaded.model,
        context_length=min(CONTEXT, loaded.context_length),
        threads=args.threads,
        key=loaded.model_key,
        sequences=args.streams,
    )
    streams = Streams(runner, args.streams)
    prompts = PromptBuilder(loaded.tokenizer, CONTEXT, entry.system_prompt)
    deadline = time.monotonic() + args.minutes * 60

    def tell(tokens: int, finished: int) -> bool:
        progress.add(tokens, finished)
        return progress.tokens < args.tokens and time.monotonic() < deadline

    try:
        Writer(prompts, loaded.end_ids, streams, file, tell).write(waiting)
    finally:
        progress.close()


def _pack(loaded: LoadedModel, file: WorkFile, args: argparse.Namespace) -> int:
    """Pack replies to prompts that still stand in the lists, and each text once, into the file that ships."""
    wanted = {one.turns[0] for one in scripts(seed=args.seed)}
    kinds, texts = Counter[str](), dict[str, None]()
    for row in file.rows():
        if row["turns"][0] not in wanted:
            continue
        for reply in row["replies"]:
            texts[loaded.tokenizer.decode(reply, skip_special_tokens=True)] = None
        kinds[row["kind"]] += sum(map(len, row["replies"]))
    path = args.out or seeds_dir() / f"{loaded.name}{SUFFIX}"
    count = write_texts(path, texts)
    for kind, tokens in kinds.most_common():
        print(f"{tokens:>10,}  {kind}")
    print(f"{kinds.total():,} tokens, {count:,} texts, {path.stat().st_size:,} bytes: {path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("benchmarks.makers.seeds", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the replies are collected")
    parser.add_argument("--pack", action="store_true", help="pack what is there, and write nothing")
    parser.add_argument("--out", type=Path, help="the packed file; by default assets/seeds/MODEL.jsonl.xz")
    parser.add_argument("--model", metavar="NAME", help="a model of the catalogue; by default its default")
    parser.add_argument("--tokens", type=int, default=1_200_000, help="how many are enough (%(default)s)")
    parser.add_argument("--minutes", type=float, default=1e6, help="how long is enough")
    parser.add_argument("--streams", type=int, default=64, help="conversations at once (%(default)s)")
    parser.add_argument("--threads", type=int, help="by default one per core")
    parser.add_argument("--seed", type=int, default=0, help="another one: other order, noise and choice")
    return parser


if __name__ == "__main__":
    sys.exit(main())
