"""Stands for a Python that has vLLM: `fake_vllm.py -m vllm.entrypoints.openai.api_server ...` answers as that would;
with --fails it ends at once. A process of its own waits beside it, as workers do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.testing.openai_server import Script, serving


def main() -> None:
    flags = dict(zip(sys.argv[3::2], sys.argv[4::2], strict=False))
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    told = {
        name: value for name, value in os.environ.items() if name.startswith(("HIERCHAT_DRAFTER", "VLLM"))
    }
    seen = {"pid": os.getpid(), "worker": worker.pid, "arguments": sys.argv[1:], "told": told}
    Path(os.environ["FAKE_VLLM_SEEN"]).write_text(json.dumps(seen), encoding="utf-8")
    if "--fails" in sys.argv:
        print("The weights are not there.", flush=True)
        worker.kill()
        sys.exit(3)
    models = [{"id": flags["--served-model-name"], "owned_by": "vllm", "max_model_len": 512}]
    script = Script(models=models, key=os.environ["VLLM_API_KEY"], counts=True)
    with serving(script, int(flags["--port"])):
        time.sleep(600)


if __name__ == "__main__":
    main()
