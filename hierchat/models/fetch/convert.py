"""Make model files into what loads in seconds: once, kept in the cache under the source's identity.

A GGUF becomes a folder of blocks for our kernels, or of float32 safetensors for transformers; safetensors become
blocks where models.yaml asks for it."""

from __future__ import annotations

import functools
import gc
import importlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from hierchat.config import cache_dir
from hierchat.models import cache
from hierchat.models.architectures.model_config import of_text
from hierchat.models.device_memory import require_free
from hierchat.models.formats import block_model
from hierchat.models.formats.assemble import read_gguf
from hierchat.models.formats.blocks import widening
from hierchat.models.formats.gguf_config import (
    completed,
    end_tokens,
    gguf_config,
    special_tokens,
    whole_config,
)
from hierchat.models.formats.gguf_families import FAMILIES
from hierchat.models.formats.gguf_head import Head, read_head
from hierchat.models.formats.gguf_module import WIDTH, GgufModule, matrices_of, stored
from hierchat.models.formats.gguf_tokenizer import ARRAYS, require_bounded_tokens, write_tokenizer
from hierchat.models.formats.layouts import VERSION
from hierchat.models.progress import (
    NONSENSE,
    BrokenFileError,
    Progress,
    Report,
    UnsupportedError,
    bar_class,
    silent,
    transformers_bars,
)
from hierchat.models.runnable import gguf_unsupported, require_supported

MARKER = "hierchat.json"
"""Written last into a converted folder: the GGUF it came from and the size of each file."""

_FORM = 4  # a new number converts everything anew


def converted_folder(gguf_sha256: str) -> Path:
    """Return where this GGUF lies as float32 safetensors, or will lie."""
    return cache_dir() / "converted" / gguf_sha256


def blocks_folder(identity: str) -> Path:
    """Return where this model lies as blocks, or will lie."""
    return cache_dir() / "blocks" / identity


def is_converted(folder: Path) -> bool:
    """Tell whether a conversion is whole, by its marker and the sizes of its files, and laid out for this processor."""
    try:
        marker = json.loads((folder / MARKER).read_text())
        whole = marker["form"] == _FORM and all(
            (folder / name).stat().st_size == size for name, size in marker["files"].items()
        )
        return whole and marker["layout"] == _layout(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _layout(folder: Path) -> list[int] | None:
    """Return what a folder of blocks depends on: its version, and the rows that this processor computes at once."""
    if not any((folder / file).exists() for file in (block_model.MODEL_FILE, block_model.WEIGHTS_FILE)):
        return None
    from hierchat.jit import LANES

    return [VERSION, LANES]


def source_sha256(folder: Path) -> str | None:
    """Return the SHA-256 of the GGUF that a converted folder came from; None for any other, whatever it says."""
    try:
        said = str(json.loads((folder / MARKER).read_text())["source_sha256"])
    except (OSError, *NONSENSE):
        return None
    return said if re.fullmatch("[0-9a-f]{64}", said) else None


def convert(gguf: Path, gguf_sha256: str, report: Report) -> Path:
    """Make the folder with weights as float32 safetensors (4 bytes per parameter), configuration and tokenizer. Raises
    BrokenFileError, UnsupportedError for a GGUF of another architecture, or DiskFullError."""
    return _made(converted_folder(gguf_sha256), gguf_sha256, report, lambda part: _write(gguf, part, report))


def convert_blocks(gguf: Path, gguf_sha256: str, report: Report) -> Path:
    """Make the folder with weights as blocks (about the size of the GGUF), configuration and tokenizer. Raises
    BrokenFileError, DiskFullError, or UnsupportedError, naming what the CPU engine cannot compute."""
    target = blocks_folder(gguf_sha256)
    return _made(target, gguf_sha256, report, lambda part: _write_blocks(gguf, part, report))


def pack_folder(folder: Path, identity: str, bits: int, report: Report) -> Path:
    """Make the folder with a safetensors model rounded to blocks of 8 or 4 bits. Raises as convert_blocks."""
    from hierchat.models.formats.assemble import pack_safetensors

    def write_packed(part: Path) -> None:
        for file in folder.iterdir():
            if file.suffix in (".json", ".jinja", ".model", ".txt") and "safetensors" not in file.name:
                shutil.copy(file, part / file.name)
        said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        require_supported(said)
        if (config := dict(of_text(said))) != said:
            (part / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        block_model.write_model(pack_safetensors(folder, config, bits, report), part / block_model.MODEL_FILE)

    return _made(blocks_folder(f"{identity}-{bits}"), identity, report, write_packed)


def _made(target: Path, source: str, report: Report, write: Callable[[Path], None]) -> Path:
    """Write `target` whole or not at all."""
    with cache.locked(target, report, "converting"), cache.disk_errors():
        if is_converted(target):
            return target
        part = target.with_name(f"{target.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            write(part)
            files = {file.name: file.stat().st_size for file in part.iterdir()}
            marker = {"form": _FORM, "layout": _layout(part), "source_sha256": source, "files": files}
            (part / MARKER).write_text(json.dumps(marker, indent=1))
            cache.publish(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    gc.collect()
    return target


def _write(gguf: Path, folder: Path, report: Report) -> None:
    head = read_head(gguf)
    if head.architecture in FAMILIES:
        return _write_module(gguf, head, folder, report, blocks=False)
    import torch
    from transformers import AutoModelForCausalLM

    message, needed = f"{gguf.name}, once", WIDTH * head.parameters
    report(Progress("converting", 0, None, message))
    cache.require_space(needed)
    require_free(int(1.2 * needed), f"Converting {gguf.name}")
    try:
        with _reporting(report, message):
            model = AutoModelForCausalLM.from_pretrained(
                gguf.parent, gguf_file=gguf.name, dtype=torch.float32
            )
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UnsupportedError(f"{gguf.name} cannot be converted: {first_line(error)}") from error
    _describe_tokenizer(gguf, folder)
    report(Progress("converting", 0, None, f"{gguf.name}: writing"))
    del model.config.quantization_config  # the weights are plain now, which save_pretrained would not believe
    model.hf_quantizer = None
    with transformers_bars(silent, "converting", message):
        model.save_pretrained(folder)


def _write_blocks(gguf: Path, folder: Path, report: Report) -> None:
    report(Progress("converting", 0, None, f"{gguf.name}, once"))
    head = read_head(gguf)
    if head.architecture in FAMILIES:
        return _write_module(gguf, head, folder, report, blocks=True)
    if reason := gguf_unsupported(head):
        raise UnsupportedError(f"The CPU engine does not compute {reason}.")
    cache.require_space(int(1.5 * _size_in_blocks(head)))
    describe(gguf, folder)
    shape = json.loads((folder / "config.json").read_text())
    require_supported(shape)
    block_model.write_model(read_gguf(gguf, shape, report), folder / block_model.MODEL_FILE)


def _size_in_blocks(head: Head) -> int:
    return int(sum(tensor.size * widening(tensor.type) for tensor in head.tensors))


def _write_module(gguf: Path, head: Head, folder: Path, report: Report, *, blocks: bool) -> None:
    """Write a file of one of FAMILIES: weights as float32 safetensors, or for a processor with matrices in the file's
    blocks; configuration and tokenizer. Raises BrokenFileError, UnsupportedError, DiskFullError, DoesNotFitError."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = {**gguf_config(head), **special_tokens(head)}
    try:
        with torch.device("meta"):
            module = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    except Exception as error:  # a configuration's checks raise nothing more exact
        said = f"{first_line(error)} ({config['model_type']})"
        raise BrokenFileError(f"{gguf.name} does not say what model it is: {said}.") from error
    shapes = {name: tuple(tensor.shape) for name, tensor in stored(module).items()}
    sizes = [WIDTH * math.prod(shape) for shape in shapes.values()]
    cache.require_space(_size_in_blocks(head) if blocks else sum(sizes))
    require_free(_size_in_blocks(head) if blocks else _AT_ONCE * max(sizes), f"Converting {gguf.name}")
    made = GgufModule(gguf, head, config, shapes)
    if blocks:
        block_model.write_weights(
            made.weights(*matrices_of(module), report), folder / block_model.WEIGHTS_FILE
        )
    else:
        made.write(folder / "model.safetensors", report)
    _describe_tokenizer(gguf, folder)
    module.config.architectures = [type(module).__name__]
    module.config.save_pretrained(folder)
    module.generation_config.save_pretrained(folder)


_AT_ONCE = 3
"""How often the largest tensor may be in memory while it is made: as pieces, joined, in another order."""


@contextmanager
def _reporting(report: Report, message: str) -> Iterator[None]:
    """Lend transformers' GGUF reader, which takes no progress hook, a bar that reports tensors."""
    reader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    drawn = reader.tqdm
    reader.tqdm = bar_class(report, "converting", message)
    try:
        with transformers_bars(report, "converting", message):
            yield
    finally:
        reader.tqdm = drawn


# A GGUF file's configuration and tokenizer, as files that transformers reads. Where transformers has to read them, a
# process of its own does it: that brings torch into memory, which a chat on the CPU engine does without.

SECONDS = 600


def describe(gguf: Path, folder: Path) -> None:
    """Write configurations and tokenizer of a GGUF file. Raises BrokenFileError, UnsupportedError."""
    config = whole_config(read_head(gguf))
    if config and write_tokenizer(gguf, folder):
        for name in ("config.json", "generation_config.json"):
            (folder / name).write_text(json.dumps(config, indent=2), encoding="utf-8")
        return
    require_bounded_tokens(gguf, read_head(gguf, ARRAYS).values)
    if not _describe_beside(gguf, folder):
        _describe_here(gguf, folder)


def _describe_tokenizer(gguf: Path, folder: Path) -> None:
    """Write the tokenizer alone. Raises BrokenFileError, UnsupportedError."""
    if not write_tokenizer(gguf, folder):
        _tokenizer(gguf).save_pretrained(folder)


def first_line(error: Exception) -> str:
    """Return the first line of what an error of a library says."""
    return (str(error) or type(error).__name__).strip().splitlines()[0]


def _describe_here(gguf: Path, folder: Path) -> None:
    from transformers import AutoConfig, GenerationConfig

    try:
        config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UnsupportedError(f"{gguf.name} cannot be read: {first_line(error)}.") from error
    config.save_pretrained(folder)
    file, head = folder / "config.json", read_head(gguf)
    said = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(completed(said, head), indent=2), encoding="utf-8")
    generation = GenerationConfig.from_model_config(config)
    if (ends := end_tokens(head)) is not None:
        generation.eos_token_id = ends
    generation.save_pretrained(folder)
    _tokenizer(gguf).save_pretrained(folder)


def _tokenizer(gguf: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except Exception as error:  # the tokenizers library raises nothing more exact
        raise UnsupportedError(f"The tokenizer in {gguf.name} cannot be read: {first_line(error)}") from error


def _describe_beside(gguf: Path, folder: Path) -> bool:
    """Describe a file in another process; returns False where that failed. Raises BrokenFileError if it never ends."""
    package = str(Path(__file__).parents[3])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(gguf), str(folder)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": path},
            timeout=SECONDS,
        )
    except OSError:
        return False
    except subprocess.TimeoutExpired as error:
        raise BrokenFileError(
            f"{gguf} takes more than {SECONDS // 60} minutes to read its tokenizer. Choose another file."
        ) from error
    return done.returncode == 0


def main(gguf: Path, folder: Path) -> int:
    """Describe a file for `_describe_beside`; returns 1 where that failed."""
    import gguf as library

    # transformers reads the file once for each question, and the library makes several views for each token's text,
    # which for mapped arrays take most of its time: here they are plain ones over the same memory
    library.GGUFReader = functools.cache(library.GGUFReader)
    unmapped = ModuleType("numpy")
    unmapped.__dict__.update(np.__dict__)
    unmapped.__dict__["memmap"] = lambda *given, **named: np.asarray(np.memmap(*given, **named))
    library.gguf_reader.np = unmapped
    try:
        _describe_here(gguf, folder)
    except Exception:  # said by the caller, who does it once more
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
