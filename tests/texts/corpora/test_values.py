"""What of a JSON value is text."""

from __future__ import annotations

from typing import Any

import pytest

from hierchat.texts.text_files import texts_of

LONG = "a string of forty characters and some more"


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("bare", ["bare"]),
        ({"text": "a", "id": "x" * 90}, ["a"]),
        ({"prompt": "q", "response": "r"}, ["r"]),
        ({"instruction": "q", "input": "", "output": "r"}, ["r"]),
        ({"turns": ["one", "two"]}, ["one", "two"]),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}]}, ["r"]),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "r"}]}, ["r"]),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "user", "content": "p"}]}, ["q", "p"]),
        ([{"role": "user", "content": "q"}, {"role": "Assistant", "content": "r"}], ["r"]),
        ({"messages": [{"role": "assistant", "content": None}]}, []),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": [{"type": "text", "text": "r"}, {"type": "image", "url": LONG}],
                    }
                ]
            },
            ["r"],
        ),
        (
            {
                "title": "talk",
                "mapping": {
                    "0": {"message": None},
                    "1": {"message": {"author": {"role": "user"}, "content": {"parts": ["q"]}}},
                    "2": {
                        "message": {
                            "author": {"role": "assistant"},
                            "content": {"parts": ["r", {"image": 1}]},
                        }
                    },
                },
            },
            ["r"],
        ),
        ({"chat_messages": [{"sender": "human", "text": "q"}, {"sender": "assistant", "text": "r"}]}, ["r"]),
        ({"deep": {"er": [{"note": LONG}, "short"]}, "n": 1}, [LONG]),
        ({"data": [{"reply": "r"}]}, ["r"]),
        (7, []),
    ],
)
def test_texts_of_a_value(value: Any, texts: list[str]) -> None:
    assert list(texts_of(value)) == texts
