"""Random input for what reads a stranger's files and requests. A value may come of it, or one of our own errors."""

import gzip
import json
import lzma
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import ValidationError

Input = Callable[[random.Random, Path], None]
INPUTS: dict[str, Input] = {}
CRASHES: tuple[tuple[str, int], ...] = (("detokenizer", 3585524515),)
"""Target and seed of what was found and mended."""


def target(function: Input) -> Input:
    INPUTS[function.__name__] = function
    return function


def any_text(dice: random.Random, most: int = 40) -> str:
    """Characters of every plane, of markup and of file formats."""
    planes = [
        lambda: dice.choice("[]{}\",:\\ \n\t0123456789-+eE.&*!|>'%@`#<truefalsn"),
        lambda: chr(dice.randrange(32, 127)),
        lambda: chr(dice.choice([0, 1, 0x7F, 0x85, 0x200B, 0x202E, 0x2028, 0xFEFF, 0xFFFD, 0xFFFF])),
        lambda: chr(dice.randrange(17) * 0x10000 + dice.choice([0, 0x301, 0x4E00, 0xABC, 0xFFFD])),
    ]
    return "".join(dice.choice(planes)() for _ in range(dice.randrange(most)))


def any_json(dice: random.Random, depth: int = 0) -> Any:
    """A value of any form, and of sizes that nobody expects."""
    match dice.randrange(10 if depth < 5 else 7):
        case 0:
            return dice.choice([None, True, False])
        case 1:
            return dice.choice([0, -1, 1, 2**31, 2**53, -(2**63), 2**64, 10**40])
        case 2:
            return dice.choice([0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf")])
        case 3 | 4 | 5 | 6:
            return any_text(dice)
        case 7 | 8:
            return {any_text(dice, 9): any_json(dice, depth + 1) for _ in range(dice.randrange(5))}
    return [any_json(dice, depth + 1) for _ in range(dice.randrange(5))]


def changed(dice: random.Random, value: Any) -> Any:
    """`value` with something else in one of its places."""
    if isinstance(value, dict | list) and value and dice.random() < 0.85:
        key = dice.choice(list(value)) if isinstance(value, dict) else dice.randrange(len(value))
        copied: Any = value.copy()
        copied[key] = changed(dice, value[key])
        return copied
    return any_json(dice)


def encoded(text: str) -> bytes:
    """UTF-8, with halves of pairs where a text has them."""
    return text.encode("utf-8", "surrogatepass")


def spoilt(dice: random.Random, raw: bytes) -> bytes:
    """Bytes with some turned, left out, put twice, or the end cut off."""
    data = bytearray(raw)
    for _ in range(dice.randrange(1, 6)):
        at, size = dice.randrange(len(data) + 1), dice.choice([1, 1, 4, 64])
        match dice.randrange(5):
            case 0:
                data[at : at + size] = dice.randbytes(size)
            case 1:
                del data[at : at + size]
            case 2:
                data[at:at] = data[max(at - size, 0) : at]
            case 3:
                data[at : at + size] = b"\xff" * size
            case _ if dice.random() < 0.2:
                del data[at:]
    return bytes(data)


@target
def detokenizer(dice: random.Random, folder: Path) -> None:
    """Stop strings in text of every plane, in tokens of single bytes: seen as soon as all of them is there."""
    from hierchat.config import GenerationSettings
    from hierchat.engine.generation import Detokenizer, Stopping

    text, stop = any_text(dice, 30), any_text(dice, 6)
    if not stop or "\ufffd" in stop:
        return
    raw = (text + stop + any_text(dice, 5)).encode()

    def decode(ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")

    stopping = Stopping(GenerationSettings(stop=(stop,)), Detokenizer(decode))
    found = next((at for at, byte in enumerate(raw) if stopping.add(byte) == "stop"), None)
    first = next(at for at in range(len(raw)) if stop in decode(raw[: at + 1]))
    assert found == first, (text, stop)


@target
def streamed(dice: random.Random, folder: Path) -> None:
    """A reply's text as it is shown while it grows, its tokens cut anywhere in its characters: always the beginning of
    the whole, never less than before, never a part of a character; and so are its runs by source."""
    from hierchat.chat.statistics import ReplyStatistics, text_pieces
    from hierchat.engine.engine import Step

    text = any_text(dice, 30) + "".join(chr(plane * 0x10000 + dice.randrange(0xFFFD)) for plane in range(17))
    text = text.encode("utf-8", "replace").decode().rstrip("\ufffd")
    raw = text.encode()
    cuts = sorted({0, len(raw), *(dice.randrange(len(raw) + 1) for _ in range(dice.choice([3, 30, 300])))})
    parts = [raw[first:end] for first, end in pairwise(cuts)]

    def decode(ids: Sequence[int]) -> str:
        return b"".join(parts[id] for id in ids).decode("utf-8", "replace")

    reply, before = ReplyStatistics(decode), ""
    for id in range(len(parts)):
        reply.add(Step((id,), ("target",)))
        assert text.startswith(reply.text), (text, reply.text)
        assert len(before) <= len(before := reply.text)
    assert reply.text == text
    ends = sorted({0, len(parts), *(dice.randrange(len(parts) + 1) for _ in range(4))})
    pieces = text_pieces(range(len(parts)), [end - first for first, end in pairwise(ends)], decode)
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@target
def corpus(dice: random.Random, folder: Path) -> None:
    """Files to draft from, of every kind: what cannot be read is passed over."""
    from hierchat.texts.text_files import TextReader
    from tests.testing.office_files import docx, epub

    said = {"messages": [{"role": "assistant", "content": any_text(dice)}]}
    lines = encoded("\n".join(json.dumps(changed(dice, said)) for _ in range(4)))
    html = f"<html><body>{'<div>' * dice.choice([1, 9, 3000])}{any_text(dice)}</body>"
    kinds = {
        ".jsonl": lines,
        ".json": encoded(json.dumps(any_json(dice))),
        ".txt": encoded(any_text(dice, 300)),
        ".csv": encoded(any_text(dice, 300)),
        ".html": encoded(html),
        ".jsonl.gz": gzip.compress(lines),
        ".jsonl.xz": lzma.compress(lines),
    }
    if dice.random() < 0.02:  # each takes a process
        kinds |= {".docx": docx(any_text(dice)), ".epub": epub(html)}
    kind, raw = dice.choice(list(kinds.items()))
    (folder / f"a{kind}").write_bytes(spoilt(dice, raw) if dice.random() < 0.7 else raw)
    for text in TextReader([folder / f"a{kind}"], pages_as_text=dice.random() < 0.1):
        text.encode("utf-8")


@target
def attachment(dice: random.Random, folder: Path) -> None:
    """Attached bytes of any kind, called anything."""
    from hierchat.texts.attachments import Unreadable, fenced, read

    begins = [b"", b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf", b"PK\x03\x04", b"\x89PNG", b"{", b"\x1b[31m"]
    raw = dice.choice(begins) + any_text(dice, 200).encode(
        dice.choice(["utf-8", "utf-16", "latin-1"]), "replace"
    )
    try:
        found = read(any_text(dice), spoilt(dice, raw))
    except Unreadable:
        return
    assert "\n" not in found.name
    assert found.name
    lines = fenced(found).split("\n")
    fence = lines[-1]
    assert set(fence) == {"`"}
    assert all(fence not in line for line in lines[2:-1])


@target
def catalogue(dice: random.Random, folder: Path) -> None:
    """models.yaml, wrong in its values or in its letters."""
    import yaml

    from hierchat.models.catalogue import CatalogueError, read_catalogue

    entry = {
        "source": {"gguf": {"path": "a.gguf"}}, "size": {"parameters": 9}, "drafts": ["a"], "context_length": 8192,
        "sampling": {"temperature": 0.5}, "system_prompt": "x", "default": True, "engine": {"openai": {"url": "http://a/"}},
    }  # fmt: skip
    text = yaml.safe_dump(changed(dice, {"models": {"a": changed(dice, entry)}}), allow_unicode=True)
    raw = encoded(text)
    (folder / "models.yaml").write_bytes(spoilt(dice, raw) if dice.random() < 0.5 else raw)
    with suppress(CatalogueError):
        read_catalogue([folder / "models.yaml"])


@target
def body(dice: random.Random, folder: Path) -> None:
    """Bodies of /v1: parsed and refused before anything is computed."""
    from hierchat.access.limits import InvalidJson, parse_json
    from tests.api.test_hostile import BODIES

    _, kind, whole = dice.choice(BODIES)
    raw = encoded(json.dumps(changed(dice, changed(dice, whole))))
    with suppress(InvalidJson, ValidationError):
        kind.model_validate(parse_json(spoilt(dice, raw) if dice.random() < 0.3 else raw))


@target
def chats(dice: random.Random, folder: Path) -> None:
    """Chats of other programs, wrong anywhere: one is left out, and no other is lost."""
    from hierchat.store import Store
    from hierchat.texts.importing import Import
    from tests.texts.transfer.files import gpt_sums, own_chat, studio_chat, webui_chat

    file, one = folder / "c.json", dice.choice([gpt_sums, webui_chat, studio_chat, own_chat])()
    values = [changed(dice, changed(dice, one)), gpt_sums(id="sound", conversation_id="sound")]
    file.write_bytes(encoded(json.dumps(values)))
    with Store.open(folder / "chats.db") as store:
        user = store.users.ensure("ann")
        for _ in (done := Import(store, user, [file])):
            pass
        assert done.outcomes, done.reasons
        assert all("\n" not in reason for reason in done.reasons)
        for chat in store.chats.find(user):
            assert store.transfer.export_chat(user, chat.id).current


@target
def learned(dice: random.Random, folder: Path) -> None:
    """What was learned and kept, damaged: refused, or numbers to draft with."""
    from hierchat.drafting.acceptance import Acceptance

    with suppress(ValueError):
        Acceptance.from_bytes(spoilt(dice, Acceptance().to_bytes()))


@target
def heads(dice: random.Random, folder: Path) -> None:
    """Heads of safetensors and of GGUF with bytes turned."""
    from hierchat.models.fetch.convert import read_folder
    from hierchat.models.formats.gguf_head import head_in
    from hierchat.models.progress import ModelError
    from tests.models.test_hostile import gguf_of

    tokens = ("tokenizer.ggml.tokens", ["a", "b"])
    values = [("general.architecture", "llama"), ("llama.block_count", 2), tokens]
    with suppress(ModelError):
        head_in(spoilt(dice, gguf_of(values, [("a.weight", [32, 2], 0, 0)]) + bytes(256)))
    tensor = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    header = {"a": tensor, "__metadata__": {"format": "pt"}}
    raw = encoded(json.dumps(changed(dice, header)))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    whole = len(raw).to_bytes(8, "little") + raw + bytes(16)
    (folder / "model.safetensors").write_bytes(spoilt(dice, whole) if dice.random() < 0.5 else whole)
    with suppress(ModelError):
        read_folder(folder)
