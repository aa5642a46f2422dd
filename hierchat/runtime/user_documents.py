"""Add the user's own texts to draft from, while replies are written; list and remove them."""

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from hierchat import logs
from hierchat.models.cache import size_of
from hierchat.models.load.tokenizer_files import known_tokens, load_tokenizer
from hierchat.models.progress import Progress
from hierchat.runtime.model_slot import ModelSlot
from hierchat.texts import corpora
from hierchat.texts.build import Recipe
from hierchat.texts.text_files import CorpusError, TextReader, find, named_path

DocumentPhase = Literal["reading", "sorting", "stopping", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Addition:
    """State of texts that are being added. `done` of `total` bytes while they are read."""

    name: str
    phase: DocumentPhase = "reading"
    done: int = 0
    total: int | None = None
    tokens: int = 0
    """In phase "done"."""
    unread: tuple[str, ...] = ()
    """In phase "done": files that were not read, or not as usual, with the reason."""
    message: str = ""
    """What went wrong in phase "failed"."""

    @property
    def under_way(self) -> bool:
        return self.phase not in ("done", "failed")


@dataclass(frozen=True, slots=True)
class UserDocument:
    """Corpus of the user's texts, for whichever models it was made. `size`: bytes on disk."""

    name: str
    size: int
    tokens: int
    models: tuple[str, ...]
    sources: tuple[str, ...]
    """Where its texts lie, or lay."""
    drafts: bool
    """Whether it drafts for the model that is loaded."""
    possible: bool
    """Whether it does not, but could: model and texts are here."""
    trouble: str = ""
    """Why it cannot be used."""


class _Cancelled(Exception):
    """The addition was stopped by the user."""


class UserDocuments:
    """Adds texts, one addition at a time, for the loaded model. Raises CorpusError or a ModelError."""

    def __init__(self, slot: ModelSlot, tokenizer_of: Callable[[str], Any] | None = None) -> None:
        self._slot = slot
        self._tokenizer_of = tokenizer_of or (lambda name: load_tokenizer(slot.catalogue.entry(name)))
        self._lock = threading.Lock()
        self.addition: Addition | None = None
        """The last one."""

    @property
    def busy(self) -> bool:
        return self.addition is not None and self.addition.under_way

    @property
    def model(self) -> str:
        """Return the name of the model for which texts are added, empty where none is loaded here."""
        served = self._slot.model
        return served.name if served and served.is_local else ""

    def rows(self) -> list[UserDocument]:
        found = [
            self._row(name, list(builds)) for name, builds in groupby(corpora.listed(), lambda one: one.name)
        ]
        found += [self._row(files.parent.name, []) for files in corpora.unfinished()]
        return sorted(found, key=lambda row: row.name)

    def add(self, said: str) -> None:
        """Add what a file or folder of this machine holds; it drafts once it is read."""
        path = named_path(said)
        self._begin(corpora.free_name(corpora.name_of(path.name)), [path], None)

    def add_files(self, folder: Path, name: str) -> None:
        """Add all files in a folder that is ours from now on, and is deleted with what is made of them."""
        self._begin(corpora.free_name(corpora.name_of(name)), sorted(folder.iterdir()), folder)

    def add_again(self, name: str) -> None:
        """Add the texts of a corpus that was made for other models, for the loaded one, too."""
        row = next((row for row in self.rows() if row.name == name), None)
        if row is None or not row.possible:
            raise CorpusError(f"The files of {name} are not there any more. Remove it, and add them anew.")
        self._begin(name, [Path(source) for source in row.sources], None)

    def stop(self) -> None:
        """Stop the addition: nothing of it stays. If none is under way, forget the last one."""
        with self._lock:
            if self.addition and self.addition.under_way:
                self.addition = replace(self.addition, phase="stopping")
                return
            self.addition = None

    def remove(self, name: str) -> None:
        """Delete a corpus, for all models. Returns when no reply drafts from it any more."""
        corpora.remove(name)
        self._slot.read_texts()

    def _begin(self, name: str, paths: Iterable[Path], dropped: Path | None) -> None:
        if not self.model:
            raise CorpusError("Load a model first: texts are kept as the tokens of a model.")
        with self._lock:
            if self.busy:
                raise CorpusError("Other texts are being read. Wait for them, or stop them first.")
            self.addition = Addition(name)
        threading.Thread(target=self._run, args=(tuple(paths), dropped), name="texts", daemon=True).start()

    def _run(self, paths: Sequence[Path], dropped: Path | None) -> None:
        assert self.addition
        ended, message = None, ""
        try:
            ended = self._add(paths, dropped)
        except _Cancelled:
            pass
        except MemoryError:
            message = "Memory ran out. Close other programs, or add the texts in parts."
        except Exception as error:  # in a thread of its own nothing else would report it
            message = logs.error_message(error)
        with self._lock:
            if ended is None and dropped:
                shutil.rmtree(dropped, ignore_errors=True)
            self.addition = Addition(self.addition.name, "failed", message=message) if message else ended

    def _add(self, paths: Sequence[Path], dropped: Path | None) -> Addition:
        assert self.addition
        name, model = self.addition.name, self.model
        kept, passed_over = corpora.files_of(name), list[str]()
        if dropped:  # the file stays, for other models that may have to read it
            kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.move(dropped, kept)
            paths = (kept,)
        named = [file for path in paths for file in (path.iterdir() if path == kept else [path])]
        reader = TextReader(find(sorted(named), passed_over), passed_over)
        sources = [str(path) for path in paths]
        recipe = Recipe(name, reader, self._tokenizer_of(model), model, sources)
        made = corpora.add(recipe, self._report)
        self._slot.read_texts()
        return Addition(name, "done", tokens=made.order.size, unread=(*reader.notes, *reader.passed_over))

    def _report(self, progress: Progress) -> None:
        with self._lock:
            assert self.addition
            if self.addition.phase == "stopping":
                raise _Cancelled
            phase: DocumentPhase = "sorting" if progress.phase == "sorting" else "reading"
            self.addition = replace(self.addition, phase=phase, done=progress.done, total=progress.total)

    def _row(self, name: str, builds: Sequence[corpora.Stored]) -> UserDocument:
        metas = [one.meta for one in builds if one.meta]
        model, entries = self.model, self._slot.catalogue.models
        tokens = known_tokens(entries[model]) if model in entries else None
        drafts = any(one.meta and one.meta.tokenizer == tokens and not one.trouble for one in builds)
        dropped = str(corpora.files_of(name))
        sources = metas[-1].sources if metas else (dropped,)
        there = all(map(os.path.exists, sources))
        return UserDocument(
            name,
            size_of(corpora.corpora_dir() / name),
            max((meta.tokens for meta in metas), default=0),
            tuple(dict.fromkeys(meta.model for meta in metas)),
            sources,
            drafts,
            bool(model and there and not drafts),
            next((one.trouble for one in builds if one.trouble), ""),
        )
