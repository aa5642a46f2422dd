"""One reply that a program asked for: from its prompt to its last frame, in the same queue as those of the page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hierchat.chat.completions import Writing
from hierchat.chat.frames import Frame
from hierchat.chat.record import Record
from hierchat.chat.reply import Reply
from hierchat.config import GenerationSettings
from hierchat.corpus.seed import SEED_NAME
from hierchat.runtime.hosted import Hosted
from hierchat.runtime.prompt import Prompt
from hierchat.server.door import Caller
from hierchat.server.errors import Refused
from hierchat.server.models import load

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for. `prompt` and `settings` are made when the model is there."""

    model: str
    """Empty: the one that is loaded."""
    prompt: Callable[[Hosted], Prompt]
    settings: Callable[[Hosted, Prompt], GenerationSettings]
    question: str
    """What is kept of the prompt where a history is kept."""


class Asked:
    """One reply to a caller. Where nothing of theirs is kept, only texts that come with hierchat draft it."""

    def __init__(self, service: ChatService, wanted: Wanted, caller: Caller, number: int = 0) -> None:
        """`number`: which of several replies to the same request, each with a seed of its own."""
        self._service = service
        self.wanted = wanted
        self._caller = caller
        self._number = number
        self.reply: Reply | None = None
        """There once it began."""
        self.load_seconds = 0.0
        """How long it took to load the model."""

    @property
    def database(self) -> str:
        """Its place."""
        return str(self._service.store.path)

    def frames(self, stop: threading.Event) -> Generator[Frame, None, None]:
        """Frames until it ends, as Completions.answer yields and raises them; also raises Refused."""
        self.load_seconds = load(self._service, self.wanted.model, stop)
        yield from self._service.completions.answer(lambda hosted: self._begin(hosted, stop), stop)

    def _begin(self, hosted: Hosted, stop: threading.Event) -> Writing:
        wanted, service, user = self.wanted, self._service, self._caller.user_id
        if wanted.model and hosted.name != wanted.model:
            raise Refused(503, f"{hosted.name} was loaded meanwhile. Ask again.", "model", "model_not_loaded")
        prompt = wanted.prompt(hosted)
        settings = wanted.settings(hosted, prompt)
        settings = settings.model_copy(update={"seed": (settings.seed + self._number) % 2**63})
        _require_possible(hosted, settings)
        if not self._caller.keeps:
            shipped = tuple(texts for texts in hosted.statistics if texts.name == SEED_NAME)
            alone = replace(hosted, statistics=shipped)
            self.reply = service.completions.reply_to(alone, user, prompt, settings, stop, learns=False)
            return self.reply
        self.reply = service.completions.reply_to(hosted, user, prompt, settings, stop)
        conversation = service.store.create_conversation(user)
        question = service.store.add_message(user, conversation, None, "user", wanted.question)
        return Record(service.store, self.reply, user, conversation, question)


def require_tokens(hosted: Hosted) -> None:
    """Raises Refused where nobody here knows the model's tokens."""
    if not hosted.prompts.knows_tokens:
        said = f"{hosted.name} is computed by another server, which takes messages: use /v1/chat/completions."
        raise Refused(400, said, "model")


def _require_possible(hosted: Hosted, settings: GenerationSettings) -> None:
    """Raises Refused, or GrammarError: before anything is written."""
    if not hosted.is_local:
        if settings.grammar or settings.logprobs is not None:
            raise Refused(400, f"{hosted.name} is computed elsewhere: no logprobs, no forms of replies.")
        return
    most = hosted.local.runner.vocabulary
    if beyond := [token for token in settings.logit_bias if not 0 <= token < most]:
        said = f"logit_bias names token {beyond[0]}; {hosted.name} has tokens 0 to {most - 1}."
        raise Refused(400, said, "logit_bias")
    if settings.grammar and hosted.local.grammars:
        hosted.local.grammars.check(settings.grammar)
