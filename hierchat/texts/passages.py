"""Cut documents into passages by headings and paragraphs, and choose which of the found ones fit a prompt."""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

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
    """Cut the texts of one file, which may come in pieces, into passages. A passage's place is the headings
    above it, else its page, else the number of its first line."""
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
    """Cut a text into pieces of at most a passage, at the end of a line, of a sentence or of a word."""
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
    """Return the found passages, best first, as attachments of a question, numbered from `number` on: as many
    as have at most `budget` tokens together. `count` counts the tokens of a text."""
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
