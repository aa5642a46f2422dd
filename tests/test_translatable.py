"""Sentences for users can be translated: each is written down whole, where a command finds it."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator
from pathlib import Path

from hierchat import language

ROOT = Path(language.__file__).parent
FUNCTIONS = {"_": 1, "later": 1, "plural": 2}
"""Name -> how many of its arguments are sentences."""
FILES = [
    path for path in sorted(ROOT.rglob("*.py")) if "import" in (text := path.read_text()) and "_(" in text
]


def _wrapped(tree: ast.AST) -> Iterator[tuple[ast.Call, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
            for given in node.args[: FUNCTIONS[node.func.id]]:
                yield node, given


def _speaks(tree: ast.AST) -> bool:
    return any(isinstance(n, ast.ImportFrom) and n.module == "hierchat.language" for n in ast.walk(tree))


def test_what_is_wrapped_is_whole() -> None:
    wrong = []
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if not _speaks(tree):
            continue
        for node, given in _wrapped(tree):
            if isinstance(given, ast.JoinedStr | ast.BinOp) or (
                isinstance(given, ast.Call)
                and isinstance(given.func, ast.Attribute)
                and given.func.attr == "format"
            ):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
            elif isinstance(given, ast.Constant) and "{}" in str(given.value):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: a value without a name")
    assert not wrong, "name the values in the sentence, and put them in with format afterwards"


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for inner in table.get_children():
        yield inner
        yield from _scopes(inner)


def test_no_function_takes_the_name_away() -> None:
    wrong = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        for scope in _scopes(symtable.symtable(text, path.name, "exec")) if _speaks(ast.parse(text)) else ():
            if (
                "_" in scope.get_identifiers()
                and (name := scope.lookup("_")).is_local()
                and name.is_referenced()
            ):
                wrong.append(f"{path.relative_to(ROOT)}:{scope.get_lineno()}")
    assert not wrong, "`_` is a name of the function here: call what is not needed by another name"
