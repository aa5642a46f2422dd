"""What hierchat remembers: users, conversations, messages, turns and their tokens, in one SQLite file.

Knows nothing of models or pages. Everything a caller needs is exported here.
"""

from hierchat.store.accounts import Account
from hierchat.store.comparisons import StoredComparison
from hierchat.store.conversations import LOCAL_USER
from hierchat.store.drafting_texts import Mark, TextKind
from hierchat.store.errors import (
    DatabaseCorrupt,
    DatabaseLocked,
    DatabaseNewer,
    DatabaseUnwritable,
    NotFound,
    StoreError,
)
from hierchat.store.keys import Access, Key
from hierchat.store.portable import Chat, ChatMessage
from hierchat.store.privacy import DraftsFrom
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
from hierchat.store.self_texts import Learning, SelfDrafted, SelfSize, SelfText
from hierchat.store.store import Store
from hierchat.store.suffix_runs import SuffixRun
from hierchat.store.text import FOUND_BEGINS, FOUND_ENDS, storable, title_of

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
    "Key",
    "Learning",
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
