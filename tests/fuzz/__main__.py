"""Throw random input at what reads a stranger's files and requests, and random steps at what must stay whole, for as
long as one likes: `python -m tests.fuzz [--seconds N | --inputs N] [--first SEED] [--seed N] [TARGET...]`.

Each target makes an input from a seed and checks what may come of it. What is wrong is printed with its target and
seed, by which `--seed` makes it again. `--inputs` with `--first` cuts a long run into pieces. tests/test_fuzz.py runs
some of each, and the crashes that were found (CRASHES) first.
"""

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.drafting_machine import DraftingMachine
from tests.fuzz.index_operations import operations
from tests.fuzz.inputs import INPUTS
from tests.fuzz.machines import Machine
from tests.fuzz.reply_machine import ReplyMachine
from tests.fuzz.sequence_machine import SequenceMachine
from tests.fuzz.store_machine import StoreMachine

MACHINES: dict[str, type[Machine]] = {
    "store": StoreMachine,
    "drafting": DraftingMachine,
    "sequences": SequenceMachine,
    "replies": ReplyMachine,
}
TARGETS: dict[str, Callable[[random.Random, Path], int | None]] = {
    **INPUTS,
    "operations": operations,
    **{name: machine.run for name, machine in MACHINES.items()},
}
"""Each tries what it makes of some numbers; returns how many steps that had, if several."""


def run(name: str, seed: int) -> tuple[int, str]:
    """Try one input; return how many steps it had, and what went wrong."""
    with TemporaryDirectory(prefix="hierchat-fuzz-") as folder:
        try:
            return TARGETS[name](random.Random(f"{name} {seed}"), Path(folder)) or 1, ""
        except Exception:
            return 1, traceback.format_exc()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("targets", nargs="*", default=list(TARGETS), help=f"of {', '.join(TARGETS)} (all)")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--inputs", type=int, help="of each target, in place of seconds")
    parser.add_argument("--first", type=int, help="the first seed; the others follow it")
    parser.add_argument("--seed", type=int, help="one input, made again")
    asked = parser.parse_args()
    inputs, checks, wrong = Counter[str](), Counter[str](), 0
    first = random.randrange(2**32) if asked.first is None else asked.first
    seed, most = (first, asked.inputs) if asked.seed is None else (asked.seed, 1)
    end = time.monotonic() + asked.seconds
    while inputs[asked.targets[-1]] < most if most else time.monotonic() < end:
        for name in asked.targets:
            count, trace = run(name, seed)
            inputs[name] += 1
            checks[name] += count
            if trace:
                wrong += 1
                print(f"{name} --seed {seed}\n{trace}", flush=True)
        seed += 1
    tried = f"{inputs.total():,} inputs, {checks.total():,} steps, {wrong} wrong"
    print(f"{tried}, seeds up to {seed - 1}: {dict(checks)}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
