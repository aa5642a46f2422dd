"""From what was said to a reply that is ready to be written: its prompt, its drafter, its baseline."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from hierchat.chat.reply import Reply, plain_decode
from hierchat.chat.statistics import ReplyStatistics
from hierchat.config import GenerationSettings
from hierchat.runtime.draft_index.history import Histories
from hierchat.runtime.drafters import Memory, reply_drafter
from hierchat.runtime.hosted import Hosted
from hierchat.runtime.learned import Learned
from hierchat.runtime.prompt import Said
from hierchat.store import Message, Store


class ReplyMaker:
    """Knows what earlier chats left behind for drafting."""

    def __init__(self, store: Store, histories: Histories, learned: Learned) -> None:
        self._store = store
        self._histories = histories
        self._learned = learned

    def reply(
        self,
        hosted: Hosted,
        user_id: int,
        said: Sequence[Said],
        room: GenerationSettings,
        settings: GenerationSettings,
        stop: threading.Event,
        before: int | None = None,
    ) -> Reply:
        """A reply to what was said. `before`: the message that it answers, where that is stored."""
        prompt = hosted.prompts.build(said, room.max_new_tokens, hosted.end_ids)
        held = self._histories.held(user_id, hosted.model_key, hosted.prompts.tokens, before=before)
        learned = self._learned.held(user_id, hosted.model_key)
        memory = Memory(held.sources, learned.acceptance, learned.successors, learned.levels)
        notice = None
        if prompt.dropped_turns:
            turns = (
                "oldest turn no longer fits the context window and was"
                if prompt.dropped_turns == 1
                else f"{prompt.dropped_turns} oldest turns no longer fit the context window and were"
            )
            notice = f"The {turns} left out."
        return Reply(
            hosted,
            prompt.ids,
            settings,
            _statistics(hosted, settings),
            reply_drafter(hosted, memory, settings, stop) if hosted.is_local else None,
            notice,
        )

    def said(self, hosted: Hosted, user_id: int, path: Sequence[Message]) -> list[Said]:
        """Messages as the prompt takes them: a reply by this model as the tokens that it wrote."""
        said = []
        for message in path:
            tokens: list[int] = []
            if message.role == "assistant":
                turn = self._store.turn(user_id, message.id)
                # A reasoning template drops earlier thoughts: then the text counts.
                if turn and turn.begun.model_key == hosted.model_key and "</think>" not in message.text:
                    tokens = self._store.reply_tokens(user_id, message.id)
            if message.text or tokens:
                said.append(Said(message.role, message.text, tuple(tokens)))
        return said


def _statistics(hosted: Hosted, settings: GenerationSettings) -> ReplyStatistics:
    statistics = ReplyStatistics(partial(plain_decode, hosted), settings.stop)
    if hosted.vanilla_ms is not None:
        statistics.set_baseline(hosted.vanilla_ms, "estimated")
    return statistics
