"""Compile grammars in a program with limits of time and memory: a stranger's schema can end llguidance's process."""

import json

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from hierchat.child_process import TOO_MUCH, serve

_STACK = 1 << 20
"""Bytes of stack: an eighth of what a thread of the server usually has."""


class _Bytes:
    """Tokens that are one byte each, and the control tokens that a grammar names."""

    bos_token_id = None

    def __init__(self, marks: list[str]) -> None:
        control = [mark.encode() for mark in ("<|end|>", *marks)]
        self.tokens = [bytes([byte]) for byte in range(256)] + control
        self.special_token_ids = list(range(256, len(self.tokens)))
        self.eos_token_id = 256

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def answer(request: bytes) -> bytes:
    """Compile `grammar`, whose control tokens are `marks`. The answer has `trouble`, empty if a reply can follow it."""
    asked = json.loads(request)
    try:
        tokens = LLTokenizer(TokenizerWrapper(_Bytes(asked["marks"])))
        trouble = LLMatcher.validate_grammar(asked["grammar"], tokens)
        if not trouble:
            matcher = LLMatcher(tokens, asked["grammar"], log_level=0)
            matcher.compute_bitmask()
            trouble = matcher.get_error() if matcher.is_error() else ""
            if trouble.startswith("NoExtension"):
                trouble = "No text can follow it."
    except MemoryError:
        return f'{TOO_MUCH}"memory"}}\n'.encode()
    return json.dumps({"trouble": trouble.strip()[:1000]}).encode() + b"\n"


if __name__ == "__main__":
    serve(answer, _STACK)
