"""What loading a model gives."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tokenize
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from hierchat.config import GenerationSettings, cache_dir
from hierchat.models.catalogue import Activations, Backend, ModelEntry, ModelSource, Quantisation
from hierchat.models.fetch.bring import gguf_file, prepare
from hierchat.models.fetch.hub import hub_folder
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.progress import BrokenFileError, ModelError, Report, silent

# Which tokenizers mean the same tokens by the same ids.


_known: WeakKeyDictionary[Any, tuple[int, str]] = WeakKeyDictionary()
"""By tokenizer: how many tokens it had, and their tokens_sha256."""


def same_tokens(target_tokenizer: Any, draft_tokenizer: Any) -> str | None:
    """None when both map the same tokens to the same ids, else the reason why the draft model does not fit.

    Compares the maps themselves: configured vocabulary sizes differ by padding within one family.
    """
    if tokens_sha256(target_tokenizer) == tokens_sha256(draft_tokenizer):
        return None
    target, draft = target_tokenizer.get_vocab(), draft_tokenizer.get_vocab()
    if len(target) != len(draft):
        return f"the target has {len(target)} tokens and the draft model {len(draft)}"
    token, number = min(
        (item for item in target.items() if draft.get(item[0]) != item[1]), key=lambda item: item[1]
    )
    there = f"has number {draft[token]}" if token in draft else "does not exist"
    return f"the target's token {token!r} with number {number} {there} in the draft model"


def tokens_sha256(tokenizer: Any) -> str:
    """Names a token-to-id map. Of a large one it takes a third of a second, the first time."""
    count, name = _known.get(tokenizer, (0, ""))
    if count != len(tokenizer):
        name = hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()
        _known[tokenizer] = len(tokenizer), name
    return name


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`model` is a BlockModel where the CPU engine computes, a BlockModule where it multiplies for transformers, else a
    transformers module in eval mode.

    `device` and `dtype` as torch names them; `context_length` counts positions. `model_key` is a SHA-256 that names
    the tokens and the weights before quantisation and rounding: history written under it may draft for any precision
    of the same model. `end_ids` are the tokens that end a reply. `note`: why the CPU engine does not compute it, or
    that it was not made to chat. `activations`: what the CPU engine reads; it says itself what it really does.
    """

    name: str
    model: Any
    tokenizer: Any
    device: str
    dtype: str
    quantisation: Quantisation
    backend: Backend
    context_length: int
    model_key: str
    end_ids: frozenset[int]
    note: str = ""
    activations: Activations = "int16"


def model_key(tokenizer: Any, identity: str) -> str:
    """Names a model by its tokens and the identity of its weights."""
    return hashlib.sha256(f"{tokens_sha256(tokenizer)}\n{identity}".encode()).hexdigest()


# A catalogue model's tokenizer without its weights, and which models have the same one.


def load_tokenizer(entry: ModelEntry, progress: Report = silent) -> Any:
    """The tokenizer that loading the model gives; the model is fetched where needed. Raises a ModelError."""
    tokenizer = read_tokenizer(prepare(entry, progress))
    note_tokens(entry, tokens_sha256(tokenizer))
    return tokenizer


_MOST_BYTES = 256 * 2**20
"""Of a tokenizer.json; the largest of known models has 35 MB."""
_TRIAL_SECONDS = 10
_TRIAL = """
import sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (%d, %d))
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
except ImportError:  # Windows
    pass
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
for text in ("a" * 5000, " " * 5000, "aA1 .\\n" * 1000, "\\u6f22\\u0301" * 1000, "!?" * 2000 + "a"):
    tokenizer.decode(tokenizer.encode(text).ids)
"""
"""A tokenizer is a stranger's patterns: it reads some texts first in a process that can be ended."""


def _require_harmless(path: Path) -> None:
    """Raise BrokenFileError where a tokenizer.json is too large, or takes too long or too much memory for a short text.

    One that passed is known by its content, and not tried again."""
    if path.stat().st_size > _MOST_BYTES:
        raise BrokenFileError(f"{path} is larger than a tokenizer can be. Choose another model.")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    passed = cache_dir() / "tokenizers" / f"tried-{digest}"
    if passed.exists():
        return
    program = _TRIAL % (_TRIAL_SECONDS, _TRIAL_SECONDS)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)],
            capture_output=True,
            text=True,
            timeout=4 * _TRIAL_SECONDS,
        )
        code, said = done.returncode, done.stderr.strip().splitlines()
    except subprocess.TimeoutExpired:
        code, said = -1, []
    if code:
        reason = said[-1] if code > 0 and said else "it took too long, or too much memory"
        raise BrokenFileError(f"The tokenizer {path} cannot be used ({reason}). Choose another model.")
    with suppress(OSError):
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.touch()


def read_tokenizer(folder: Path) -> Any:
    """Read the tokenizer in a folder. Imports no torch where there is a tokenizer.json. Raises BrokenFileError."""
    try:
        if (folder / "tokenizer.json").exists():
            _require_harmless(folder / "tokenizer.json")
            from transformers import PreTrainedTokenizerFast  # AutoTokenizer would bring torch with it

            return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except BrokenFileError:
        raise
    except Exception as error:  # the tokenizers library raises nothing more exact
        raise BrokenFileError(
            f"The tokenizer in {folder} cannot be read: {error}. Delete the folder."
        ) from error


def note_tokens(entry: ModelEntry, tokens: str) -> None:
    """Remember a model's token-to-id map (its tokens_sha256), so that it is known before the model is loaded."""
    if known_tokens(entry) != tokens:
        with suppress(OSError):
            _note(entry).parent.mkdir(parents=True, exist_ok=True)
            _note(entry).write_text(tokens, encoding="ascii")


def known_tokens(entry: ModelEntry) -> str | None:
    """The tokens_sha256 of a model that was loaded before."""
    try:
        return _note(entry).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None


def _note(entry: ModelEntry) -> Path:
    said = f"{entry.source.model_dump_json()}{entry.cpu and entry.cpu.model_dump_json()}"
    return cache_dir() / "tokenizers" / hashlib.sha256(said.encode()).hexdigest()


# What a chat needs of a model's files: a template, which tokens end a turn, and how its makers sample.


PLAIN_TEMPLATE = (
    "{{ bos_token or '' }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""A conversation as text to be continued."""
NO_TEMPLATE = (
    "{} brings no chat template: it was made to continue texts. It gets the conversation as text, and may go on in "
    "your name."
)
TURN_ENDS = ("<end_of_turn>", "<turn|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|return|>", "<|call|>")
"""Control tokens behind a turn. GGUF files often name the end of a text alone."""
MESSAGE_END = "<|end|>"
"""The same, but where a turn is several messages, such as gpt-oss' thought and answer: then those have channels."""
CHANNEL = "<|channel|>"

_PUBLISHED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""What generation_config.json says of sampling, by its names."""
_IN_GGUF = {"temp": "temperature", "penalty_repeat": "repetition_penalty"}
"""What GGUF files call it, where that differs."""


def makers_sampling(entry: ModelEntry) -> GenerationSettings:
    """Return the sampling of an entry; where it sets none, what the makers wrote into its files on this machine."""
    if "sampling" in entry.model_fields_set:
        return entry.sampling
    with suppress(OSError, ValueError, ModelError):  # loading it will say what is wrong
        if file := _sampling_file(entry.source):
            return _published(file, file.stat().st_mtime_ns)
    return entry.sampling


def _sampling_file(source: ModelSource) -> Path | None:
    """Find the file in which the makers of a model advise how to sample; None where the model is not here."""
    if source.gguf or source.wheel:
        return gguf_file(source)
    folder = source.folder.path if source.folder else None
    if source.hub:
        folder = hub_folder(source.hub.repo, source.hub.revision)
    return folder / "generation_config.json" if folder else None


@lru_cache(maxsize=64)
def _published(file: Path, changed: int) -> GenerationSettings:
    """`changed`: when the file was, so that a new one is read."""
    said: dict[str, Any]
    if file.suffix == ".json":
        said = json.loads(file.read_text(encoding="utf-8"))
        if not said.get("do_sample"):
            said.pop("temperature", None)
    else:
        names = {name: name for name in _PUBLISHED} | {name: ours for ours, name in _IN_GGUF.items()}
        values = read_head(file).values
        said = {name: values.get(f"general.sampling.{theirs}") for name, theirs in names.items()}
        # Float32 in the file
        said = {name: round(value, 6) if isinstance(value, float) else value for name, value in said.items()}
    return GenerationSettings(**{name: said[name] for name in _PUBLISHED if said.get(name) is not None})


def ready_to_chat(loaded: LoadedModel) -> LoadedModel:
    """The model with a template and all tokens that end its turns; its note says where it was made for another use."""
    tokenizer = loaded.tokenizer
    vocabulary, added = tokenizer.get_vocab(), tokenizer.added_tokens_decoder
    names = TURN_ENDS if CHANNEL in vocabulary else (*TURN_ENDS, MESSAGE_END)
    ends = {vocabulary[token] for token in names if token in vocabulary}
    ends = {token for token in ends if token in added and added[token].special}
    note = loaded.note
    if not tokenizer.chat_template:
        tokenizer.chat_template = PLAIN_TEMPLATE
        note = " ".join(filter(None, [note, NO_TEMPLATE.format(loaded.name)]))
    return replace(loaded, end_ids=loaded.end_ids | ends, note=note)


# The file of a draft model that knows only some of its target's tokens: which, in the order of its own
# numbers. Its own vocabulary is these and one number more, which stands for every other token.


KNOWN_TOKENS_FILE = "known_tokens.npy"


def read_known(folder: Path) -> NDArray[np.int64] | None:
    """None where the model knows all tokens. Raises BrokenFileError."""
    file = folder / KNOWN_TOKENS_FILE
    if not file.exists():
        return None
    try:
        known = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, tokenize.TokenError, BadZipFile) as error:
        raise BrokenFileError(f"{file} cannot be read: {error}. Distil the draft again.") from error
    if (
        not isinstance(known, np.ndarray)
        or known.dtype != np.int64
        or known.ndim != 1
        or not len(known)
        or (np.diff(known) <= 0).any()
        or known[0] < 0
    ):
        raise BrokenFileError(f"{file} is no list of tokens. Distil the draft again.")
    return known


def write_known(folder: Path, known: NDArray[np.int64]) -> None:
    """`known` rises."""
    np.save(folder / KNOWN_TOKENS_FILE, known)
