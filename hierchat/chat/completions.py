"""Answer messages by frames, without a store: for the page, which stores the reply, and for callers that do not."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from hierchat import logs
from hierchat.chat.frames import Frame
from hierchat.chat.reply_stream import ReplyOptions, ReplyRecorder, ReplyStream
from hierchat.chat.spare_time import PrefixKeeper
from hierchat.chat.statistics import ReplyStatistics
from hierchat.chat.tool_calls import optional
from hierchat.chat.wording import NO_MODEL
from hierchat.config import GenerationSettings
from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.drafter import in_order
from hierchat.engine.remote.drafted import DraftedEngine
from hierchat.engine.sampling.grammar import GrammarError, Grammars
from hierchat.engine.scheduler import POLL_SECONDS
from hierchat.language import _, plural
from hierchat.runtime.drafters import Memory, all_sources, apart, reply_drafter
from hierchat.runtime.history_index import DraftOrigins, Histories
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import Prompt, PromptMessage
from hierchat.runtime.served_model import Learned, LearnedState, ServedModel
from hierchat.runtime.template import PromptError


# A reply's turn at the model: a place in the queue, then a share of the model until the reply has ended.
# The store counts turns too: a turn is one model reply there. This is the same reply, seen from the model.
class NoModel(Exception):
    """Raised when no model can answer. The message is for the page."""


class NotBegun(Exception):
    """Raised when a reply cannot be continued, repeated or compared. The message is for the page."""


class ModelTurn:
    """Context manager of a reply's turn at the model; its end lets the next reply begin. Raises QueueFull."""

    def __init__(self, slot: ModelSlot, stop: threading.Event, *, alone: bool = False) -> None:
        """Join the queue. `alone`: no other reply uses the model then, as when its speed is compared."""
        self.model: ServedModel | None = None
        """The model, once this turn has come."""
        self.waited_seconds = 0.0
        """How long other replies came before,"""
        self.loading: dict[str, float] = defaultdict(float)
        """and how long no model was there, by what the slot did meanwhile (SlotPhase)."""
        self._slot = slot
        self._stop = stop
        self._ticket = slot.scheduler.join(shares=not alone)

    def waiting(self) -> Iterator[int]:
        """Yield how many replies come before, until `model` is there or `stop` is set. Raises NoModel."""
        looked = time.monotonic()
        while not self._stop.is_set():
            phase = self._slot.status.phase
            yield (ahead := self._ticket.ahead)
            taken = self._ticket.take()
            passed, looked = time.monotonic() - looked, time.monotonic()
            if ahead:
                self.waited_seconds += passed
            else:
                self.loading[phase] += passed
            if not taken:
                continue
            self.model = self._slot.model
            if self.model is not None:
                return
            status = self._slot.status
            if status.phase in ("none", "failed"):
                raise NoModel(status.message or NO_MODEL)
            self._ticket.step_aside()  # for what loads the model
            self._stop.wait(POLL_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self._ticket.leave()


@dataclass(eq=False)
class Completions:
    """Answers prompts by the model in `slot`, several at a time. Earlier chats of the user help to draft them."""

    _slot: ModelSlot
    _histories: Histories
    _learned: Learned
    _is_owner: Callable[[int], bool]
    """Whether texts that were added on this machine are this user's."""
    _prefixes: PrefixKeeper

    def answer(
        self,
        begin: Callable[[ServedModel], ReplyStream | ReplyRecorder],
        stop: threading.Event,
        waited: float = 0.0,
    ) -> Generator[Frame, None, None]:
        """Yield the frames of the reply that `begin` makes. `waited`: seconds since the question was sent.
        Raises QueueFull, NoModel, and what `begin` raises; later errors are in the last frame."""
        sent = time.monotonic() - waited
        with ModelTurn(self._slot, stop) as turn:
            for ahead in turn.waiting():
                yield Frame("waiting", ahead=ahead)
            if turn.model is None:
                return
            self._prefixes.attach(turn.model)
            writing = begin(turn.model)
            reply = writing.reply if isinstance(writing, ReplyRecorder) else writing
            reply.sent = sent
            reply.statistics.waited_ms += (waited + turn.waited_seconds) * 1e3
            for phase, seconds in turn.loading.items():
                reply.statistics.loading_ms[phase] += seconds * 1e3
            try:
                yield from writing.frames(measure=True)
            except Exception as error:
                message = writing.message_id if isinstance(writing, ReplyRecorder) else None
                yield failed(logs.error_message(error), reply, message)
            finally:
                self.keep(turn.model)
                self._prefixes.wake()

    def reply(
        self, served: ServedModel, messages: Sequence[PromptMessage], options: ReplyOptions
    ) -> ReplyStream:
        """Build the prompt of messages, and prepare the reply to it. Raises PromptError."""
        settings, notices = options.settings, list(options.notices)
        room = options.room or settings.max_new_tokens
        tools = [tool.function(name) for name, tool in options.tools.items()]
        if tools and not served.prompts.takes_tools:
            said = _("{model} was not made to call tools, and answers without. Qwen2.5 and Qwen3 models are.")
            tools, notices = [], [*notices, said.format(model=served.name)]
        build = partial(served.prompts.build, messages, room, served.end_ids, settings.reasoning)
        try:
            prompt = build(tools=tools)
        except PromptError:
            if not tools:
                raise
            prompt, tools = build(), []
            notices.append(
                _("The context window has no room for so many tools: switch servers off in Settings.")
            )
        if tools and served.is_local and served.local.grammars:
            grammar = grammar_of_calls(tools, served.local.grammars)
            options = replace(options, settings=settings.model_copy(update={"grammar": grammar}))
        return self.reply_to(served, prompt, replace(options, notices=notices))

    def reply_to(self, served: ServedModel, prompt: Prompt, options: ReplyOptions) -> ReplyStream:
        """Prepare the reply to a prompt: its drafter, notices and statistics."""
        settings, drafts_from = options.settings, options.drafts_from
        drafter = memory = learner = None
        notices = list(options.notices)
        if prompt.dropped_turns:
            notices.append(
                plural(
                    "The oldest turn no longer fits the context window and was left out.",
                    "The {n:,} oldest turns no longer fit the context window and were left out.",
                    prompt.dropped_turns,
                )
            )
        if isinstance(served.engine, DraftedEngine) and (settings.min_p or settings.logit_bias):
            # vLLM refuses them where anything may draft.
            settings = GenerationSettings(**{**settings.model_dump(), "min_p": 0.0, "logit_bias": {}})
            notices.append("Min-p and logit bias are left out: vLLM does not take them together with drafts.")
        # Who lets only the chat itself draft means texts that ship or were added, too.
        drafting_with = served if self._is_owner(options.user_id) else served.without_user_documents()
        if drafts_from == "chat":
            drafting_with = replace(served, statistics=())
        if not options.drafts:
            drafts_from = "none"
        drafts = served.drafts and served.drafting_ready.is_set()
        if served.is_local and drafts and drafts_from != "none":
            memory = self._memory(served, options)
            learner = memory if options.learns else apart(memory)
            drafter = reply_drafter(drafting_with, learner, settings, options.stop)
        statistics = ReplyStatistics(partial(served.prompts.thinking.text, opened=prompt.thinking), settings)
        notice = " ".join(notices) or None
        origins = None
        if memory is not None:  # each is named by its place in the list of all sources
            origins = DraftOrigins(in_order(all_sources(drafting_with, memory)), len(prompt.ids))
        return ReplyStream(
            served,
            prompt.ids,
            replace(options, settings=settings, drafts_from=drafts_from),
            statistics,
            drafter,
            notice,
            origins,
            payoff=learner.learned.payoff if learner else None,
        )

    def _memory(self, served: ServedModel, options: ReplyOptions) -> Memory:
        """Collect what may draft a reply; if only its own chat may, nothing is learned from it either."""
        user_id = options.user_id
        learned = self._learned.held(user_id, served.model_key)
        if options.drafts_from == "chat":
            alike = LearnedState(acceptance=Acceptance.from_bytes(learned.acceptance.to_bytes()))
            return Memory(learned=alike, user=user_id)
        held = self._histories.held(user_id, served.model_key, served.prompts.tokens, before=options.before)
        return Memory([*held.sources, *options.documents], learned, user_id)

    def keep(self, served: ServedModel | None, *, now: bool = False) -> None:
        """Save what drafting has learned, if it is time or `now`."""
        paused = served.local.paused() if served and served.is_local else nullcontext()
        with paused if now or self._learned.due else nullcontext():  # other replies may be learning
            self._learned.save(now=now)


def grammar_of_calls(tools: Sequence[dict[str, Any]], grammars: Grammars) -> str:
    """Return the grammar of a reply that may call tools; invalid or too large schemas allow any arguments."""
    for some in (*([tool] for tool in tools), tools):
        try:
            grammars.check(optional(some, grammars.mark))
        except GrammarError:
            for tool in some:
                tool["function"]["parameters"] = {"type": "object"}
    return optional(tools, grammars.mark)


def failed(notice: str, reply: ReplyStream, message_id: int | None = None) -> Frame:
    """Return the last frame of a reply that could not go on: its text so far, and why it ends there."""
    frame = reply.frame()
    if frame.finish not in (None, "error"):  # the other arm of a comparison had ended before
        return frame
    return replace(frame, finish="error", notice=notice, message_id=message_id)
