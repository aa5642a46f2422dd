"""Commands that the documents, the page and messages name are there, with the flags that are named."""

import ast
import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from benchmarks.__main__ import main as measure
from hierchat.cli.main import main
from tests.testing.parsing import parse

ROOT = Path(__file__).parents[1]
COMMAND = re.compile(
    r"(?:python -m (?P<module>[\w.]+)|python (?P<app>app\.py)|[`>]hierchat)(?P<rest>(?: [^\s`<]+)*)"
)
FLAG = re.compile(r"--[a-z][a-z-]*")
WORD = re.compile(r"[a-z]+")


def texts() -> Iterator[tuple[str, str]]:
    """What a user can read, and where it stands: documents, scripts, and every string of the program."""
    for pattern in ("*.md", "docs/*.md", "assets/*.js", "models.yaml", ".github/workflows/*.yml"):
        for path in ROOT.glob(pattern):
            # A command that a backslash continues is one line
            yield path.name, path.read_text(encoding="utf-8").replace("\\\n", " ")
    for path in [*(ROOT / "hierchat").rglob("*.py"), ROOT / "app.py"]:
        for node in ast.walk(parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
                yield path.name, "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path.name, node.value


def commands(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Module and arguments of each command in a text; those of app.py and of `hierchat` as the module's own."""
    for found in COMMAND.finditer(text):
        module, rest = found["module"] or "hierchat", found["rest"].split()
        if module.split(".")[0] in ("hierchat", "tests", "benchmarks"):
            yield module, ("serve", *rest) if found["app"] else tuple(rest)


def subcommands(module: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """The words that arguments begin with, as far as there is a choice of commands; the last may be none."""
    for count, word in enumerate(arguments):
        before = arguments[:count]
        choice = r"^Commands:$" if module == "hierchat" else r"^  \{"
        if not WORD.fullmatch(word) or (before and not re.search(choice, help_of(module, before), re.M)):
            return before
    return arguments


@cache
def help_of(module: str, words: tuple[str, ...]) -> str:
    """What --help says of a command; fails where one of the words is none."""
    if module not in ("hierchat", "benchmarks"):
        done = subprocess.run(
            [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = (main if module == "hierchat" else measure)([*words, "--help"])
        except SystemExit as left:
            code = left.code
    assert code == 0, f"{module} {' '.join(words)}: {out.getvalue()}"
    return out.getvalue()


def test_commands_that_are_named_are_there_with_their_flags() -> None:
    named = {command: where for where, text in texts() for command in commands(text)}
    assert len(named) > 50
    for (module, arguments), where in named.items():
        assert find_spec(module), f"{where}: there is no {module}"
        ours, flags = module in ("hierchat", "benchmarks"), FLAG.findall(" ".join(arguments))
        if not ours and not flags:
            continue
        said = help_of(module, subcommands(module, arguments) if ours else ())
        for flag in flags:
            told = f"{where}: {module} {' '.join(arguments)}: no {flag}"
            assert re.search(rf"(?<![\w-]){flag}(?![\w-])", said), told
