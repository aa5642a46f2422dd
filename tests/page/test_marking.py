"""Where the words of drawn Markdown came from: the drawing itself never changes, and each word is of its own run."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.page.markdown import render, render_marked
from tests.page.hostile import hostile, innocent

PATIENT = settings(deadline=None, max_examples=150)
_MARK = re.compile("\ue000(\\d+)\ue001|\ue002")


def marked(text: str, ends: Sequence[int]) -> str:
    return render_marked(text, ends, lambda run, drawn: f"\ue000{run}\ue001{drawn}\ue002")


def in_pieces(text: str, size: int) -> list[int]:
    return [*range(size, len(text), size), len(text)]


@pytest.mark.parametrize("texts", [hostile(1500), innocent(300)], ids=["hostile", "innocent"])
def test_marks_change_nothing_that_is_drawn(texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        bare = _MARK.sub("", marked(text, in_pieces(text, 1 + number % 9)))
        assert html.unescape(bare) == html.unescape(render(text)), text


@PATIENT
@given(
    st.lists(
        st.text("ab 1*_`~[](){}<>!#-+=|\\/$&;:.\"'\n\t\r\u00a0\ufffdé漢", max_size=12)
        | st.sampled_from(["```\n", "|-|-|\n", "- [x] ", "> ", "**", "](http://a.example/b)", "$x^2$", "\n\n"]),
        max_size=14,
    ),
    st.integers(1, 7),
)  # fmt: skip
def test_marks_change_nothing_of_any_markdown(parts: list[str], size: int) -> None:
    text = "".join(parts)
    if not text:
        return
    bare = _MARK.sub("", marked(text, in_pieces(text, size)))
    assert html.unescape(bare) == html.unescape(render(text))


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


@PATIENT
@given(docs)
def test_each_word_is_of_its_own_run(doc: list[tuple[str, list[str]]]) -> None:
    """Words that occur once, in all kinds of markup: each is a run of its own, and the markup between is, too."""
    number = 0
    text = ""
    for block, around in doc:
        words = []
        for each in around:
            words.append(each.format(f"w{number}x"))
            number += 1
        text += block.format(" ".join(words))
    pieces = re.split(r"(w\d+x)", text)
    drawn = marked(text, list(accumulate(map(len, pieces))))
    for number_of, piece in enumerate(pieces):
        if number_of % 2:
            assert f"\ue000{number_of}\ue001{piece}\ue002" in drawn, (piece, text)


def test_a_word_may_be_of_several_runs() -> None:
    drawn = marked("**abcd**ef", [3, 8, 10])
    assert _MARK.sub(lambda m: f"<{m[1]}>" if m[1] else "</>", drawn) == (
        '<p dir="auto"><strong><0>a</><1>bcd</></strong><2>ef</></p>\n'
    )


def test_code_keeps_its_colours_within_the_marks() -> None:
    drawn = marked("```python\ndef f():\n    return 1\n```\n", [13, 40])
    assert '<span class="hc-keyword">\ue0000\ue001def\ue002' in drawn
    assert "Copy" in drawn
    assert "\ue001Copy" not in drawn


def test_a_formula_is_one_piece() -> None:
    drawn = marked("so $x^2$ is", [3, 8, 11])
    assert re.search("\ue0001\ue001<math.*</math>\ue002", drawn)
    assert "\ue0002\ue001 is\ue002" in drawn
