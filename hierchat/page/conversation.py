"""Draw replies and stored messages as HTML, oldest first. They are for the eye only: the store is the truth."""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from markupsafe import Markup

from hierchat.chat.comparison import USUAL, Pair, names
from hierchat.chat.frames import Arm, CompareFrame, Figures, Frame
from hierchat.chat.in_progress import ReplyInProgress, State, places_ahead
from hierchat.chat.statistics import SourceRun
from hierchat.chat.tool_calls import before_call
from hierchat.drafting.draft_tree import DOCUMENTS
from hierchat.drafting.growing.kernel_arrays import MAX_MATCH
from hierchat.engine.engine import TARGET
from hierchat.language import _, later, plural
from hierchat.models.cache import gigabytes
from hierchat.page import figures as figures_view
from hierchat.page import status
from hierchat.page.figures import legend, style_of
from hierchat.page.markdown.drawing import GrowingMarkdown, in_pieces, render, render_marked
from hierchat.page.page_sessions import PASTED
from hierchat.page.screen import Screen
from hierchat.page.templates import KEY, Macros, button
from hierchat.reasoning import split_reasoning
from hierchat.runtime.model_slot import SlotStatus
from hierchat.store.records import Attachment, AttachmentHead, Message
from hierchat.texts.passages import resting

# A reply: what the model thought first, folded, and the answer.
_reply = Macros("reply.html")
Draw = Callable[[str, int], str]


def drawn(text: str, seconds: float | None, key: object, draw: Draw | None = None) -> Markup:
    """Draw a reply that has ended. `seconds` of thinking; `key`: of its message; `draw`: makes HTML of a part."""
    parts = split_reasoning(text)
    draw = draw or (lambda part, at: render(part))
    thought = draw(parts.thought, parts.thought_at) if parts.thought else ""
    folded = _reply.fold(Markup(thought), _said(seconds), key) if thought else Markup()
    return folded + Markup(draw(parts.answer, parts.answer_at))


class GrowingReply:
    """Draws a reply while it is written, frame by frame."""

    def __init__(self) -> None:
        self._thought, self._answer = GrowingMarkdown(), GrowingMarkdown()

    def render(self, text: str, seconds: float | None, key: object, *, ended: bool = False) -> Markup:
        """Return the HTML of `text`, which mostly continues the one before."""
        parts = split_reasoning(text)
        drawn = Markup()
        if parts.thought or (parts.thinking and not ended):
            inside = self._thought.render(parts.thought, ended=ended or not parts.thinking)
            label = _("Thinking…") if parts.thinking and not ended else _said(seconds)
            drawn = _reply.fold(Markup(inside), label, key)
        return drawn + Markup(self._answer.render(parts.answer, ended=ended))


def _said(seconds: float | None) -> str:
    if seconds is None:
        return _("Thoughts")
    if seconds < 60:
        return plural("Thought for {n} second", "Thought for {n} seconds", max(1, round(seconds)))
    return plural("Thought for {n} minute", "Thought for {n} minutes", round(seconds / 60))


_HEADING = re.compile(r"<h([1-6])(?=[ >])")
_LOWEST = 6


def below_message(rendered: str) -> Markup:
    """Return HTML whose headings begin at level 3 and skip none, whatever the model wrote."""
    last = 2

    def level(found: re.Match[str]) -> str:
        nonlocal last
        last = min(int(found[1]) + 2, last + 1, _LOWEST)
        return f'<h{found[1]} aria-level="{last}"'

    return Markup(_HEADING.sub(level, str(rendered)))  # of Markup it would escape the rest


def marked(
    runs: Sequence[SourceRun],
    text: str,
    seconds: float | None = None,
    key: object = None,
    rests: Sequence[tuple[int, int]] = (),
) -> Markup:
    """Draw a reply from its runs by source, and their legend, as one tab stop (assets/page/origin.js).
    `seconds`, `key`: as in `drawn`; `rests`: as in `resting`."""
    told: set[int] = set()
    run_ends = list(accumulate(len(run.text) for run in runs))

    def wrap(begin: int, piece: str) -> str:
        number = bisect_right(run_ends, begin)
        run = runs[number]
        facts = "" if number in told else _facts(run, first=not told)
        told.add(number)
        return f'<span class="hc-run hc-src-{style_of(run.source).slug}" data-run="{number}"{facts}>{piece}</span>'

    inside = below_message(drawn(text, seconds, key, _drawing(run_ends, rests, wrap)))
    return _reply.marked(inside, legend(run.source for run in runs))


def _drawing(ends: Sequence[int], rests: Sequence[tuple[int, int]], wrap: Callable[[int, str], str]) -> Draw:
    """Make what draws a reply in pieces that end at `ends`, and after sentences on a passage, marked for `_cited`."""
    sentences = [end for end, _number in rests]
    edges = sorted({*ends, *sentences})

    def draw(part: str, at: int) -> str:
        def marked(number: int, piece: str) -> str:
            begin = edges[number - 1] if number else 0
            sentence = bisect_right(sentences, begin)
            mark = _MARK.format(rests[sentence][1], sentence) if sentence < len(rests) else ""
            return wrap(begin, piece) + mark

        drawn = render_marked(part, [min(max(end - at, 0), len(part)) for end in edges], marked)
        last = {found["sentence"]: found.start() for found in _MARKS.finditer(drawn)}

        def kept(found: re.Match[str]) -> str:
            stays = last[found["sentence"]] == found.start()
            return found["closing"] + (_MARK.format(found["number"], found["sentence"]) if stays else "")

        return _MARKS.sub(kept, drawn)

    return draw


def _facts(run: SourceRun, *, first: bool) -> Markup:
    text = json.dumps({"message": str(run.origin.origin_id), "phrase": run.phrase})
    return _origin.facts(run, first, text)


_origin = Macros("origin.html", DOCUMENTS=DOCUMENTS, KEY=KEY, MAX_MATCH=MAX_MATCH, TARGET=TARGET)
said = _origin.said


# The messages of a chat.
_CITED = re.compile(
    r"(?P<markup><(code|pre|a|math|button)\b.*?</\2>|<[^>]*>)|\[\d{1,6}(?:, ?\d{1,6})*\]", re.DOTALL
)
_DIGITS = re.compile(r"\d+")
# The numbers of a passage and of the sentence that rests on it. No drawn reply holds a NUL. A mark is put after each
# piece of a sentence; the last one stays, outside of the elements that end with the sentence.
_MARK = "\0{} {}\0"
_MARKS = re.compile(
    r"\0(?P<number>\d+) (?P<sentence>\d+)\0(?P<closing>(?:</(?:a|code|del|em|s|span|strong)>)*)"
)
_NOTES = {
    "stopped": later("stopped"),
    "interrupted": later("interrupted"),
    "writing": later("still being written"),
}
_LOOPED = later("ended: it had come to repeat itself")
_FULL = later("cut here: the context window is full")


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """Stored message with the figures, runs and files that are drawn beside its text."""

    message: Message
    figures: Figures | None = None
    runs: list[SourceRun] | None = None
    """Where its words came from; None where that is not to be shown."""
    files: Mapping[int, Attachment] = field(default_factory=dict)
    """Those whose text is shown, by id."""
    passages: Mapping[int, str] = field(default_factory=dict)
    """Names and texts of the passages that went with it, by number."""
    details: bool = False
    """Whether all its figures are drawn, not only the line of them."""


def _cited(
    reply: Markup,
    passages: Mapping[int, AttachmentHead],
    files: Mapping[int, Attachment],
    question: ShownMessage | None,
) -> Markup:
    """Draw a reply's numbers of passages as buttons; below it the named passages, and the others, folded."""
    named: dict[int, AttachmentHead] = {}

    def opener(number: str, css: str) -> str:
        head = passages.get(int(number))
        if head is None:
            return number
        named[head.id] = head
        return button("hc_attachment", number, id=head.id, css=css, title=head.name, aria_label=head.name)

    def piece(found: re.Match[str]) -> str:
        if found["markup"]:
            return found[0]
        return _DIGITS.sub(lambda digits: opener(digits[0], "hc-cite"), found[0])

    drawn = _MARKS.sub(
        lambda found: opener(found["number"], "hc-cite hc-rests") + found["closing"], str(reply)
    )
    drawn = _CITED.sub(piece, drawn) if passages else drawn
    heads = [head for _id, head in sorted(named.items())]
    return Markup(drawn) + _drawn.below(heads, files, question)


def _note(message: Message, figures: Figures) -> str:
    if message.state in _NOTES:
        note = _(_NOTES[message.state])
        return note if message.text else _("{note} before the first word").format(note=note)
    if figures.finish == "length":
        return _("cut at the limit, after {n:,} tokens").format(n=figures.tokens)
    return _({"context": _FULL, "loop": _LOOPED}.get(figures.finish or "", ""))


def _cut(message: Message, figures: Figures) -> bool:
    ended = message.state == "complete" and figures.finish != "length"
    return bool(message.text) and not ended and message.state != "writing" and figures.finish != "context"


def _body(shown: ShownMessage, no_runs: Markup, rests: Sequence[tuple[int, int]]) -> Markup:
    """Draw a reply, its words marked by source, or `no_runs` as the reason why not. `rests`: sentences on a passage."""
    message, seconds = shown.message, (shown.figures or Figures()).thought_seconds
    text = before_call(message.text) if message.call else message.text
    rests = [(split_reasoning(text).answer_at + end, number) for end, number in rests]
    if shown.runs and "".join(run.text for run in shown.runs).startswith(message.text):
        return marked(shown.runs, message.text, seconds, message.id, rests)
    draw = _drawing([len(text)], rests, lambda _begin, piece: piece) if rests else None
    words = below_message(drawn(text, seconds, message.id, draw))
    return _drawn.words(words) + no_runs if text else Markup()


def _visible(text: str) -> str:
    """Escape invisible characters as JSON does: a model may hide in them what it sends to a tool."""
    return "".join(one if one.isprintable() or one == "\n" else f"\\u{ord(one):04x}" for one in text)


class _Foot(NamedTuple):
    """Parts of a drawn reply: its text, its figures, and what its buttons need."""

    body: Markup
    line: Markup
    """Its figures."""
    question: int | None
    """The user's message above it; an imported chat may begin with a reply."""
    goes_on: bool
    """Whether it can be continued."""
    seed: int | None
    """That can be repeated; None for a greedy reply."""
    answer: str


def thread(
    path: Sequence[ShownMessage],
    present: SlotStatus,
    here: Collection[str] = (),
    *,
    earlier: bool = False,
    ends: bool = True,
    replying: bool = False,
) -> Markup:
    """Draw a conversation's messages. `here`: local models; `earlier`: there are more above; not `ends`: below."""
    result: list[tuple[ShownMessage, _Foot | None]] = []
    question: int | None = None
    model = present.name
    passages: dict[int, AttachmentHead] = {}
    opened: dict[int, Attachment] = {}
    asked: ShownMessage | None = None
    texts: dict[int, str] = {}  # of the passages that this question and the one before it brought
    for place, shown in enumerate(path):
        message, known = shown.message, shown.figures or Figures()
        if message.role == "user":
            question = message.id
            texts = {**(asked.passages if asked else {}), **shown.passages}
            asked = shown
            passages |= {head.number: head for head in message.attachments if head.number}
            opened |= shown.files
            result.append((shown, None))
            continue
        note = _("edited by you") if message.edited else _note(message, known)
        no_runs = Markup() if shown.runs is None else _drawn.no_runs(shown.figures, present, here)
        named = message.model if message.model != model else ""
        model = message.model or model
        last = ends and place == len(path) - 1
        followed = place + 1 < len(path) and path[place + 1].message.role == "assistant"
        said = asked.message.text if asked else ""
        rests = resting(split_reasoning(message.text).answer, texts, said) if texts else []
        body = _cited(_body(shown, no_runs, rests), passages, opened, None if followed else asked)
        foot = _Foot(
            body, figures_view.foot_line(known, note, named),
            question, last and _cut(message, known), known.seed,
            split_reasoning(message.text).answer or message.text,
        )  # fmt: skip
        result.append((shown, foot))
    return _drawn.thread(result, earlier, ends, replying)


def line(reply: ReplyInProgress, present: SlotStatus, *, loaded: bool) -> Markup:
    """Say what a reply does: wait, read the prompt, or its figures; empty for a comparison, which says it itself."""
    if (state := reply.latest) is None:
        return status.waiting(_("Waiting for the model…"))
    if (ahead := places_ahead(state)) is not None:
        return status.waiting_line(ahead, present, loaded=loaded)
    if isinstance(state, CompareFrame):
        return Markup()
    if state.phase == "calling":
        return status.waiting(state.notice) if state.notice else Markup()
    note = status.notice(state.notice) if state.notice else Markup()
    if state.phase == "reading":
        return note + status.reading_line(state)
    return note + figures_view.figures_line(state.figures, status.undrafted(present))


def growing_reply(state: State | None, reply: ReplyInProgress, words: GrowingReply) -> str:
    """Draw the text of a reply so far; `words` keeps what is drawn from one state to the next."""
    text, seconds, id = reply.resumed if reply.above is None else "", None, None
    if isinstance(state, Frame) and state.phase in ("writing", "done"):
        text, seconds, id = state.text, state.figures.thought_seconds, state.message_id
    elif not text:
        return ""
    return _drawn.growing(below_message(words.render(text, seconds, id)) if text else "")


def arms(state: State | None) -> Mapping[Arm, Frame]:
    """Return the frames of both sides of a comparison so far; empty for other replies."""
    return state.arms if isinstance(state, CompareFrame) else {}


def context(state: State | None) -> str:
    """Say how much of the context window is in use; empty if that is not known yet."""
    frame = state.arms.get("second") if isinstance(state, CompareFrame) else state
    if not frame or not frame.context_limit:
        return ""
    used, limit = frame.context_tokens, frame.context_limit
    return _("Memory of this chat: {tokens:,} of {limit:,} tokens").format(tokens=used, limit=limit)


def remark(reply: ReplyInProgress) -> str:
    """Return the notice or error of a reply that has ended; empty if there is none."""
    if not isinstance(state := reply.latest, Frame):
        return ""
    if state.finish == "error":
        return status.error(state.notice or _("The reply could not be finished."))
    return status.notice(state.notice) if state.notice else ""


def tray(screen: Screen, queued: Sequence[ReplyInProgress]) -> Markup:
    """Draw attached files and, of those `queued`, waiting messages of the open chat. The page keeps all files."""
    held = [{"chat": file.chat, "key": file.key, "name": file.name} for file in screen.attached if file.file]
    waiting = [one for one in queued if one.conversation_id == (screen.conversation or 0)]
    return _drawn.tray(screen, waiting, json.dumps({"files": held}))


def size(number_of_bytes: float) -> str:
    """Format a size as everywhere on the page."""
    if number_of_bytes < 1e3:
        return _("{bytes:.0f} bytes").format(bytes=number_of_bytes)
    return gigabytes(number_of_bytes)


def shown_name(name: str) -> str:
    """Return the name of a file for the eye: of pasted text, which has none, in the reader's language."""
    return _(PASTED) if name == PASTED else name


_drawn = Macros(
    "conversation.html", details=figures_view.details, in_pieces=in_pieces, shown_name=shown_name, size_words=size,
    visible=_visible,
)  # fmt: skip
user_message, files = _drawn.user_message, _drawn.sent


# A comparison: the form that chooses the pair, both sides while they are written, and the verdict.
def pair_line(pair: Pair) -> str:
    """Draw what a pair compares in a few words."""
    named = names(pair)
    return _compare.against(named["first"], named["second"])


def column(frame: Frame | None, words: GrowingReply) -> tuple[str, str]:
    """Draw name and text of one side, and its figures."""
    if frame is None:
        return "", status.waiting(_("Not started yet"))
    name = _compare.arm(frame.name)
    if frame.phase == "waiting":
        return name, status.waiting(frame.notice or _("Not started yet"))
    if frame.phase == "reading":
        return name, status.reading_line(frame)
    seconds, done = frame.figures.thought_seconds, frame.phase == "done"
    text = name + below_message(words.render(frame.text, seconds, frame.name, ended=done))
    if frame.finish == "error":
        return text, status.error(frame.notice or _("This side failed."))
    return text, figures_view.figures_line(frame.figures, _("stopped") if frame.finish == "stopped" else "")


_compare = Macros("compare.html", USUAL=USUAL)
verdict_line, asked, pair_form = _compare.verdict_line, _compare.asked, _compare.form
