"""A model that a server elsewhere computes, ready to answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hierchat.config import Reasoning
from hierchat.engine.remote.channel import Channel
from hierchat.engine.remote.drafted import DraftedEngine
from hierchat.engine.remote.engine import RemoteEngine
from hierchat.engine.remote.reasoning import choices
from hierchat.engine.remote.server import Offered, Server
from hierchat.engine.remote.text import TextTokens
from hierchat.models.catalogue import ModelEntry, OpenAI
from hierchat.runtime.hosted import Hosted
from hierchat.runtime.prompt import Chat, Prompt, PromptBuilder, Said, Tools, joined
from hierchat.runtime.thinking import Thinking

UNKNOWN_CONTEXT = 1_000_000
"""Where no server tells how much it holds: nothing is left out, and it refuses what is too long."""


class ThinkingElsewhere(Thinking):
    """Of a server's model, whose template is not here: what its kind of server can be asked."""

    def __init__(self, tokenizer: TextTokens, model: Offered) -> None:
        super().__init__(tokenizer)
        self._offered = choices(model.owner, model.name)

    @property
    def choices(self) -> tuple[Reasoning, ...]:
        return self._offered


class TextPrompts(PromptBuilder):
    """Messages as a server takes them: their text, never tokens. How long they are is estimated."""

    knows_tokens = False

    def __init__(self, model: Offered, context_length: int, system_prompt: str | None = None) -> None:
        tokens = TextTokens()
        super().__init__(tokens, context_length, system_prompt)
        self.thinking = ThinkingElsewhere(tokens, model)

    def build(
        self, messages: Sequence[Said], room: int, end_ids: Collection[int] = (), reasoning: Reasoning = ""
    ) -> Prompt:
        return super().build(_texts(messages), room)

    def whole(
        self,
        messages: Sequence[Said],
        end_ids: Collection[int] = (),
        tools: Tools = (),
        reasoning: Reasoning = "",
    ) -> Prompt:
        return super().whole(_texts(messages))

    def _encode(self, chat: Chat, tools: Tools, arguments: Mapping[str, Any]) -> list[int]:
        # Many templates insist on question and reply in turn, and a server's error names no way out.
        return super()._encode(joined(chat), tools, arguments)


def _texts(messages: Sequence[Said]) -> list[Said]:
    return [replace(message, tokens=()) for message in messages]


def load_remote(entry: ModelEntry) -> Hosted:
    """Raises ServerError where the server, its model or the drafter in it cannot be had."""
    assert entry.engine
    said: OpenAI = entry.engine.openai
    server = Server(said)
    model = server.model(said.model)
    context = entry.context_length or model.context
    prompts = TextPrompts(model, context or UNKNOWN_CONTEXT, entry.system_prompt)
    engine, note = RemoteEngine(server, model, context), ""
    if said.drafter:
        channel = Channel(said.drafter, said.drafter_secret)
        if not channel.hello().get("learns", True):
            note = (
                "The drafter in vLLM cannot use its file, so earlier chats draft nothing. Its log says why."
            )
        engine = DraftedEngine(server, model, context, channel)
    return Hosted(
        entry.name, f"remote:{server.host}/{model.name}", engine, prompts, vanilla_ms=None, note=note
    )
