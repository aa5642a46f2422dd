# ruff: noqa: RUF001
"""Names of accounts: which are one name in two spellings, and which look alike to whoever reads them.

After Unicode's technical report 39, cut down to the scripts whose letters are taken for Latin ones.
"""

from __future__ import annotations

import unicodedata

_LETTERS = {
    "Cyrillic capitals": ("АВЕКМНОРСТУХІЈЅҮԌԚԜӀ", "ABEKMHOPCTYXlJSYGQWl"),
    "Cyrillic": ("аеорсухікјѕһԁԛԝүӏ", "aeopcyxikjshdqwyl"),
    "Greek capitals": ("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹ", "ABEZHlKMNOPTYXC"),
    "Greek": ("αηικνορυωϲϳ", "anikvopuwcj"),
    "Armenian": ("ՕՏԼՍօսոհցզ", "OSLUounhgq"),
    "Cherokee": ("ᎪᏴᏟᎠᎬᏀᎻᎫᏦᏞᎷᏢᎡᏚᎢᏙᎳᎽᏃ", "ABCDEGHJKLMPRSTVWYZ"),
    "Latin, and digits": ("ıɑɡI01", "iaglol"),
}
"""Letters, and those that they are taken for."""
_LOOK_ALIKE = {
    ord(one): other for these, those in _LETTERS.values() for one, other in zip(these, those, strict=True)
}
_TOGETHER = [
    {"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "LATIN"},
    {"CJK", "HANGUL", "LATIN"},
    {"CJK", "BOPOMOFO", "LATIN"},
]
"""Scripts that are written beside each other, and whose letters nobody takes for each other's."""


def normal(name: str) -> str:
    """One spelling of a name: however it is capitalised, and however a device composes its letters."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def skeleton(name: str) -> str:
    """What is the same for names that look alike."""
    return normal(unicodedata.normalize("NFKC", name).translate(_LOOK_ALIKE))


def mixes_scripts(name: str) -> bool:
    """Whether letters of several scripts stand in it, as in a Latin name with a Cyrillic letter."""
    letters = [
        letter for letter in unicodedata.normalize("NFKC", name) if not letter.isascii() or letter.isalpha()
    ]
    scripts = {unicodedata.name(letter, "?").split()[0] for letter in letters}
    return len(scripts) > 1 and not any(scripts <= together for together in _TOGETHER)
