"""python -m hierchat distil FOLDER: a small draft for a model, from text that the model wrote."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from hierchat.config import data_dir
from hierchat.models.catalogue import ModelEntry, read_catalogue
from hierchat.models.errors import ModelError
from hierchat.store import Store, StoreError

RECORD = "training.json"


def add_distil(commands: Any) -> None:
    """The arguments."""
    distil = commands.add_parser("distil", help="teach a small draft model with text that a model wrote")
    distil.add_argument("folder", type=Path, metavar="FOLDER", help="of the draft; the same one goes on")
    distil.add_argument("--model", metavar="NAME", help="a name from `models list` (the default's)")
    distil.add_argument("--layers", type=int, default=1, metavar="N", help="that the draft has (1)")
    distil.add_argument("--tokens", type=int, default=8191, metavar="N", help="that the draft knows (8191)")
    distil.add_argument("--minutes", type=float, default=30.0, metavar="N", help="of teaching in all (30)")
    distil.add_argument("--history", action="store_true", help="learn from your own conversations, too")
    distil.add_argument("--db", type=Path, default=data_dir() / "hierchat.db", help="where they are")
    distil.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> int:
    """Returns the exit code."""
    from hierchat.distil.text import TooLittleText

    try:
        _distil(args)
    except OSError as error:
        print(
            f"hierchat: {error.filename or args.folder} cannot be used ({error.strerror}).", file=sys.stderr
        )
        return 2
    except (ModelError, StoreError, TooLittleText, ValueError) as error:
        print(f"hierchat: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped; the same command goes on.", file=sys.stderr)
        return 130
    return 0


def _distil(args: argparse.Namespace) -> None:
    # Seconds to import: only when they are needed
    from hierchat.distil.student import make_student
    from hierchat.distil.text import frequent, samples, written
    from hierchat.distil.train import CHECKPOINT, State, train
    from hierchat.models.formats.draft_vocabulary import write_known
    from hierchat.models.load.load_torch import load_torch
    from hierchat.models.memory import best_device
    from hierchat.models.terminal import terminal_progress

    if args.tokens < 1:
        raise ValueError("A draft knows one token at least: give --tokens 1 or more.")
    entry = read_catalogue().entry(args.model)
    args.folder.mkdir(parents=True, exist_ok=True)
    with terminal_progress() as report:
        loaded = load_torch(entry, best_device(), report, "float32")
    text = written(entry, loaded.tokenizer)
    if args.history:
        text = np.concatenate([text, _own_history(args.db, loaded.model_key)])
    known = frequent(text, args.tokens, loaded.end_ids)
    cut = samples(text, known, min(loaded.end_ids))
    student = make_student(loaded.model, known, args.layers)
    parameters = sum(p.numel() for p in student.parameters())
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("teaching", total=args.minutes * 60)

        def tell(state: State, loss: float) -> None:
            agreed = f", {state.measured[-1][3]:.1%} right" if state.measured else ""
            bar.update(
                task, completed=state.seconds, description=f"step {state.step}, loss {loss:.2f}{agreed}"
            )

        state = train(student, cut, args.minutes, args.seed, args.folder, tell)
    student.half().save_pretrained(args.folder)
    loaded.tokenizer.save_pretrained(args.folder)
    write_known(args.folder, known)
    record = {
        "target": entry.name,
        "model_key": loaded.model_key,
        "history": args.history,
        "layers": args.layers,
        "tokens": len(known),
        "parameters": parameters,
        "text_tokens": len(text),
        "steps": state.step,
        "seconds": round(state.seconds),
        "measured": state.measured,
        "made": time.strftime("%Y-%m-%d"),
    }
    (args.folder / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    (args.folder / CHECKPOINT).unlink(missing_ok=True)
    _say(args.folder, entry, parameters, state.measured[-1])


def _own_history(path: Path, model_key: str) -> NDArray[np.int64]:
    """The model's replies. Raises ValueError where several people got them: no one's may draft for another."""
    from hierchat.distil.text import replies

    if not path.exists():
        raise ValueError(f"There is no database {path}. Name it with --db, or leave --history out.")
    with Store.open(path) as store:
        users = list(store.users().values())
        if len(users) > 1:
            raise ValueError(
                "Several people use this database: a draft would tell one what another was told."
            )
        return np.concatenate([np.zeros(0, np.int64), *(replies(store, user, model_key) for user in users)])


def _say(folder: Path, entry: ModelEntry, parameters: int, last: tuple[int, float, float, float]) -> None:
    name = re.sub(r"[^\w.-]+", "-", folder.resolve().name)
    if name == entry.name:
        name += "-draft"
    models: dict[str, dict[str, Any]] = {
        name: {"source": {"folder": {"path": str(folder.absolute())}}, "blocks": 8, "draft_only": True},
        entry.name: {"drafts": list(dict.fromkeys([*entry.drafts, name]))},
    }
    said = yaml.safe_dump(
        {"models": models}, default_flow_style=None, sort_keys=False, width=10_000, allow_unicode=True
    )
    print(
        f"{folder}: {parameters / 1e6:.1f} million parameters, {last[3]:.1%} of held-back tokens right.\n"
        f"To draft with it, put this into models.yaml in the configuration directory:\n\n{said}"
    )
