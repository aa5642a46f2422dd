"""Count which small changes of the program the tests notice: `python -m tests.mutations --json FILE`.

The same line goes on where it was interrupted.

Each area names the code that guards a promise and the tests that should guard that code. A mutation changes one
expression: a comparison, a condition, a constant, a call that is left out, a condition of an SQL statement. Of all
possible ones the choice depends on a seed, the function and the text alone, so code that nobody touched gets the same
mutations in every revision. A mutation is run against the tests of its area that name its function, or functions that
use it, those that name little else first; in a fork of a process that has imported the large libraries.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LIBRARIES = ("numba", "torch", "transformers", "gradio", "sqlite_utils", "hypothesis", "openai", "pydantic")
MOST_TESTS = 40
"""Tests for one mutation."""
TEST_SECONDS = 90
"""After which a test counts as failed: the mutation made the program hang."""
RUN_SECONDS = 3000
SURVIVED = "survived"


@dataclass(frozen=True)
class Area:
    code: tuple[str, ...]
    tests: tuple[str, ...]
    only: str = ""
    """Of a function, by its own text; a regular expression."""


def _names(words: str) -> tuple[str, ...]:
    """The engine's tests whose names contain one of these words."""
    return tuple(f"tests/engine/test_*{word}*.py" for word in words.split())


STORE_TESTS = (
    "tests/store/*.py",
    "tests/isolation/*.py",
    "tests/chat/test_server_drafts*.py",
    "tests/runtime/test_history*.py",
)
AREAS = {
    "verify": Area(
        ("hierchat/engine/verif*.py", "hierchat/checks/exactness.py"),
        ("tests/checks/test_exactness*.py", *_names("contract engine rows")),
    ),
    "sampling": Area(("hierchat/engine/sampling/*.py",), _names("sampl grammar rows")),
    "deletion": Area(
        ("hierchat/store/*.py", "hierchat/runtime/history*.py"),
        STORE_TESTS,
        r"(?i)forget|delet|hidden|rewrite",
    ),
    "isolation": Area(("hierchat/store/*.py",), STORE_TESTS, r"user_id|owned_"),
    "access": Area(
        ("hierchat/access/*.py",),
        (
            "tests/access/*.py",
            "tests/api/test_door*.py",
            "tests/api/test_hostile*.py",
            "tests/isolation/*.py",
            "tests/page/test_accounts.py",
        ),
    ),
    "migrations": Area(("hierchat/store/migrations.py",), STORE_TESTS),
}


@dataclass(frozen=True)
class Mutation:
    path: str
    line: int
    where: str
    begin: int
    end: int
    old: str
    new: str

    def rank(self, area: str) -> bytes:
        """Where it comes in the choice of an area, whatever file or line it stands in."""
        text = f"1 {area} {self.where.split('.')[-1]} {self.old} {self.new}"
        return hashlib.sha256(text.encode()).digest()

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        start = max(0, alike(old, new) - 20)
        return f"{self.path}:{self.line} {self.where}: {old[start : start + 50]!r} -> {new[start : start + 50]!r}"


def alike(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    return len(os.path.commonprefix([one, other]))  # noqa: RUF071


COMPARISONS: dict[type, type] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
SQL = re.compile(r"\b(SELECT|UPDATE|INSERT|DELETE|WHERE|CREATE|AND) ")
SQL_CHANGES: tuple[tuple[re.Pattern[str], dict[str, str]], ...] = (
    (re.compile(r"(?<=[\w)] )(<=|>=|=|<|>)(?= ?[?:\w(])"), {"=": "!=", "<": ">=", ">": "<=", "<=": ">", ">=": "<"}),
    (re.compile(r"\b(IS NOT NULL|IS NULL|NOT IN|IN)\b(?=[\s()]|$)"), {"IS NULL": "IS NOT NULL", "IN": "NOT IN"}),
    (re.compile(r"\b(AND|OR|min|max|DESC)\b"), {"AND": "OR", "OR": "AND", "min": "max", "max": "min", "DESC": "ASC"}),
    (re.compile(r" (ON DELETE CASCADE|ON DELETE SET NULL|UNIQUE|COLLATE NOCASE)\b"), {}),
    (re.compile(r"(?<=DEFAULT )(\d+)"), {"0": "1", "1": "0"}),
)  # fmt: skip
OPPOSITES = {"IS NOT NULL": "IS NULL", "NOT IN": "IN"}


def mutations(path: str, source: str, only: str) -> Iterator[Mutation]:
    """All mutations of a file's functions and constants."""
    raw = source.encode()
    starts = [0]
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def visit(node: ast.AST, where: str, wanted: bool) -> Iterator[Mutation]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            where = f"{where}.{node.name}".lstrip(".")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign):
            wanted = wanted or bool(re.search(only, ast.get_source_segment(source, node) or ""))
        if isinstance(node, ast.Assign) and not where and isinstance(node.targets[0], ast.Name):
            where = node.targets[0].id
        if wanted:
            for changed in changes(node, source):
                begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
                end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
                old = raw[begin:end].decode()
                line = node.lineno + old[: alike(old, changed)].count("\n")  # type: ignore[attr-defined]
                yield Mutation(path, line, where, begin, end, old, changed)
        if isinstance(node, ast.JoinedStr):
            return  # positions inside are wrong in Python 3.11
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, where, wanted)

    yield from visit(ast.parse(source), "", not only)


def changes(node: ast.AST, source: str) -> Iterator[str]:
    """What stands in the place of an expression or statement; nothing where there is no mutation of its kind."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        flipped = copy.deepcopy(node)
        flipped.ops = [COMPARISONS[type(node.ops[0])]()]
        yield f"({ast.unparse(flipped)})"
    elif isinstance(node, ast.BoolOp):
        other = copy.deepcopy(node)
        other.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield f"({ast.unparse(other)})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"(bool({ast.unparse(node.operand)}))"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "pass"
    elif isinstance(node, ast.Constant | ast.JoinedStr):
        text = ast.get_source_segment(source, node) or ""
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield repr(not node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield repr(node.value + 1)
        elif SQL.search(text):
            for pattern, others in SQL_CHANGES:
                for match in pattern.finditer(text):
                    put = others.get(match[0]) or OPPOSITES.get(match[0], "")
                    yield text[: match.start()] + put + text[match.end() :]


class FirstFailure:
    """Notes the first test that fails, as a plugin of pytest."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self._file.exists():
            self._file.write_text(report.nodeid)


def in_fork(work: Callable[[], int], seconds: int) -> int | None:
    """What `work` returns in a fork of this process, or None if it takes too long."""
    if (child := os.fork()) == 0:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        code = 70
        try:
            code = int(work())
        finally:
            os._exit(code)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


class Tree:
    """A copy of the program that mutations are written into."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def failing(self, tests: list[str]) -> str:
        """Return the first of these tests that fails; empty where none does."""
        noted = self.root / "first-failure"
        noted.unlink(missing_ok=True)

        def run() -> int:
            os.chdir(self.root)
            sys.path.insert(0, str(self.root))
            os.environ["PYTHONPATH"] = str(self.root)
            for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "hierchat")]:
                del sys.modules[name]
            import pytest

            quietly = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", f"--timeout={TEST_SECONDS}")
            marks = ("-m", "not browser and not slow and not large")
            return int(pytest.main([*quietly, *marks, *tests], plugins=[FirstFailure(noted)]))

        code = in_fork(run, RUN_SECONDS)
        if noted.exists():
            return noted.read_text()
        return "" if code in (0, 5) else f"pytest's code {code}"  # 5: all of them were left out

    def verdict(self, mutation: Mutation, area: Area) -> str:
        """Return the test that notices a mutation, or SURVIVED."""
        path = self.root / mutation.path
        source = path.read_bytes()
        path.write_bytes(source[: mutation.begin] + mutation.new.encode() + source[mutation.end :])
        try:
            every = files(self.root, area.tests, "test_")
            near = self.naming(mutation, files(self.root, area.code), every)
            return self.failing(near[:MOST_TESTS] or every) or SURVIVED
        finally:
            path.write_bytes(source)

    def naming(self, mutation: Mutation, code: list[str], tests: list[str]) -> list[str]:
        """Return the tests that name a mutation's function or functions that use it, with the most of it first."""
        used = {name: text for path in code for name, _, text in self.functions(path) if "__" not in name}
        weights = {name: 1.0 for name in mutation.where.split(".")[-2:] if "__" not in name}
        for weight in (0.5, 0.25, 0.125):
            users = {name for name, text in used.items() if name not in weights and _naming(weights, text)}
            weights |= dict.fromkeys(users, weight)
        found = {
            node: _naming(weights, text)
            for path in tests
            for name, node, text in self.functions(path)
            if name.startswith("test_")
        }
        count = Counter(name for names in found.values() for name in names)
        score = {
            node: sum(weights[name] / count[name] for name in names) for node, names in found.items() if names
        }
        return sorted(score, key=lambda node: -score[node])

    def functions(self, path: str) -> Iterator[tuple[str, str, str]]:
        """Yield name, id as pytest has it, and text of each function of a file."""
        source = (self.root / path).read_text()

        def visit(node: ast.AST, id: str) -> Iterator[tuple[str, str, str]]:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.ClassDef):
                    yield from visit(child, f"{id}::{child.name}")
                elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield child.name, f"{id}::{child.name}", ast.get_source_segment(source, child) or ""

        yield from visit(ast.parse(source), path)


def _naming(names: Iterable[str], text: str) -> set[str]:
    """Return those of the names that stand in a text."""
    return {name for name in names if re.search(rf"\b{name}\b", text)}


def files(root: Path, patterns: tuple[str, ...], begins: str = "") -> list[str]:
    found = {path for pattern in patterns for path in root.glob(pattern) if path.name.startswith(begins)}
    return sorted(str(path.relative_to(root)) for path in found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("areas", nargs="*", default=list(AREAS))
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to be judged, if not this one")
    parser.add_argument("--most", type=int, default=40, help="mutations of all areas together")
    parser.add_argument("--json", type=Path, required=True, help="results; what is there is not run again")
    args = parser.parse_args()
    for name in LIBRARIES:
        importlib.import_module(name)
    known: dict[str, dict[str, str]] = json.loads(args.json.read_text()) if args.json.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        left_out = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache")
        shutil.copytree(args.root, root, ignore=left_out)
        tree = Tree(root.resolve())
        for number, area in enumerate(args.areas):
            spec, results = AREAS[area], known.setdefault(area, {})
            every = [
                mutation
                for path in files(root, spec.code)
                for mutation in mutations(path, (root / path).read_text(), spec.only)
            ]
            most = (args.most + len(args.areas) - 1 - number) // len(args.areas)
            chosen = sorted(every, key=lambda mutation: mutation.rank(area))[:most]
            for mutation in chosen:
                if str(mutation) not in results:
                    results[str(mutation)] = tree.verdict(mutation, spec)
                    args.json.write_text(json.dumps(known, indent=1))
                    print(f"  {mutation}\n    {results[str(mutation)]}", flush=True)
            noticed = {test for test in results.values() if "::" in test}
            unsure = set()
            while failing := tree.failing(sorted(noticed - unsure)) if noticed - unsure else "":
                unsure.add(failing)  # without a mutation, too
            caught = sum(results[str(one)] not in {SURVIVED, *unsure} for one in chosen)
            print(f"{area}: {caught} of {len(chosen)} caught, of {len(every)} possible", flush=True)
            for test in sorted(unsure):
                print(f"  fails without a mutation, too: {test}", flush=True)


if __name__ == "__main__":
    main()
