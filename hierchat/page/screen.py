"""Define what a page shows, as far as the store does not hold it: a record that is replaced, and never changed."""

from dataclasses import dataclass, field, replace

from hierchat.chat.comparison import USUAL, Pair
from hierchat.chat.in_progress import ReplyInProgress
from hierchat.store.records import Attachment

PAGE = 100
"""Conversations that the list takes in at a time."""
DRAWN = 100
"""Messages of a conversation that are drawn at first, the last ones: all of a long one would take the page minutes."""


@dataclass(frozen=True, slots=True)
class Attached:
    """File that will be sent with the next message of a conversation."""

    key: str
    """Chosen by the page, which asks for it by that name when it was loaded again."""
    name: str
    chat: int = 0
    """The conversation; 0: a new one."""
    file: Attachment | None = None
    """None while it is being read."""
    pasted: bool = False
    step: int = 0
    """Number of the click that chose it: files arrive in any order and are shown in that of their steps."""


@dataclass(frozen=True, slots=True)
class Screen:
    """Choices that one page shows, such as the open chat. Handlers replace it (Session.show), and the page's writer
    draws the difference (writer.py)."""

    conversation: int | None = None
    """The open conversation; None: a new one, or a panel."""
    incognito_chat: int | None = None
    """The conversation that is erased when the page leaves it."""
    incognito: bool = False
    """Whether the next conversation that this page begins is one."""
    project: int | None = None
    """The project in which the next conversation begins."""
    panel: str = ""
    """The panel that is open in place of the conversation."""
    visit: int = 0
    """How often something else was opened: a panel is drawn anew each time."""

    unfolded: int | None = None
    """The project whose chats the list shows."""
    query: str = ""
    """Words that the list is searched for."""
    listed: int = PAGE
    """How many conversations the list shows at most."""
    archived: bool = False
    """Whether it shows archived ones."""
    undo: str = ""
    """The line that takes the last deletion back, as HTML."""
    deleted_open: bool = False
    """Whether the chat that was deleted last was on the screen, and nothing else was opened since."""

    drawn: int = DRAWN
    """How many messages of the conversation are drawn at most."""
    until: int | None = None
    """The last message that is drawn; None: that of the conversation."""
    marked: frozenset[int] = frozenset()
    """Replies whose words are marked by their sources."""
    detailed: frozenset[int] = frozenset()
    """Replies whose details were opened."""
    shown: frozenset[int] = frozenset()
    """Sent files whose texts were opened."""
    compared: ReplyInProgress | None = None
    """The comparison that has ended, until something else is shown."""
    pair: Pair = field(default_factory=lambda: USUAL)
    """The two sides of the next comparison."""

    note: str = ""
    """Said in answer to a click that has to wait for the reply in progress; above the line of that, as HTML."""
    remark: str = ""
    """Said where no reply is in progress, as HTML: an error, or how a reply ended in another conversation."""
    said_of_documents: str = ""
    """Why a document could not be added, as HTML."""

    attached: tuple[Attached, ...] = ()
    """Files for the next messages of all conversations."""
    restored: bool = False
    """Whether the page has asked for the files that it had before it was loaded again."""

    models_detailed: frozenset[str] = frozenset()
    """Models whose details were opened."""
    model_said: tuple[str, str] = ("", "")
    """In Models: where the answer to the last button is shown (a model's name, or a part of the view), and the answer
    as HTML."""
    removing: str = ""
    """The model, or the text, that is removed once that is confirmed."""

    @property
    def files(self) -> tuple[Attached, ...]:
        """Return the files for the next message of the open conversation."""
        return tuple(one for one in self.attached if one.chat == (self.conversation or 0))

    def left(self) -> "Screen":
        """Return the screen without what belongs to the place that the page leaves."""
        return replace(
            self, visit=self.visit + 1, panel="", remark="", note="", said_of_documents="", removing="",
            model_said=("", ""), compared=None, drawn=DRAWN, until=None, deleted_open=False,
        )  # fmt: skip
