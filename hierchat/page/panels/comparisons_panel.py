"""Compare on the page: choose the pair, draw both sides and the result, and list the results that are kept."""

import json
import re
import time
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from hierchat.chat import comparison
from hierchat.chat.frames import Frame
from hierchat.chat.wording import in_order, number, pace, percent
from hierchat.language import _, later
from hierchat.language import number as written
from hierchat.page import conversation, status
from hierchat.page.conversation import GrowingReply, below_message
from hierchat.page.event_data import PageEvent, of_type, parsed
from hierchat.page.figures import figures_line, known, style_of
from hierchat.page.panels.panel import Panel, still
from hierchat.page.sidebar import dated
from hierchat.page.templates import Macros
from hierchat.store import StoredComparison

if TYPE_CHECKING:
    from hierchat.page.guard import PageEvents
    from hierchat.page.page_sessions import Session


BEFORE = 12
"""Words that are shown before the first difference."""
MOST = 1500
"""Words of each text that are compared: difflib takes the square of them."""
_WORDS = re.compile(r"\S+\s*")


def difference(first: str, second: str) -> tuple[Markup, Markup]:
    """Draw both texts from before their first difference on, words of only one of them marked; equal ones are empty."""
    left, right = _WORDS.findall(first)[:MOST], _WORDS.findall(second)[:MOST]
    first_words, second_words = ([word.strip() for word in words] for words in (left, right))
    codes = SequenceMatcher(None, first_words, second_words, autojunk=False).get_opcodes()
    at = next((at for at, code in enumerate(codes) if code[0] != "equal"), None)
    if at is None:
        return Markup(), Markup()
    shown: tuple[list[str], list[str]] = ([], [])
    if at:  # what both begin with
        _kind, low, high, *_rest = codes[at - 1]
        cut = max(low, high - BEFORE)
        lead = ("… " if cut else "") + escape("".join(left[cut:high]))
        for side in shown:
            side.append(lead)
    marks = " hc-first-other"
    for kind, *places in codes[at:]:
        for side, words, low, high in zip(shown, (left, right), places[::2], places[1::2], strict=True):
            text = escape("".join(words[low:high]))
            if kind == "equal":
                side.append(text)
            elif text or marks:
                side.append(f'<mark class="hc-other{marks}">{text or _("(nothing)")}</mark>')
        if kind != "equal":
            marks = ""
    return Markup("".join(shown[0])), Markup("".join(shown[1]))


def export(result: comparison.Comparison) -> str:
    whole: dict[str, Any] = {
        "hierchat_comparison": 1,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(result.at)),
        "question": result.question,
        **result.record(),
    }
    return json.dumps(whole, ensure_ascii=False, indent=1)


def headline(result: comparison.Comparison) -> str:
    """Say how fast the second side is against the first, and whether the words are the same."""
    same = _("word for word the same") if result.verdict.identical else _("other words")
    if not (speedup := result.deserved_speedup):
        return same.capitalize()
    told = pace(speedup)
    return (_("{pace}, {same}") if told else _("As fast, {same}")).format(pace=told, same=same)


def busy(result: comparison.Comparison) -> str:
    """Say what share of the processor other programs used, as the end of a sentence; empty if that is not known."""
    others = result.verdict.others
    told = _(", while other programs used {share} of the processor")
    return "" if others is None else told.format(share=percent(others))


def drawn(result: comparison.Comparison, more: str = "") -> Markup:
    """Draw a comparison's result without question and verdict; `more`: further buttons."""
    differing = difference(*(result.sides[arm].text for arm in comparison.ARMS))
    return _drawn.result(result, export(result), more, differing)


def _measured(result: comparison.Comparison) -> list[tuple[str, list[str]]]:
    figures = [result.sides[arm].figures for arm in comparison.ARMS]
    rows = [
        (_("Tokens a second"), [known(f.tokens_per_second, number) for f in figures]),
        (_("Tokens"), [written(f.tokens) for f in figures]),
        (_("First token after"), [known(f.first_token_seconds, "{:.2f} s".format) for f in figures]),
        (_("Tokens per run of the model (T)"), [known(f.tokens_per_forward, "{:.2f}".format) for f in figures]),
        (_("Drafts accepted"), [known(f.acceptance_rate, percent) for f in figures]),
    ]  # fmt: skip
    for source in in_order({source for f in figures for source in f.shares}):
        label = _("From {label}").format(label=style_of(source).label)
        rows.append((label, [percent(f.shares.get(source, 0.0)) for f in figures]))
    return rows


def line(pair: comparison.Pair) -> Markup:
    """Draw what a pair compares in a few words."""
    named = comparison.names(pair)
    return _drawn.against(named["first"], named["second"])


def column(frame: Frame | None, words: GrowingReply) -> tuple[str, str]:
    """Draw name and text of one side, and its figures."""
    if frame is None:
        return "", status.waiting(_("Not started yet"))
    name = _drawn.arm(frame.name)
    if frame.phase == "waiting":
        return name, status.waiting(frame.notice or _("Not started yet"))
    if frame.phase == "reading":
        return name, status.reading_line(frame)
    seconds, done = frame.figures.thought_seconds, frame.phase == "done"
    text = name + below_message(words.render(frame.text, seconds, frame.name, ended=done))
    if frame.finish == "error":
        return text, status.error(frame.notice or _("This side failed."))
    return text, figures_line(frame.figures, _("stopped") if frame.finish == "stopped" else "")


def ended(last: comparison.CompareFrame | None) -> tuple[str, str]:
    """Draw verdict and result of a comparison that has ended; empty if it did not come to them."""
    if last is None or last.verdict is None:
        return "", ""
    result = drawn(last.result, _drawn.to_all() if last.result.id else "") if last.result else ""
    return verdict_line(last.verdict), result


LISTED = 200


class ComparisonsPanel(Panel):
    """Lists all comparisons that are kept, each to be opened, saved, deleted."""

    name = "comparisons"
    title = later("Comparisons")

    def build(self) -> None:
        self._view = still("hc-comparisons")
        self.outputs = [self._view]

    def wire(self, page: "PageEvents") -> None:
        setup, comparisons = page.parts.setup, self._service.comparisons

        def opened(event: PageEvent) -> dict[Any, Any]:
            result = _read(comparisons.get(event.user, event.id))
            return {self._view: _drawn.opened(result, drawn(result, _drawn.delete(result)))}

        def delete(event: PageEvent) -> dict[Any, Any]:
            if event.id:
                comparisons.delete(event.user, event.id)
            else:
                comparisons.delete_all(event.user)
            return self.show(event.session)

        def choose(event: PageEvent) -> dict[Any, Any]:
            """Set the pair for the next comparison of this page."""
            given = parsed(event.text, dict)
            sides = {arm: of_type(given.get(arm), dict) for arm in comparison.ARMS}
            event.session.pair = {arm: comparison.Configuration.of(side) for arm, side in sides.items()}
            return {setup: line(event.session.pair)}

        page.on("hc_result", opened, outputs=self.outputs)
        page.on("hc_result_delete", delete, outputs=self.outputs)
        # Each change, one after the other: the last one counts.
        page.on("hc_setup", choose, outputs=[setup], trigger_mode="multiple", concurrency_limit=1)

    def show(self, session: "Session") -> dict[Any, Any]:
        found = self._service.comparisons.all(session.user, LISTED + 1)
        rows = [_row(_read(one)) for one in found[:LISTED]]
        return {self._view: _drawn.listed(rows, len(found) > LISTED)}


def _read(stored: StoredComparison) -> comparison.Comparison:
    return comparison.Comparison.from_json(stored.id, stored.question, stored.created_at, stored.result)


def _row(result: comparison.Comparison) -> tuple[int | None, str, str]:
    question = " ".join(result.question.split()) or _("(no text)")
    sides = _(" vs. ").join(result.sides[arm].name for arm in comparison.ARMS)
    models = _(" and ").join(dict.fromkeys(result.sides[arm].model for arm in comparison.ARMS))
    return result.id, question, f"{headline(result)}. {sides}. {models}, {dated(result.at)}"


_drawn = Macros(
    "comparisons.html", ARMS=comparison.ARMS, USUAL=comparison.USUAL, busy=busy,
    dated=dated, figures_line=figures_line, measured=_measured,
    side_words=lambda side, arm: below_message(conversation.drawn(side.text, side.figures.thought_seconds, arm)),
)  # fmt: skip
verdict_line, asked, form = _drawn.verdict_line, _drawn.asked, _drawn.form
