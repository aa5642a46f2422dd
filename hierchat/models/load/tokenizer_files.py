"""Read the tokenizer of a model within bounds of time and size, and tell which models have the same tokens."""

import hashlib
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from hierchat.config import cache_dir, process_environment
from hierchat.models.cache import write_whole
from hierchat.models.catalogue import ModelEntry
from hierchat.models.fetch.bring import bring
from hierchat.models.progress import NONSENSE, BrokenFileError, Report, silent

MOST_BYTES = 256 << 20
"""Bytes of a file of a tokenizer: the largest published ones have 35 million."""
CPU_SECONDS, WALL_SECONDS = 20, 300
"""Time that reading a tokenizer and some texts may take the first time: large vocabularies take two seconds."""
_MOST_DATA = 4 << 30
"""Bytes of memory that this may take."""
_FILES = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model")
_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of transformers that are nothing but their tokenizer.json."""
_TRIAL = """
import sys
from pathlib import Path
if sys.platform != "win32":
    import resource
    for limit, most in ((resource.RLIMIT_CPU, int(sys.argv[3])), (resource.RLIMIT_DATA, int(sys.argv[4]))):
        resource.setrlimit(limit, (most, most))
folder, plainly = Path(sys.argv[1]), sys.argv[2] == "1"
if (folder / "tokenizer.json").exists():
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in ("a" * 5000, " " * 5000, "aA1 .\\n" * 1000, "\\u6f22\\u0301" * 1000, "!?" * 2000 + "a"):
        tokenizer.decode(tokenizer.encode(text).ids)
    if plainly:
        sys.exit()
from hierchat.models.load.tokenizer_files import open_tokenizer
open_tokenizer(folder, plainly=plainly)
"""
"""A tokenizer is patterns and classes of a stranger's choice: it is read first in a process that can be ended."""


def load_tokenizer(entry: ModelEntry, progress: Report = silent) -> Any:
    """Return the tokenizer that loading the model gives; fetch the model where needed. Raises a ModelError."""
    tokenizer = read_tokenizer(bring(entry, progress))
    note_tokens(entry, tokens_sha256(tokenizer))
    return tokenizer


def read_tokenizer(folder: Path) -> Any:
    """Read the tokenizer in a folder, from tokenizer.json and without torch if possible. Raises BrokenFileError."""
    require_bounded(folder, plainly=True)
    try:
        return open_tokenizer(folder, plainly=True)
    except Exception as error:  # the tokenizers library raises nothing more exact
        raise BrokenFileError(
            f"The tokenizer in {folder} cannot be read: {error}. Delete the folder."
        ) from error


def open_tokenizer(folder: Path, *, plainly: bool) -> Any:
    """Read a tokenizer without limits, as transformers does. `plainly`: from tokenizer.json if there is one."""
    if plainly and (folder / "tokenizer.json").exists():
        from transformers import PreTrainedTokenizerFast  # AutoTokenizer would bring torch with it

        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def require_bounded(folder: Path, *, plainly: bool) -> None:
    """Try in another process whether a tokenizer can be used in time and memory, once. Raises BrokenFileError."""
    with suppress(OSError, *NONSENSE):
        said = json.loads((folder / "tokenizer_config.json").read_bytes()[:MOST_BYTES])
        plainly = plainly or said.get("tokenizer_class") in _GENERIC
    plainly = plainly and (folder / "tokenizer.json").exists()
    files = sorted({file for pattern in _FILES for file in folder.glob(pattern)})
    stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    for file, (_, size, _) in zip(files, stamps, strict=True):
        if size > MOST_BYTES:
            raise BrokenFileError(
                f"{file} has {size:,} bytes; of a tokenizer {MOST_BYTES:,} are read at most. Choose another model."
            )
    stamp = hashlib.sha256(json.dumps([str(folder.resolve()), plainly, stamps]).encode()).hexdigest()
    tried = cache_dir() / "tokenizers" / f"tried-{stamp}"
    if tried.exists():
        return
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRIAL, str(folder), str(int(plainly)), str(CPU_SECONDS), str(_MOST_DATA)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=process_environment(),
            timeout=WALL_SECONDS,
        )
        code, errors = done.returncode, done.stderr.strip().splitlines()
    except subprocess.TimeoutExpired:
        code, errors = -1, []
    if code:
        named = folder / ("tokenizer_config.json" if not plainly else "tokenizer.json")
        exhausted = code < 0 or not errors or errors[-1].startswith("MemoryError")
        reason = "it took too long, or too much memory" if exhausted else errors[-1]
        raise BrokenFileError(f"The tokenizer {named} cannot be used ({reason}). Choose another model.")
    with suppress(OSError):
        write_whole(tried, b"")


# Which tokenizers mean the same tokens by the same ids
_known: WeakKeyDictionary[Any, tuple[int, str]] = WeakKeyDictionary()
"""By tokenizer: how many tokens it had, and their tokens_sha256."""


def tokens_sha256(tokenizer: Any) -> str:
    """Return a name of a token-to-id map. The first time it takes a third of a second for a large one."""
    count, name = _known.get(tokenizer, (0, ""))
    if count != len(tokenizer):
        name = hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()
        _known[tokenizer] = len(tokenizer), name
    return name


def note_tokens(entry: ModelEntry, tokens: str) -> None:
    """Store a model's token-to-id map (its tokens_sha256), so that it is known before the model is loaded."""
    if known_tokens(entry) != tokens:
        with suppress(OSError):
            write_whole(_note(entry), tokens.encode("ascii"))


def known_tokens(entry: ModelEntry) -> str | None:
    """Return the tokens_sha256 of a model that was loaded before."""
    with suppress(OSError, UnicodeDecodeError):
        return _note(entry).read_text(encoding="ascii")
    return None


def _note(entry: ModelEntry) -> Path:
    said = f"{entry.source.model_dump_json()}{entry.cpu and entry.cpu.model_dump_json()}"
    return cache_dir() / "tokenizers" / hashlib.sha256(said.encode()).hexdigest()
