"""Draw the sentences for everything that takes longer than a second, as HTML. Pure functions."""

from hierchat.chat.wording import SAME_WORDS, UP_TO_TIES, slot_sentence
from hierchat.language import _, later
from hierchat.models.runnable import NO_DRAFTS
from hierchat.page.templates import Macros
from hierchat.runtime.model_slot import SlotStatus

LATER = later("A reply is still being written in this chat. Do this when it has ended, or stop it first.")


def undrafted(status: SlotStatus) -> str:
    """Say why the loaded model writes without drafts; empty if it can draft."""
    return "" if status.drafts else _(NO_DRAFTS).rstrip(".")


_drawn = Macros(
    "status.html", SAME_WORDS=SAME_WORDS, UP_TO_TIES=UP_TO_TIES, NO_DRAFTS=NO_DRAFTS,
    slot_sentence=slot_sentence, undrafted=undrafted,
)  # fmt: skip
waiting, notice, error = _drawn.waiting, _drawn.notice, _drawn.error
closable, counting, folded = _drawn.closable, _drawn.counting, _drawn.folded
slot_line, waiting_line, reading_line = _drawn.slot_line, _drawn.waiting_line, _drawn.reading_line
proof_line, model_proof = _drawn.proof_line, _drawn.model_proof
