"""One model on one way, in a process of its own: a way that hangs or breaks the device takes nothing else with it.

    python -m hierchat.checks.gpu_backend MODEL RUNG DEVICE OUT

RUNG may be "any": the first that works.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hierchat.models.catalogue import Backend, ModelEntry, read_catalogue
from hierchat.models.progress import ModelError

ANY = "any"


def one(model: str, implementation: str, device: str) -> dict[str, Any]:
    """Return the figures of one model on one way; or `failed`, the reason."""
    try:
        entry = read_catalogue().entry(model)
        from hierchat.checks.gpu import figures  # these take seconds
        from hierchat.runtime.load import load_hosted

        backend = _through_transformers(entry, device)
        only = None if implementation == ANY else implementation
        hosted = load_hosted(entry, backend, waits=False, device=device, implementation=only)
        hosted.drafting_ready.wait()
        return figures(hosted)
    except ModelError as error:
        return {"failed": str(error)}


def _through_transformers(entry: ModelEntry, device: str) -> Backend | None:
    """Return the backend that keeps our own kernels out, which would compute it on the processor."""
    from hierchat.models.load.check import by_engine, through_modules

    return "float16" if by_engine(entry, device, None) and not through_modules(entry) else None


if __name__ == "__main__":
    Path(sys.argv[4]).write_text(json.dumps(one(*sys.argv[1:4])), encoding="utf-8")
