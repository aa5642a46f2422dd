"""Run by test_killed.py as a process of its own: writes for a user, slowly, and says how far it is."""

import sys
import threading
import time
from pathlib import Path

from hierchat.chat import idle_generation
from hierchat.chat.idle_generation import Writer
from hierchat.config import GenerationSettings
from hierchat.store import Store

from .conftest import ASKED, make_served

if __name__ == "__main__":
    idle_generation.MOST_TOKENS, idle_generation.KEEP_SECONDS = 20, 0.0
    store = Store.open(Path(sys.argv[1]))
    made = Writer(store, make_served(), store.users.ensure("ann"), GenerationSettings(), threading.Event())

    def told() -> bool:
        print(made.tokens, made.replies, flush=True)
        time.sleep(0.02)
        return True

    made.write(ASKED, told)
    print("done", flush=True)
    time.sleep(60)
