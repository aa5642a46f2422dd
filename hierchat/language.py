"""The language in which the page speaks: English as it stands in the code, or a catalogue of assets/locale.

`_("A sentence with a {value}.").format(value=...)` is a sentence for a user. Which language it is depends on who asks:
whoever answers a request does so inside of `spoken`.
"""

from __future__ import annotations

import gettext
import html
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from http.cookies import CookieError, SimpleCookie
from typing import Any, TypeVar

from hierchat.config import shipped

T = TypeVar("T")
ENGLISH = "en"
DOMAIN = "hierchat"
COOKIE = "hc-language"
"""A choice of the browser, which the page's script keeps (language.js)."""
NAMES = {
    "ar": "العربية", "de": "Deutsch", "en": "English", "es": "Español", "fr": "Français", "it": "Italiano",
    "ja": "日本語", "ko": "한국어", "pt": "Português (Brasil)", "ru": "Русский", "zh": "简体中文",
}  # fmt: skip
"""Code -> what the language calls itself."""
THIS = ""
"""In place of a sentence: the code of the language itself, of what is made inside of `marked`."""
_BEGINS, _ENDS = "\ue000", "\ue001"
_MARKED = re.compile(f"{_BEGINS}([^{_BEGINS}{_ENDS}]*){_ENDS}")


class _Marks(gettext.NullTranslations):
    """For what is made once and shown to many: each sentence carries marks, which `translated` finds."""

    def gettext(self, message: str) -> str:
        return f"{_BEGINS}{message}{_ENDS}"


class _Catalogue(gettext.GNUTranslations):
    """Sentences of one language."""

    def gettext(self, message: str) -> str:
        return message and super().gettext(message)  # for no text gettext gives the head of the file


_now: ContextVar[tuple[str, gettext.NullTranslations]] = ContextVar(
    "language", default=(ENGLISH, gettext.NullTranslations())
)


def _(text: str) -> str:
    """Translate a sentence into the language of who asks. Values are named, and put in afterwards, with `format`."""
    return _now.get()[1].gettext(text)


def plural(one: str, several: str, n: int, **values: object) -> str:
    """Translate the sentence for this number, which stands in it as `n`; with further values."""
    return _now.get()[1].ngettext(one, several, n).format(n=n, **values)


def later(text: str) -> str:
    """Return the text as it is: one that is written down here, and goes through `_` where it is used."""
    return text


@cache
def catalogues() -> dict[str, gettext.NullTranslations]:
    """Return the languages that there are, by code, English first."""
    found: dict[str, gettext.NullTranslations] = {ENGLISH: gettext.NullTranslations()}
    for path in sorted(shipped("assets").glob(f"locale/*/LC_MESSAGES/{DOMAIN}.mo")):
        with path.open("rb") as file:
            found[path.parent.parent.name] = _Catalogue(file)
    return found


def name_of(code: str) -> str:
    return NAMES.get(code, code)


def current() -> str:
    return _now.get()[0]


@contextmanager
def spoken(code: str) -> Iterator[None]:
    """Speak this language inside. It belongs to the thread: a generator uses `each_spoken`."""
    before = _now.set((code, catalogues()[code]))
    try:
        yield
    finally:
        _now.reset(before)


@contextmanager
def marked() -> Iterator[None]:
    """Mark the sentences that are made inside, for `translated`."""
    before = _now.set((ENGLISH, _Marks()))
    try:
        yield
    finally:
        _now.reset(before)


def each_spoken(code: str, steps: Iterable[T]) -> Generator[T, None, None]:
    """Yield these steps, each made in this language, whichever thread asks for it."""
    make = iter(steps)
    while True:
        with spoken(code):
            try:
                step = next(make)
            except StopIteration:
                return
        yield step


def here(does: Callable[..., T]) -> Callable[..., T]:
    """Wrap a function so that it speaks the language of now in another thread."""
    code = current()

    def done(*args: Any) -> T:
        with spoken(code):
            return does(*args)

    return done


def chosen(headers: Mapping[str, str]) -> str:
    """Return the language of a request: the one that the browser keeps, else the first that it accepts and there is."""
    wanted = []
    try:
        if kept := SimpleCookie(headers.get("cookie", "")).get(COOKIE):
            wanted.append(kept.value)
    except CookieError:
        pass
    accepted = []
    for part in headers.get("accept-language", "").split(","):
        code, _sep, weight = part.partition(";q=")
        accepted.append((-_weight(weight), code.strip()))
    wanted += [code for _weighed, code in sorted(accepted, key=lambda one: one[0])]
    for code in wanted:
        for known in (code, code.split("-")[0]):
            if known in catalogues():
                return known
    return ENGLISH


def _weight(text: str) -> float:
    try:
        return float(text or 1)
    except ValueError:
        return 0.0


def translated(value: Any) -> Any:
    """Translate what was made inside of `marked` into the language of now: text, or lists and dictionaries."""
    if isinstance(value, str):
        return _MARKED.sub(_put, value) if _BEGINS in value else value
    if isinstance(value, dict):
        return {name: translated(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(translated(one) for one in value)
    return value


def _put(found: re.Match[str]) -> str:
    text = found[1]
    if text == THIS:
        return current()
    plain = html.unescape(text)
    return _(text) if plain == text else html.escape(_(plain))
