"""Hold the documents that a chat or a project asks about: read, listed, removed, and quoted with a question."""

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

from hierchat import logs
from hierchat.drafting.draft_tree import DOCUMENTS
from hierchat.drafting.growing.kernel_arrays import PROMPTS
from hierchat.drafting.source import Source
from hierchat.models.cache import size_of
from hierchat.store import Connection
from hierchat.store.change_events import ALL_CHATS
from hierchat.store.documents import Documents
from hierchat.store.records import Attachment, Document, Message, Passage
from hierchat.texts.passages import cut, fitting
from hierchat.texts.text_files import CorpusError, TextReader, find, kind

MOST_DRAFTED = 200
"""Passages that draft a reply, beside those that its prompt holds."""


@dataclass(eq=False, slots=True)
class DocumentReading:
    """Progress of reading files and folders into a chat's documents, in a thread."""

    chat: int | None
    project: int | None
    """The project that they are for, if there is no chat."""
    total: int
    """Bytes of all files."""
    unread: list[str]
    """Files that were not read, or not to their end, with the reason; and why it ended before its end."""
    done: int = 0
    name: str = ""
    stop: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def passages(self, path: Path, files: Sequence[Path]) -> Iterator[Passage]:
        """Read and cut files into passages. Raises InterruptedError once it shall stop."""
        for file in files:
            self.name, before = path.name if file == path else str(file.relative_to(path)), self.done
            reader = TextReader([file], pages_as_text=True)
            for passage in cut(self.name, kind(file), reader):
                if self.stop.is_set():
                    raise InterruptedError
                yield passage
                self.done = before + reader.done
            self.done = before + reader.total
            self.unread += (reason.replace(str(file), self.name) for reason in reader.passed_over)


class ChatDocuments(Documents):
    """Stores the documents of all users, reads new ones, and finds the passages that go with a question."""

    def __init__(self, connection: Connection, gone: Callable[[int], object] = lambda user: None) -> None:
        """`gone`: called with the user of a document that was deleted."""
        super().__init__(connection)
        self._gone = gone
        self._lock = threading.Lock()
        self.readings: dict[int, DocumentReading] = {}
        """Each user's last one."""

    def delete(self, user_id: int, document_id: int) -> bool:
        whole = super().delete(user_id, document_id)
        self._changes.notify(user_id, ALL_CHATS)  # replies quoted it
        self._gone(user_id)
        return whole

    def read(
        self,
        user_id: int,
        chat: int | None,
        paths: Sequence[Path],
        *,
        to_project: bool,
        ours: bool,
        project: int | None = None,
    ) -> None:
        """Read files and folders in a thread, each into a document of the chat, its project, or `project`. `ours`:
        delete them then. Raises CorpusError."""
        unread: list[str] = []
        files = {path: find([path], unread) for path in paths}
        sizes = {path: sum(map(size_of, found)) for path, found in files.items()}
        reading = DocumentReading(chat, project, sum(sizes.values()), unread)
        with self._lock:
            before = self.readings.get(user_id)
            if before and not before.ended.is_set():
                raise CorpusError("Other texts are being read. Wait for them, or stop them first.")
            self.readings[user_id] = reading

        def work() -> None:
            try:
                for path in paths:
                    known = len(unread)
                    document = Document(0, path.name, sizes[path], 0, False, to_project)
                    passages = reading.passages(path, files[path])
                    found = self.add(user_id, document, chat, passages, project)
                    if not found and known == len(unread):
                        unread.append(f"{path.name} holds no text.")
            except Exception as error:  # in a thread of its own nothing else would report it
                unread.extend([] if reading.stop.is_set() else [logs.error_message(error)])
            if ours:
                shutil.rmtree(paths[0].parent, ignore_errors=True)
            reading.ended.set()
            self._changes.notify(user_id)

        threading.Thread(target=work, name="documents", daemon=True).start()

    def forget_readings(self) -> None:
        """Drop the names of the files that were read last."""
        for user, reading in list(self.readings.items()):
            if reading.ended.is_set():
                self.readings.pop(user, None)

    def found(self, user_id: int, chat: int, question: str, path: Sequence[Message]) -> list[Passage]:
        """Find the passages that have most to do with a question below `path`, the best first."""
        return self.find(user_id, chat, question, [message.text for message in path[-2:]], MOST_DRAFTED)


def quotes(
    found: Sequence[Passage], path: Sequence[Message], budget: Callable[[], int], count: Callable[[str], int]
) -> list[Attachment]:
    """Choose passages of at most `budget` tokens for a question below `path`, except those of the question before."""
    there = {file.passage_id for message in path[-2:] for file in message.attachments}
    found = [one for one in found if one.id not in there]
    number = max((file.number or 0 for message in path for file in message.attachments), default=0) + 1
    return fitting(found, number, budget(), count) if found else []


def draft_source(found: Sequence[Passage], tokens: Callable[[str], list[int]]) -> Source:
    """Build a database of passages to draft from, which is asked before all corpora. `tokens` tokenises a text."""
    texts = (tokens(one.text) for one in sorted(found, key=attrgetter("id")))
    return replace(Source.of(texts, PROMPTS), origin=DOCUMENTS)
