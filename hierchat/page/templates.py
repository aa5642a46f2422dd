"""Draw HTML by the macros of assets/templates: their values are escaped, unless they are HTML already (Markup)."""

import re
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
from hierchat.config import cache_dir
from hierchat.language import Said, _, error_words, plural
from hierchat.page.buttons import ASSETS, button

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
    """Extension of Jinja that leaves out line breaks beside tags and blocks, with the blanks around them. In
    text one blank stays."""

    def filter_stream(self, stream: Iterable[Token]) -> Iterator[Token]:
        for token in stream:
            if token.type == "data":
                text = _BREAK.sub(" ", _BESIDE_TAGS.sub("", token.value))
                yield Token(token.lineno, token.type, text)
            else:
                yield token


class _Compiled(FileSystemBytecodeCache):
    """Keeps compiled templates in the cache, where it can be written: compiling them takes half a second of a start."""

    def load_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):
            super().load_bytecode(bucket)

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
    """Macros of a template, each a function that returns HTML. It is compiled when the first one is called. Sentences
    stand inside of macros: what stands outside is drawn once, in the language of whoever comes first."""

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
