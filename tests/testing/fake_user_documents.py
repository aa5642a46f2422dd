"""Scripted texts of one's own: what a test sets, and what was asked of them."""

import shutil
from pathlib import Path

from hierchat.runtime.user_documents import Addition, UserDocument
from hierchat.texts.text_files import CorpusError

NOTES = UserDocument("notes", 3_400_000, 412_000, ("SmolLM2 135M",), ("/home/you/notes",), True, False)
CODE = UserDocument("code", 900_000, 98_000, ("Qwen3 0.6B",), ("/home/you/code",), False, True)


class FakeTexts:
    """The surface of hierchat.runtime.user_documents.UserDocuments; a test moves it on."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.model = "SmolLM2 135M"
        self.listed = [CODE, NOTES]
        self.addition: Addition | None = None
        self.asked: list[tuple[str, str]] = []
        self.dropped: dict[str, bytes] = {}

    @property
    def busy(self) -> bool:
        return self.addition is not None and self.addition.under_way

    def rows(self) -> list[UserDocument]:
        return self.listed

    def add(self, said: str) -> None:
        self.asked.append(("add", said))
        if "none" in said:
            raise CorpusError(f"There is no file or folder {said} on this machine. Check the path.")
        self.addition = Addition(said.rstrip("/").rsplit("/", 1)[-1], done=2_100_000, total=5_200_000)

    def add_files(self, folder: Path, name: str) -> None:
        self.asked.append(("files", name))
        self.dropped = {file.name: file.read_bytes() for file in folder.iterdir()}
        shutil.rmtree(folder)
        self.addition = Addition(name.split(".")[0])

    def add_again(self, name: str) -> None:
        self.asked.append(("again", name))
        self.addition = Addition(name)

    def stop(self) -> None:
        self.asked.append(("stop", ""))
        self.addition = None

    def remove(self, name: str) -> None:
        self.asked.append(("remove", name))
        self.listed = [row for row in self.listed if row.name != name]

    def ended(self, tokens: int) -> None:
        """All is read."""
        assert self.addition
        name = self.addition.name
        self.addition = Addition(name, "done", tokens=tokens, unread=("/home/you/diary/old.doc: binary",))
        self.listed = [
            *self.listed,
            UserDocument(name, 5_000_000, tokens, (self.model,), (f"/home/you/{name}",), True, False),
        ]
