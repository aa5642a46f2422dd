"""A reply's Markdown as HTML: what it becomes, never becomes, that nothing is lost, and where its words came from."""

import html
import logging
import re
from collections.abc import Sequence
from itertools import accumulate, count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.page import templates
from hierchat.page.markdown import drawing
from hierchat.page.markdown.drawing import GrowingMarkdown, in_pieces, render, render_marked
from tests.page.hostile import hostile, innocent


def bare(text: str) -> str:
    """The HTML without directions, for tests of other things."""
    return re.sub(r' dir="\w+"', "", render(text)).strip()


def code_of(drawn: str) -> str:
    found = re.search(r'<pre tabindex="0"><code>(.*?)</code></pre>', drawn, re.S)
    assert found
    return html.unescape(re.sub(r"</?span[^>]*>", "", found[1]))


def words(drawn: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", drawn))


def test_links_leave_without_a_trace_and_images_are_links() -> None:
    drawn = bare('[a](http://b/?c "t") ![x](http://evil/?q) [![y](http://z)](http://w)')
    kept = 'target="_blank" rel="noopener noreferrer nofollow"'
    assert f'<a href="http://b/?c" title="t" {kept}>a</a>' in drawn
    assert f'<a class="hc-image" href="http://evil/?q" {kept}>x</a>' in drawn
    assert f'<a href="http://w" {kept}><span class="hc-image" title="http://z">y</span></a>' in drawn
    assert "<img" not in drawn


def test_bare_and_named_addresses_are_linked_and_shown() -> None:
    drawn = bare("see https://a.example/b_c_d, www.e.example or mail f@g.example; xmpp:h@i.example.")
    for address in ("https://a.example/b_c_d", "http://www.e.example", "mailto:f@g.example"):
        assert f'href="{address}"' in drawn
    assert "xmpp:" in words(drawn)
    drawn = bare("[a] and [b][a]\n\n[a]: http://c 'd'\n[unused]: http://e\n[note]: Important")
    assert drawn.count('<a href="http://c" title="d"') == 3
    for part in ("[a]: http://c", "[unused]: http://e", "[note]: Important"):
        assert part in words(drawn)


def test_tables_tasks_and_struck_words() -> None:
    drawn = bare("|a|b|c|\n|:--|:-:|--:|\n|1|2|3|4|5|\n|6|")
    assert "style" not in drawn
    assert '<th>a</th>\n<th class="hc-centre">b</th>\n<th class="hc-right">c</th>' in drawn
    assert '<td class="hc-right">3 | 4 | 5</td>' in drawn
    drawn = bare("- [x] done\n- [ ] ~~open~~\n- [y] none\n\n1. [X]\ttab\n2. [ ]")
    assert (drawn.count('role="checkbox"'), drawn.count('aria-checked="true"')) == (3, 2)
    assert "<s>open</s>" in drawn
    assert "<input" not in drawn
    assert "[y] none" in words(drawn)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- م\n- b", ['<li dir="rtl">م', '<li dir="ltr">b']),
        ("> ש\n> > b", ['<blockquote dir="rtl">', '<p dir="auto">b']),
        ("- `x` م", ['<li dir="rtl">']),
        ("- 1\n  - م", ['<li dir="rtl">1', '<li dir="rtl">م']),
        ("|م|\n|-|\n|b|", ['<table dir="rtl">', '<td dir="auto">b']),
        ("# م", ['<h1 dir="auto">']),
        ("```\nم\n```", ['<div class="hc-code" dir="ltr">']),
        ("`م`", ['<code dir="ltr">']),
    ],
)
def test_each_block_runs_in_the_direction_of_its_words(text: str, expected: list[str]) -> None:
    drawn = render(text)
    for part in expected:
        assert part in drawn


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```html\n<b>![x](y)\n```\n<b>", "<b>![x](y)\n"),
        ("~~~\n```\n<b>\n~~~\n<b>", "```\n<b>\n"),
        ("1. a\n\n   ```c\n   x &lt; y\n   ```", "x &lt; y\n"),
        ("- a\n    ```py\n    x < 1\n    ```", "x < 1\n"),
        ("````\n```\n<b>\n````", "```\n<b>\n"),
        ("```py\n\ufeffx\u00a0=\u200b'\U0001f600'\x0c\n```", "\ufeffx\u00a0=\u200b'\U0001f600'\x0c\n"),
        ("```py\nunclosed = '", "unclosed = '"),
        ("    a < b\n\n    c", "a < b\n\nc\n"),
    ],
)
def test_code_keeps_every_character(text: str, code: str) -> None:
    assert code_of(render(text)) == code


@given(st.text(alphabet=st.characters(exclude_characters="`\r\0", exclude_categories=["Cs"])))
@settings(max_examples=30)
def test_code_in_any_language_keeps_every_character(code: str) -> None:
    for language in ("", "python", "c++", "html", "json", "bash", "diff", "sql", "tex", "no-such-language"):
        assert code_of(render(f"```{language}\n{code}\n```")) == code + "\n"


def test_code_has_a_head_with_its_language_and_the_button_that_no_text_can_ask_for() -> None:
    drawn = render("```python\nx = 1\n```\n\n    y\n\n``` <b>\"'&amp;\nz\n```")
    heads = re.findall(r'<div class="hc-code-head">(.*?)</div>', drawn)
    assert len(heads) == 3
    assert all('data-act="hc_copy_code"' in head and templates.KEY in head for head in heads)
    assert '<span class="hc-language">python</span>' in heads[0]
    assert '<span class="hc-language"></span>' in heads[1]
    assert "&lt;b&gt;" in heads[2]
    assert 'class="hc-keyword"' in render("```python\ndef f(): pass\n```")
    assert "hc-keyword" not in render("```\ndef f(): pass\n```")
    place = '<span class="hc-place"></span>'
    for text, times in ((place, 0), (f"`{place}`", 0), (f"```{place}\nx\n```", 1), (f"```\n{place}", 1)):
        assert render(text).count(templates.KEY) == times


@pytest.mark.parametrize(
    "text",
    [
        "$x^2$", "$$x^2$$", r"\(x^2\)", r"\[x^2\]", "$$\nx^2\n$$", "\\[\nx^2\n\\]", "- a\n  $$\n  x^2\n  $$",
        "- $x^2$", "> \\[\n> x^2\n> \\]", "a\n\\[\n- x^2\n\\]\nb", "| $x^2$ |\n|-|", "**$x^2$**", "$$x^2$$.",
        "the ($x^2$)", "$x^2$-axis", r"\begin{align} x^2 \end{align}", r"\begin{align*} x^2 & b \\ c \end{align*}",
        r"\begin{equation}\label{e} x^2 \end{equation}", r"$$\begin{split} x^2 \end{split}$$",
        r"$$x^2 \tag{1}$$", r"$$x^2 \\ y$$", r"$$x^2 \text{ if $y$ and a_b}$$", r"$$\begin{cases}x^2\\y\end{cases}$$",
    ],
)  # fmt: skip
def test_formulas_are_drawn(text: str) -> None:
    drawn = render(text)
    assert drawn.count("<math") == 1, drawn
    assert "<msup><mi>x</mi><mn>2</mn></msup>" in drawn
    assert "hc-tex" not in drawn
    assert " style=" not in drawn
    source = re.search(r'alttext="([^"]*)"', drawn)
    assert source
    assert all(line.strip() in text for line in html.unescape(source[1]).split("\n"))


@pytest.mark.parametrize(
    "text",
    [
        "it costs $5 and $10", "$5 to $10", "between $5-$10", "US$5 or CA$6", "echo $HOME and $PATH", "$ x $", "a$b$c",
        "$5 (or so, 4 dollars$)", "${a} and `${b}`", r"\$x\$", "$", "$$", "$$$$", r"\(", r"\[ \]", "`$x$`", "    $x$",
        r"\\(x\\)",        "$\n\nx$", r"\begin{align} x", "$$\nx\n\ny\n$$",
    ],
)  # fmt: skip
def test_money_and_marks_are_no_formulas(text: str) -> None:
    drawn = render(text)
    assert "<math" not in drawn
    assert "hc-tex" not in drawn


@pytest.mark.parametrize(
    "tex",
    [
        r"\foo{x}", r"\href{javascript:alert(1)}{x}", r"\url{http://x}", r"\require{x}", r"\style{color:red}{x}",
        r"\class{a}{b}", r"\includegraphics{http://x}", r"\unicode{x3c}", "{", "}", r"\frac", "a^b^c", r"\left(",
        "{" * 300 + "x" + "}" * 300, r"\sqrt" * 500 + "x", "x^{" * 200 + "}" * 200, r"\left(" * 300, "x" * 5000,
        r"\def\a{\a\a}\a", r"\newcommand{\a}{\a}\a", "\x01\x02", "x\ufffe", r"\begin{matrix}" * 60,
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_shown_as_its_source(tex: str) -> None:
    drawn = render(f"$${tex}$$")
    assert "<math" not in drawn
    assert tex in words(drawn)


FRAGMENTS = st.sampled_from(
    [
        "a", " ", "\n", "\n\n", "- ", "  ", "    ", "\t", "1. ", "> ", "```", "```py\n", "~~~", "`", "$", "$$", "\\[",
        "\\]", "\\(", "\\)", "\\begin{align}", "\\end{align}", "#", "# ", "===", "---", "*", "**", "_", "[a]", "[a]: ",
        "http://b", "|", "|-|-|\n", "<b>", "&amp;", "\\", "def f():\n", "م", "\r\n", "\r", "\0", "\ud800", "- [x] ",
        "x^2", "![", "](", ")", ":", "\u200b", "\f", "\u2028",
    ]
)  # fmt: skip
TEXTS = st.lists(FRAGMENTS, max_size=40).map("".join)


@given(TEXTS, st.data())
@settings(max_examples=250)
def test_a_growing_text_ends_as_the_whole(text: str, data: st.DataObject) -> None:
    words = GrowingMarkdown(clock=lambda: 0.0)
    for cut in sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12))):
        shown = words.render(text[:cut])
        if "<span class=" not in shown:  # but for colours
            assert shown == render(text[:cut])
    assert words.render(text, ended=True) == render(text)


def test_what_is_finished_is_not_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"Paragraph {n}.\n\n" for n in range(50))
    seen: list[int] = []
    real = drawing.markdown.parse
    monkeypatch.setattr(
        drawing.markdown, "parse", lambda text, env: seen.append(len(text)) or real(text, env)
    )
    words = GrowingMarkdown(clock=lambda: 0.0)
    for end in range(0, len(text), 7):
        words.render(text[:end])
    assert max(seen) < 60
    assert words.render(text, ended=True) == render(text)


def test_drawing_leaves_time_to_decoding() -> None:
    times = iter([0.0, 1.0, 4.9, 5.0, 5.5, 6.0, 6.1])
    words = GrowingMarkdown(clock=lambda: next(times))
    first = words.render("one")  # took 1 s, until 1.0
    assert words.render("one two") == first
    assert words.render("one two") == render("one two")
    assert words.render("one two three", ended=True) == render("one two three")
    words = GrowingMarkdown()
    words.render("one\n\ntwo\n\nthree\n")
    assert words.render("four") == render("four")  # another text begins anew


@pytest.mark.parametrize(
    "text",
    [
        "> " * 3000 + "end", "".join("  " * n + "- a\n" for n in range(300)) + "end", "- " * 2000 + "end", "[" * 30_000,
        "![" * 20_000, "*" * 50_000, "*a " * 10_000, "x" * 200_000, "`" * 30_000, "<http://" * 20_000, "\\[\n" * 2000,
        "$" * 20_000, "|" * 20_000, "[a](" * 10_000, "a\n" * 20_000, "\\" * 30_000, "http://a" * 3000, "~" * 20_000,
        "![a" * 900 + "](http://u)" * 900,
        "[a" * 900 + "](http://u)" * 900, "a@" * 10_000, "<" * 30_000, "{" * 20_000,
    ],
    ids=lambda text: f"{text[:8]!r}",
)  # fmt: skip
@pytest.mark.timeout(60)
def test_text_made_to_be_slow_loses_nothing(text: str) -> None:
    drawn = words(render(text))
    for letter in "xae<$":
        assert drawn.count(letter) >= text.count(letter)
    GrowingMarkdown().render(text)


def test_half_characters_and_nul_can_be_sent() -> None:
    for text in ["a\x00b", "a�b", "�", "`�`", "```�\n\x00\n```", "$�$", "[�](http://�)"]:
        drawn = render(text)
        drawn.encode()
        assert "\0" not in drawn
        assert "\N{REPLACEMENT CHARACTER}" in html.unescape(drawn)
        assert GrowingMarkdown().render(text, ended=True) == drawn


@pytest.mark.parametrize("broken", ["markdown.parse", "markdown.renderer.render", "sanitise"])
def test_a_reply_that_cannot_be_drawn_is_shown_as_text(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> str:
        raise RecursionError("SECRET words of the reply")

    monkeypatch.setattr(f"{drawing.__name__}.{broken}", fail)
    drawing.empty_caches()
    with caplog.at_level(logging.DEBUG):
        assert words(render("**SECRET** <b>\n\n- two")).split() == ["**SECRET**", "<b>", "-", "two"]
    assert "RecursionError" in caplog.text
    assert "SECRET" not in caplog.text
    drawing.empty_caches()


@given(st.text("a \n<&\N{GRINNING FACE}", max_size=60), st.integers(1, 20))
def test_pieces_of_long_text_are_the_text(text: str, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "_PIECE", size)
        pieces = re.sub(r"</?span[^>]*>", "\0", str(in_pieces(text)))
    parts = [html.unescape(part) for part in pieces.split("\0") if part]
    assert "".join(parts) == text
    assert len(text) <= 2 * size or max(map(len, parts)) <= size


_MARK = re.compile("\ue000(\\d+)\ue001|\ue002")


def marked(text: str, ends: Sequence[int]) -> str:
    return render_marked(text, ends, lambda run, drawn: f"\ue000{run}\ue001{drawn}\ue002")


def cut(text: str, size: int) -> list[int]:
    return [*range(size, len(text), size), len(text)]


def test_marks_change_nothing_that_is_drawn() -> None:
    for number, text in enumerate([*hostile(400), *innocent(100)]):
        bare = _MARK.sub("", marked(text, cut(text, 1 + number % 9)))
        assert html.unescape(bare) == html.unescape(render(text)), text


AROUND = [
    "{}", "**{}**", "_{}_", "~~{}~~", "`{}`", "[{}](http://a.example/some/long/way)", "![{}](http://a.example/i.png)",
    "***{}***", "{}\\*", "({})", '"{}"', "[**{}**](https://b.example 'title')",
]  # fmt: skip
BLOCKS = [
    "{}\n\n", "# {}\n\n", "> {}\n>\n", "- {}\n", "1. {}\n", "- [x] {}\n", "> - {}\n", "```python\n{}\n```\n\n",
    "    {}\n\n", "| {} | b |\n|:--|--:|\n| c | d |\n\n", "~~~\n{}\n~~~\n\n", "> ```js\n> {}\n> ```\n\n",
    "---\n\n{}\n\n", "$$\nx^2\n$$\n\n{}\n\n", "a $y_1$ {}\n\n",
]  # fmt: skip
docs = st.lists(
    st.tuples(st.sampled_from(BLOCKS), st.lists(st.sampled_from(AROUND), min_size=1, max_size=6)),
    min_size=1,
    max_size=8,
)


@given(docs)
def test_each_word_is_of_its_own_run(doc: list[tuple[str, list[str]]]) -> None:
    """Words that occur once, in all kinds of markup: each is a run of its own, and the markup between is, too."""
    number, text = count(), ""
    for block, around in doc:
        text += block.format(" ".join(each.format(f"w{next(number)}x") for each in around))
    pieces = re.split(r"(w\d+x)", text)
    drawn = marked(text, list(accumulate(map(len, pieces))))
    for run, piece in enumerate(pieces):
        if run % 2:
            assert f"\ue000{run}\ue001{piece}\ue002" in drawn, (piece, text)


def test_marks_in_words_code_and_formulas() -> None:
    drawn = marked("**abcd**ef", [3, 8, 10])
    assert _MARK.sub(lambda m: f"<{m[1]}>" if m[1] else "</>", drawn) == (
        '<p dir="auto"><strong><0>a</><1>bcd</></strong><2>ef</></p>\n'
    )
    drawn = marked("```python\ndef f():\n    return 1\n```\n", [13, 40])
    assert '<span class="hc-keyword">\ue0000\ue001def\ue002' in drawn
    assert "\ue001Copy" not in drawn
    drawn = marked("so $x^2$ is", [3, 8, 11])
    assert re.search("\ue0001\ue001<math.*</math>\ue002", drawn)
    assert "\ue0002\ue001 is\ue002" in drawn


def test_code_that_is_still_written_gets_its_colours_once_at_its_end() -> None:
    growing = GrowingMarkdown(lambda: 0.0)
    begun = growing.render("```python\ndef f():\n    return 1\n")
    assert '<span class="' not in begun.partition("<pre")[2]
    assert "return 1" in begun
    ended = growing.render("```python\ndef f():\n    return 1\n```\n")
    assert '<span class="' in ended.partition("<pre")[2]
