"""All that is tried with random input, by name."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz import inputs
from tests.fuzz.drafting_machine import DraftingMachine
from tests.fuzz.index_operations import operations
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
    **inputs.INPUTS,
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
