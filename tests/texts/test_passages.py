"""Passages: cut by headings and paragraphs, none longer than they may be, nothing of the text lost; and which fit."""

from hypothesis import given
from hypothesis import strategies as st

from hierchat.store.records import Passage
from hierchat.texts.passages import LONGEST, MOST, cut, fitting, resting

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


HOUSE = {
    4: "The guest flat in building C costs 45 euros a night. It is booked through the board, three months ahead.",
    5: "Dogs need the written permission of the board. Dogs are kept on a lead in the courtyard.",
    6: "\u6bcf\u4e2a\u6708\u7684\u7b2c\u4e00\u4e2a\u661f\u671f\u4e8c\u5f00\u4f1a\u3002",
}


def rests(reply: str) -> list[tuple[str, int]]:
    """The sentences that rest on a passage, each from the end of the one before on."""
    found = resting(reply, HOUSE)
    begins = [0, *(end for end, _number in found)]
    return [(reply[begin:end].strip(), number) for begin, (end, number) in zip(begins, found, strict=False)]


def test_a_sentence_rests_on_the_passage_that_has_most_of_its_words() -> None:
    guest, dogs = (
        "A night in the **guest flat** costs 45 euros.",
        "You need the board's written permission for a dog.",
    )
    assert rests(f"{guest} {dogs}") == [(guest, 4), (dogs, 5)]
    assert rests(f"- {guest}\n- {dogs}\n") == [(f"- {guest}", 4), (f"- {dogs}", 5)]
    assert (
        rests("\u6bcf\u4e2a\u6708\u7b2c\u4e00\u4e2a\u661f\u671f\u4e8c\u5f00\u4f1a\u3002\u597d\u7684\u3002")[
            0
        ][1]
        == 6
    )
    assert [number for _words, number in rests("Ask Mrs. Li: dogs are kept on a lead.")] == [5]


def test_what_rests_on_nothing_or_has_a_number_gets_none() -> None:
    assert rests("I hope that helps. Ants are small insects that live in colonies. Yes.") == []
    assert rests("The board. Night!") == []  # too few words
    assert rests("A night in the guest flat costs 45 euros [4].") == []
    assert rests("A night in the guest flat costs 45 euros. [4] Dogs are kept on a lead [5, 4].") == []
    words = "The guest flat costs 45 euros"
    assert rests(f"# {words}\n\n```\n{words}.\n```\n| {words} |\n") == []
    assert resting("Dogs are kept on a lead.", {}) == []


@given(st.text(alphabet="ab.!? \n`[]1|#*", max_size=80))
def test_sentences_end_in_order_inside_of_the_reply(reply: str) -> None:
    ends = [end for end, _number in resting(reply, {1: "a b ab ba aa bb"})]
    assert ends == sorted(set(ends))
    assert all(0 < end <= len(reply) for end in ends)
