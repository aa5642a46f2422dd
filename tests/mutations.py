"""Count which small changes of the program the tests notice: `python -m tests.mutations` (needs pytest-cov).

Each area names the code that guards a promise and the tests that should guard that code. A mutation changes one
expression: a comparison, a condition, a constant, a call that is left out, a condition of an SQL statement. Of all
possible ones the choice depends on a seed, the function and the text alone, so code that nobody touched gets the same
mutations in every revision. A mutation is run against the tests that reach its line, in a fork of a process that has
imported the large libraries.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LIBRARIES = (
    "numba",
    "torch",
    "transformers",
    "gradio",
    "sqlite_utils",
    "hypothesis",
    "openai",
    "httpx",
    "pydantic",
)
MOST_SECONDS = 20.0
"""Of tests for one mutation, the quickest first."""
LONGEST_SECONDS = 300
"""After which a mutation counts as caught: it made the program hang."""


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
    "tests/chat/test_forgetting*.py",
    "tests/runtime/test_history*.py",
)
ACCESS_TESTS = ("access", "accounts", "doors", "login", "limits", "files", "sessions")
AREAS = {
    "verify": Area(
        ("hierchat/engine/verif*.py", "hierchat/checks/verify.py", "hierchat/checks/exactness.py"),
        (
            "tests/checks/test_check*.py",
            "tests/checks/test_verif*.py",
            *_names("contract engine rows"),
        ),
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
            "tests/isolation/*.py",
            "tests/api/test_door*.py",
            *(f"tests/page/test_{name}*.py" for name in ACCESS_TESTS),
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

    @property
    def rank(self) -> bytes:
        """Where it comes in the choice, whatever file or line it stands in."""
        return hashlib.sha256(f"1 {self.where.split('.')[-1]} {self.old} {self.new}".encode()).digest()

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        start = max(0, alike(old, new) - 20)
        return f"{self.path}:{self.line} {self.where}: {old[start : start + 50]!r} -> {new[start : start + 50]!r}"


def alike(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


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


class Noted:
    """Notes each test's seconds, as a plugin of pytest."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


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


@dataclass
class Tree:
    """A copy of the program that mutations are written into."""

    root: Path
    reached: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    learned: tuple[str, ...] = ()

    def pytest(self, *words: str, plugin: object = None) -> int:
        os.chdir(self.root)
        sys.path.insert(0, str(self.root))
        os.environ["PYTHONPATH"] = str(self.root)
        for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "hierchat")]:
            del sys.modules[name]
        import pytest

        quietly = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
        return int(pytest.main([*quietly, *words], plugins=[plugin] if plugin else []))

    def learn(self, tests: list[str]) -> None:
        """Run an area's tests once, and note which test reaches which line."""
        data, times = self.root / "mutations.coverage", self.root / "mutations.json"

        def run() -> int:
            os.environ["COVERAGE_FILE"] = str(data)
            noted = Noted()
            measure = ("--cov=hierchat", "--cov-context=test", "--cov-report=")
            code = self.pytest(*measure, "-m", "not browser and not slow", *tests, plugin=noted)
            times.write_text(json.dumps(noted.seconds))
            return code

        if (code := in_fork(run, 3000)) not in (0, 1):
            raise SystemExit(f"The tests could not be run: {code}")
        from coverage import CoverageData

        found = CoverageData(str(data))
        found.read()
        self.seconds = json.loads(times.read_text())
        self.reached = {}
        for path in found.measured_files():
            lines = found.contexts_by_lineno(path).items()
            self.reached[os.path.relpath(path, self.root)] = {
                line: {name.split("|")[0] for name in names if name} for line, names in lines
            }

    def guards(self, mutation: Mutation) -> list[str]:
        """The tests that reach a mutation's line or, for a constant, a line that names it; the quickest first."""
        reached = self.reached.get(mutation.path, {})
        found = set().union(*(reached.get(line, set()) for line in range(mutation.line, mutation.line + 1)))
        if not found and mutation.where.isidentifier():
            for path, lines in self.reached.items():
                text = (self.root / path).read_text().splitlines()
                for line, names in lines.items():
                    if 0 < line <= len(text) and re.search(rf"\b{mutation.where}\b", text[line - 1]):
                        found |= names
        if not found:  # inside of a statement of several lines: the nearest line before it that was reached
            nearest = max(
                (line for line, names in reached.items() if names and line <= mutation.line), default=0
            )
            found = reached.get(nearest, set())
        chosen: list[str] = []
        total = 0.0
        for name in sorted(found, key=lambda name: self.seconds.get(name, 1.0)):
            total += self.seconds.get(name, 1.0)
            if chosen and total > MOST_SECONDS:
                break
            chosen.append(name)
        return chosen

    def survives(self, mutation: Mutation) -> bool:
        """Whether no test fails by it."""
        if not (guards := self.guards(mutation)):
            return True
        path = self.root / mutation.path
        source = path.read_bytes()
        path.write_bytes(source[: mutation.begin] + mutation.new.encode() + source[mutation.end :])
        try:
            return in_fork(lambda: self.pytest("-x", *guards), LONGEST_SECONDS) == 0
        finally:
            path.write_bytes(source)


def files(root: Path, patterns: tuple[str, ...], begins: str = "") -> list[str]:
    found = {path for pattern in patterns for path in root.glob(pattern) if path.name.startswith(begins)}
    return sorted(str(path.relative_to(root)) for path in found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("areas", nargs="*", default=list(AREAS))
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to be judged, if not this one")
    parser.add_argument("--most", type=int, default=40, help="mutations of each area")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    for name in LIBRARIES:
        importlib.import_module(name)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        shutil.copytree(
            args.root, root, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache")
        )
        tree = Tree(root.resolve())
        for area in args.areas:
            spec = AREAS[area]
            every = [
                mutation
                for path in files(root, spec.code)
                for mutation in mutations(path, (root / path).read_text(), spec.only)
            ]
            chosen = sorted(every, key=lambda mutation: mutation.rank)[: args.most]
            began = time.monotonic()
            if spec.tests != tree.learned:
                tree.learn(files(root, spec.tests, "test_"))
                tree.learned = spec.tests
            learned = time.monotonic() - began
            survived = []
            for mutation in chosen:
                if tree.survives(mutation):
                    survived.append(str(mutation))
                    print(f"  survived: {mutation}", flush=True)
            caught = len(chosen) - len(survived)
            seconds = time.monotonic() - began
            print(
                f"{area}: {caught} of {len(chosen)} caught, of {len(every)} possible; "
                f"{learned:.0f} s for coverage, {seconds:.0f} s in all",
                flush=True,
            )
            result[area] = {"caught": caught, "of": len(chosen), "possible": len(every), "survived": survived}
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
