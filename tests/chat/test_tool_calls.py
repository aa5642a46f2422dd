"""Calls of tools in a text, however it comes in pieces."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.chat.tool_calls import CallReader, HoldBack

CALL = (
    '<tool_call>\n{"name": "add", "arguments": {"a": [1, {"b": "}\\"{"}], "c": "<tool_call>"}}\n</tool_call>'
)
GIVEN = ("add", {"a": [1, {"b": '}"{'}], "c": "<tool_call>"})
BARE = '{"name": "add", "arguments": {"a": 1}}'
ONE = ("add", {"a": 1})


def read(text: str, cuts: list[int], name: str) -> tuple[str, list[tuple[str, str]]]:
    """What is said beside the calls; the calls' names and arguments."""
    reader, said, calls = CallReader([name] if name else []), "", []
    ends = [*sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    deltas = [delta for end in ends for delta in reader.read(text[:end], done=False)]
    for delta in [*deltas, *reader.read(text, done=True)]:
        said += delta.get("content", "")
        for call in delta.get("tool_calls", []):
            assert call["index"] == len(calls)
            calls.append((call["function"]["name"], call["function"]["arguments"]))
    return said, calls


@pytest.mark.parametrize(
    ("text", "name", "said", "calls"),
    [
        (f"First{CALL}\n{CALL}", "", "First", [GIVEN] * 2),
        ('<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', "", "", [ONE]),
        *(
            (text, "add", "", [ONE])
            for text in (BARE, f"```json\n{BARE}\n```", f"\n{BARE}\n", f"```\n{BARE}```")
        ),
        *(
            (text, name, text, [])
            for name, texts in {
                "add": (
                    "no call", "<tool", "<tool_call>no JSON</tool_call> and on", '<tool_call>{"name": 3}</tool_call>',
                    "<tool_call>", "<tool_call>[1]</tool_call>", "a < b", "",
                ),
                "other": (
                    BARE, '{"name": "Ann", "age": 3}', "```python\nprint()\n```", '{"names": []}', "{}", '{"name": "',
                    "```json\n[1]\n```",
                ),
            }.items()
            for text in texts
        ),
    ],
)  # fmt: skip
@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=30))
def test_calls_are_found_and_all_else_is_text(
    text: str, name: str, said: str, calls: list[Any], cuts: list[int]
) -> None:
    found, called = read(text, cuts, name)
    assert found.strip() == said.strip()
    assert [(name, json.loads(given)) for name, given in called] == calls


@pytest.mark.parametrize("text", [CALL[:50], BARE[:-4]])
def test_a_call_that_was_cut_is_text(text: str) -> None:
    assert read(text, [20, 30], "add") == (text, [])


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
