"""python -m hierchat.makers.seeds FOLDER [--tokens N]: writes replies; --pack packs what is there, as it ships.

The same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from hierchat.corpus.seed import SUFFIX, seeds_dir
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.learning.templates import scripts
from hierchat.makers.seeds.pack import write_texts
from hierchat.makers.seeds.progress import WritingProgress
from hierchat.makers.seeds.streams import Streams
from hierchat.makers.seeds.write import WorkFile, Writer
from hierchat.models.catalogue import ModelEntry, read_catalogue
from hierchat.models.errors import ModelError
from hierchat.models.load.load_blocks import load_blocks
from hierchat.models.load.loaded import LoadedModel
from hierchat.runtime.prompt import PromptBuilder

CONTEXT = 1024
"""Positions of a conversation, reply included."""


def main() -> int:
    """Returns the exit code."""
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
    """Of what was written, only replies to prompts that still stand in the lists, and each text once."""
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
    parser = argparse.ArgumentParser("hierchat.makers.seeds", description=__doc__)
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
