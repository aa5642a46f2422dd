"""Sentences for users can be translated: each is written down whole, where a command finds it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po
from jinja2 import Environment, nodes

from benchmarks.makers.catalogues import formed_below, template, text_of
from hierchat import language
from hierchat.config import shipped
from hierchat.page.templates import TEMPLATES, said, script
from tests.testing.parsing import parse

ROOT = Path(language.__file__).parent
FUNCTIONS = {"_": 1, "later": 1, "plural": 2}
"""Name -> how many of its arguments are sentences."""
SPEAKING = [
    (path, text)
    for path in sorted(ROOT.rglob("*.py"))
    if "_(" in (text := path.read_text(encoding="utf-8")) and "from hierchat.language import" in text
]
"""Files that say something, with their text."""


def _wrapped(tree: ast.AST) -> Iterator[tuple[ast.Call, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
            for given in node.args[: FUNCTIONS[node.func.id]]:
                yield node, given


def test_what_is_wrapped_is_whole() -> None:
    wrong = []
    for path, text in SPEAKING:
        for node, given in _wrapped(parse(text)):
            late = isinstance(node.func, ast.Name) and node.func.id == "later"
            joined = isinstance(given, ast.BinOp) or (isinstance(given, ast.JoinedStr) and not late)
            formed = isinstance(given, ast.Call) and ast.unparse(given.func).endswith(".format")
            nameless = isinstance(given, ast.Constant) and "{}" in str(given.value)
            if joined or formed or nameless:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not wrong, "name the values in the sentence, and put them in with format afterwards"


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.html")), ids=lambda path: path.name)
def test_what_is_wrapped_in_a_template_is_whole_and_inside_of_a_macro(path: Path) -> None:
    """What stands outside of macros is drawn once, in the language of whoever comes first."""
    tree = Environment().parse(path.read_text(encoding="utf-8"))
    assert all(
        isinstance(node, nodes.Macro | nodes.FromImport | nodes.Assign | nodes.Output) for node in tree.body
    )
    inside = {id(call) for macro in tree.find_all(nodes.Macro) for call in macro.find_all(nodes.Call)}
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name in FUNCTIONS:
            where = f"{path.name}:{call.lineno}"
            assert id(call) in inside, where
            for given in call.args[: FUNCTIONS[call.node.name]]:
                assert not isinstance(given, nodes.Concat | nodes.Add | nodes.Call), where
                assert not isinstance(given, nodes.Const) or "{}" not in given.value, where


@pytest.fixture(scope="module")
def sentences() -> Catalog:
    return template()


def test_the_template_holds_every_sentence(sentences: Catalog) -> None:
    there = (shipped("assets") / "locale" / "hierchat.pot").read_bytes()
    assert there == text_of(sentences), "run `python -m benchmarks.makers.catalogues`"


def test_scripts_get_each_sentence_that_is_extracted_from_them(sentences: Catalog) -> None:
    extracted = {m.id for m in sentences if any(name.startswith("page/") for name, _line in m.locations)}
    assert extracted == set(said(script()))


_VALUE = re.compile(r"\{[^}]*\}")
_TAG = re.compile(r"<[^>]*>")


def test_what_is_translated_fits_where_it_is_put() -> None:
    """It goes into attributes and scripts as it is."""
    wrong = []
    for path in (shipped("assets") / "locale").glob("*/LC_MESSAGES/*.po"):
        with path.open("rb") as file:
            catalogue = read_po(file)
        for message in catalogue:
            ids = message.id if isinstance(message.id, tuple) else (message.id,)
            texts = message.string if isinstance(message.string, tuple) else (message.string,)
            for text in texts if message.id else ():
                same = any(sorted(_VALUE.findall(i)) == sorted(_VALUE.findall(text)) for i in ids)
                tags = any(_TAG.findall(i) == _TAG.findall(text) for i in ids)
                if not (text and same and tags) or any(c in _TAG.sub("", text) for c in '"\\<>&'):
                    wrong.append(f"{path.parent.parent.name}: {text or ids[0]}")
    assert not wrong, "complete it; the same values and tags; no straight quotation marks, backslashes or &"


def test_what_errors_say_is_extracted_from_where_they_are_raised() -> None:
    found = set(formed_below())
    there = "There is no account {name}. `hierchat users list` names those that there are."
    for path, sentence in (
        ("store/chats", "This chat was deleted for good."),
        ("store/users", there),
        ("models/load/check", "Needs {needed} of {total} available."),
    ):
        assert (f"hierchat/{path}.py", sentence) in found
    assert not any(name.startswith("hierchat/api/") for name, _sentence in found)
