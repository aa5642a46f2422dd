"""Passages: cut by headings and paragraphs, none longer than they may be, nothing of the text lost; and which fit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hierchat.store.records import Passage
from hierchat.texts.passages import LONGEST, MOST, cut, fitting

GUIDE = """Before all.

# Install
First.

Then.
## Linux
`apt`

```sh
# no heading

make
```
# Use ##
Go.
"""


def cuts(name: str, kind: str, *texts: str) -> list[tuple[str, str]]:
    return [(passage.place, passage.text) for passage in cut(name, kind, texts)]


def test_headings_begin_passages_and_name_their_place() -> None:
    assert cuts("g.md", ".md", GUIDE) == [
        ("L1", "Before all."),
        ("Install", "First.\n\nThen."),
        ("Install / Linux", "`apt`\n\n```sh\n# no heading\n\nmake\n```"),
        ("Use", "Go."),
    ]
    assert cuts("g.md", ".md", *GUIDE.splitlines(keepends=True)) == cuts("g.md", ".md", GUIDE)


def test_pages_and_lines() -> None:
    assert cuts("a.pdf", ".pdf", "One.\n\n\fTwo\nlines.\n\n\f\fFour.") == [
        ("p. 1", "One."),
        ("p. 2", "Two\nlines."),
        ("p. 4", "Four."),
    ]
    code = [f"def f{n}():\n    return {'x' * 300!r}\n" for n in range(4)]
    assert cuts("a.py", ".py", "\n".join(code)) == [
        ("L1", f"{code[0]}\n{code[1]}".rstrip()),
        ("L7", f"{code[2]}\n{code[3]}".rstrip()),
    ]
    assert cuts("a.py", ".py", "# no heading\n") == [("L1", "# no heading")]
    assert cuts("a.txt", ".txt", "", " \n\n") == []


def test_what_is_longer_is_cut_where_a_sentence_ends() -> None:
    sentence = "Word " * 100 + "end. "
    found = [text for _place, text in cuts("a.txt", ".txt", sentence * 5)]
    assert all(text.endswith("end.") and len(text) <= LONGEST for text in found)
    assert " ".join(found) == (sentence * 5).strip()


@given(st.text(st.sampled_from("a b.\n#`\f"), max_size=4_000), st.sampled_from([".md", ".txt", ".pdf"]))
def test_no_word_is_lost(text: str, kind: str) -> None:
    found = cuts("a", kind, text)
    assert all(0 < len(piece) <= LONGEST for _place, piece in found)
    if kind != ".md":  # there, headings stand in the places
        assert "".join("".join(piece for _place, piece in found).split()) == "".join(text.split())


def found(scores: list[float], length: int = 3) -> list[Passage]:
    return [Passage("a.md", f"p. {n}", "x" * length, n, score) for n, score in enumerate(scores, 1)]


def test_what_fits_is_numbered_from_the_best() -> None:
    chosen = fitting(found([9, 8, 2.8, 2.6]), 5, 100, lambda text: 10)
    assert [(one.number, one.passage_id, one.name, one.size) for one in chosen] == [
        (5, 1, "a.md, p. 1", 10),
        (6, 2, "a.md, p. 2", 10),
        (7, 3, "a.md, p. 3", 10),
    ]
    assert len(fitting(found([9] * 40), 1, 1_000, lambda text: 10)) == MOST
    assert [one.passage_id for one in fitting(found([9] * 40), 1, 25, lambda text: 10)] == [1, 2]
    assert fitting([], 1, 100, len) == fitting(found([9]), 1, -5, len) == []
    longest_first = [Passage("a", "L1", "x" * 90, 1, 9.0), Passage("a", "L9", "y", 2, 8.0)]
    assert [one.passage_id for one in fitting(longest_first, 1, 40, len)] == [2]
