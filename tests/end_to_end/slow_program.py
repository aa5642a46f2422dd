"""The program over a model that never ends a reply; with NEVER_LOADS, over one that never comes. test_ending.py runs it
as a process of its own."""

import os
import sys
import threading
import time
from functools import partial

from hierchat.cli.main import main
from hierchat.runtime import model_slot as slot
from tests.testing.scripted_engine import WORDS, ScriptedEngine, served


class SlowEngine(ScriptedEngine):
    def generate(self, request):
        for step in super().generate(request):
            yield step
            time.sleep(0.2)  # else all words come before the page looks again


def load(name, report):
    if os.environ.get("NEVER_LOADS"):
        threading.Event().wait()
    engine = SlowEngine(WORDS, places=2)
    engine.holds_at = 12
    return served(engine, name)


if __name__ == "__main__":
    slot.ModelSlot = partial(slot.ModelSlot, load=load)
    sys.exit(main(["serve", *sys.argv[1:]]))
