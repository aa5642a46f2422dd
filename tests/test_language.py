"""Which language is spoken: chosen by each request, kept through threads and generators, put in where marks stand."""

import gettext
import html
import re
import threading
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pytest
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po

from hierchat.config import shipped
from hierchat.language import (
    FORMED,
    THIS,
    _,
    catalogues,
    chosen,
    error_words,
    here,
    marked,
    number,
    of_terminal,
    plural,
    spoken,
    translated,
)
from tests.testing.pseudo import CODE, Pseudo, spoken_here


@pytest.fixture(autouse=True)
def _foreign() -> Iterator[None]:
    with spoken_here():
        yield


def foreign(text: str) -> str:
    return Pseudo().gettext(text)


@pytest.mark.parametrize(
    ("headers", "language"),
    [
        ({}, "en"),
        ({"accept-language": "xx-YY,en;q=0.5"}, CODE),
        ({"accept-language": "zz, ;q=no, *"}, "en"),
        ({"accept-language": "en", "cookie": "a=b; hc-language=xx"}, CODE),
        ({"accept-language": "xx", "cookie": "hc-language=en"}, "en"),
        ({"cookie": "hc-language=../../etc"}, "en"),
        ({"cookie": "hc-language=[]; ="}, "en"),
    ],
)
def test_a_request_has_its_language(headers: dict[str, str], language: str) -> None:
    assert chosen(headers) == language


def test_no_text_stays_no_text_in_every_language_that_ships() -> None:
    assert {"ar", "de", "es", "fr", "it", "ja", "ko", "pt", "ru", "zh"} <= set(catalogues())
    for code in set(catalogues()) - {CODE}:
        with spoken(code):
            assert _("") == ""
            assert (_("Settings") == "Settings") == (code == "en")


def test_catalogues_are_read_as_gettext_reads_them_compiled() -> None:
    for path in shipped("assets").glob("locale/*/LC_MESSAGES/hierchat.po"):
        compiled = BytesIO()
        with path.open("rb") as file:
            write_mo(compiled, read_po(file))
        compiled.seek(0)
        theirs: Any = gettext.GNUTranslations(compiled)
        ours: Any = catalogues()[path.parent.parent.name]
        assert {key: ours._catalog.get(key) for key in theirs._catalog if key} == {
            key: said for key, said in theirs._catalog.items() if key
        }
        assert len(ours._catalog) == len(theirs._catalog)
        assert [ours.plural(n) for n in range(120)] == [theirs.plural(n) for n in range(120)]


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, "en"),
        ({"LANG": "de_AT.UTF-8"}, "de"),
        ({"LANG": "de_DE.UTF-8", "LC_ALL": "C.UTF-8"}, "en"),
        ({"LANG": "C", "LANGUAGE": "zz:fr:de"}, "fr"),
        ({"LANG": "sr@latin", "LC_MESSAGES": "pt_BR"}, "pt"),
    ],
)
def test_the_terminal_has_the_language_of_its_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], language: str
) -> None:
    for name in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, said in environment.items():
        monkeypatch.setenv(name, said)
    assert of_terminal() == language


def test_a_sentence_is_said_in_the_language_of_now() -> None:
    with spoken(CODE):
        assert _("{n} chats") == "{n} çĥáťš··"
        assert (
            plural("{n:,} chat of {who}", "{n:,} chats of {who}", 2000, who="Ann")
            == "2,000 çĥáťš óƒ Ann" + "·" * 5
        )
        assert plural("{n} chat", "{n} chats", 1) == "1 çĥáť··"
    assert _("{n} chats") == "{n} chats"
    assert plural("{n:,} chat", "{n:,} chats", 2000) == "2,000 chats"


def test_a_thread_goes_on_in_the_language_of_who_began_it() -> None:
    said: list[str] = []
    with spoken(CODE):
        does = here(lambda: said.append(_("Done")))
    thread = threading.Thread(target=does)
    thread.start()
    thread.join()
    assert said == [foreign("Done")]


def test_what_was_built_once_is_said_to_each() -> None:
    with marked():
        built = {"label": _("Send"), "value": [f"<p>{_('A & B')}</p>", 3, None], "code": _(THIS)}
    assert translated(built) == {"label": "Send", "value": ["<p>A & B</p>", 3, None], "code": "en"}
    with spoken(CODE):
        assert translated(built)["label"] == foreign("Send")
        assert translated(built)["code"] == CODE


def test_what_was_escaped_stays_escaped() -> None:
    with marked():
        built = html.escape(_("It's <b>"))
    assert translated(built) == "It&#x27;s &lt;b&gt;"
    with spoken(CODE):
        assert translated(built) == html.escape(foreign("It's <b>"))


_VALUE = re.compile(r"\{[^}]*\}")


@pytest.mark.parametrize("code", ["de", "ja", "ar"])
def test_what_was_formed_in_english_is_formed_anew_in_every_sentence(code: str) -> None:
    with (shipped("assets") / "locale" / code / "LC_MESSAGES" / "hierchat.po").open("rb") as file:
        formed = [message for message in read_po(file) if message.context == FORMED]
    assert len(formed) > 200
    with spoken(code):
        for message in formed:
            values = {field: f"<{place}>" for place, field in enumerate(_VALUE.findall(message.id))}
            english, foreign = (
                _VALUE.sub(lambda field, values=values: values[field[0]], text)
                for text in (message.id, message.string)
            )
            assert error_words(english) == foreign
            assert error_words(ValueError(english)) == foreign


def test_a_sentence_inside_of_another_is_translated_and_what_nobody_wrote_stays() -> None:
    with spoken("de"):
        assert error_words("cannot be read: a PDF file of more than 20 MB; split it") == (
            "kann nicht gelesen werden: eine PDF-Datei mit mehr als 20 MB; aufteilen"
        )
        assert error_words("notes.pdf: a PDF file of more than 20 MB; split it") == (
            "notes.pdf: eine PDF-Datei mit mehr als 20 MB; aufteilen"
        )
        assert error_words("This chat was deleted for good.") == "Dieser Chat wurde endgültig gelöscht."
        assert error_words("[Errno 5] a: b: c") == "[Errno 5] a: b: c"
        assert error_words("x: " * 400) == "x: " * 400
    with spoken("en"):
        assert error_words("There is no account 'Ann'.") == "There is no account 'Ann'."


def test_numbers_are_written_as_the_language_does() -> None:
    with spoken("de"):
        assert number(12345.6, ",.1f") == "12.345,6"
        assert plural("{n:,} chat", "{n:,} chats", 2000).startswith("2.000 ")
        assert "1.024" in error_words(
            "A password has 8 to 1,024 characters. Several words are easy to remember."
        )
    with spoken("fr"):
        assert number(12345) == "12\u202f345"
    with spoken("ja"):
        assert number(12345.6, ",.1f") == "12,345.6"
