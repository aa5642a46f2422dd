"""What the documents name is there: files, headings that links lead to, the line that runs the tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hierchat

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
TREE = [
    path.relative_to(ROOT).as_posix()
    for top in ("app.py", "models.yaml", "assets", "benchmarks", "docs", "hierchat", "tests")
    for path in [ROOT / top, *(ROOT / top).rglob("*")]
]
PLACEHOLDERS = {"page/panels/NAME.py", "config.json", "conversations.json", "generation_config.json"}
"""Files that somebody makes, or that models and other programs have."""


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


def test_the_readme_runs_the_tests_as_ci_does() -> None:
    found = re.search(
        r"^{ (.+ -m tests); }", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert found
    assert found[1] in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_version_is_that_of_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(r"^## (\S+)( \(unreleased\))?$", changelog, re.MULTILINE)
    assert heading
    assert hierchat.__version__ == heading[1] + (".dev0" if heading[2] else "")
