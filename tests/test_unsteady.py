"""Tests marked `unsteady` are few, say what was seen, and guard none of the promises."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.testing.parsing import parse

TESTS = Path(__file__).parent
MOST = 5
STEADY = ("isolation", "access", "checks", "sampl", "delet", "forget", "verif", "exact")
"""Parts of the paths of tests that must never be unsteady."""


def unsteady() -> list[tuple[str, ast.Call]]:
    """Each use of the mark, with the file that it stands in."""
    return [
        (str(path.relative_to(TESTS)), node)
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.unsteady"
    ]


def test_few_tests_are_unsteady_and_each_says_what_was_seen() -> None:
    found = unsteady()
    assert len(found) <= MOST
    for path, mark in found:
        assert [word.arg for word in mark.keywords] == ["seen"], path
        assert not any(part in path for part in STEADY), path
