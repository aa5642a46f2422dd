"""Extract all sentences to translate into assets/locale.

Reads all sentences of the code into hierchat.pot, and brings each LANGUAGE/LC_MESSAGES/hierchat.po up to date with it.
`LANGUAGE ...` as arguments begins new ones. Needs Babel, which is in the extra `test`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from io import BytesIO
from keyword import iskeyword
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po, write_po

from hierchat.config import shipped
from hierchat.language import DOMAIN, FORMED

_FORMS = {"_": 1, "later": 1, "plural": 2}
"""Function -> how many of its arguments are sentences. Read from the tree: Babel looks into no f-string."""
_VALUE = re.compile(r"\{[^}]*\}")
_NUMBER = re.compile(r":,?[.0-9]*[f%,]\}")
_WORDS = re.compile(r"\w\w.* .*\w\w", re.DOTALL)
_NAME = re.compile(r"(?<![\w'\"])[a-z_]\w*(?![\w'\"(])")
_FOR_PROGRAMS = {
    "ApiError",
    "BrokenLogits",
    "GrammarError",
    "InvalidJson",
    "NotRight",
    "TooManySequences",
}
"""Errors whose sentences go into answers of the endpoint alone, which stay English."""
_FOR_DEVELOPERS = ("api", "checks", "drafting")
"""Folders whose errors no user of the page or the terminal reads, but programs and reports."""
_CHANGING = (b'"POT-Creation-Date', b'"PO-Revision-Date', b'"Generated-By')
_KINDS = [("page/**.js", "javascript"), ("templates/**.html", "jinja2")]
_KEYWORDS: dict[str, tuple[int, ...] | None] = {"_": None, "plural": (1, 2)}


def template() -> Catalog:
    """Collect all sentences that can be translated, with the files in which they stand."""
    found = Catalog(project="hierchat", header_comment="", fuzzy=False)
    for name, text in sorted(_sentences(), key=repr):
        found.add(text, locations=[(name, 0)])
    plain = {message.id for message in found}
    for name, text in sorted(formed_below()):
        if _VALUE.search(text):
            found.add(text, locations=[(name, 0)], context=FORMED)
        elif text not in plain:
            found.add(text, locations=[(name, 0)])
    return found


@cache
def _trees() -> dict[Path, ast.Module]:
    """Parse the package, once."""
    package = Path(__file__).resolve().parents[2] / "hierchat"
    return {
        path.relative_to(package): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(package.rglob("*.py"))
    }


def _sentences() -> Iterator[tuple[str, str | tuple[str, ...]]]:
    """Yield each file and sentence; of a plural, both forms."""
    for path, tree in _trees().items():
        name = f"hierchat/{path.as_posix()}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FORMS:
                given = [
                    one.value for one in node.args[: _FORMS[node.func.id]] if isinstance(one, ast.Constant)
                ]
                texts = tuple(text for text in given if isinstance(text, str) and text)
                if len(texts) == _FORMS[node.func.id]:
                    yield name, texts[0] if len(texts) == 1 else texts
    for name, _line, text, _comments, _context in extract_from_dir(
        shipped("assets"), method_map=_KINDS, keywords=_KEYWORDS
    ):
        if text:
            yield Path(name).as_posix(), text


def formed_below() -> Iterator[tuple[str, str]]:
    """Yield each file and sentence that an error of the package says, or that is formed in `later`, values named."""
    trees = _trees()
    errors = _errors(trees.values()) - _FOR_PROGRAMS | {"later"}
    for path, tree in trees.items():
        for node in ast.walk(tree) if path.parts[0] not in _FOR_DEVELOPERS else ():
            if isinstance(node, ast.Call) and (called := _called(node)) in errors:
                given = node.args[0] if node.args else None
                sides = (given.body, given.orelse) if isinstance(given, ast.IfExp) else (given,)
                for side in sides:
                    text = "" if called == "later" and isinstance(side, ast.Constant) else _formed(side)
                    if _WORDS.search(_VALUE.sub("", text)):
                        yield f"hierchat/{path.as_posix()}", text


def _called(call: ast.Call) -> str:
    """Return the name of the function that is called, also where it is given with its module."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _errors(trees: Iterable[ast.Module]) -> set[str]:
    """Return the names of the package's own exceptions."""
    bases = {
        node.name: {
            base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in node.bases
        }
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {"Exception", "ValueError", "RuntimeError"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found & set(bases)


def _formed(text: ast.expr | None) -> str:
    """Return the sentence of an f-string or a constant: each value by the last name that stands in it."""
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        return text.value
    said, names = "", list[str]()
    for part in text.values if isinstance(text, ast.JoinedStr) else ():
        if isinstance(part, ast.Constant):
            said += str(part.value).replace("{", "{{").replace("}", "}}")
        elif isinstance(part, ast.FormattedValue):
            known = [name for name in _NAME.findall(ast.unparse(part.value)) if not iskeyword(name)]
            name = known[-1].strip("_") if known else "value"
            name += str(names.count(name) + 1) if name in names else ""
            names.append(name)
            said += f"{{{name}{':,' if _NUMBER.search(ast.unparse(part)) else ''}}}"
    return said


def text_of(catalogue: Catalog) -> bytes:
    """Format a catalogue as a file without line numbers and dates, which change with everything."""
    out = BytesIO()
    write_po(out, catalogue, width=110, sort_output=True, omit_header=False, include_lineno=False)
    lines = out.getvalue().split(b"\n")
    return b"\n".join(line for line in lines if not line.startswith(_CHANGING))


def main(languages: list[str]) -> None:
    """Write all catalogues."""
    folder = shipped("assets") / "locale"
    there = {path.parent.parent.name for path in folder.glob(f"*/LC_MESSAGES/{DOMAIN}.po")}
    made = template()
    folder.mkdir(exist_ok=True)
    (folder / f"{DOMAIN}.pot").write_bytes(text_of(made))
    for language in sorted(there | set(languages)):
        path = folder / language / "LC_MESSAGES" / f"{DOMAIN}.po"
        path.parent.mkdir(parents=True, exist_ok=True)
        catalogue = Catalog(locale=language)
        if path.exists():
            with path.open("rb") as file:
                catalogue = read_po(file, locale=language)
        catalogue.update(made, no_fuzzy_matching=True)
        catalogue.obsolete.clear()
        path.write_bytes(text_of(catalogue))
        left = sum(not m.string or not all(m.string) for m in catalogue if m.id)
        print(f"{language}: {len(catalogue) - left:,} of {len(catalogue):,} translated")


if __name__ == "__main__":
    main(sys.argv[1:])
