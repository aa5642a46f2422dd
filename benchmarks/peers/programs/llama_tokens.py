"""Tokenize texts as llama.cpp does: python -P llama_tokens.py MODEL.

MODEL is a GGUF file, of which the vocabulary alone is read. Each line read, {"text", "control"}, is answered by one of
tokens; `control`: what looks like a control token is one.
"""

from __future__ import annotations

import json
import os
import sys

from llama_cpp import Llama  # type: ignore[import-not-found]


def main() -> None:
    """Read texts until there are no more, and answer each by its tokens."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints goes beside the answers, not between them
    model = Llama(sys.argv[1], vocab_only=True, verbose=False)
    for line in sys.stdin:
        asked = json.loads(line)
        tokens = model.tokenize(asked["text"].encode(), add_bos=False, special=asked["control"])
        print(json.dumps(tokens), file=answers, flush=True)


if __name__ == "__main__":
    main()
