"""Throw random input at what reads a stranger's files and requests, and random steps at what must stay whole, for as
long as one likes: `python -m tests.fuzz [--seconds N | --inputs N] [--first SEED] [--seed N] [TARGET...]`.

Each target makes an input from a seed and checks what may come of it. What is wrong is printed with its target and
seed, by which `--seed` makes it again. `--inputs` with `--first` cuts a long run into pieces. tests/test_fuzz.py runs
some of each, and the crashes that were found (CRASHES) first.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from tests.fuzz.targets import TARGETS, run


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)} (all)")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--inputs", type=int, help="of each target, in place of seconds")
    parser.add_argument("--first", type=int, help="the first seed; the others follow it")
    parser.add_argument("--seed", type=int, help="one input, made again")
    asked = parser.parse_args()
    names = asked.targets or list(TARGETS)
    inputs, checks, wrong = Counter[str](), Counter[str](), 0
    first = random.randrange(2**32) if asked.first is None else asked.first
    seed, most = (first, asked.inputs) if asked.seed is None else (asked.seed, 1)
    end = time.monotonic() + asked.seconds
    while inputs[names[-1]] < most if most else time.monotonic() < end:
        for name in names:
            count, trace = run(name, seed)
            inputs[name] += 1
            checks[name] += count
            if trace:
                wrong += 1
                print(f"{name} --seed {seed}\n{trace}", flush=True)
        seed += 1
    print(
        f"{inputs.total():,} inputs, {checks.total():,} steps, {wrong} wrong, seeds up to {seed - 1}: {dict(checks)}"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
