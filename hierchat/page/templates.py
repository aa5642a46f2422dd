"""Draw HTML by the macros of assets/templates, which escape all but Markup.
The script honours only this process's key on a button, so no text of a model can press one."""

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from jinja2.ext import Extension
from jinja2.lexer import Token
from markupsafe import Markup, escape

from hierchat import __version__
from hierchat.config import cache_dir, shipped
from hierchat.language import COOKIE, THIS, Said, _, error_words, plural

KEY = secrets.token_hex(16)
ASSETS = shipped("assets")


def button(act: str, label: str, *, id: int = 0, text: str = "", css: str = "", **attributes: Any) -> Markup:
    """Return the HTML of a button that does `act` to the thing with this id; `text` is sent along."""
    given = {name.replace("_", "-"): value for name, value in attributes.items() if value is not None}
    extra = "".join(f' {name}="{escape(value)}"' for name, value in given.items())
    # A bare carriage return would reach the page as a line feed.
    carried = f' data-text="{escape(text)}"'.replace("\r", "&#13;") if text else ""
    return Markup(
        f'<button type="button" class="hc-act {css}" data-act="{act}" data-key="{KEY}" data-id="{id}"'
        f"{carried}{extra}>{escape(label)}</button>"
    )


_SAID = re.compile(r"(?<![\w.])_\('((?:[^'\\]|\\.)+)'")
_SCRIPTS = (
    "language", "stream", "buttons", "watch", "dialog", "copy", "sidebar", "list", "menu", "undo", "scroll", "details",
    "edit", "drawer", "keys", "shortcuts", "spoken", "unsent", "attach", "address", "theme", "forget",
    "compare", "hit", "origin", "login", "connection", "projects", "transfer",
    "models", "own_texts", "thought", "notices",
)  # fmt: skip
"""Parts of the page's script, in order: all share one scope."""
_STYLES = (
    "palette", "glyphs", "base", "buttons", "sidebar", "main", "thread", "markdown", "figures", "sources", "status",
    "composer", "attach", "compare", "dialogs", "menu", "panels", "incognito", "insights", "drawer",
    "chats", "projects", "going_on", "models", "own_texts", "account", "thought", "first_screen", "narrow",
)  # fmt: skip


def script() -> str:
    """Return the page's script with this process's key and the translated sentences filled in."""
    whole = "\n".join((ASSETS / "page" / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS)
    words = json.dumps({"": _(THIS), **{text: _(text) for text in said(whole)}}, ensure_ascii=False)
    whole = whole.replace("__KEY__", KEY).replace("__LANGUAGE_COOKIE__", COOKIE)
    return whole.replace("__WORDS__", words)


def said(script: str) -> list[str]:
    """Return the sentences of a script that are to be translated."""
    return sorted({found[1].replace("\\'", "'") for found in _SAID.finditer(script)})


def style() -> str:
    """Return the page's style sheet."""
    return "\n".join((ASSETS / "style" / f"{name}.css").read_text(encoding="utf-8") for name in _STYLES)


TEMPLATES = ASSETS / "templates"
_BESIDE_TAGS = re.compile(r"(?<![^>])\s*\n\s*|\s*\n\s*(?![^<])")
_BREAK = re.compile(r"\s*\n\s*")


class Sentence(Markup):
    """Translated sentence in a template. It may hold tags; values put into it are escaped."""

    def format(self, *args: Any, **values: Any) -> "Sentence":
        """Fill in values, numbers as the current language writes them."""
        safe = {name: _safe(value) for name, value in values.items()}
        return Sentence(Said(self).format(*map(_safe, args), **safe))


def _plural(one: str, several: str, n: int, **values: Any) -> Markup:
    return Markup(plural(one, several, n, **{name: _safe(value) for name, value in values.items()}))


def _safe(value: Any) -> Any:
    return value if isinstance(value, int | float) else escape(value)


class _Folded(Extension):
    """Extension of Jinja that leaves out line breaks and blanks beside tags and blocks."""

    def filter_stream(self, stream: Iterable[Token]) -> Iterator[Token]:
        for token in stream:
            if token.type == "data":
                text = _BREAK.sub(" ", _BESIDE_TAGS.sub("", token.value))
                yield Token(token.lineno, token.type, text)
            else:
                yield token


class _Compiled(FileSystemBytecodeCache):
    """Keeps compiled templates in the cache, where it can be written: compiling them takes half a second of a start."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):
            Path(self.directory).mkdir(parents=True, exist_ok=True)
            super().dump_bytecode(bucket)


environment = Environment(
    loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, auto_reload=False,
    extensions=[_Folded], bytecode_cache=_Compiled(str(cache_dir() / "templates" / __version__)),
)  # fmt: skip
environment.globals |= {"_": lambda text: Sentence(_(text)), "plural": _plural, "button": button}
environment.filters["error_words"] = lambda text: text if isinstance(text, Markup) else error_words(text)


class Macros:
    """Macros of a template, each a function that returns HTML, compiled at the first call.
    Sentences must be inside of macros: text outside is drawn once, in one language."""

    def __init__(self, name: str, **known: Any) -> None:
        """`known`: functions and values that templates know by these names."""
        self._name = name
        for one, value in known.items():  # all templates share them
            assert environment.globals.setdefault(one, value) is value, f"{one} has two meanings in templates"

    def __getattr__(self, name: str) -> Callable[..., Markup]:
        def drawn(*args: Any, **values: Any) -> Markup:
            macro: Callable[..., Markup] = getattr(environment.get_template(self._name).module, name)
            return macro(*args, **values)

        return drawn
