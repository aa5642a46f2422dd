"""Translate what the page says: English as it stands in the code, or a catalogue of assets/locale.

`_("A sentence with a {value}.").format(value=...)` is a sentence for a user. Which language it is depends on who asks:
whoever answers a request does so inside of `spoken`.

The layers below raise errors and give reasons in English, as f-strings, and need not know who reads them; logs and
endpoint keep them. `error_words` finds the catalogue's sentence by which such a text was formed, and forms it anew."""

import gettext
import html
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import cache, cached_property, partial
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from string import Formatter
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
FORMED = "formed"
"""Context in the catalogues of sentences that are formed below, with their values in them."""
_LONGEST_FORMED = 1000
_FIELD = re.compile(r"\{[^}]*\}")
_SEPARATORS = {
    code: str.maketrans(",.", marks)
    for marks, codes in {".,": ("de", "es", "it", "pt"), "\u202f,": ("fr",), "\xa0,": ("ru",)}.items()
    for code in codes
}
"""Languages that separate thousands and decimals by other signs than English does."""
_BEGINS, _ENDS = "\ue000", "\ue001"
_MARKED = re.compile(f"{_BEGINS}([^{_BEGINS}{_ENDS}]*){_ENDS}")


class _Marks(gettext.NullTranslations):
    """Mark each sentence that is made once and shown to many, so that `translated` finds it."""

    def gettext(self, message: str) -> str:
        return f"{_BEGINS}{message}{_ENDS}"


_ENTRY = re.compile(
    r'^(msgctxt|msgid_plural|msgid|msgstr)(?:\[(\d+)\])?((?:\s*"(?:[^"\\\n]|\\.)*")+)', re.MULTILINE
)
_STRING, _ESCAPED = re.compile(r'"((?:[^"\\\n]|\\.)*)"'), re.compile(r"\\(.)")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r"}


class _Catalogue(gettext.GNUTranslations):
    """Hold the sentences of one language. The .po file is read when the first one is needed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    @cached_property
    def _catalog(self) -> dict[Any, str]:
        """Sentence -> translation, as gettext keys them: after its context; a plural with the number of its form."""
        found: dict[Any, str] = {}
        context = sentence = ""
        for kind, form, written in _ENTRY.findall(self._path.read_text(encoding="utf-8")):
            said = _ESCAPED.sub(lambda one: _CONTROLS.get(one[1], one[1]), "".join(_STRING.findall(written)))
            if kind == "msgctxt":
                context = f"{said}\4"
            elif kind == "msgid":
                context, sentence = "", context + said
            elif kind == "msgstr" and said:
                found[(sentence, int(form)) if form else sentence] = said
        return found

    @cached_property
    def plural(self) -> Callable[[int], int]:
        """Number of the form that a count takes."""
        return gettext.c2py(self._catalog[""].partition("plural=")[2].partition(";")[0])

    def gettext(self, message: str) -> str:
        return message and super().gettext(message)  # for no text gettext gives the head of the file

    @cached_property
    def formed(self) -> list[tuple[str, re.Pattern[str], str, str]]:
        """List the sentences formed below: their longest words, patterns, themselves, and what they are here."""
        found = []
        for key, here in self._catalog.items():
            if isinstance(key, str) and key.startswith(f"{FORMED}\4"):
                sentence = key.partition("\4")[2]
                words = _FIELD.split(sentence)
                pattern = re.compile("(.*?)".join(map(re.escape, words)), re.DOTALL)
                found.append((max(words, key=len), pattern, sentence, here))
        return sorted(found, key=lambda one: -len(_FIELD.sub("", one[2])))  # the most telling first


class _Numbers(Formatter):
    """Format values in sentences: numbers as the current language writes them."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec and isinstance(value, int | float):
            return number(value, format_spec)
        return str(super().format_field(value, format_spec))


class Said(str):
    """Sentence in the current language, before its values are put in."""

    def format(self, *args: Any, **values: Any) -> str:
        return _Numbers().vformat(self, args, values)


_now: ContextVar[tuple[str, gettext.NullTranslations]] = ContextVar(
    "language", default=(ENGLISH, gettext.NullTranslations())
)


def _(text: str) -> str:
    """Translate a sentence into the reader's language. Values are named, and put in afterwards, with `format`."""
    said = _now.get()[1].gettext(text)
    return Said(said) if current() in _SEPARATORS else said


def number(value: float, form: str = ",") -> str:
    return format(value, form).translate(_SEPARATORS.get(current(), {}))


def error_words(error: BaseException | str) -> str:
    """Translate the text of an error of the layers below, or a reason that they give, into the reader's language."""
    text, catalogue = str(error), _now.get()[1]
    if not isinstance(catalogue, _Catalogue) or len(text) > _LONGEST_FORMED:
        return text
    if (said := catalogue.gettext(text)) != text:
        return said
    for words, pattern, sentence, here in catalogue.formed:
        if words in text and (found := pattern.fullmatch(text)):
            return _FIELD.sub(
                partial(_value, dict(zip(_FIELD.findall(sentence), found.groups(), strict=True))), here
            )
    place, colon, reason = text.partition(": ")
    return f"{place}{colon}{error_words(reason)}" if reason else text


def _value(values: Mapping[str, str], field: re.Match[str]) -> str:
    value = values[field[0]]
    return value.translate(_SEPARATORS.get(current(), {})) if ":" in field[0] else error_words(value)


def plural(one: str, several: str, n: int, **values: object) -> str:
    """Translate the sentence for this number, which stands in it as `n`; with further values."""
    return Said(_now.get()[1].ngettext(one, several, n)).format(n=n, **values)


def later(text: str) -> str:
    """Return the text as it is, to be translated later by `_`, or by `error_words` if it is an f-string."""
    return text


@cache
def catalogues() -> dict[str, gettext.NullTranslations]:
    """Return all languages by code, English first."""
    found: dict[str, gettext.NullTranslations] = {ENGLISH: gettext.NullTranslations()}
    for path in sorted(shipped("assets").glob(f"locale/*/LC_MESSAGES/{DOMAIN}.po")):
        found[path.parent.parent.name] = _Catalogue(path)
    return found


def current() -> str:
    return _now.get()[0]


@contextmanager
def spoken(code: str) -> Iterator[None]:
    """Translate into this language inside. It belongs to the thread: `here` brings it to another."""
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


def here(does: Callable[..., T]) -> Callable[..., T]:
    """Wrap a function so that it speaks the current language in another thread."""
    return partial(copy_context().run, does)


def chosen(headers: Mapping[str, str]) -> str:
    """Return the language of a request: the one that the browser keeps, else the first that it accepts and there is."""
    wanted = []
    with suppress(CookieError):
        if kept := SimpleCookie(headers.get("cookie", "")).get(COOKIE):
            wanted.append(kept.value)
    accepted = headers.get("accept-language", "").split(",")  # browsers begin with what they like best
    for code in (*wanted, *(one.partition(";")[0].strip() for one in accepted)):
        for known in (code, code.split("-")[0]):
            if known in catalogues():
                return known
    return ENGLISH


def of_terminal() -> str:
    """Return the language set by the environment (LANGUAGE, else LANG and its relatives), for terminal output."""
    said = next(filter(None, map(os.environ.get, ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"))), "")
    codes = (re.split("[_.@]", one)[0] for one in said.split(":"))
    return next((code for code in codes if code in catalogues()), ENGLISH)


def translated(value: Any) -> Any:
    """Translate what was made inside of `marked` into the current language: text, or lists and dictionaries."""
    if isinstance(value, str):
        return _MARKED.sub(_put, str(value)) if _BEGINS in value else value
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
