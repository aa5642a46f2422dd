"""Define the records that the store gives and takes. Times are Unix time in seconds; durations are seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from types import MappingProxyType
from typing import Any, Literal

Role = Literal["system", "user", "assistant"]
FinalState = Literal["complete", "stopped", "interrupted"]
"""How a message ended: by itself, by the user's Stop, or by a crash or an error."""
MessageState = Literal["complete", "stopped", "interrupted", "writing"]
DraftsFrom = Literal["all", "chat", "none"]
"""All that is stored of this user and all corpora; the chat itself alone, and draft models; nothing."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Conversation as the list of conversations shows it."""

    id: int
    title: str
    created_at: float
    updated_at: float
    """When the last message was added."""
    pinned: bool = False
    archived: bool = False
    unread: bool = False
    """Whether a reply came while it was not open, until it is opened."""
    snippet: str = ""
    """Text around a search hit, found words between FOUND_BEGINS and FOUND_ENDS (connection.py); else empty."""
    message_id: int | None = None
    """The message of the hit, the newest of the conversation."""
    project_id: int | None = None


@dataclass(frozen=True, slots=True)
class Project:
    """Folder of conversations, with the settings that new ones in it begin with."""

    id: int
    name: str
    system_prompt: str = ""
    """Empty: that of the preset."""
    model: str = ""
    """The model that is loaded for them; empty: whichever there is."""
    preset_id: int | None = None
    chats: int = 0


@dataclass(frozen=True, slots=True)
class Attachment:
    """File that was sent with a message, or passage that was found for it in a document."""

    name: str
    size: int
    """Counts bytes of a file, tokens of a passage."""
    text: str
    number: int | None = None
    """By which replies name a passage; None: it is a file."""
    passage_id: int | None = None
    """The passage in its document, with which it goes; None where that is in another database."""


@dataclass(frozen=True, slots=True)
class AttachmentHead:
    """Attachment without its text, which may be long."""

    id: int
    name: str
    size: int
    number: int | None = None
    passage_id: int | None = None


@dataclass(frozen=True, slots=True)
class Passage:
    """Part of a document: the name of its file, and its place there: headings, page or line."""

    name: str
    place: str
    text: str
    id: int = 0
    score: float = 0.0
    """Ranks one that was found: the higher, the more it shares with the question, and the rarer that is."""


@dataclass(frozen=True, slots=True)
class Document:
    """File or folder whose passages go with the questions of a chat, or of all chats of a project."""

    id: int
    name: str
    size: int
    passages: int
    done: bool
    """Whether it was read to its end."""
    in_project: bool


CallState = Literal["asked", "running", "done", "failed", "refused", "stopped", "repeated", "unanswered"]
"""The last two: the reply called the same as before, and got its result again; or was ended for that."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    server: str
    tool: str
    """As the server calls it."""
    arguments: str
    state: CallState = "asked"
    result: str = ""
    """What the model reads of it."""
    why: str = ""
    """What its user should know before they allow it."""


@dataclass(frozen=True, slots=True)
class Message:
    id: int
    conversation_id: int
    parent_id: int | None
    role: Role
    text: str
    state: MessageState
    created_at: float
    siblings: tuple[int, ...]
    """Ids of all messages with the same parent, this one among them, oldest first."""
    attachments: tuple[AttachmentHead, ...] = ()
    """The files that were sent with it, in their order."""
    edited: bool = False
    """Whether it is a reply as the user changed it."""
    model: str = ""
    """Of a reply: the model that wrote it, here or elsewhere, where that is known."""
    call: ToolCall | None = None
    """Names the tool that a reply called, with what came of it; None: it called none."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    parent_id: int | None
    """The message that it follows; None: it is a root."""
    text: str
    role: Role = "user"
    files: Sequence[Attachment] = ()


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """Settings of a chat: how its replies are to be written."""

    system_prompt: str
    """Empty: the model's own, if it has one."""
    sampling: Mapping[str, Any]
    """Sampling settings; anything JSON can hold. A "seed" of None: a new one for each reply."""
    preset_id: int | None = None
    """The preset that they were taken from; they may have been changed since."""
    notes: bool = True
    """Whether the user's notes about themselves stand in the system prompt."""


@dataclass(frozen=True, slots=True)
class Preset:
    id: int
    name: str
    settings: ChatSettings
    is_default: bool
    """Whether new chats begin with it."""


@dataclass(frozen=True, slots=True)
class NewTurn:
    """Record of a reply before its first token: model, settings and seed."""

    model: str
    model_key: str
    """Hash of tokenizer and weights: token ids are shared only among replies of the same key."""
    settings: Mapping[str, Any]
    """Sampling settings; anything JSON can hold."""
    seed: int
    drafted: bool
    system_prompt: str | None = None
    """What the chat set; None where it left that to its messages and the model."""
    activations: str | None = None
    """Precision of the activations, int8 or int16, where our kernels wrote it; None before this was kept."""


@dataclass(frozen=True, slots=True)
class SourceCount:
    """Counts of the draft tokens of one source."""

    proposed: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What is measured of a reply, and shown as it is stored. None for what was not measured."""

    prompt_tokens: int = 0
    seconds: float = 0.0
    """Decoding time, from the first token's forward on; reading the prompt is not counted."""
    first_token_seconds: float | None = None
    forwards: int = 0
    tokens_per_forward: float | None = None
    baseline_tokens_per_second: float | None = None
    baseline: Literal["measured", "estimated"] | None = None
    """measured: plain forwards were timed in this turn; estimated: the load-time measurement stands in."""
    speedup: float | None = None
    """Against the fastest plain decoding of the same backend."""
    finish: str | None = None
    """Why the reply ended: engine.step.Finish, or "error"; None while it goes on."""
    stop_string: str | None = None
    # None in records of an earlier version:
    prompt_read: int | None = None
    """Tokens of the prompt that had to be read; the others were known from the reply before."""
    plan: tuple[tuple[str, int], ...] | None = None
    """The draft models in use at its end, from the lowest up, and the tokens of their drafts."""


@dataclass(frozen=True, slots=True)
class TurnFigures(Measured):
    """Measured figures of a reply, as they are stored."""

    proposed: int = 0
    accepted: int = 0
    sources: Mapping[str, SourceCount] = field(default_factory=lambda: MappingProxyType({}))
    # None in records of an earlier version:
    draft_ms: float | None = None
    """Milliseconds of the decoding time that drafting took."""
    forward_ms: float | None = None
    verify_ms: float | None = None
    read_ms: float | None = None
    """Milliseconds of reading the prompt."""
    thought_ms: float | None = None
    """Decoding time of what was thought before the answer; None where nothing was."""
    total_ms: float | None = None
    """Milliseconds from Send to the last token,"""
    waited_ms: float | None = None
    """of these, what other replies took,"""
    loading: Mapping[str, float] | None = None
    """and what it took until the model was there, by what was done meanwhile ("" in records of an earlier version)."""


@dataclass(frozen=True, slots=True)
class ModelSpeed:
    """Speed of the fastest of a model's last replies to a user; with no replies, the one expected without drafts."""

    per_second: float
    """Tokens a second."""
    replies: int = 0
    """Replies that were looked at."""
    at: float = 0.0
    """When the fastest was written (Unix time)."""


@dataclass(frozen=True, slots=True)
class Turn:
    message_id: int
    begun: NewTurn
    reply_tokens: int
    """Tokens in the token log."""
    figures: TurnFigures | None
    """None while the reply is being written, and for good if a crash interrupted it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Place in which the draft of a token was found, as far as that is known."""

    slot: str = ""
    """One of drafting's SLOT_NAMES, or its DOCUMENTS; empty: no database drafted it, or it is not known."""
    matched: int = 0
    """Tokens before it that matched."""
    chance: float | None = None
    """With which it was expected to be right, if all before it were."""
    origin_id: int | None = None
    """The earlier message that holds it. That may be gone meanwhile."""
    corpus: str = ""
    """The corpus that holds it, for a reader."""
    place: int | None = None
    """Index of its token in that message or the corpus; in this conversation relative to the reply's start."""

    def goes_on(self, before: "Origin", tokens: int) -> bool:
        """Return whether this origin continues a run of `tokens` tokens that began with `before`."""
        place = None if before.place is None else before.place + tokens
        behind = (before.slot, before.origin_id, before.corpus, place)
        return (self.slot, self.origin_id, self.corpus, self.place) == behind


UNKNOWN = Origin()


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """Run of a reply's tokens that came from one source, and from one place of it."""

    start: int
    """Index of the first token in the reply."""
    length: int
    source: str
    origin: Origin = UNKNOWN
    """Of the first token. `chance` is the mean of all tokens."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    conversation_id: int
    title: str
    role: Role


@dataclass(frozen=True, slots=True)
class DraftingFigures:
    """Figures of drafting over a set of measured replies. None for what was not measured."""

    replies: int
    tokens: int
    tokens_per_forward: float | None
    """Mean T, weighted by forwards."""
    sources: Mapping[str, SourceCount]
    """By source, the one with the most accepted first."""
    speedup: float | None
    """Median of the replies beside which plain decoding was measured,"""
    compared: int
    """how many those are,"""
    saved_seconds: float
    """and how much longer plain decoding would have taken for them; below 0 where it would have been faster."""


@dataclass(frozen=True, slots=True)
class OverTimeFigures:
    """Figures of drafting over some days, and by day, in this machine's time zone."""

    whole: DraftingFigures
    days: Mapping[date, DraftingFigures]
    """Oldest first; days without a measured reply are left out."""
