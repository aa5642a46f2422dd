"""The program over a model that never ends a reply; with NEVER_LOADS, over one that never comes. test_ending.py runs it
as a process of its own."""

import os
import sys
import threading
from functools import partial

from hierchat.cli.main import main
from hierchat.runtime import model_slot as slot
from tests.testing.scripted_engine import WORDS, ScriptedEngine, served


def load(name, report):
    if os.environ.get("NEVER_LOADS"):
        threading.Event().wait()
    engine = ScriptedEngine(WORDS, at_once=4, places=2)
    engine.holds_at = 12
    return served(engine, name)


if __name__ == "__main__":
    slot.ModelSlot = partial(slot.ModelSlot, load=load)
    sys.exit(main(["serve", *sys.argv[1:]]))
