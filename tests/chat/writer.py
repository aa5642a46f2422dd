"""Run by test_crash.py as a process of its own: writes a slow reply and says how far it is."""

import sys
import threading
import time
from pathlib import Path

import torch

from hierchat.chat.in_progress import Question
from hierchat.chat.service import ChatService
from hierchat.config import GenerationSettings
from hierchat.store import Store
from tests.testing.tiny_chat import END, ready_slot, spy

if __name__ == "__main__":
    torch.set_num_threads(1)
    store = Store.open(Path(sys.argv[1]))
    user = store.users.ensure("ann")
    slot = ready_slot()
    assert slot.model
    spy(slot.model.engine.sequence, "forward", lambda *a, **k: time.sleep(0.02))
    settings = GenerationSettings(temperature=1, max_new_tokens=400, logit_bias={END: -100.0})
    conversation = store.chats.create(user)
    print(conversation, flush=True)
    question = Question(conversation, None, "hello")
    for frame in ChatService(store, slot).send(user, question, settings, threading.Event()):
        print(time.monotonic(), frame.figures.tokens, flush=True)
