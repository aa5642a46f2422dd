"""Hold replies to a grammar: mask the tokens that may not come next. A mask applies before penalties and temperature,
and is a function of the reply's tokens alone. Verification needs it only along the target's own choices, so the
reply is the same with drafts or without."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from hierchat.child_process import ChildProcess
from hierchat.engine.sampling import grammar_program
from hierchat.engine.sampling.sampler import FloatArray

MOST_CHARACTERS = 1 << 18
"""Maximum length of a schema or grammar."""
SECONDS = 3
"""Maximum time of the processor to compile a grammar, where the system counts it."""
_compiler = ChildProcess(grammar_program.__name__, SECONDS)


class GrammarError(ValueError):
    """A grammar cannot be used. The message is for who wrote it."""


def bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON schema as it is. Raises GrammarError if it is too long."""
    _require_short(json.dumps(schema))
    return schema


def _require_short(text: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise GrammarError(
            f"A schema or grammar may have at most {MOST_CHARACTERS:,} characters. Make it shorter."
        )


@lru_cache(64)
def _trouble(text: str, marks: tuple[str, ...]) -> str:
    """Return why llguidance refuses a grammar; empty if it takes it. Raises GrammarError if its process fails."""
    answer = _compiler.ask({"grammar": text, "marks": marks})
    if (trouble := answer.get("trouble")) is None:
        raise GrammarError(
            "It takes too much time or memory. Make it smaller, with fewer keys and links ($ref)."
        )
    return str(trouble)


class Grammars:
    """Make grammars over the bytes of a model's tokens, which are collected at the first use, in about a second."""

    def __init__(self, tokenizer: Any, end_ids: Collection[int], vocabulary: int) -> None:
        """Take a tokenizer; `end_ids`: tokens that may end a reply; `vocabulary`: length of a row of logits."""
        self._tokenizer = tokenizer
        self._end_ids = sorted(end_ids)
        self._vocabulary = vocabulary

    @cached_property
    def _tokens(self) -> LLTokenizer:
        from llguidance.hf import from_tokenizer  # it needs transformers

        most = max(self._vocabulary, len(self._tokenizer))
        return from_tokenizer(self._tokenizer, n_vocab=most, eos_token=self._end_ids)

    @cached_property
    def _marks(self) -> list[str]:
        added = self._tokenizer.added_tokens_decoder.items()
        return [token.content for id, token in added if self._tokens.is_special_token(id)]

    def check(self, text: str) -> None:
        """Compile `text` (llguidance's JSON, or Lark) in another process. Raises GrammarError if that is impossible."""
        if not self._end_ids:
            raise GrammarError(
                "This model has no token that ends a reply, so no reply of it can be held to a form."
            )
        _require_short(text)
        if trouble := _trouble(text, tuple(mark for mark in self._marks if mark in text)):
            raise GrammarError(trouble.splitlines()[0])

    def begin(self, text: str, reply: Sequence[int] = ()) -> Grammar:
        """Make the grammar of a reply that begins with these tokens. Raises GrammarError."""
        self.check(text)
        matcher = LLMatcher(self._tokens, text, log_level=0)
        if matcher.is_error():
            raise GrammarError(matcher.get_error().strip().splitlines()[0])
        grammar = Grammar(matcher, self._end_ids)
        for token in reply:
            grammar.take(token)
        return grammar

    def mark(self, text: str) -> str:
        """Spell a mark such as <tool_call> for Lark; some models have a token for it."""
        token = self._tokenizer.get_vocab().get(text)
        return text if token is not None and self._tokens.is_special_token(token) else json.dumps(text)


class Grammar:
    """Follow one reply through its grammar."""

    def __init__(self, matcher: LLMatcher, end_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._end_ids = list(end_ids)

    def masked(self, row: FloatArray) -> FloatArray:
        """Copy a row of logits with -inf for tokens that may not come next. Raises GrammarError."""
        masked = np.full_like(row, -np.inf)
        if self._matcher.is_error():
            raise GrammarError(f"The grammar asks for too much: {self._matcher.get_error().splitlines()[0]}")
        if self._matcher.is_stopped():  # all is said
            masked[self._end_ids] = row[self._end_ids]
            return masked
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(bits, count=min(len(row), 8 * len(bits)), bitorder="little"))
        masked[allowed] = row[allowed]
        return masked

    def take(self, token: int) -> None:
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)
