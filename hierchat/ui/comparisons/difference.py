"""Where two texts differ, word by word."""

from __future__ import annotations

import html
import re
from difflib import SequenceMatcher

from hierchat.language import _

BEFORE = 12
"""Words that are shown before the first difference."""
MOST = 1500
"""Words of each text that are compared: difflib takes the square of them."""
_WORDS = re.compile(r"\S+\s*")


def difference(first: str, second: str) -> tuple[str, str]:
    """Both texts as HTML from shortly before their first difference on, words of only one of them
    marked. Equal texts give empty ones."""
    left, right = _WORDS.findall(first)[:MOST], _WORDS.findall(second)[:MOST]
    first_words, second_words = ([word.strip() for word in words] for words in (left, right))
    codes = SequenceMatcher(None, first_words, second_words, autojunk=False).get_opcodes()
    at = next((at for at, code in enumerate(codes) if code[0] != "equal"), None)
    if at is None:
        return "", ""
    shown: tuple[list[str], list[str]] = ([], [])
    if at:  # what both begin with
        _kind, low, high, *_rest = codes[at - 1]
        cut = max(low, high - BEFORE)
        lead = ("… " if cut else "") + html.escape("".join(left[cut:high]))
        for side in shown:
            side.append(lead)
    marks = " hc-first-other"
    for kind, *places in codes[at:]:
        for side, words, low, high in zip(shown, (left, right), places[::2], places[1::2], strict=True):
            text = html.escape("".join(words[low:high]))
            if kind == "equal":
                side.append(text)
            elif text or marks:
                side.append(f'<mark class="hc-other{marks}">{text or _("(nothing)")}</mark>')
        if kind != "equal":
            marks = ""
    return "".join(shown[0]), "".join(shown[1])
