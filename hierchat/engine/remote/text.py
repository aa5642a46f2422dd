"""Stands for the tokenizer of a model that is elsewhere: a server is sent messages, and it alone knows their tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

BYTES = 3
"""Of text in UTF-8 that count as one token: fewer than a token has in most languages, so that what is thought to fit
does fit."""
NOTHING = 0
"""A token of a reply; its text comes beside it (Step.text)."""


class TextTokens:
    """A text as numbers of three bytes each, and back. Of the interface of tokenizers what prompts need."""

    chat_template = ""

    def __call__(
        self, text: str, add_special_tokens: bool = False, verbose: bool = True
    ) -> dict[str, list[int]]:
        raw = text.encode("utf-8", "replace")
        # The byte before says how many follow, zeros included.
        return {
            "input_ids": [int.from_bytes(b"\x01" + raw[at : at + BYTES]) for at in range(0, len(raw), BYTES)]
        }

    def decode(
        self,
        ids: Sequence[int],
        skip_special_tokens: bool = True,
        clean_up_tokenization_spaces: bool = False,
    ) -> str:
        """The text; nothing for tokens of a reply."""
        raw = b"".join(number.to_bytes((number.bit_length() + 7) // 8)[1:] for number in ids)
        return raw.decode("utf-8", "replace")

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """Empty, likewise."""
        return {}

    def get_vocab(self) -> dict[str, int]:
        """Empty: no control token is known here."""
        return {}

    def apply_chat_template(
        self,
        chat: Sequence[Mapping[str, Any]],
        tokenize: bool = True,
        **others: Any,
    ) -> Any:
        """The messages themselves, as JSON: the server has the template. Tools are left out."""
        said = json.dumps(list(chat), ensure_ascii=False)
        return self(said) if tokenize else said


def messages(ids: Sequence[int]) -> list[dict[str, Any]]:
    """The messages of a prompt."""
    said: list[dict[str, Any]] = json.loads(TextTokens().decode(ids))
    return said
