"""Run the process of a peer: python -P main.py PROGRAM MODEL OPTIONS.

PROGRAM is a key of PROGRAMS. OPTIONS is JSON: threads, context; for torch device and dtype; "lookup": draft so many
tokens from the prompt; "draft": folder or file of a draft model; for llama.cpp "draft_tokens" that it writes at most,
and "draft_sure": how sure it must be of each.

Says {"versions": {...}} when it is ready. Then each line read is answered by one:
{"prompt", "max_new_tokens", "temperature", "seed", "end_ids"} -> {"tokens", "seconds", "first_seconds", "peak_mb"},
or {"error"}. `seconds` is decoding from the prompt's last token on. `first_seconds` is all until the first token.
"forwards" stands there where the program tells it. A request with "do" asks for another method than `answer`: a program
whose forwards can be timed has `forwards` and `reading` (llama_cpp.py).
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import sys
import types
from importlib.metadata import version
from typing import Any

PROGRAMS = {
    "transformers": ("transformers", "Transformers"),
    "llama.cpp": ("llama_cpp", "LlamaCpp"),
    "flashspec": ("flashspec", "FlashSpec"),
    "dejavuu": ("dejavuu", "DejaVu"),
}
"""File and class of each."""
PACKAGE = "hierchat_peer"


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes beside the answers, not between them
    kind, model, options = sys.argv[1:]
    # This folder becomes a package without being on the path, where its files would stand in for libraries.
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(pathlib.Path(__file__).parent)]
    sys.modules[PACKAGE] = package
    peak_mb = importlib.import_module(f"{PACKAGE}.memory").peak_mb
    file, name = PROGRAMS[kind]
    program: Any = getattr(importlib.import_module(f"{PACKAGE}.{file}"), name)
    peer = program(model, json.loads(options))
    print(json.dumps({"versions": {name: version(name) for name in peer.packages}}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            request = json.loads(line)
            said = {**getattr(peer, request.get("do", "answer"))(request), "peak_mb": peak_mb()}
        except Exception as error:  # the other side lists it as the reason why this arm is absent
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main()
