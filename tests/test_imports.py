"""What a chat on the CPU engine imports: nothing that only other engines, or measurements, need."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hierchat.config import cache_dir
from hierchat.engine.cpu.runner import CpuRunner  # its kernels are compiled for the cache of all tests
from hierchat.models.catalogue import read_catalogue
from hierchat.models.load.load_model import load

assert CpuRunner
KERNELS = cache_dir() / "kernels"
HEAVY = ("torch", "bitsandbytes", "accelerate", "matplotlib", "scipy", "sklearn", "pyarrow", "triton", "mcp")
SCRIPT = """
import json, sys, threading, time
from pathlib import Path
from hierchat.config import GenerationSettings
from hierchat.models.catalogue import read_catalogue
from hierchat.runtime.model_slot import ModelSlot
from hierchat.chat.in_progress import NewQuestion
from hierchat.chat.service import ChatService
from hierchat.store import Store
from hierchat.page.page_app import build_app
from hierchat.cli import screen, serve

slot = ModelSlot(read_catalogue())
with Store.open(Path(sys.argv[1])) as store:
    service = ChatService(store, slot)
    build_app(service)
    slot.start("tiny")
    while slot.status.phase not in ("ready", "failed"):
        time.sleep(0.01)
    assert slot.status.phase == "ready", slot.status
    user = store.users.ensure("ann")
    chat = store.chats.create(user)
    for temperature in (0.0, 1.0):
        settings = GenerationSettings(max_new_tokens=8, temperature=temperature)
        *_, last = service.send(user, NewQuestion(chat, None, "Hello"), settings, threading.Event())
        assert last.figures.tokens, last
    service.close()
print(json.dumps([slot.model.engine.backend, *sys.modules]))
"""


@pytest.mark.usefixtures("tiny_in_the_catalogue")
def test_a_chat_imports_nothing_heavy(places: Path) -> None:
    listed = places / "CONFIG" / "models.yaml"
    listed.write_text(listed.read_text() + "    blocks: 4\n    licence: none\n")
    kernels = places / "CACHE" / "kernels"
    shutil.rmtree(kernels, ignore_errors=True)  # fixtures compile some where no test before did
    kernels.symlink_to(KERNELS, target_is_directory=True)
    load(read_catalogue().entry("tiny"), "cpu")  # packed here: that is the first start's work
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(places / "chat.db")], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    backend, *modules = json.loads(done.stdout.splitlines()[-1])
    assert backend == "blocks"
    # Of transformers the tokenizer, and no model or what computes one
    models = [name for name in modules if name.startswith(("transformers.models.", "transformers.modeling"))]
    assert [name for name in HEAVY if name in modules] + models == []
