"""Compare: the pair to run, both sides while they are written, the result as it is drawn, the panel of those kept."""

from __future__ import annotations

import html
import json
import re
import shlex
import textwrap
import time
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from hierchat.chat.comparison import (
    ARMS,
    FROM,
    USUAL,
    CompareFrame,
    Comparison,
    Configuration,
    Pair,
    Side,
    Verdict,
    WrongConfiguration,
    configuration,
    differences,
    names,
)
from hierchat.chat.frames import Arm, Frame
from hierchat.chat.wording import in_order, number, pace, percent
from hierchat.config import GenerationSettings
from hierchat.language import _, error_words, later
from hierchat.page import charts, reply_text, status
from hierchat.page.buttons import button
from hierchat.page.charts import Ink, Line
from hierchat.page.event_data import PageEvent, of_type, parsed
from hierchat.page.figures import figures_line, known, style_of
from hierchat.page.panels.panel import Panel, still
from hierchat.page.reply_text import GrowingReply, below_message
from hierchat.page.sidebar import dated
from hierchat.store import StoredComparison

if TYPE_CHECKING:
    from hierchat.page.guard import PageEvents
    from hierchat.page.page_sessions import Session


def chart(result: Comparison) -> str:
    """Draw the tokens of both sides over time; in a replay the page's script moves a line over it."""
    tracks = {
        arm: [(ms / 1e3, float(tokens)) for ms, tokens, _text in result.sides[arm].moments if tokens]
        for arm in ARMS
    }
    ends = {arm: track[-1] for arm, track in tracks.items() if track}
    inks: dict[Arm, Ink] = {"first": Ink("var(--hc-quiet)", "dashed"), "second": Ink()}
    series = [Line(result.sides[arm].name, inks[arm], tracks[arm], marked=False) for arm in ARMS]
    across = charts.upward("", max((seconds for seconds, _tokens in ends.values()), default=1.0), " s")
    up = charts.upward(
        _("Tokens over time"), max((tokens for _seconds, tokens in ends.values()), default=1.0)
    )
    said = "; ".join(
        _("{name}: {tokens:,} tokens after {seconds:.1f} seconds").format(
            name=result.sides[arm].name, tokens=round(tokens), seconds=seconds
        )
        for arm, (seconds, tokens) in ends.items()
    )
    now = f'<path class="hc-now" data-seconds="{across.high:g}" d="M0 0V100" visibility="hidden"/>'
    key = charts.key((line.name, line.ink) for line in series)
    return f"<div>{charts.lines(series, across, up, said, now)}{key}</div>"


BEFORE = 12
"""Words that are shown before the first difference."""
MOST = 1500
"""Words of each text that are compared: difflib takes the square of them."""
_WORDS = re.compile(r"\S+\s*")


def difference(first: str, second: str) -> tuple[str, str]:
    """Draw both texts from before their first difference on, words of only one of them marked; equal ones are empty."""
    left, right = _WORDS.findall(first)[:MOST], _WORDS.findall(second)[:MOST]
    first_words, second_words = ([word.strip() for word in words] for words in (left, right))
    codes = SequenceMatcher(None, first_words, second_words, autojunk=False).get_opcodes()
    at = next((at for at, code in enumerate(codes) if code[0] != "equal"), None)
    if at is None:
        return "", ""
    shown: tuple[list[str], list[str]] = ([], [])
    if at:  # what both begin with
        _kind, low, high, *_rest = codes[at - 1]
        cut = max(low, high - BEFORE)
        lead = ("… " if cut else "") + html.escape("".join(left[cut:high]))
        for side in shown:
            side.append(lead)
    marks = " hc-first-other"
    for kind, *places in codes[at:]:
        for side, words, low, high in zip(shown, (left, right), places[::2], places[1::2], strict=True):
            text = html.escape("".join(words[low:high]))
            if kind == "equal":
                side.append(text)
            elif text or marks:
                side.append(f'<mark class="hc-other{marks}">{text or _("(nothing)")}</mark>')
        if kind != "equal":
            marks = ""
    return "".join(shown[0]), "".join(shown[1])


_VARIED = ("temperature", "seed", "max_new_tokens")
"""What `verify` and `benchmarks decode` can be told of a reply's settings."""


def export(result: Comparison) -> str:
    """One object. The times of each side are what changed since the moment before: milliseconds, tokens, characters."""
    whole: dict[str, Any] = {
        "hierchat_comparison": 1,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(result.at)),
        "question": result.question,
        **result.record(),
        "repeat": repeated(result),
    }
    return json.dumps(whole, ensure_ascii=False, indent=1)


def repeated(result: Comparison) -> dict[str, Any] | None:
    """Return commands that repeat it over a file with the given line; None where no command can."""
    settings = dict(result.sides["second"].settings)
    plain = GenerationSettings().model_dump(mode="json")
    usual = all(dict(result.sides[arm].configuration) == USUAL[arm].record() for arm in ARMS)
    if (
        not usual
        or result.sides["second"].revision.startswith("remote:")
        or not result.alone
        or any(settings[name] != plain[name] for name in plain if name not in _VARIED)
    ):
        return None
    options = (
        f"--questions question.jsonl --model {shlex.quote(result.sides['second'].model)}"
        f" --max-new-tokens {settings['max_new_tokens']} --temperature {settings['temperature']:g}"
        f" --seed {settings['seed']}"
    )
    return {
        "question.jsonl": json.dumps({"turns": [result.question], "category": "chat"}, ensure_ascii=False),
        "words": f"python -m hierchat verify {options} --json words.json",
        "speed": f"python -m benchmarks decode {options} --arms vanilla,hierchat --json speed.json",
        "note": _(
            "These commands begin with an empty history, so fewer drafts are found than in a chat of yours."
        ),
    }


PICTURE_WIDTH, PAD = 1200, 64
_LINE, _MOST_LINES, _WRAP = 46, 3, 54
_BARS = 640
_STYLE = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif}"
    ".page{fill:#fff}.ink{fill:#1d1d21}.quiet{fill:#63636c}.first{fill:#8a8f98}.second{fill:#5b5bd6}.rule{fill:#e4e4e9}"
    ".dark .page{fill:#17171b}.dark .ink{fill:#ececf1}.dark .quiet{fill:#a2a2ad}.dark .second{fill:#a5a5f3}"
    ".dark .rule{fill:#313139}"
)


def picture(result: Comparison) -> str:
    """Draw the picture. The question is a group at its top, `data-question` pixels high, and can be cut off."""
    lines = textwrap.wrap(result.question, _WRAP, max_lines=_MOST_LINES, placeholder=" …") or [""]
    lines[0], lines[-1] = f"“{lines[0]}", f"{lines[-1]}”"
    above = len(lines) * _LINE + 56
    height = above + 486
    question = "".join(_text(PAD, 80 + at * _LINE, 34, "ink", text) for at, text in enumerate(lines))
    question += f'<rect class="rule" x="{PAD}" y="{above - 2}" width="{PICTURE_WIDTH - 2 * PAD}" height="2"/>'
    speeds = {arm: result.sides[arm].figures.tokens_per_second or 0.0 for arm in ARMS}
    most = max(speeds.values()) or 1.0
    bars = "".join(
        _text(PAD, above + 152 + 108 * at, 28, "ink", textwrap.shorten(result.sides[arm].name, 70, placeholder=" …"))
        + f'<rect class="{arm}" x="{PAD}" y="{above + 168 + 108 * at}" rx="6" height="36" '
        f'width="{max(8.0, speeds[arm] / most * _BARS):.0f}"/>'
        + _text(
            PAD + 20 + max(8.0, speeds[arm] / most * _BARS), above + 196 + 108 * at, 30, "ink",
            _("{speed} tokens/s").format(speed=number(speeds[arm])), bold=True,
        )
        for at, arm in enumerate(ARMS)
    )  # fmt: skip
    models = _(" and ").join(dict.fromkeys(result.sides[arm].model for arm in ARMS))
    day = time.strftime("%Y-%m-%d", time.localtime(result.at))
    where = _("{models} on {machine}").format(models=models, machine=result.machine)
    foot = _text(PAD, above + 408, 22, "quiet", textwrap.shorten(where, 92, placeholder=" …"))
    runs = _("one run of each{others}").format(others=busy(result))
    foot += _text(PAD, above + 442, 22, "quiet", f"{day}, hierchat {result.hierchat}, {runs}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PICTURE_WIDTH} {height}" '
        f'width="{PICTURE_WIDTH}" height="{height}" '
        f'data-question="{above}"><style>{_STYLE}</style>'
        f'<rect class="page" width="{PICTURE_WIDTH}" height="{height}"/><g class="question">{question}</g>'
        f"{_text(PAD, above + 84, 44, 'ink', headline(result), bold=True)}{bars}{foot}</svg>"
    )


def headline(result: Comparison) -> str:
    """Say how fast the second side is against the first, and whether the words are the same."""
    same = _("word for word the same") if result.verdict.identical else _("other words")
    if not (speedup := result.deserved_speedup):
        return same.capitalize()
    told = pace(speedup)
    return (_("{pace}, {same}") if told else _("As fast, {same}")).format(pace=told, same=same)


def busy(result: Comparison) -> str:
    """Say what other programs used of the processor, as the end of a sentence; empty where that is not known."""
    others = result.verdict.others
    told = _(", while other programs used {share} of the processor")
    return "" if others is None else told.format(share=percent(others))


def _text(x: float, y: float, size: int, css: str, text: str, *, bold: bool = False) -> str:
    weight = ' font-weight="700"' if bold else ""
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" class="{css}"{weight}>{html.escape(text)}</text>'
    )


def verdict_line(verdict: Verdict) -> str:
    """The sentence above both texts."""
    kind = "hc-same" if verdict.identical else "hc-differs"
    proof = status.proof_line(verdict.exact, verdict.identical)
    return f'<div class="hc-verdict {kind}" role="status">{html.escape(verdict.sentence)} {proof}</div>'


def drawn(result: Comparison, more: str = "") -> str:
    """Draw a result but for question and verdict; `more`: further buttons."""
    moments = {arm: differences(result.sides[arm].moments) for arm in ARMS}
    data = {"moments": json.dumps(moments), "export": export(result), "picture": picture(result)}
    carried = "".join(f' data-{name}="{html.escape(value)}"' for name, value in data.items())
    buttons = button("hc_race", _("Replay at true speed"), css="hc-plain") if all(moments.values()) else ""
    buttons += button("hc_picture", _("Picture…"), css="hc-plain") + button(
        "hc_result_save", _("Save as JSON"), css="hc-plain"
    )
    sides = "".join(_side(arm, result.sides[arm]) for arm in ARMS)
    return (
        f'<article class="hc-result" aria-label="{_("Result")}" data-id="{result.id}"{carried}>'
        f'<div class="hc-result-tools">{buttons}{more}</div><div class="hc-sides">{sides}</div>'
        f'{_differs(result)}<div class="hc-measured">{chart(result)}{_table(result)}</div>{_details(result)}</article>'
    )


def _side(arm: Arm, side: Side) -> str:
    text = below_message(reply_text.drawn(side.text, side.figures.thought_seconds, arm))
    return (
        f'<section class="hc-side" data-arm="{arm}"><div class="hc-arm"><h2>{html.escape(side.name)}</h2>'
        '<p class="hc-race" aria-hidden="true" hidden></p></div>'
        f'<div class="hc-text">{text}</div><div class="hc-arm-figures">{figures_line(side.figures)}</div></section>'
    )


def _differs(result: Comparison) -> str:
    first, second = difference(*(result.sides[arm].text for arm in ARMS))
    if not first and not second:
        return ""
    columns = "".join(
        f'<div><h3>{html.escape(result.sides[arm].name)}</h3><div class="hc-words" dir="auto">{text}</div></div>'
        for arm, text in zip(ARMS, (first, second), strict=True)
    )
    summary = f"<summary>{_('Where the words differ')}</summary>"
    return f'<details class="hc-difference" open>{summary}<div>{columns}</div></details>'


def _table(result: Comparison) -> str:
    figures = [result.sides[arm].figures for arm in ARMS]

    def row(name: str, cells: Iterable[str]) -> str:
        return f'<tr><th scope="row">{html.escape(name)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'

    rows = [
        row(_("Tokens a second"), (known(f.tokens_per_second, number) for f in figures)),
        row(_("Tokens"), (f"{f.tokens:,}" for f in figures)),
        row(_("First token after"), (known(f.first_token_seconds, "{:.2f} s".format) for f in figures)),
        row(_("Tokens per run of the model (T)"), (known(f.tokens_per_forward, "{:.2f}".format) for f in figures)),
        row(_("Drafts accepted"), (known(f.acceptance_rate, percent) for f in figures)),
    ]  # fmt: skip
    for source in in_order({source for f in figures for source in f.shares}):
        label = _("From {label}").format(label=style_of(source).label)
        rows.append(row(label, (percent(f.shares.get(source, 0.0)) for f in figures)))
    heads = "".join(f'<th scope="col">{html.escape(result.sides[arm].name)}</th>' for arm in ARMS)
    return f'<table class="hc-both"><thead><tr><td></td>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _details(result: Comparison) -> str:
    rows = [
        (_("Precisely"), result.verdict.precise or result.verdict.sentence),
        (_("Date"), dated(result.at)),
        (_("Speed"), _("One run of each{others}").format(others=busy(result))),
    ]
    for arm in ARMS:
        side, settings = result.sides[arm], result.sides[arm].settings
        sampled = _("temperature {temperature:g}, seed {seed}").format(**settings)
        drafting = side.configuration
        models = _("with draft models") if drafting["draft_models"] else _("without draft models")
        rows.append(
            (side.name, _("{model} ({revision}) on {backend}; {sampled}; drafts from {texts}, {models}").format(
                model=side.model, revision=side.revision, backend=side.backend, sampled=sampled, models=models,
                texts=_(FROM[drafting["databases"]]),
            ))
        )  # fmt: skip
    rows += [(_("Machine"), result.machine), ("hierchat", result.hierchat)]
    facts = status.facts((html.escape(name), html.escape(value)) for name, value in rows)
    commands = ""
    if again := repeated(result):
        commands = (
            f"<p>{_('Repeat it, with this line in question.jsonl:')}</p>"
            f"<pre>{html.escape(again['question.jsonl'])}</pre>"
            f"<pre>{html.escape(again['words'])}\n{html.escape(again['speed'])}</pre>"
            f"<p>{html.escape(again['note'])}</p>"
        )
    return f'<details class="hc-details"><summary>{_("Details")}</summary>{facts}{commands}</details>'


_BOTH = later(
    "Both answer the next message, one after the other. Two models are loaded in turn, and the present one comes back "
    "at the end."
)
_LEGENDS: dict[Arm, str] = {"first": later("First"), "second": later("Second, which stays in the chat")}


def line(pair: Pair) -> str:
    """Draw both sides in a few words."""
    named = names(pair)
    first, second = (f"<b>{html.escape(named[arm])}</b>" for arm in ARMS)
    return f'<p class="hc-against" role="status">{first} {_("against")} {second}</p>'


def form(models: Sequence[str]) -> str:
    """The form, folded, as the usual pair has it. Its values reach the server as JSON (comparisons.js)."""
    sides = "".join(_side_fields(arm, USUAL[arm], models) for arm in ARMS)
    reset = button("hc_setup_reset", _("Reset"))
    return (
        f'<details class="hc-setup"><summary>{_("Change")}</summary><form autocomplete="off">{sides}'
        f'<p class="hc-quiet">{_(_BOTH)}</p>{reset}</form></details>'
    )


def _side_fields(arm: Arm, chosen: Configuration, models: Sequence[str]) -> str:
    sources = {name: _(said) for name, said in FROM.items()}
    databases = _select(_("Drafts come from"), "databases", sources, chosen.drafting.databases)
    planned = {"1": _("as planned"), "": _("none")}
    drafts = _select(_("Draft models"), "draft_models", planned, "1" if chosen.drafting.draft_models else "")
    named = {"": _("the one that is loaded"), **{name: name for name in models}}
    of_model = _select(_("Model"), "model", named, "")
    return (
        f'<fieldset data-arm="{arm}"><legend>{_(_LEGENDS[arm])}</legend>{of_model}{databases}{drafts}'
        f'<label>{_("Temperature")}<input name="temperature" inputmode="decimal" placeholder="{_("as set")}"></label>'
        f'<label>{_("Seed")}<input name="seed" inputmode="numeric" placeholder="{_("as set")}"></label></fieldset>'
    )


def _select(label: str, name: str, options: dict[Any, str], chosen: str) -> str:
    entries = "".join(
        f'<option value="{html.escape(value)}"{" selected" if value == chosen else ""}>{html.escape(said)}</option>'
        for value, said in options.items()
    )
    return f'<label>{label}<select name="{name}">{entries}</select></label>'


def pair_of(text: str) -> Pair:
    """Read the pair that the form sends. Raises WrongConfiguration and Foreign."""
    given = parsed(text, dict)
    return {arm: configuration(of_type(given.get(arm), dict)) for arm in ARMS}


def words() -> dict[Arm, GrowingReply]:
    """Texts of both arms, as they will grow."""
    return {arm: GrowingReply() for arm in ARMS}


def column(frame: Frame | None, words: GrowingReply) -> tuple[str, str]:
    """Name and text, and figures, of one arm."""
    if frame is None:
        return "", status.waiting(_("Not started yet"))
    name = f'<div class="hc-arm" role="heading" aria-level="2">{html.escape(frame.name)}</div>'
    if frame.phase == "waiting":
        return name, status.waiting(frame.notice or _("Not started yet"))
    if frame.phase == "reading":
        return name, status.reading_line(frame)
    seconds, done = frame.figures.thought_seconds, frame.phase == "done"
    text = name + below_message(words.render(frame.text, seconds, frame.name, ended=done))
    if frame.finish == "error":
        return text, status.error(frame.notice or _("This side failed."))
    return text, figures_line(frame.figures, _("stopped") if frame.finish == "stopped" else "")


def ended(last: CompareFrame | None) -> tuple[str, str]:
    """Verdict and result of a comparison that has ended; empty where it did not come to them."""
    if last is None or last.verdict is None:
        return "", ""
    kept = button("hc_panel", _("All comparisons"), text="comparisons", css="hc-plain")
    result = drawn(last.result, kept if last.result.id else "") if last.result else ""
    return verdict_line(last.verdict), result


def asked(text: str, files: str = "") -> str:
    """The prompt of a comparison; `files` as HTML."""
    return f'<div class="hc-asked">{files}<div class="hc-user" dir="auto">{html.escape(text)}</div></div>'


LISTED = 200
_EMPTY = later(
    "Nothing here yet. Turn on <b>Compare</b> at the top of a chat and send a message: it is answered twice, for "
    "example without drafts and with them. The results are kept here."
)


class ComparisonsPanel(Panel):
    """List all results that are kept, each to be opened, replayed, shared, deleted."""

    name = "comparisons"
    title = later("Comparisons")

    def build(self) -> None:
        self._view = still("hc-comparisons")
        self.outputs = [self._view]

    def wire(self, page: PageEvents) -> None:
        setup, comparisons = page.parts.setup, self._service.comparisons

        def opened(event: PageEvent) -> dict[Any, Any]:
            return {self._view: _one(comparisons.get(event.user, event.id))}

        def delete(event: PageEvent) -> dict[Any, Any]:
            if event.id:
                comparisons.delete(event.user, event.id)
            else:
                comparisons.delete_all(event.user)
            return self.show(event.session)

        def choose(event: PageEvent) -> dict[Any, Any]:
            """The pair for the next comparison of this page. A wrong value leaves it as it was."""
            session, trouble = event.session, ""
            try:
                session.pair = pair_of(event.text)
            except WrongConfiguration as error:
                trouble = status.error(_("{error} The pair stays as above.").format(error=error_words(error)))
            return {setup: line(session.pair) + trouble}

        page.on("hc_result", opened, outputs=self.outputs)
        page.on("hc_result_delete", delete, outputs=self.outputs)
        # Each change, one after the other: the last one counts.
        page.on("hc_setup", choose, outputs=[setup], trigger_mode="multiple", concurrency_limit=1)

    def show(self, session: Session) -> dict[Any, Any]:
        """The list, the newest first."""
        found = self._service.comparisons.all(session.user, LISTED + 1)
        return {self._view: _list(found[:LISTED], more=len(found) > LISTED)}


def _read(stored: StoredComparison) -> Comparison:
    return Comparison.from_json(stored.id, stored.question, stored.created_at, stored.result)


def _list(found: list[StoredComparison], *, more: bool) -> str:
    if not found:
        return f'<p class="hc-quiet">{_(_EMPTY)}</p>'
    rows = "".join(_row(_read(one)) for one in found)
    newest = _("These are the {n} newest. Older ones are kept, too.").format(n=LISTED)
    older = f'<p class="hc-quiet">{newest}</p>' if more else ""
    clear = button("hc_result_delete", _("Delete all…"), css="hc-danger")
    return f'<ul class="hc-rows hc-results">{rows}</ul>{older}<div class="hc-result-tools">{clear}</div>'


def _row(result: Comparison) -> str:
    question = " ".join(result.question.split()) or _("(no text)")
    sides = _(" against ").join(result.sides[arm].name for arm in ARMS)
    models = _(" and ").join(dict.fromkeys(result.sides[arm].model for arm in ARMS))
    delete = _("Delete: {question}").format(question=question)
    about = f"{headline(result)}. {sides}. {models}, {dated(result.at)}"
    return (
        f"<li><div>{button('hc_result', question, id=result.id, css='hc-question', dir='auto')}"
        f'<p class="hc-quiet">{html.escape(about)}</p></div>'
        f"{button('hc_result_delete', _('Delete…'), id=result.id, aria_label=delete)}</li>"
    )


def _one(stored: StoredComparison) -> str:
    result = _read(stored)
    delete = button("hc_result_delete", _("Delete…"), id=result.id, css="hc-plain")
    return (
        f'<div class="hc-one">{button("hc_panel", _("← All comparisons"), text=ComparisonsPanel.name)}'
        f"{asked(result.question)}{verdict_line(result.verdict)}{drawn(result, delete)}</div>"
    )
