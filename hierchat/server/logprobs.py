"""Probabilities of tokens, as OpenAI's two kinds of completions tell them."""

from __future__ import annotations

from typing import Any

from hierchat.chat.reply import Reply
from hierchat.engine.sampling.grammar import Grammars
from hierchat.engine.sampling.logprobs import TokenLogprob


class Logprobs:
    """Those of one reply, as far as its text was sent."""

    def __init__(self, reply: Reply) -> None:
        grammars = reply.hosted.local.grammars
        assert grammars is not None  # engines of the program have them
        self._grammars: Grammars = grammars
        self._statistics = reply.statistics
        self._next = 0
        self._bytes = 0

    def up_to(self, text: str) -> list[tuple[int, TokenLogprob, int]]:
        """Tokens since the last call that began before the end of `text`, all that was sent so far; where each
        begins, in bytes. Control tokens are left out."""
        found, end = [], len(text.encode())
        known = min(len(self._statistics.tokens), len(self._statistics.logprobs))
        while self._next < known and self._bytes < end:
            token = self._statistics.tokens[self._next]
            size = len(self._grammars.bytes_of(token))
            if size:
                found.append((token, self._statistics.logprobs[self._next], self._bytes))
            self._bytes += size
            self._next += 1
        return found

    def chat(self, text: str) -> dict[str, Any]:
        """For a chat completion."""
        content = [
            self._token(token, told.logprob)
            | {"top_logprobs": [self._token(other, value) for other, value in told.likeliest]}
            for token, told, _ in self.up_to(text)
        ]
        return {"content": content, "refusal": None}

    def legacy(self, text: str) -> dict[str, Any]:
        """For a text completion."""
        found = self.up_to(text)
        return {
            "tokens": [self._text(token) for token, _, _ in found],
            "token_logprobs": [told.logprob for _, told, _ in found],
            "top_logprobs": [
                {self._text(other): value for other, value in told.likeliest} for _, told, _ in found
            ],
            "text_offset": [len(text.encode()[:at].decode(errors="ignore")) for _, _, at in found],
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self._text(token), "logprob": logprob, "bytes": list(self._grammars.bytes_of(token))}

    def _text(self, token: int) -> str:
        return self._grammars.bytes_of(token).decode(errors="replace")
