"""A reply's text in two."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hierchat.reasoning import join_reasoning, split_reasoning


def test_both() -> None:
    text = "<think>\nSo.\n</think>\n\nYes."
    parts = split_reasoning(text)
    assert (parts.thought, parts.answer, parts.thinking) == ("So.", "Yes.", False)
    assert text[parts.thought_at :].startswith("So.")
    assert text[parts.answer_at :] == "Yes."


def test_only_what_stands_first_is_a_thought() -> None:
    for text in ("Yes.", "", "Write <think> and </think>.", "a</think>b"):
        parts = split_reasoning(text)
        assert (parts.thought, parts.answer, parts.thinking, parts.answer_at) == ("", text, False, 0)


def test_a_thought_that_goes_on() -> None:
    parts = split_reasoning("<think>\nSo it")
    assert (parts.thought, parts.answer, parts.thinking) == ("So it", "", True)


def test_an_empty_thought_is_none() -> None:
    parts = split_reasoning("<think>\n\n</think>\n\nYes.")
    assert (parts.thought, parts.answer, parts.thinking) == ("", "Yes.", False)


pieces = st.text(st.sampled_from("ab <\n"), min_size=1)


@given(pieces, pieces)
def test_both_grow_at_their_end_alone(thought: str, answer: str) -> None:
    text = join_reasoning(thought, answer)
    before = split_reasoning("<think>")
    for end in range(len("<think>"), len(text) + 1):
        parts = split_reasoning(text[:end])
        if not parts.thinking or not text[:end].endswith(tuple("</think>"[:n] for n in range(1, 8))):
            assert parts.thought.startswith(before.thought)
            assert parts.answer.startswith(before.answer)
            before = parts
    assert (before.thought, before.answer) == (thought.strip(), answer.lstrip())


def test_without_a_thought_the_text_is_the_answer() -> None:
    assert join_reasoning("", "Yes.") == "Yes."
