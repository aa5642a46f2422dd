"""Calls of tools in a text, however it comes in pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.api.tool_calls import ArgumentsPiece, CallReader, CallStart, HoldBack, TextPiece

CALL = (
    '<tool_call>\n{"name": "add", "arguments": {"a": [1, {"b": "}\\"{"}], "c": "<tool_call>"}}\n</tool_call>'
)
GIVEN = {"a": [1, {"b": '}"{'}], "c": "<tool_call>"}
BARE = '{"name": "add", "arguments": {"a": 1}}'


def read(text: str, cuts: list[int], names: tuple[str, ...] = ()) -> tuple[str, list[tuple[str, str]]]:
    """What is said beside the calls; the calls' names and arguments."""
    reader, said, calls = CallReader(names), "", []
    for end in [*sorted(cut % (len(text) + 1) for cut in cuts), len(text)]:
        for piece in reader.read(text[:end], done=False):
            said, calls = _with(piece, said, calls)
    for piece in reader.read(text, done=True):
        said, calls = _with(piece, said, calls)
    return said, calls


def _with(piece: object, said: str, calls: list[tuple[str, str]]) -> tuple[str, list[tuple[str, str]]]:
    match piece:
        case TextPiece(text):
            said += text
        case CallStart(number, _, name):
            assert number == len(calls)
            calls.append((name, ""))
        case ArgumentsPiece(number, json):
            calls[number] = (calls[number][0], calls[number][1] + json)
    return said, calls


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 10_000), max_size=30))
def test_pieces_make_the_same(cuts: list[int]) -> None:
    said, calls = read(f"First{CALL}\n{CALL}", cuts)
    assert said.strip() == "First"
    assert [(name, json.loads(given)) for name, given in calls] == [("add", GIVEN)] * 2


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 10_000), max_size=30))
def test_fields_in_another_order(cuts: list[int]) -> None:
    said, calls = read('<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', cuts)
    assert (said, [(name, json.loads(given)) for name, given in calls]) == ("", [("add", {"a": 1})])


@pytest.mark.parametrize(
    "text",
    [
        "no call", "<tool", "<tool_call>no JSON</tool_call> and on",
        '<tool_call>{"name": 3}</tool_call>', "<tool_call>",
        "<tool_call>[1]</tool_call>", "a < b", "",
    ],
)  # fmt: skip
@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=10))
def test_what_is_no_call_stays_text(text: str, cuts: list[int]) -> None:
    assert read(text, cuts, ("add",)) == (text, [])


@pytest.mark.parametrize("text", [BARE, f"```json\n{BARE}\n```", f"\n{BARE}\n", f"```\n{BARE}```"])
@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=30))
def test_a_reply_that_is_nothing_but_a_call(text: str, cuts: list[int]) -> None:
    assert read(text, cuts, ("add",)) == ("", [("add", '{"a": 1}')])


@pytest.mark.parametrize(
    "text",
    [
        BARE,
        '{"name": "Ann", "age": 3}',
        "```python\nprint()\n```",
        '{"names": []}',
        "{}",
        '{"name": "',
        "```json\n[1]\n```",
    ],
)
@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=30))
def test_other_json_is_text(text: str, cuts: list[int]) -> None:
    assert read(text, cuts, ("other",)) == (text, [])


def test_a_call_that_was_cut() -> None:
    text = CALL[:50]
    assert read(text, [20, 30])[1] == [("add", text.partition('"arguments": ')[2])]


@settings(max_examples=20, deadline=None)
@given(st.text("abSTOP", max_size=40), st.lists(st.integers(1, 5), max_size=20))
def test_what_may_become_a_mark_is_held_back(text: str, steps: list[int]) -> None:
    whole = text.partition("STOP")[0]
    growing, sent, end = HoldBack(["STOP"]), "", 0
    for step in steps:
        end = min(end + step, len(text))
        shown = text[:end].partition("STOP")[0]
        sent += growing.more(shown, done=False)
        assert whole.startswith(sent)
    assert sent + growing.more(whole, done=True) == whole
