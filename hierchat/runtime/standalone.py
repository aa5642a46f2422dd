"""A loaded model for scripts, without a database: `hierchat.load`."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from typing import get_args

from hierchat.config import GenerationSettings
from hierchat.drafting.proposer import Proposer
from hierchat.engine.engine import Engine
from hierchat.models.catalogue import Backend, read_catalogue
from hierchat.models.load.add import chosen
from hierchat.models.progress import Report, silent
from hierchat.runtime.drafters import Memory, reply_drafter
from hierchat.runtime.loading import LoadOptions, load_served_model
from hierchat.runtime.prompt import PromptMessage
from hierchat.runtime.served_model import ServedModel


class StandaloneModel:
    """A model and its engine, and what drafts for it: its own context, what it wrote before, texts that ship, its
    draft models, and proposers of other packages."""

    def __init__(self, served: ServedModel) -> None:
        self._served = served
        self._memory = Memory()

    @property
    def engine(self) -> Engine:
        """Return the engine, whose `generate` yields the steps of a reply."""
        return self._served.engine

    def prompt(self, messages: str | Sequence[tuple[str, str]]) -> list[int]:
        """Return the tokens of a question, or of a conversation as pairs of role and text.

        Raises MessageTooLong where it does not fit the context."""
        pairs = [("user", messages)] if isinstance(messages, str) else messages
        said = [PromptMessage(role, text) for role, text in pairs]
        return self._served.prompts.whole(said, self._served.end_ids).ids

    def drafter(self, settings: GenerationSettings) -> Proposer:
        """Return what drafts one reply under these settings; it drafts nothing where that does not pay."""
        return reply_drafter(self._served, self._memory, settings, Event())

    def learn(self, reply: Sequence[int]) -> None:
        """Let the tokens of a reply draft later ones."""
        self._memory.history[0].add(reply)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without control tokens."""
        return str(self._served.prompts.tokenizer.decode(list(tokens), skip_special_tokens=True))


def load(
    model: str | None = None, backend: Backend | None = None, report: Report = silent
) -> StandaloneModel:
    """Load a model: a name of the catalogue, which is fetched first if need be, a folder, or a GGUF file.

    `model` None takes the catalogue's default, `backend` None the fastest that this machine has. Raises ModelError."""
    if backend is not None and backend not in get_args(Backend):
        raise ValueError(f"{backend!r} is no backend. There are: {', '.join(get_args(Backend))}.")
    name = chosen(model, read_catalogue()) if model else None
    catalogue = read_catalogue()  # a file or folder may have joined it
    return StandaloneModel(
        load_served_model(catalogue.entry(name), LoadOptions(backend, catalogue=catalogue), report)
    )
