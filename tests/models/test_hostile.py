"""Models made to do harm: whatever their heads say, the check before a load passes or refuses them, in our words."""

import json
import os
import random
import struct
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from hierchat.models.catalogue import ModelEntry
from hierchat.models.fetch.convert import identity_of, read_folder, source_sha256
from hierchat.models.formats.gguf_head import Head, head_in, read_head
from hierchat.models.formats.gguf_tokenizer import ARRAYS, write_tokenizer
from hierchat.models.load import tokenizer_files
from hierchat.models.load.add import _file, _folder, of_config, of_head
from hierchat.models.load.check import expected_step, fit, refusal, require_runnable
from hierchat.models.load.tokenizer_files import read_tokenizer
from hierchat.models.progress import BrokenFileError, ModelError
from tests.gguf_files.models import DAILY, tiny_module
from tests.gguf_files.models import FAMILIES as FILES
from tests.gguf_files.writer import write_family
from tests.testing.architectures import CONFIGS, model_of, write_gguf
from tests.testing.tiny_files import of_folder, of_gguf, tiny_tokenizer

CASES = 12
"""Cases of each kind of file."""
OWN = ("llama", "qwen3 moe", "gemma4, experts", "gpt-oss", "phi3, long")
NIGHTLY = [pytest.param(name, marks=pytest.mark.large) for name in FILES if name not in DAILY[::2]]
Tensor = tuple[str, list[int], int, int]
NUMBERS = [0, -1, 1, 3, 255, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1]
VALUES: list[Any] = [
    *NUMBERS, *NUMBERS, 0.0, -1.0, 1e308, float("inf"), float("-inf"), float("nan"), True, "", "12", "../../x", "\0",
    "x" * 5000, [], [0], [0, 0], [-1] * 4, [2**40] * 8, [0.0, float("nan")], ["a"], [[1], [2]], [[[[]]]], None,
]  # fmt: skip


def gguf_of(values: list[tuple[str, Any]], tensors: list[Tensor]) -> bytes:
    """A head. Nothing is too odd for it."""

    def text(said: str) -> bytes:
        raw = said.encode()
        return struct.pack("<Q", len(raw)) + raw

    def typed(value: Any) -> bytes:
        match value:
            case bool():
                return struct.pack("<I?", 7, value)
            case int():
                return struct.pack("<Iq", 11, value) if value < 0 else struct.pack("<IQ", 10, value)
            case float():
                return struct.pack("<Id", 12, value)
            case str():
                return struct.pack("<I", 8) + text(value)
        inner = [typed(one) for one in value]
        kind = inner[0][:4] if inner else struct.pack("<I", 4)
        items = [one[4:] for one in inner if one[:4] == kind]
        return struct.pack("<I", 9) + kind + struct.pack("<Q", len(items)) + b"".join(items)

    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    out += b"".join(text(key) + typed(value) for key, value in values)
    for name, shape, kind, at in tensors:
        out += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", kind, at)
    return out


@cache
def whole(name: str) -> tuple[dict[str, Any], list[Tensor], int]:
    """Values and tensors of a sound file, and how many bytes its data take."""
    from gguf import GGMLQuantizationType

    path = Path(os.environ["HIERCHAT_CACHE"]).with_name(f"{name}.gguf")
    if name in FILES:
        write_family(name, tiny_module(name), path, tiny_tokenizer(("ab",)), packed=True)
    else:
        write_gguf(model_of(CONFIGS[name], vocab_size=272), path, tiny_tokenizer(("ab",)))
    head = read_head(path, ARRAYS)
    begin = min(tensor.begin for tensor in head.tensors)
    tensors = [
        (t.name, list(t.shape), int(GGMLQuantizationType[t.type]), t.begin - begin) for t in head.tensors
    ]
    return {**head.values, **head.by_layer}, tensors, max(t.begin + t.size for t in head.tensors)


def changed(values: dict[str, Any], tensors: list[Tensor], dice: random.Random) -> bytes:
    """The head with something wrong in it."""
    said, others = list(values.items()), [(name, list(shape), kind, at) for name, shape, kind, at in tensors]
    own = [at for at, (key, _) in enumerate(said) if not key.startswith("tokenizer.ggml.")] or [0]
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        at, tensor = dice.choice(own), dice.randrange(len(others))
        name, shape, kind, begin = others[tensor]
        value = dice.choice(VALUES)
        match dice.randrange(12):
            case 0:
                others[tensor] = (name, [dice.choice(NUMBERS[2:]) % 2**64 for _ in shape], kind, begin)
            case 1:
                others[tensor] = (name, dice.choice(([], [0], [1] * 9, [32], shape[::-1])), kind, begin)
            case 2:
                others[tensor] = (name, shape, dice.choice((0, 1, 39, 77, 2**32 - 1)), begin)
            case 3:
                others[tensor] = (name, shape, kind, dice.choice(NUMBERS[2:]))
            case 4:
                others[tensor] = (dice.choice(("../x", "x" * 300, "", others[0][0])), shape, kind, begin)
            case 5:
                said.append(("general.alignment", [] if value is None else value))
            case 6:
                said.append(("split.count", [] if value is None else value))
            case _ if value is None:
                said[at] = (f"no.{said[at][0]}", 0)
            case _:
                said[at] = (said[at][0], value)
    head = bytearray(gguf_of(said, others))
    if dice.random() < 0.15:  # also bytes alone
        for _ in range(3):
            head[dice.randrange(8, min(len(head), 3000))] = dice.randrange(256)
    return bytes(head)


def refused(entry: ModelEntry, *steps: Callable[[], Any]) -> bool:
    """Whether a step or the check before a load says something against it, in a sentence of ours; any other class of
    error goes through. The list of models asks the rest of all that are here."""
    said: list[str] = []
    checks = [partial(require_runnable, entry, device) for device in ("cpu", "cuda")]
    for step in (*steps, *checks):
        try:
            step()
        except ModelError as error:
            said.append(str(error))
    for sentence in said:
        assert "\n" not in sentence, sentence
        assert sentence.endswith("."), sentence
        assert len(sentence) < 600, sentence
    for asked in (expected_step, fit, refusal):
        asked(entry, "cpu")
    return bool(said)


def write(path: Path, raw: bytes, size: int = 0) -> Path:
    """A file whose data are a hole."""
    path.write_bytes(raw)
    os.truncate(path, max(size, len(raw)) + 100_000)
    return path


@pytest.mark.parametrize("name", [*OWN, *DAILY[::2], *NIGHTLY])
def test_any_head_of_a_gguf_file_is_read_or_refused(name: str, tmp_path: Path) -> None:
    values, tensors, size = whole(name)
    dice, path = random.Random(name), tmp_path / "hostile.gguf"
    write(path, gguf_of(list(values.items()), tensors), size)
    entry = of_gguf(path, name="hostile")
    require_runnable(entry, "cpu")  # as it was
    count = 0
    for _ in range(CASES):
        raw = changed(values, tensors, dice)
        write(path, raw, size)
        count += refused(entry, partial(head_in, raw), lambda: _file(path).entry)
    assert count > CASES // 5


@pytest.mark.parametrize("name", OWN)
def test_any_config_is_read_or_refused(name: str, tiny_folder: Path) -> None:
    config, dice = CONFIGS[name].to_dict(), random.Random(name)
    entry = of_folder(tiny_folder, name="hostile", blocks=8)
    count = 0
    for _ in range(CASES):
        made = dict(config)
        for _ in range(dice.choice((1, 1, 2))):
            made[dice.choice(list(made))] = dice.choice([*VALUES, {}, {"a": {"b": float("nan")}}])
        text = json.dumps(made)
        (tiny_folder / "config.json").write_text(text)
        count += refused(
            entry,
            partial(of_config, "hostile", text, 1_000_000),
            lambda: _folder(tiny_folder).entry,
            partial(read_folder, tiny_folder),
        )
    assert count > CASES // 5


def test_a_number_that_cannot_be_is_refused_and_named(tmp_path: Path) -> None:
    values, tensors, size = whole("llama")
    for key in ("block_count", "attention.head_count", "attention.head_count_kv", "context_length"):
        for value in (2**40, -1, float("inf"), "two"):
            raw = gguf_of(list((values | {f"llama.{key}": value}).items()), tensors)
            path = write(tmp_path / "hostile.gguf", raw, size)
            with pytest.raises(BrokenFileError, match=r"say what model it is \(its .* is .*\)\. Fetch"):
                of_head("hostile", read_head(path))


def test_what_no_file_has_is_no_file(tmp_path: Path) -> None:
    """A count of shards that is none counts as one."""
    values, tensors, _ = whole("llama")

    def head(key: str, value: Any) -> Head:
        path = tmp_path / "hostile.gguf"
        path.write_bytes(gguf_of([*values.items(), (key, value)], tensors) + bytes(1_000_000))
        return read_head(path)

    alignments = [("general.alignment", value) for value in (0, -8, "32", float("inf"), float("nan"), 2**40)]
    for key, value in (*alignments, ("general.architecture", "llama")):  # the second of its name
        with pytest.raises(BrokenFileError, match=r"hostile\.gguf is no whole GGUF file\. Fetch or copy"):
            head(key, value)
    for value in ("3", float("inf"), -1, 0, [2]):
        assert head("split.count", value).shards == 1


@pytest.mark.parametrize("many", ["values", "tensors", "texts", "arrays"])
def test_a_file_of_zeros_is_not_counted_through(many: str, tmp_path: Path) -> None:
    """It takes no room on the disk, and would keep a reader busy for hours."""
    path, most = tmp_path / "zeros.gguf", 2**36
    tensors, values = (most if many == "tensors" else 0), (most if many == "values" else 1)
    raw = b"GGUF" + struct.pack("<IQQ", 3, tensors, values)
    if many in ("texts", "arrays"):
        raw += struct.pack("<Q1sI", 1, b"a", 9) + struct.pack("<IQ", 8 if many == "texts" else 9, most)
    write(path, raw, 2**40)
    with pytest.raises(BrokenFileError, match="no whole GGUF file"):
        read_head(path)


def test_a_header_of_safetensors_that_cannot_be_is_refused(tiny_folder: Path) -> None:
    sound = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    odd = [{"shape": shape} for shape in ([2**62, 2**62], [-1], ["x"], [1.5], 7)]
    odd += [{"data_offsets": offsets} for offsets in ([0, 2**70], [])]
    headers = [json.dumps(header) for header in ({"a": []}, [], *({"a": sound | one} for one in odd))]
    for raw in (*map(str.encode, headers), b"[" * 100_000):
        (tiny_folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(4))
        with pytest.raises(BrokenFileError, match=r"model\.safetensors is broken: .* Fetch or copy it again"):
            read_folder(tiny_folder)
    (tiny_folder / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + bytes(100))
    assert identity_of(tiny_folder).startswith("safetensors:")
    with pytest.raises(BrokenFileError, match="header"):
        read_folder(tiny_folder)


@pytest.mark.parametrize(
    "name", ["tiny.gguf", "model.safetensors", "config.json", "model.safetensors.index.json"]
)
def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(name: str, tiny_folder: Path) -> None:
    """Whoever opens one waits for somebody to write to it."""
    (tiny_folder / name).unlink(missing_ok=True)
    os.mkfifo(tiny_folder / name)
    with pytest.raises(ModelError, match=r"no whole GGUF file|has no|cannot be read"):
        read_head(tiny_folder / name) if name.endswith(".gguf") else read_folder(tiny_folder)


def test_an_index_names_files_beside_it_only(tiny_folder: Path) -> None:
    for name in ("../model.safetensors", "/etc/passwd", "a/b.safetensors", 7, None, ["x"]):
        (tiny_folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(BrokenFileError, match=r"index\.json cannot be read"):
            read_folder(tiny_folder)


def test_a_config_that_is_none_is_refused(tiny_folder: Path) -> None:
    entry = of_folder(tiny_folder, name="hostile", blocks=8)
    for text in ("[" * 100_000, '{"model_type": ["llama"]}', "[]", '{"architectures": {"a": 1}}', "{"):
        (tiny_folder / "config.json").write_text(text)
        with pytest.raises(BrokenFileError, match=r"config\.json cannot be read.* Fetch or copy it again\."):
            require_runnable(entry, "cpu")


def test_a_folder_cannot_say_where_its_blocks_are_written(tiny_folder: Path) -> None:
    """Its identity names a folder of the cache, which is deleted and made anew."""
    (tiny_folder / "hierchat.json").write_text(json.dumps({"source_sha256": "/../../../elsewhere"}))
    assert source_sha256(tiny_folder) is None
    assert ".." not in identity_of(tiny_folder)


def test_a_tokenizer_that_never_ends_is_refused_by_its_file(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class of transformers' that makes as many tokens as its configuration says."""
    file = tiny_folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    monkeypatch.setattr(tokenizer_files, "CPU_SECONDS", 10)
    tokenizer_files.require_bounded(tiny_folder, plainly=False)  # as it was
    monkeypatch.setattr(tokenizer_files, "CPU_SECONDS", 3)
    file.write_text(json.dumps({**config, "tokenizer_class": "T5Tokenizer", "extra_ids": 10**9}))
    with pytest.raises(BrokenFileError, match=r"tokenizer_config\.json cannot be used \(it took too long"):
        tokenizer_files.require_bounded(tiny_folder, plainly=False)


def test_tokens_of_strange_size_are_refused_by_their_file(tmp_path: Path) -> None:
    """Each of them would be cut at all places and looked for in the vocabulary."""
    path = tmp_path / "strange.gguf"
    for tokens in (["x" * 1_000_000], ["x" * 4_000] * 100):
        own = {"tokens": tokens, "scores": [0.0] * len(tokens), "token_type": [1] * len(tokens)}
        values = [("general.architecture", "gemma3n"), *((f"tokenizer.ggml.{k}", v) for k, v in own.items())]
        path.write_bytes(gguf_of(values, []))
        with pytest.raises(BrokenFileError, match=r"strange\.gguf has a tokenizer of strange size"):
            write_tokenizer(path, tmp_path)


@pytest.mark.parametrize("what", ["grows", "large", "broken"])
def test_a_tokenizer_that_takes_too_much_is_refused(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokenizer.json"
    Tokenizer(models.BPE()).save(str(path))
    read_tokenizer(tmp_path)
    told = json.loads(path.read_text())
    if what == "grows":  # tenfold, twelve times over
        monkeypatch.setattr(tokenizer_files, "CPU_SECONDS", 1)
        tenfold = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
        told["normalizer"] = {"type": "Sequence", "normalizers": [tenfold] * 12}
    elif what == "large":
        monkeypatch.setattr(tokenizer_files, "MOST_BYTES", 10)
    else:
        told["model"] = {"type": "nothing"}
    path.write_text(json.dumps(told))
    with pytest.raises(BrokenFileError, match=r"tokenizer\.json .*Choose another model"):
        read_tokenizer(tmp_path)
