"""What documents, docstrings and comments name is there: files, names in modules, headings that links lead to."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import hierchat
from benchmarks.makers import documents

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
TREE = [
    path.relative_to(ROOT).as_posix()
    for top in ("app.py", "models.yaml", "assets", "benchmarks", "docs", "hierchat", "tests")
    for path in [ROOT / top, *(ROOT / top).rglob("*")]
]
PLACEHOLDERS = {"page/panels/NAME.py", "config.json", "conversations.json", "generation_config.json"}
"""Files that somebody makes, or that models and other programs have."""
CODE = {name: (ROOT / name).read_text(encoding="utf-8") for name in TREE if name.endswith(".py")}
OTHERS = {
    "conversion/llama.py", "gguf-py/gguf/constants.py", "modeling_mimo.py", "mimo.py", "mimo_mtp.py",
    "vllm/utils/cpu_triton_utils.py", "vllm/v1/worker/gpu_model_runner.py",
    "replies.jsonl", "tokens.npy", "hierchat.pot", "page.on", "slots.writing",
}  # fmt: skip
"""Files of other programs, files with a suffix like a name, and attributes of variables that are called as a module."""


def links(document: Path) -> Iterator[tuple[Path, str]]:
    """The file and the heading, or none, of each link that leads to a document of the repository."""
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            path, _, heading = target.partition("#")
            yield (document.parent / path if path else document), heading


def anchors(document: Path) -> set[str]:
    """The headings of a document as GitHub names them in addresses."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for path, heading in links(document):
        assert path.exists(), f"{document.name} leads to {path}"
        assert not heading or heading in anchors(path), f"{document.name}: no #{heading} in {path.name}"


@pytest.mark.parametrize(
    "document",
    [path for path in DOCUMENTS if path.name not in ("CHANGELOG.md", "log.md")],  # of their time
    ids=lambda path: path.name,
)
def test_files_that_are_named_are_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./-]+\.(?:py|js|json|yaml|npz|sh))`", text)) - PLACEHOLDERS
    assert {name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in TREE)} == set()


def prose(code: str) -> Iterator[str]:
    """The comments and docstrings of a module, those of attributes, too."""
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(code)):
        body = getattr(node, "body", ())
        for one in body if isinstance(body, list) else ():
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):
                yield str(one.value.value)


def words_of_modules() -> dict[str, set[str]]:
    """The words in the code of the modules of a name, and the modules in the folders of a name."""
    words: dict[str, set[str]] = {}
    for name, code in CODE.items():
        path = Path(name.removesuffix("/__init__.py"))
        words.setdefault(path.stem, set()).update(re.findall(r"\w+", code))
        words.setdefault(path.parent.name, set()).add(path.stem)
    return words


def missing(text: str, code: str, words: dict[str, set[str]]) -> Iterator[str]:
    """The files, and the names in modules, that a text names and that are not there. `code` is the module with the
    text: a class may also be one of what it imports."""
    for name in re.findall(r"(?<![\w./*:-])([\w./-]*\w\.(?:py|js|css|sql|npz))\b", text):
        if not any(f"/{path}".endswith(f"/{name}") for path in TREE):
            yield name
    named = r"(?<![\w./:-])([a-z_]\w*)\.(?!(?:py|js|css|sql|npz|json|yaml|md)\b)([A-Za-z_]\w*)(?![\w/])"
    for module, name in re.findall(named, text):
        known = words.get(module)
        if name not in known if known else name[0].isupper() and not re.search(rf"\b{module}\b", code):
            yield f"{module}.{name}"


def test_docstrings_and_comments_name_what_is_there() -> None:
    words = words_of_modules()
    found = [
        f"{path}: {name}"
        for path, code in CODE.items()
        for text in prose(code)
        for name in missing(text, code.replace(text, ""), words)
        if name not in OTHERS
    ]
    assert found == []


def test_what_is_made_from_the_code_is_up_to_date() -> None:
    """Else run `python -m benchmarks.makers.documents`."""
    assert documents.SCHEMA.read_text(encoding="utf-8") == documents.schema()
    text = documents.ARCHITECTURE.read_text(encoding="utf-8")
    assert text == documents.with_picture(text)
    assert "  chat --> runtime\n" in text
    assert "page --> store" not in text  # by way of others


def test_the_readme_runs_the_tests_as_ci_does() -> None:
    found = re.search(
        r"^{ (.+ -m tests); }", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert found[1] in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_version_is_that_of_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(r"^## (\S+)( \(unreleased\))?$", changelog, re.MULTILINE)
    assert hierchat.__version__ == heading[1] + (".dev0" if heading[2] else "")
