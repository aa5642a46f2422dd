"""Serve chats: take a message, yield the reply's frames, and store all of it as it grows."""

import json
import secrets
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial

from hierchat.chat import statistics
from hierchat.chat.chat_documents import ChatDocuments, draft_source, quotes
from hierchat.chat.comparison import USUAL, Comparing, Pair
from hierchat.chat.completions import Completions, NotBegun
from hierchat.chat.conversations import Conversations, reply_settings
from hierchat.chat.deleted_texts import DeletedTexts, Forgetting
from hierchat.chat.frames import Arm, CompareFrame, Figures, Frame
from hierchat.chat.in_progress import InProgress, NewQuestion
from hierchat.chat.reply_stream import ReplyOptions, ReplyRecorder, ReplyStream
from hierchat.chat.spare_time import NextQuestion, PrefixKeeper, ReadingAhead
from hierchat.chat.statistics import SourceRun, runs_of
from hierchat.chat.titles import TitleWriter
from hierchat.chat.tool_calls import before_call, first_call
from hierchat.chat.tools import ANSWER_NOW, MOST_CALLS, MOST_REPEATS, Stopped, Tool, ToolServers
from hierchat.chat.user_data import UserData
from hierchat.config import MOST_TOKENS, GenerationSettings, Reasoning
from hierchat.engine.generation import common_prefix
from hierchat.language import _
from hierchat.reasoning import split_reasoning
from hierchat.runtime.history_index import Histories
from hierchat.runtime.model_manager import ModelManager
from hierchat.runtime.model_slot import ModelSlot, SlotStatus
from hierchat.runtime.prompt import PromptMessage
from hierchat.runtime.served_model import Learned, ServedModel
from hierchat.runtime.user_documents import UserDocuments
from hierchat.store import Store
from hierchat.store.records import Attachment, CallState, Message, NewMessage, Passage, ToolCall, Turn
from hierchat.texts.attachments import PASSAGES, fenced, with_files
from hierchat.texts.passages import BUDGET

Begin = Callable[[ReplyOptions, ServedModel], ReplyRecorder]
CLOSE_SECONDS = 2.0
"""A reply that is still being written after so long keeps what was learned up to half a minute before."""


class ChatService:
    """Serves the chats of all users over one store and one model slot: the only door for page, api and terminal."""

    def __init__(self, store: Store, slot: ModelSlot) -> None:
        self.store = store
        self.slot = slot
        self.changes, self.presets, self.projects = store.changes, store.presets, store.projects
        self.in_progress = InProgress(store)
        self._histories = Histories(store)
        self._learned = Learned(store)
        self.deleted_texts = DeletedTexts(slot, self._histories, self._learned)
        self.chats = Conversations(store, self.in_progress, self.sampling_of, self.deleted_texts.clear)
        self.data = UserData(store)
        self.data.back_up_daily()
        self.prefixes = PrefixKeeper(store, slot)
        self._reading = ReadingAhead(slot, self._beginning, self.prefixes)
        self.documents = ChatDocuments(store.connection, self.prefixes.drop)
        self.users, self.keys = store.users, store.keys
        self.completions = Completions(
            slot, self._histories, self._learned, store.users.is_owner, self.prefixes
        )
        self.titles = TitleWriter(store, slot)
        self.dismiss_model_message = slot.hush
        self.models = ModelManager(slot, store.figures)
        self.texts = UserDocuments(slot)
        self.tools = ToolServers(store)
        self._forgetting = Forgetting(store, slot)
        self.deleted_texts.caches.append(self.documents.forget_readings)

    @property
    def model_status(self) -> SlotStatus:
        """Return the state of the model slot: which model answers, or how far it is loaded."""
        return self.slot.status

    @property
    def served(self) -> ServedModel | None:
        """Return the model that can answer now; None while none is loaded."""
        return self.slot.model

    def sampling_of(self, model: str) -> GenerationSettings:
        """Return a model's default sampling; for an empty name of the loaded model, or else of the first."""
        name = model or self.slot.status.name or next(iter(self.slot.names), "")
        return self.slot.settings(name) if name in self.slot.names else GenerationSettings()

    def close(self) -> None:
        """Stop all threads and save what drafting has learned; call it before the store is closed."""
        self.tools.close()
        self.deleted_texts.close()
        self._reading.close()
        self.prefixes.close()
        self.data.close()
        self.titles.close()
        self._forgetting.close()
        with self.slot.scheduler.turn(CLOSE_SECONDS, first=True) as mine:
            if mine:
                self.completions.keep(self.slot.model, now=True)
        self._histories.close()

    def forget_user(self, user_id: int) -> bool:
        """Stop and delete all that there is of a user, in memory, too; return as Connection.rewrite."""
        self.in_progress.end(user_id)
        whole = self.store.users.forget(user_id)
        self.deleted_texts.clear(user_id)
        return whole

    def send(
        self, user_id: int, question: NewQuestion, settings: GenerationSettings, stop: threading.Event
    ) -> Generator[Frame, None, None]:
        """Store a user's question and answer it. Raises NotFound at once, and QueueFull, NoModel, PromptError or
        StoreError before anything is stored. Nothing is stored either if it is stopped before its turn."""
        self.store.chats.get(user_id, question.conversation_id)
        options, begin = ReplyOptions(user_id, settings, stop), partial(self._ask, question)
        try:
            yield from self._with_calls(question.conversation_id, begin, options, question.waited)
        finally:
            self.titles.wake()

    def regenerate(
        self,
        user_id: int,
        user_message_id: int,
        settings: GenerationSettings,
        stop: threading.Event,
        *,
        seed_of: int | None = None,
    ) -> Generator[Frame, None, None]:
        """Write another reply to a user message; a sampled one with the seed of `seed_of`, else a new one.
        Raises NotBegun if the same words are impossible now, and as `send`."""
        question = self.store.messages.get(user_id, user_message_id)
        turn = None
        if settings.temperature > 0:
            turn = None if seed_of is None else self.store.replies.turn(user_id, seed_of)
            seed = turn.begun.seed if turn else secrets.randbits(32)
            settings = GenerationSettings(**{**settings.model_dump(), "seed": seed})
        begin = partial(self._answer_again, question, like=turn)
        yield from self._with_calls(question.conversation_id, begin, ReplyOptions(user_id, settings, stop))

    def resume(
        self, user_id: int, message_id: int, more: int, stop: threading.Event
    ) -> Generator[Frame, None, None]:
        """Continue a cut reply with its own settings, as with a higher limit: `more` tokens in all for a stopped one.
        Raises NotBegun, and as `send`."""
        reply = self.store.messages.get(user_id, message_id)
        try:
            turn = self.store.replies.turn(user_id, message_id)
            settings = GenerationSettings(**turn.begun.settings) if turn else GenerationSettings()
            options, begin = ReplyOptions(user_id, settings, stop), partial(self._take_up, reply, more)
            yield from self._with_calls(reply.conversation_id, begin, options)
        finally:
            self._histories.changed(user_id, message_id)

    def compare(
        self,
        user_id: int,
        question: NewQuestion,
        settings: GenerationSettings,
        stop: threading.Event,
        pair: Pair = USUAL,
    ) -> Generator[CompareFrame, None, None]:
        """Answer a question in two ways, and store the second reply. Raises as `send`."""
        self.store.chats.get(user_id, question.conversation_id)
        stored: Message | None = None

        def begin(served: ServedModel, arm: Arm) -> ReplyRecorder:
            nonlocal stored
            # The second side stays in the chat. Nothing that the first one read may make it faster.
            drafts = pair[arm].drafts
            learns = arm == "second" and drafts
            options = ReplyOptions(user_id, settings, stop, drafts=drafts, learns=learns)
            if stored is not None:
                return self._answer_again(stored, options, served)
            record = self._ask(question, options, served)
            stored = self.store.messages.get(user_id, record.question)
            return record

        running = Comparing(self.slot, pair, begin, self.completions.keep)
        try:
            with closing(running.frames(stop)) as frames:
                yield from frames
        finally:
            self.titles.wake()

    def read_ahead(self, asked: NextQuestion) -> None:
        """Read a chat and its next question's files in spare time if the user allows it."""
        if self.store.users.chosen(asked.user, "reads_ahead", True):
            self._reading.want(asked)

    def choose_reading_ahead(self, user_id: int, *, on: bool) -> None:
        """Allow or forbid that texts of this user are read in spare time."""
        self.store.users.choose(user_id, reads_ahead=on)
        if not on:
            self._reading.leave(user_id, new=False)

    def forget_read_ahead(self, user_id: int) -> None:
        """Clear from memory, in a thread, what was read for a user's question that belongs to no chat."""

        def forget() -> None:
            self._reading.leave(user_id, new=True)
            self.deleted_texts.clear(user_id, [None])

        threading.Thread(target=forget, name="incognito", daemon=True).start()

    def _beginning(self, served: ServedModel, asked: NextQuestion) -> list[int]:
        """Return the tokens with which the next question's prompt begins; none for a chat with tools."""
        user_id, chat = asked.user, asked.chat
        chosen = self.chats.settings(user_id, chat, asked.project)
        settings = reply_settings(chosen.sampling)
        if settings.tools:
            return []
        if chat is None:
            path, system = list[Message](), self.chats.system_prompt(user_id, chosen) or None
        else:
            path, system = self.store.messages.path(user_id, chat), self._system_prompt(user_id, chat)
        said, room = self._said(served, user_id, path, system), settings.max_new_tokens
        one, other = (
            served.prompts.build(
                [*said, PromptMessage("user", with_files(word, asked.files))],
                room,
                served.end_ids,
                settings.reasoning,
            ).ids
            for word in ("one", "2")
        )
        return one[: common_prefix(one, other) + 1]

    def record(self, reply: ReplyStream, user_id: int, question: str) -> ReplyRecorder:
        """Prepare to store a reply of `completions` as it is written, in a new chat that begins with the question."""
        chat = self.store.chats.create(user_id)
        asked = self.store.messages.add(user_id, chat, NewMessage(None, question))
        return ReplyRecorder(self.store, reply, user_id, chat, asked)

    @property
    def thinks(self) -> tuple[Reasoning, ...]:
        """Return the choices of how much the loaded model shall think, least first; empty if it has none."""
        served = self.slot.model
        return served.prompts.thinking.choices if served else ()

    def require_room(self, text: str, settings: GenerationSettings, system_prompt: str = "") -> None:
        """Raise PromptError if a text is too long to send. While no model is loaded, `send` will find out."""
        if served := self.slot.model:
            said = [
                *([PromptMessage("system", system_prompt)] if system_prompt else []),
                PromptMessage("user", text),
            ]
            served.prompts.build(said, settings.max_new_tokens, served.end_ids, settings.reasoning)

    def runs(self, user_id: int, message_id: int) -> list[SourceRun]:
        """Return the runs of a stored reply by source and origin; empty unless its model is loaded here."""
        turn, served = self.store.replies.turn(user_id, message_id), self.slot.model
        if turn is None or served is None or turn.begun.model_key != served.model_key:
            return []
        if not served.prompts.knows_tokens:  # a server has the texts of its tokens
            return []
        tokens, said = self.store.replies.tokens(user_id, message_id), served.prompts.thinking.text
        thought = bool(split_reasoning(self.store.messages.get(user_id, message_id).text).answer_at)
        opened = thought and not split_reasoning(said(tokens, opened=False)).answer_at
        return runs_of(self.store, user_id, message_id, tokens, partial(said, opened=opened))

    def figures(self, user_id: int, message_id: int) -> Figures | None:
        """Return the figures of a stored reply; None if there are none."""
        turn = self.store.replies.turn(user_id, message_id)
        if turn is None or turn.figures is None:
            return None
        return statistics.stored_figures(turn.figures, turn.reply_tokens, turn.begun)

    def _ask(self, asked: NewQuestion, options: ReplyOptions, served: ServedModel) -> ReplyRecorder:
        user_id, chat, parent = options.user_id, asked.conversation_id, asked.parent_id
        path = [] if parent is None else self.store.messages.path(user_id, chat, parent)
        system = self._system_prompt(user_id, chat)
        found = self.documents.found(user_id, chat, asked.text, path)
        prompts, settings = served.prompts, options.settings

        def budget() -> int:
            """Count the tokens of passages that leave room for the question and the reply."""
            room = prompts.message_room(
                settings.max_new_tokens, system or "", served.end_ids, settings.reasoning
            )
            beside = prompts.count([PASSAGES, with_files(asked.text, asked.files)], prompts.most_counted)
            return min(self.passage_budget, room - beside)

        files = [*asked.files, *quotes(found, path, budget, lambda text: prompts.count([text]))]
        question = PromptMessage("user", with_files(asked.text, files))
        messages = [*self._said(served, user_id, path, system), question]
        reply = self._reply(served, replace(options, chat=chat), messages, found)
        held = [] if asked.held is None else [asked.held]
        stored = self.store.messages.add(user_id, chat, NewMessage(parent, asked.text, files=files), held)
        return ReplyRecorder(self.store, reply, user_id, chat, stored, system_prompt=system)

    @property
    def passage_budget(self) -> int:
        """Return how many tokens the passages quoted with a question may have."""
        context = self.slot.model.prompts.context_length if self.slot.model else 4 * BUDGET
        return min(BUDGET, context // 4)

    def _with_calls(
        self, chat: int, begin: Begin, options: ReplyOptions, waited: float = 0.0
    ) -> Generator[Frame, None, None]:
        """Yield the frames of the reply that `begin` makes. If it calls a tool, the user is asked, and a reply to the
        result follows. A repeated call gets the earlier result, and no more tools. Raises as `send`."""
        user_id, stop, above = options.user_id, options.stop, None
        if options.settings.tools:
            with suppress(Stopped):
                found, trouble = self.tools.offered(user_id, stop)
                options = replace(options, tools=found, notices=trouble)
        tools, made, repeats = options.tools, dict[tuple[Tool, str], ToolCall](), 0
        for count in range(MOST_CALLS + 1):
            last = Frame("waiting")
            with closing(self.completions.answer(partial(begin, options), stop, waited)) as frames:
                for last in frames:
                    yield replace(last, above=above)
            called = first_call(split_reasoning(last.text).answer, tools)
            if called is None or last.finish not in ("end", "stop") or last.message_id is None:
                return
            if count == MOST_CALLS:
                said = _("The model called tools {n} times and was stopped. Ask it to go on if that helps.")
                yield replace(last, above=above, notice=said.format(n=count))
                return
            message = self.store.messages.get(user_id, last.message_id)
            tool, key = tools[called[0]], (tools[called[0]], json.dumps(called[1], sort_keys=True))
            if before := made.get(key):
                repeats += 1
                ended = repeats == MOST_REPEATS
                state: CallState = "unanswered" if ended else "repeated"
                result = before.result if ended else f"{before.result}\n\n{ANSWER_NOW}"
                self.store.messages.put_call(user_id, message.id, replace(before, state=state, result=result))
                if ended:
                    yield replace(last, above=above)
                    return
                above, options = message.id, replace(options, tools={})
            else:
                above, options = message.id, replace(options, tools=tools)
                most = self.slot.model.prompts.context_length if self.slot.model else 0
                texts = self._chat_texts(user_id, chat, message.id)
                for call in self.tools.calling(
                    message, tool, called[1], options.user_id, options.stop, most, texts
                ):
                    self.store.messages.put_call(user_id, above, call)
                    said = (
                        _("May the model call {tool}?") if call.state == "asked" else _("{tool} is working…")
                    )
                    notice = None if call.state == "stopped" else said.format(tool=tool.name)
                    yield replace(last, phase="calling", text="", above=above, notice=notice)
                if notice is None:
                    return
                made[key] = call
            begin, waited = partial(self._answer_again, message), 0.0

    def _chat_texts(self, user_id: int, chat: int, leaf: int) -> Iterator[str]:
        """Yield the texts of a chat down to a message: its prompt, messages, files and results, without its calls."""
        yield self._system_prompt(user_id, chat) or ""
        for message in self.store.messages.path(user_id, chat, leaf):
            yield before_call(message.text) if message.call or message.id == leaf else message.text
            yield message.call.result if message.call else ""
            if message.attachments:
                yield from (file.text for file in self.store.messages.attachments(user_id, message.id))

    def _answer_again(
        self, question: Message, options: ReplyOptions, served: ServedModel, *, like: Turn | None = None
    ) -> ReplyRecorder:
        if like and like.begun.model_key == served.model_key and served.activations:
            before = like.begun.activations or "int16"  # all that there was
            if before != served.activations:
                raise NotBegun(
                    f"The same seed would give other words: {before} activations wrote this reply, and {served.name} "
                    f"computes with {served.activations} now. Set `activations: {before}` for it in models.yaml, or "
                    "ask for another reply."
                )
        user_id, chat = options.user_id, question.conversation_id
        system = self._system_prompt(user_id, chat)
        path = self.store.messages.path(user_id, chat, question.id)
        messages = self._said(served, user_id, path, system)
        found = self.documents.found(user_id, chat, question.text, path[:-1])
        reply = self._reply(served, replace(options, chat=chat, before=question.id), messages, found)
        return ReplyRecorder(self.store, reply, user_id, chat, question.id, system_prompt=system)

    def _take_up(
        self, message: Message, more: int, options: ReplyOptions, served: ServedModel
    ) -> ReplyRecorder:
        user_id = options.user_id
        turn, question = self.store.replies.turn(user_id, message.id), message.parent_id
        if turn is None or question is None or turn.begun.model_key != served.model_key:
            writer = turn.begun.model if turn else "Another program"
            raise NotBegun(f"{writer} wrote this reply. Only the same model can continue it.")
        if not served.prompts.knows_tokens:
            raise NotBegun(f"The server of {served.name} begins replies only. Ask for the rest in a message.")
        tokens = self.store.replies.tokens(user_id, message.id)
        if not tokens or tokens[-1] in served.end_ids:
            raise NotBegun("There is nothing to continue: this reply has come to its end.")
        before = options.settings
        cut = len(tokens) >= more or (turn.figures is not None and turn.figures.finish == "length")
        most = min(len(tokens) + more if cut else more, MOST_TOKENS)
        settings = GenerationSettings(**{**before.model_dump(), "max_new_tokens": most})
        chat = message.conversation_id
        path = self.store.messages.path(user_id, chat, question)
        said = self._said(served, user_id, path, turn.begun.system_prompt)
        # The prompt is the one that the reply began with, and so is the room that was left for it.
        options = replace(options, settings=settings, room=before.max_new_tokens, chat=chat, before=question)
        reply = self._reply(served, options, said)
        if len(reply.prompt_ids) + len(tokens) >= served.prompts.context_length:
            raise NotBegun("The context window is full. Ask for the rest in a new chat.")
        spans = self.store.replies.spans(user_id, message.id)
        sources = [span.source for span in spans for _ in range(span.length)]
        reply.statistics.resume(tokens, sources, turn.figures)
        return ReplyRecorder(self.store, reply, user_id, chat, question, resumed=message.id)

    def _reply(
        self,
        served: ServedModel,
        options: ReplyOptions,
        messages: Sequence[PromptMessage],
        found: Sequence[Passage] = (),
    ) -> ReplyStream:
        """Prepare a stored reply to messages, drafted by what its user allows and by passages that were found."""
        allowed = self.store.users.drafts_from(options.user_id, options.chat)
        documents = [draft_source(found, served.prompts.tokens)] if found and served.is_local else []
        return self.completions.reply(
            served, messages, replace(options, drafts_from=allowed, documents=documents)
        )

    def _system_prompt(self, user_id: int, conversation_id: int) -> str | None:
        settings = self.store.chats.settings(user_id, conversation_id)
        if settings is None and not self.store.users.notes(user_id):
            return None
        return self.chats.system_prompt(user_id, settings or self.chats.settings(user_id, conversation_id))

    def _said(
        self, served: ServedModel, user_id: int, path: Sequence[Message], system: str | None
    ) -> list[PromptMessage]:
        """Return messages for the prompt: replies by this model as tokens. `system` replaces imported prompts."""
        said = [PromptMessage("system", system)] if system else []
        if system is not None:
            path = [message for message in path if message.role != "system"]
        written: dict[int, list[int]] = {}
        if any(message.role == "assistant" for message in path):
            written = self.store.replies.tokens_by(user_id, path[0].conversation_id, served.model_key)

        def files(message: Message) -> list[Attachment]:
            return self.store.messages.attachments(user_id, message.id) if message.attachments else []

        for message in path:
            tokens = written.get(message.id, [])
            if (text := with_files(message.text, files(message))) or tokens:
                said.append(PromptMessage(message.role, text, tuple(tokens)))
                if message.call:
                    result = message.call.result or "There is no result."
                    if served.prompts.takes_tools:
                        said.append(PromptMessage("tool", result))
                    else:
                        quoted = fenced(Attachment(message.call.tool, 0, result))
                        said[-1] = PromptMessage("assistant", f"{text}\n\n{quoted}")
        return said
