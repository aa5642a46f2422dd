"""Replies in Markdown on the real page: how they look, and what is copied from them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from hierchat.store import NewTurn, TurnFigures
from tests.page.colours import contrast
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser

RICH = r"""## All that a reply can hold

Words in **bold**, *italics*, ~~struck~~ and `code`, https://example.org/a_b, $e^{i\pi}+1=0$, $5 and $10, <b>HTML</b>.

1. One
   - Two
     - Three
       - Four

   ```python
   def fib(n: int) -> int:  # a comment, and a line that is longer than any window is wide so that it has to be scrolled
       return n if n < 2 else fib(n - 1) + fib(n - 2)
   ```

- [x] done
- [ ] to do

| Name | Count | Price |
|:-----|:-----:|------:|
| Apple | 3 | 1.20 |

> A quote
> - with a list

$$\sum_{k=1}^{n} k = \frac{n(n+1)}{2}, \quad \begin{pmatrix} a & b \\ c & d \end{pmatrix}, \quad \sqrt{x^2+y^2}$$

هذه فقرة مع كلمة English في الوسط.

- عنصر
- שלום

> اقتباس

![A cat](https://example.org/cat.png)
"""


@pytest.fixture
def wide(chromium: Browser, server: tuple[FakeService, str], service: FakeService) -> Iterator[Chat]:
    """A visitor who may read the clipboard."""
    service.script.seconds = 0.2
    with driving.visiting(chromium, server[1]) as visitor:
        visitor.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        visitor.open()
        yield visitor
        assert visitor.foreign == []


def clipboard(page: Page) -> str:
    return str(page.evaluate("navigator.clipboard.readText()"))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_rich_reply_keeps_its_measures(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService, width: int, dark: bool
) -> None:
    service.script.reply, service.script.seconds = RICH, 0.2
    with driving.visiting(chromium, server[1], width=width, height=1600, dark=dark) as chat:
        chat.open()
        chat.ask("Show me.")
        text = chat.words.last
        chat.page.mouse.move(0, 0)
        chat.shot(f"markdown-{width}-{'dark' if dark else 'light'}")

        def of(selector: str, value: str) -> list[str]:
            script = f"(nodes) => nodes.map((node) => {{ const s = getComputedStyle(node); return String({value}); }})"
            found: list[str] = text.locator(selector).evaluate_all(script)
            assert found, selector
            return found

        assert set(of("li", "s.fontSize")) == {"16px"}
        assert of("td", "s.textAlign") == ["start", "center", "right"]
        assert of("[aria-checked]", "node.getAttribute('aria-checked')") == ["true", "false"]
        assert of("li:last-child", "s.direction")[-1] == "rtl"
        assert of("blockquote", "s.direction") == ["ltr", "rtl"]
        assert of("code", "s.direction") == ["ltr", "ltr"]
        # A right-to-left item's marker and a quote's line are on the right.
        assert of("li[dir=rtl]", "s.marginRight")[0] == "28px"
        assert of("blockquote[dir=rtl]", "s.borderRightWidth") == ["3px"]
        assert of("math", "node.getBoundingClientRect().height > 10") == ["true", "true"]

        # Nothing covers code: the button stands above it.
        pre = text.locator("pre").bounding_box()
        copy = text.locator(".hc-copy-code").bounding_box()
        assert pre
        assert copy
        assert copy["y"] + copy["height"] <= pre["y"] + 1
        # Nothing leaves the message's box, and the page does not scroll sideways.
        assert chat.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        box = text.bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert of(":scope", "node.scrollWidth <= node.clientWidth + 1") == ["true"]

        soft = hexadecimal(of(".hc-code", "s.backgroundColor")[0])
        for colour in {*of("pre code, pre span", "s.color"), *of(".hc-language, .hc-copy-code", "s.color")}:
            assert contrast(hexadecimal(colour), soft) >= 4.5, colour
        assert chat.foreign == []


def hexadecimal(colour: str) -> str:
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return f"#{red:02x}{green:02x}{blue:02x}"


EXACT = 'a\tb  \n\n  c\u00a0d\u200be\ufeff \U0001f600 e\u0301 <b> &amp; "q" \\\\ $x$\r\nCRLF\rCR\n\u2028\x0c\x7f \n\n'


def test_copy_gives_the_reply_byte_for_byte(wide: Chat, service: FakeService) -> None:
    service.script.reply = EXACT
    wide.ask("Copy?")
    wide.replies.last.get_by_role("button", name="Copy", exact=True).click()
    expect(wide.replies.last.get_by_text("Copied")).to_be_visible()
    assert clipboard(wide.page) == EXACT


def test_copy_gives_the_code_byte_for_byte(wide: Chat, service: FakeService) -> None:
    code = "\n\tif a < b && c:  \n\n    x = '\u00a0\u200b\U0001f600&lt;'  # e\u0301\n\n"
    service.script.reply = (
        f"Text\n\n- item\n\n  ```python\n{''.join(f'  {line}' for line in code.splitlines(True))}  ```\n"
    )
    wide.ask("Copy?")
    wide.words.last.locator(".hc-copy-code").click()
    expect(wide.words.last.get_by_text("Copied")).to_be_visible()
    assert clipboard(wide.page) == code


def test_what_is_selected_by_hand_is_sane(wide: Chat, service: FakeService) -> None:
    service.script.reply = (
        "One $x^2$ two.\n\n$$\n\\frac{a}{b}\n$$\n\n- [x] done\n\n```python\nx = 1\n```\n\nEnd."
    )
    wide.ask("Select?")

    def copied(script: str) -> str:
        wide.page.evaluate(
            "(script) => { const text = [...document.querySelectorAll('.hc-reply .hc-text')].at(-1);"
            "const range = document.createRange(); eval(script); const selection = getSelection();"
            "selection.removeAllRanges(); selection.addRange(range); }",
            script,
        )
        wide.page.keyboard.press("Control+C")
        return clipboard(wide.page)

    whole = copied("range.selectNodeContents(text)")
    lines = [line for line in whole.splitlines() if line.strip()]
    assert lines == ["One $x^2$ two.", "$$", "\\frac{a}{b}", "$$", "[x] done", "x = 1", "End."]
    assert copied("range.selectNodeContents(text.querySelector('math mi'))") == "$x^2$"
    assert copied("range.selectNodeContents(text.querySelector('pre code'))").rstrip("\n") == "x = 1"
    assert wide.page.locator(".hc-copied").count() == 0


def test_a_growing_reply_looks_like_the_finished_one(wide: Chat, service: FakeService) -> None:
    service.script.reply, service.script.seconds = RICH, 5
    wide.send("Grow.")
    expect(wide.page.locator("#hc-growing .hc-code .hc-keyword").first).to_be_visible(
        timeout=driving.PATIENCE_MS
    )
    expect(wide.page.locator("#hc-growing math").first).to_be_visible(timeout=driving.PATIENCE_MS)
    wide.idle()
    assert wide.words.last.locator("math").count() == 2


LONG = {
    "a line without blanks": "x" * 300_000,
    "a line of words": "word " * 60_000,
    "code": "```python\n" + "x" * 300_000 + "\n```",
    "a table": "| a | b |\n|---|---|\n| " + "cell " * 60_000 + "| b |\n",
    "many lines": "\n".join(f"line {number} of many" for number in range(20_000)),
}


LAID_OUT = """element => [...element.querySelectorAll('.hc-piece')].map(piece => {
    const within = piece.appendChild(document.createElement('i'));
    return within.checkVisibility({ contentVisibilityAuto: true });
})"""


@pytest.mark.browser
@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_of_long_text_only_what_is_on_the_screen_is_laid_out(
    chat: Chat, service: FakeService, text: str
) -> None:
    """In the user's message and in the reply. All of it is there, to be searched and copied."""
    user = service.store.users.ensure("local")
    conversation = service.store.chats.create(user, "Long")
    question = service.store.messages.add(user, conversation, None, "user", text)
    reply = service.store.replies.begin(user, conversation, question, NewTurn("fake", "fake", {}, 0, True))
    service.store.replies.finish(reply, text, "complete", TurnFigures(finish="end"))
    chat.open(f"?c={conversation}")
    for place in (".hc-user", ".hc-text"):
        shown = chat.page.locator(f"#hc-thread {place}")
        expect(shown).to_have_count(1)
        assert shown.evaluate("element => element.textContent").strip() == text.strip()
        laid_out = shown.evaluate(LAID_OUT)
        assert len(laid_out) > 30
        assert sum(laid_out) < 8
