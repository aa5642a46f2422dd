"""Thousands of texts drawn in a real browser, with our content security policy and without: nothing runs, nothing is
fetched, no element, attribute or place but those that a reply may have, and no letter of the text is missing."""

import html
import re
import unicodedata
from collections.abc import Iterator
from urllib.parse import unquote

import pytest
from playwright.sync_api import Browser, Page, expect

from hierchat.page.markdown.drawing import render
from hierchat.page.templates import style
from tests.page.hostile import hostile, innocent
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser

BATCH = 400
_WORD = re.compile(r"[\w-]+")
ELEMENTS = set(
    _WORD.findall(
        """a blockquote br button code div em h1 h2 h3 h4 h5 h6 hr li ol p pre s span strong table tbody td th thead tr
        ul math mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow mspace msqrt mstyle msub
        msubsup msup mtable mtd mtext mtr munder munderover"""
    )
)
ATTRIBUTES = set(
    _WORD.findall(
        """accent accentunder alttext aria-checked aria-disabled aria-label class dir display displaystyle fence form
        href largeop linethickness lspace mathvariant maxsize minsize movablelimits rel role rspace scriptlevel
        separator start stretchy symmetric target title width"""
    )
)
ATTRIBUTES |= {f"button {name}" for name in ("type", "class", "data-act", "data-key", "data-id")} | {
    "pre tabindex"
}

# Draws texts as the thread does, and says what it finds: live things, and the text as a reader finds it, in order.
DRAW = """
(drawn) => {
  const box = document.querySelector('#hc-thread') || document.querySelector('#box');
  const found = [];
  for (const inside of drawn) {
    const holder = document.createElement('article');
    holder.className = 'hc-turn hc-reply';
    holder.innerHTML = `<div class="hc-text">${inside}</div>`;
    box.replaceChildren(holder);
    const text = holder.firstElementChild;
    const bad = [], names = new Set(), attributes = new Set(), links = [];
    if (holder.childElementCount !== 1) bad.push('left its box');
    const clipped = getComputedStyle(text);
    if (clipped.overflowX !== 'auto' || clipped.overflowY !== 'hidden') bad.push('overflows');
    const read = (node) => {
      if (node.nodeType === Node.TEXT_NODE) return node.data;
      if (node.nodeType !== Node.ELEMENT_NODE) { bad.push(node.nodeName); return ''; }
      if (node.localName === 'math') return node.getAttribute('alttext');
      if (node.localName === 'button') return '';
      let words = '';
      for (const child of node.childNodes) words += read(child);
      if (node.matches('a, .hc-image')) words += ` ${node.getAttribute('href') ?? ''} ${node.title}`;
      return words;
    };
    for (const node of text.querySelectorAll('*')) {
      if (node.localName === 'button') {
        if (node.dataset.act !== 'hc_copy_code' || !node.closest('.hc-code-head')) bad.push('button');
      }
      names.add(node.localName);
      const own = (name) => node.localName === 'button' || name === 'tabindex';
      for (const { name } of node.attributes) attributes.add((own(name) ? `${node.localName} ` : '') + name);
      const place = getComputedStyle(node).position;
      if (place !== 'static' && place !== 'relative' && !node.matches('.hc-task, button')) bad.push(place);
      if (node.hasAttribute('href')) links.push(node.href);
    }
    found.push({ bad, names: [...names], attributes: [...attributes], links, words: read(text) });
  }
  return found;
}
"""
HOOKS = """
window.ran = [];
for (const name of ['alert', 'confirm', 'prompt', 'open', 'print']) window[name] = () => { window.ran.push(name); };
window.addEventListener('error', (event) => window.ran.push(event.message || event.target.localName), true);
"""


@pytest.fixture(scope="module", params=["with our policy", "without a policy"])
def page(request: pytest.FixtureRequest, chromium: Browser) -> Iterator[Page]:
    """An empty page for drawing: ours with its policy, or a bare one with our styles."""
    context = chromium.new_context()
    page = context.new_page()
    if request.param == "with our policy":
        _, address = request.getfixturevalue("server")
        page.goto(address)
        page.wait_for_selector("#hc-list nav", state="attached", timeout=20_000)  # empty, it is no box
        page.wait_for_selector("#hc-thread", state="attached")
        page.evaluate("document.querySelector('#hc-chat').classList.remove('hc-off')")
        allowed = address
    else:
        page.set_content(f"<!doctype html><style>{style()}</style><div id='box'></div>")
        allowed = ""
    page.evaluate(HOOKS)
    asked: list[str] = []
    page.on("request", lambda r: None if allowed and r.url.startswith(allowed) else asked.append(r.url))
    page.on("dialog", lambda dialog: asked.append(dialog.message) or dialog.dismiss())
    page.asked = asked  # type: ignore[attr-defined]
    yield page
    context.close()


def test_the_hooks_notice_what_they_are_there_for(page: Page) -> None:
    page.evaluate(DRAW, ['<img src=x onerror="alert(1)"><div style="position:fixed">a</div>'])
    page.wait_for_function("window.ran.includes('alert')")
    found = page.evaluate(DRAW, ['<div style="position:fixed"><img></div><form>a</form></div><b>'])[0]
    assert "fixed" in found["bad"]
    assert not set(found["names"]) <= ELEMENTS
    page.wait_for_timeout(100)
    page.evaluate("window.ran = []")
    page.asked.clear()  # type: ignore[attr-defined]


def test_hostile_and_innocent_texts_in_many_scripts(page: Page) -> None:
    ours = page.url != "about:blank"  # each text takes five times as long there
    draw(page, hostile(1100 if ours else 3000))  # every vector, every place for one, every address
    draw(page, innocent(100 if ours else 1200))


def draw(page: Page, texts: list[str]) -> None:
    for begin in range(0, len(texts), BATCH):
        batch = texts[begin : begin + BATCH]
        for text, found in zip(batch, page.evaluate(DRAW, [render(text) for text in batch]), strict=True):
            assert not found["bad"], text
            assert set(found["names"]) <= ELEMENTS, text
            assert set(found["attributes"]) <= ATTRIBUTES, text
            assert all(re.match(r"https?://|mailto:", link) for link in found["links"]), text
            missing = first_missing(letters(unlisted(text)), letters(found["words"]))
            assert missing is None, f"lost at {missing!r}: {text!r} became {found['words']!r}"
    page.wait_for_timeout(200)
    assert page.evaluate("window.ran") == []
    assert page.asked == []  # type: ignore[attr-defined]


def unlisted(text: str) -> str:
    """The text without what is neither prose nor code: the numbers of list items, which the browser writes, and the
    name by which a link calls its address."""
    named = text.replace("[a][b]", "[a]") if "[b]:" in text else text
    return re.sub(r"(?m)^((?:[\s>*+-]|\[[ xX]\]\s)*)(?:\d{1,9}[.)](?=\s|$)[\s>*+-]*)+", r"\1", named)


def letters(text: str) -> str:
    """What a reader would miss: letters and digits, in order, whatever escapes and encodings they are written in."""
    plain = unquote(html.unescape(html.unescape(unquote(text))))
    return "".join(c for c in unicodedata.normalize("NFC", plain).casefold() if c.isalnum())


def first_missing(wanted: str, there: str) -> str | None:
    """The first letters of `wanted` that do not follow, in `there`, those before."""
    rest = iter(there)
    for place, letter in enumerate(wanted):
        if letter not in rest:
            return wanted[place : place + 20]
    return None


ATTACK = (
    "${alert(1)} {{alert(1)}} {alert(1)} <%= alert(1) %> `${1+1}` @children {@html 'x'}\n\n"
    "![x](http://example.invalid/x.png) <img src='http://example.invalid/y.png' onerror=alert(1)> "
    "<button data-act='hc_delete' data-id='1'>press</button>\n\n<style>body{display:none}</style>\n\n"
    '<span class="hc-run" data-said="me" data-run="0" data-act="hc_origin">x</span> [a](b "data-said=x")'
)


EXACT = 'a\tb  \n\n  c\u00a0d\u200be\ufeff \U0001f600 e\u0301 <b> &amp; "q" \\\\ $x$\r\nCRLF\rCR\n\u2028\x0c\x7f \n\n'
CODE = "\n\tif a < b && c:  \n\n    x = '\u00a0\u200b\U0001f600&lt;'  # e\u0301\n\n"


def test_a_reply_and_a_question_on_the_page_stay_text_and_are_copied_byte_for_byte(
    chat: Chat, service: FakeService
) -> None:
    """They press nothing, fetch nothing, are no template of the page's framework and no run of words."""
    service.script.reply = ATTACK
    chat.page.evaluate(HOOKS)
    asked = "<img src=x onerror=alert(1)> ${alert(1)} {{alert(1)}}"
    chat.ask(asked)
    first = ATTACK.partition("\n")[0].replace("`", "")
    assert chat.words.last.inner_text().startswith(first)
    assert chat.questions.inner_text() == asked
    inside = "img, style, [data-said], .hc-run, button:not([data-act=hc_copy_code])"
    expect(chat.words.last.locator(inside)).to_have_count(0)
    assert chat.page.evaluate("window.ran") == []
    assert chat.foreign == []
    policy = chat.page.request.get(chat.address).headers["content-security-policy"]
    assert policy.startswith("default-src 'self'")
    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    service.script.reply = EXACT
    chat.ask("Copy?")
    chat.replies.last.get_by_role("button", name="Copy", exact=True).click()
    expect(chat.replies.last.get_by_text("Copied")).to_be_visible()
    assert chat.page.evaluate("navigator.clipboard.readText()") == EXACT
    inside = "".join(f"  {line}" for line in CODE.splitlines(True))
    service.script.reply = f"Text\n\n- item\n\n  ```python\n{inside}  ```\n"
    chat.ask("Copy?")
    chat.words.last.locator(".hc-copy-code").click()
    expect(chat.words.last.get_by_text("Copied")).to_be_visible()
    assert chat.page.evaluate("navigator.clipboard.readText()") == CODE
