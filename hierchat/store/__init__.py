"""What hierchat remembers: users, conversations, messages, turns and their tokens, in one SQLite file.

Knows nothing of models or pages. Everything a caller needs is exported here.
"""

from hierchat.store.chats import LOCAL_USER
from hierchat.store.comparisons import StoredComparison
from hierchat.store.connection import (
    FOUND_BEGINS,
    FOUND_ENDS,
    DatabaseCorrupt,
    DatabaseLocked,
    DatabaseNewer,
    DatabaseUnwritable,
    NotFound,
    StoreError,
    storable,
    title_of,
)
from hierchat.store.deletion import DraftsFrom
from hierchat.store.generated import IdleSettings, SelfDrafted, SelfSize, SelfText
from hierchat.store.history import Mark, SuffixRun, TextKind
from hierchat.store.portable import Chat, ChatMessage
from hierchat.store.records import (
    UNKNOWN,
    Attachment,
    AttachmentHead,
    Baseline,
    ChatSettings,
    Conversation,
    DraftingFigures,
    FinalState,
    HistorySize,
    LoggedReply,
    Message,
    NewTurn,
    Origin,
    OverTimeFigures,
    Preset,
    Role,
    SourceCount,
    SourceSpan,
    State,
    Totals,
    Turn,
    TurnFigures,
    Whereabouts,
)
from hierchat.store.store import Store
from hierchat.store.users import Access, Account, Key

__all__ = [
    "FOUND_BEGINS",
    "FOUND_ENDS",
    "LOCAL_USER",
    "UNKNOWN",
    "Access",
    "Account",
    "Attachment",
    "AttachmentHead",
    "Baseline",
    "Chat",
    "ChatMessage",
    "ChatSettings",
    "Conversation",
    "DatabaseCorrupt",
    "DatabaseLocked",
    "DatabaseNewer",
    "DatabaseUnwritable",
    "DraftingFigures",
    "DraftsFrom",
    "FinalState",
    "HistorySize",
    "IdleSettings",
    "Key",
    "LoggedReply",
    "Mark",
    "Message",
    "NewTurn",
    "NotFound",
    "Origin",
    "OverTimeFigures",
    "Preset",
    "Role",
    "SelfDrafted",
    "SelfSize",
    "SelfText",
    "SourceCount",
    "SourceSpan",
    "State",
    "Store",
    "StoreError",
    "StoredComparison",
    "SuffixRun",
    "TextKind",
    "Totals",
    "Turn",
    "TurnFigures",
    "Whereabouts",
    "storable",
    "title_of",
]
