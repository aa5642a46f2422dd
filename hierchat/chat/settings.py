"""The settings of a chat: what it has before anybody sets something, and what one reply takes of them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hierchat.config import GenerationSettings
from hierchat.store import ChatSettings

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService

_FOR_PROGRAMS = {"logit_bias", "grammar", "logprobs"}
"""Settings that no chat has."""
USUAL = {"end_loops": True}
"""What a chat has where it says nothing, as those do that were stored by earlier versions; a program has to ask."""


def own_sampling(settings: GenerationSettings) -> dict[str, Any]:
    """A model's settings as those of a chat: what a user can set, and a new seed for each reply."""
    # Where nothing is said of thinking, nothing stands there: as in chats and presets that were stored before.
    left_out = _FOR_PROGRAMS | USUAL.keys() | (set() if settings.reasoning else {"reasoning"})
    return settings.model_dump(mode="json", exclude=left_out) | {"seed": None}


def reply_settings(sampling: Mapping[str, Any]) -> GenerationSettings:
    """The settings of one reply; where the chat names no seed, with a new one."""
    seed = sampling.get("seed")
    return GenerationSettings(**{**USUAL, **sampling, "seed": secrets.randbits(32) if seed is None else seed})


def own_settings(service: ChatService, model: str = "") -> ChatSettings:
    """What a model brings along: the one that is loaded, or the one of that name."""
    host = service.host
    name = model or host.status.name or next(iter(host.names), "")
    settings = host.settings(name) if name in host.names else GenerationSettings()
    return ChatSettings("", own_sampling(settings))


def settings_of(service: ChatService, user: int, conversation: int | None) -> ChatSettings:
    """What a chat sets, else what it begins with: a new one with the default preset. Raises NotFound."""
    own = own_settings(service)
    if conversation is None:
        default = (preset.settings for preset in service.store.presets(user) if preset.is_default)
        return next(default, own)
    if (stored := service.store.chat_settings(user, conversation)) is not None:
        return stored
    return replace(own, system_prompt="\n\n".join(service.store.system_prompts(user, conversation)))


def keep_settings(service: ChatService, user: int, conversation: int, settings: ChatSettings) -> bool:
    """Let the chat have these settings. One that differs in nothing from its model goes on following it.
    Whether they are others than before."""
    changed = settings != settings_of(service, user, conversation)
    if changed:
        service.store.set_chat_settings(user, conversation, settings)
    return changed
