"""Imports go downwards only (docs/architecture.md), and the tree of modules has no cycle."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.testing.parsing import parse

PACKAGE = Path(__file__).parent.parent / "hierchat"
LAYERS = [
    {"config", "__init__"},
    {"language"},
    {"logs", "jit", "reasoning", "shutdown", "child_process", "connections", "freed_memory"},
    {"models"},
    {"drafting"},
    {"engine"},
    {"hierarchy", "store"},
    {"texts"},
    {"runtime"},
    {"chat"},
    {"access", "checks"},
    {"page", "api"},
    {"cli"},
    {"__main__"},
]
"""From the lowest up. A part imports from its own and from lower layers."""
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
MODELS = [
    {"__init__", "progress", "cache", "catalogue", "device_memory"},
    {"architectures"},
    {"formats"},
    {"runnable"},
    {"fetch"},
    {"load"},
]
"""The same within models/."""
MODELS_RANK = {part: rank for rank, layer in enumerate(MODELS) for part in layer}


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file, made once for all tests."""
    return parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """Modules of ours that a file imports, wherever it does, also for type hints alone."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hierchat"):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("hierchat"))


def imported_names(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever it does."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def part(module: str, level: int = 1) -> str:
    return [*module.split("."), "__init__"][level]


def test_imports_go_downwards_only() -> None:
    wrong = []
    for module, path in MODULES.items():
        mine = part(module)
        if mine == "__init__":  # the public names, which it imports when they are used
            continue
        for other in imported(path):
            theirs = part(other)
            if theirs == mine == "models":
                down = MODELS_RANK[part(other, 2)] <= MODELS_RANK[part(module, 2)]
            else:
                down = theirs == mine or RANK[theirs] < RANK[mine]
            wrong += [] if down else [f"{module} imports {other}"]
    assert not wrong


def test_nothing_of_the_program_imports_the_measurements() -> None:
    for path in MODULES.values():
        assert not [name for name in imported_names(path) if name.partition(".")[0] == "benchmarks"], path


def test_what_runs_inside_other_engines_needs_drafting_alone() -> None:
    """Their environments are their own: what the rest of the program is built on is not there."""
    for module, path in MODULES.items():
        if part(module) == "drafting":
            others = {part(other) for other in imported(path)}
            assert others <= {"drafting", "config", "jit", "__init__"}, f"{module} imports {others}"


def named(module: str) -> Iterator[tuple[str, str]]:
    """The classes and aliases of types of a module, each with what makes it different from others."""
    for one in parsed(MODULES[module]).body:
        if isinstance(one, ast.ClassDef):
            yield one.name, f"a class of {module}"
        elif isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
            yield one.targets[0].id, ast.unparse(one.value)


def test_a_name_of_a_class_stands_for_one_thing() -> None:
    found: dict[str, dict[str, str]] = {}
    for module in MODULES:
        for name, thing in named(module):
            if name[0].isupper() and not name.isupper() and name not in EXCEPTIONS:
                found.setdefault(name, {}).setdefault(thing, module)
    assert {name: things for name, things in found.items() if len(things) > 1} == {}


EXCEPTIONS = {"Line", "Tell"}
"""A line of a chart and one of `hierchat prove`; how that reports, and how a run does."""


def test_no_cycle() -> None:
    """Nor by type hints. The package itself imports its public names when they are used."""
    graph = {name: set(imported(path)) - {name, "hierchat"} for name, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize(
    ("folder", "banned"),
    [
        ("engine", ("gradio", "sqlite")),
        ("drafting", ("gradio", "sqlite", "torch", "transformers")),
        ("hierarchy", ("gradio", "sqlite", "torch")),
        ("store", ("gradio", "torch")),
        ("texts", ("gradio", "torch", "sqlite")),
        ("chat", ("gradio", "torch")),
        ("page", ("torch", "sqlite")),
        ("api", ("gradio", "torch", "sqlite")),
    ],
)
def test_what_a_folder_does_not_know(folder: str, banned: tuple[str, ...]) -> None:
    for path in (PACKAGE / folder).rglob("*.py"):
        if path.parent == PACKAGE / "drafting" / "vllm":  # inside vLLM, beside its torch
            continue
        assert not [name for name in imported_names(path) if name.startswith(banned)], path


def test_nobody_looks_behind_the_chat_service() -> None:
    """Page, endpoint and terminal reach the store and the model slot through the parts of ChatService alone."""
    for module, path in MODULES.items():
        for node in ast.walk(parsed(path)) if part(module) in ("page", "api", "cli") else ():
            if isinstance(node, ast.Attribute) and node.attr in ("store", "host", "slot"):
                assert not ast.unparse(node.value).endswith("service"), f"{module}: {ast.unparse(node)}"
