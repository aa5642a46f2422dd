"""The program over a tiny model that never ends a reply; with NEVER_LOADS, over one that never comes. Run as a process
of its own by test_ending.py."""

import os
import sys
import threading
import time
from functools import partial

from hierchat.cli.main import main
from hierchat.runtime import model_slot as slot
from tests.testing.tiny_chat import served, spy


def load(name, report):
    if os.environ.get("NEVER_LOADS"):
        threading.Event().wait()
    tiny = served(name, ends=False)
    spy(tiny.engine.sequence, "forward", lambda *a, **k: time.sleep(0.05))
    return tiny


if __name__ == "__main__":
    slot.ModelSlot = partial(slot.ModelSlot, load=load)
    sys.exit(main(["serve", *sys.argv[1:]]))
