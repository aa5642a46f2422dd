"""Cut documents into passages by headings and paragraphs, and choose which of the found ones fit a prompt."""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import log

from hierchat.store.records import Attachment, Passage
from hierchat.texts.attachments import fenced
from hierchat.texts.pdf import PAGE

LONGEST = 800
"""Characters of a passage at most, roughly 200 tokens: so a prompt takes passages from several places."""
MOST = 12
"""Passages that a question brings at most."""
BUDGET = 2_000
"""Tokens that they have at most; a quarter of the context where that is less."""
WORTH = 0.3
"""Share of the best passage's score: what scores less has but common words with the question."""
_HEADED = frozenset((".md", ".markdown", ".docx", ".epub", ".html", ".htm"))
_HEADING = re.compile(r"(#{1,6})[ \t]+(.+?)[ \t]*#*\s*")
_FENCE = re.compile(r" {0,3}(```|~~~)")
_SENTENCE = re.compile(r"[.!?]['\")\]]*\s|\u3002")


def cut(name: str, kind: str, texts: Iterable[str]) -> Iterator[Passage]:
    """Cut the texts of one file into passages; a passage's place is its headings, page, or line number."""
    headings: list[tuple[int, str]] = []
    block, paragraph = "", ""
    first, begun, page = 1, 1, 1
    in_code = False

    def joined() -> None:
        nonlocal block, paragraph, first
        first = first if block else begun
        block, paragraph = f"{block}\n{paragraph}" if block else paragraph, ""

    def ended() -> Iterator[Passage]:
        nonlocal block
        place = f"p. {page}" if kind == ".pdf" else f"L{first}"
        place = " / ".join(title for _level, title in headings) or place
        yield from (Passage(name, place, piece) for piece in _pieces(block))
        block = ""

    lines = (line for text in texts for line in io.StringIO(text))
    for number, line in enumerate(lines, 1):
        heading = _HEADING.fullmatch(line) if kind in _HEADED and not in_code else None
        turned = line.count(PAGE)
        if paragraph and (heading or turned or len(paragraph) > LONGEST or not (line.strip() or in_code)):
            if len(block) + len(paragraph) > LONGEST:
                yield from ended()
            joined()
        if heading or turned:
            yield from ended()
            page += turned
        if heading:
            level = len(heading[1])
            headings = [*(above for above in headings if above[0] < level), (level, heading[2])]
        elif line.strip() or (in_code and paragraph):
            begun = begun if paragraph else number
            paragraph += line.replace(PAGE, "")
        in_code ^= bool(_FENCE.match(line))
    if len(block) + len(paragraph) > LONGEST:
        yield from ended()
    joined()
    yield from ended()


def _pieces(text: str) -> Iterator[str]:
    while len(text) > LONGEST:
        half, most = LONGEST // 2, LONGEST
        end = text.rfind("\n", half, most) + 1
        end = end or max((found.end() for found in _SENTENCE.finditer(text, half, most)), default=0)
        end = end or text.rfind(" ", half, most) + 1 or most
        yield text[:end].strip()
        text = text[end:]
    if text.strip():
        yield text.strip("\n").rstrip()


def fitting(
    found: Sequence[Passage], number: int, budget: int, count: Callable[[str], int]
) -> list[Attachment]:
    """Return the found passages, best first, as attachments numbered from `number` on, within `budget` tokens."""
    chosen: list[Attachment] = []
    for passage in found:
        if len(chosen) == MOST or passage.score < WORTH * found[0].score:
            break
        name = f"{passage.name}, {passage.place}"
        quote = Attachment(name, 0, passage.text, number + len(chosen), passage.id)
        tokens = count(f"{fenced(quote)}\n\n")
        if tokens <= budget:
            budget -= tokens
            chosen.append(replace(quote, size=tokens))
    return chosen


# The passage that a sentence of a reply rests on, by its words: small models name none.
RESTS = 0.5
"""Share of a sentence's words, by their weight, that a passage has if the sentence rests on it."""
LEAST = 3
"""Words that they share at least."""
ASKED = 0.25
"""Weight of a word that the question has: it names the matter, not the answer."""
_STEM = 6
"""Characters by which words are compared, so that other endings of a word count as the same."""
_END = re.compile(
    r"(?<!\b[A-Z][a-z])(?<!\b[A-Z][a-z]{2})(?<!\b\w)[.!?][\"')*_`]*(?=\s|$)|[\u3002\uff01\uff1f]"
)
_NUMBERS = re.compile(r"[ \t]*\[\d{1,6}(?:, ?\d{1,6})*\][.!?]?")
_WORD = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]|\w+")


def resting(reply: str, passages: Mapping[int, str], question: str = "") -> list[tuple[int, int]]:
    """Return where sentences end that rest on a passage, and its number; without numbered ones, code and headings."""
    asked = _stems(question)
    held = {number: _stems(text) for number, text in passages.items()}
    common = Counter(word for words in held.values() for word in words)

    def weight(word: str) -> float:
        rare = log((len(held) + 1) / (max(common[word], 1) + 0.5))
        return min(len(word), _STEM) * rare * (ASKED if word in asked else 1.0)

    found = []
    for begin, end in _sentences(reply):
        words = _stems(reply[begin:end])
        shared = {number: words & those for number, those in held.items()}
        worth = {number: sum(map(weight, those)) for number, those in shared.items()}
        best = max(worth, key=worth.__getitem__, default=0)
        named = _NUMBERS.search(reply, begin, end)
        if (
            not named
            and best
            and len(shared[best]) >= LEAST
            and worth[best] >= RESTS * sum(map(weight, words))
        ):
            found.append((end, best))
    return found


@lru_cache(maxsize=1_000)  # a chat is drawn again and again
def _stems(text: str) -> frozenset[str]:
    return frozenset(word[:_STEM] for word in _WORD.findall(text.lower()))


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    at, in_code = 0, False
    for line in text.splitlines(keepends=True):
        begin, at = at, at + len(line)
        last = begin + len(line.rstrip())
        if fence := _FENCE.match(line):
            in_code = not in_code
        if fence or in_code or line.startswith(("#", "|", "    ")):
            continue
        while begin < last:
            found = _END.search(text, begin, last)
            end = found.end() if found else last
            if behind := _NUMBERS.match(text, end, last):
                end = behind.end()
            yield begin, end
            begin = end
