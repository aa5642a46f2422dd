"""Which of all that can draft does so: the choice that a comparison makes for each of its sides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import Event
from typing import Literal

from hierchat.config import GenerationSettings
from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.proposer import Proposer
from hierchat.drafting.successors import Successors
from hierchat.runtime.drafters import Memory, reply_drafter, with_models
from hierchat.runtime.hosted import Hosted

Databases = Literal["none", "chat", "replies", "texts"]
"""Each with those before it: this conversation, the user's earlier chats, texts that ship or were added."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """What may draft. The default is all that there is."""

    databases: Databases = "texts"
    draft_models: bool = True
    """And what else the model brings beside the databases."""

    @property
    def nothing(self) -> bool:
        """Plain decoding."""
        return self.databases == "none" and not self.draft_models


ALL = Drafting()


def chosen_drafter(
    hosted: Hosted, memory: Memory, settings: GenerationSettings, stop: Event, drafting: Drafting
) -> Proposer | None:
    """A drafter of what was chosen; None for plain decoding."""
    if drafting == ALL:
        return reply_drafter(hosted, memory, settings, stop)
    if not drafting.draft_models:
        hosted = replace(hosted, levels=None, proposers=())
    if drafting.databases == "none":
        levels = hosted.levels
        if levels is None or not levels.sequences:
            return None
        alone = levels.only(levels.hierarchy.names[:-1])
        return with_models(hosted, memory, settings, stop, alone, retrieval=False)
    if hosted.levels and hosted.levels.sequences:
        # What is learned of plans belongs to all databases: fewer of them begin as after loading.
        names = hosted.levels.hierarchy.names[:-1]
        hosted = replace(hosted, levels=hosted.levels.only(names, retrieval=True))
    if drafting.databases == "chat":
        memory = replace(memory, history=[], successors=Successors())
    if drafting.databases != "texts":
        hosted = replace(hosted, statistics=())
    return reply_drafter(hosted, memory, settings, stop)


def apart(memory: Memory) -> Memory:
    """The same memory, but what is learned from now on goes into copies."""
    return replace(
        memory,
        acceptance=Acceptance.from_bytes(memory.acceptance.to_bytes()),
        successors=Successors.from_bytes(memory.successors.to_bytes()),
        levels={name: Acceptance.from_bytes(learned.to_bytes()) for name, learned in memory.levels.items()},
    )
