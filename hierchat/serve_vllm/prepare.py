"""A model as vLLM reads it, fetched and converted where that is needed, and its texts that ship."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hierchat.serve_vllm.launch import Launch

if TYPE_CHECKING:
    from hierchat.models.catalogue import ModelEntry

SUFFIX = "-vllm"
"""Of the name that a model of the catalogue has over vLLM: both can be chosen."""


def prepare(
    served: str, *, cuda: bool, drafts: bool, tensor_parallel: int = 1, more: Sequence[str] = ()
) -> tuple[Launch, ModelEntry | None]:
    """`served`: a name of the catalogue, a folder, or OWNER/NAME on the hub; `drafts`: whether our drafter is in it;
    `more`: further arguments, as vLLM has them. Returns the catalogue's entry, too, where there is one. Raises
    ModelError."""
    from hierchat.models.catalogue import read_catalogue
    from hierchat.models.fetch.bring import get
    from hierchat.models.terminal import terminal_progress

    given, like = Path(served).expanduser(), None
    if given.is_dir():
        folder = given.absolute()
    elif "/" in served:  # vLLM fetches it
        return Launch(_name(served.rsplit("/", 1)[1]), served, cuda, drafts, (), tensor_parallel, more), None
    else:
        like = read_catalogue().entry(served)
        with terminal_progress() as report:
            folder = get(like, report, "cuda" if cuda else "cpu")
    statistics = _texts(folder, like) if drafts else ()
    name = _name(like.name if like else folder.name)
    return Launch(name, str(folder), cuda, drafts, statistics, tensor_parallel, more), like


def _name(said: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "_.-" else "-" for sign in said) + SUFFIX


def _texts(folder: Path, like: ModelEntry | None) -> tuple[Path, ...]:
    """Where the texts that ship lie, in the model's tokens."""
    from hierchat.corpus.seed import seed, seed_files
    from hierchat.models.catalogue import Folder, ModelEntry, ModelSource
    from hierchat.models.load.load_tokenizer import read_tokenizer
    from hierchat.models.terminal import terminal_progress

    entry = like or ModelEntry(name="model", source=ModelSource(folder=Folder(path=folder)))
    with terminal_progress() as report:
        made = seed(seed_files(entry), read_tokenizer(folder), entry.name, report)
    return (made.folder,) if made and made.folder else ()
