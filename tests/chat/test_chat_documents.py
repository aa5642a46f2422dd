"""Documents of a chat: read from files of all kinds, quoted with a question, and in the prompt exactly as stored."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hierchat.chat.chat_documents import DocumentReading
from hierchat.drafting.draft_tree import DOCUMENTS
from hierchat.store import StoreError
from hierchat.store.records import Attachment, Passage
from hierchat.texts.attachments import PASSAGES
from hierchat.texts.passages import cut
from hierchat.texts.text_files import CorpusError
from tests.testing.deleting import delete_for_good
from tests.testing.office_files import docx, epub
from tests.testing.pdfs import encrypted, pdf
from tests.testing.tiny_chat import END, tokenizer

from .conftest import Talk

RULES = "# Quiet\nAfter ten.\n\n# Pets\nNo dogs.\n"
QUIET = "[1] rules.md, Quiet\n```\nAfter ten.\n```"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    return folder


def add(talk: Talk, *paths: Path, **how: Any) -> DocumentReading:
    """Read them to the end."""
    talk.service.documents.read(
        talk.user, talk.conversation, paths, **{"to_project": False, "ours": False} | how
    )
    reading = talk.service.documents.readings[talk.user]
    assert reading.ended.wait(60)
    return reading


def listed(talk: Talk) -> list[tuple[str, int, bool]]:
    found = talk.service.documents.listed(talk.user, talk.conversation)
    return [(one.name, one.passages, one.done) for one in found]


def prompt(talk: Talk, message: int) -> str:
    """What the model saw before it wrote this reply."""
    asked: Any = talk.messages()[:-1]
    system = talk.service._system_prompt(talk.user, talk.conversation)
    said = talk.service._said(talk.model, talk.user, asked, system)
    return str(tokenizer().decode(talk.model.prompts.whole(said).ids))


def quoted(talk: Talk, place: int) -> list[Attachment]:
    return list(talk.service.chats.attachments(talk.user, talk.messages()[place].id))


def rules(talk: Talk, files: Path) -> None:
    (files / "rules.md").write_text(RULES)
    add(talk, files / "rules.md")


def test_passages_stand_with_the_question_and_are_stored(talk: Talk, files: Path) -> None:
    talk.send("Quiet when?", max_new_tokens=4)
    assert quoted(talk, 0) == []
    assert PASSAGES not in prompt(talk, talk.messages()[-1].id)
    talk = talk.other()
    rules(talk, files)
    first = talk.send("Quiet when?", temperature=0.0, max_new_tokens=4)
    assert [(one.number, one.name, one.text) for one in quoted(talk, 0)] == [
        (1, "rules.md, Quiet", "After ten.")
    ]
    whole = f"<|im_start|>user\n{PASSAGES}\n\n{QUIET}\n\nQuiet when?<|im_end|>\n<|im_start|>assistant\n"
    reply = talk.messages()[-1].id
    before = prompt(talk, reply)
    assert before.endswith(whole)
    talk.send("Pets, and quiet?", reply, max_new_tokens=4)
    assert [(one.number, one.text) for one in quoted(talk, 2)] == [
        (2, "No dogs.")
    ]  # no passage twice in a row
    assert prompt(talk, talk.messages()[-1].id).startswith(before)  # what was read stays reusable
    talk.send("Quiet?", talk.messages()[-1].id, max_new_tokens=4)
    assert [(one.number, one.text) for one in quoted(talk, 4)] == [(3, "After ten.")]
    again = talk.again(talk.messages()[0].id, temperature=0.0, max_new_tokens=4)
    assert (again.text, again.figures.prompt_tokens) == (first.text, first.figures.prompt_tokens)


def test_passages_leave_room_for_the_question_and_the_reply(talk: Talk, files: Path) -> None:
    (files / "long.md").write_text("".join(f"# Quiet {n}\nword word\n" for n in range(40)))
    add(talk, files / "long.md")
    talk.send("Quiet?", max_new_tokens=4)
    assert 0 < sum(one.size for one in quoted(talk, 0)) <= talk.service.passage_budget == 128
    long = talk.other()
    add(long, files / "long.md")
    long.send("Quiet? " * 50, max_new_tokens=200)
    assert quoted(long, 0) == []


def test_files_of_all_kinds_and_what_is_wrong_with_some(
    talk: Talk, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {
        "broken.docx": docx("text")[:200],
        "closed.pdf": encrypted(pdf("secret"), "password"),
        "binary.txt": bytes(range(256)) * 9,
        "vanishes.txt": b"text",
    }
    right = {
        "a.docx": docx("# Word", "One."), "b.epub": epub("<h1>Book</h1>Two."), "c.pdf": pdf("Three.", "Four."),
        "d.html": b"<h2>Page</h2><p>Five.", "sub/e.py": b"six = 6\n", "f.txt": b"",
    }  # fmt: skip
    for name, raw in (right | wrong).items():
        (files / name).parent.mkdir(exist_ok=True)
        (files / name).write_bytes(raw)
    open_file = Path.open

    def opened(path: Path, *how: Any) -> Any:
        if path.name == "vanishes.txt":
            path.unlink(missing_ok=True)
        return open_file(path, *how)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", opened)
        reading = add(talk, files)
    assert listed(talk) == [("files", 6, True)]
    found = talk.service.documents.find(talk.user, talk.conversation, "one two three four five six", [], 9)
    assert {(one.name, one.place, one.text) for one in found} == {
        ("a.docx", "Word", "One."), ("b.epub", "Book", "Two."), ("c.pdf", "p. 1", "Three."), ("c.pdf", "p. 2", "Four."),
        ("d.html", "Page", "Five."), (os.path.join("sub", "e.py"), "L1", "six = 6"),
    }  # fmt: skip
    assert reading.done == reading.total
    assert {sentence.split(":")[0] for sentence in reading.unread} == set(wrong)
    assert all(str(files) not in sentence for sentence in reading.unread)
    (files / "empty.txt").write_text(" \n")
    assert add(talk, files / "empty.txt").unread == ["empty.txt holds no text."]
    assert len(listed(talk)) == 1
    with pytest.raises(CorpusError, match="there is no such file"):
        add(talk, files / "nowhere")
    add(talk, files / "d.html", ours=True)
    assert not files.exists()  # what came in goes with its folder


@pytest.mark.parametrize("end", [None, MemoryError(), StoreError("chat.db was closed.")], ids=str)
def test_stopped_or_failed_nothing_of_it_stays_but_what_was_read_when_hierchat_ended(
    talk: Talk, files: Path, monkeypatch: pytest.MonkeyPatch, end: Exception | None
) -> None:
    (files / "long.txt").write_text("\n\n".join("word " * 150 for n in range(1_500)))

    def cutting(*given: Any) -> Iterator[Passage]:
        for number, passage in enumerate(cut(*given)):
            yield passage
            if number == 1_000 and end:
                raise end
            if number == 1_000:
                talk.service.documents.readings[talk.user].stop.set()

    with monkeypatch.context() as patched:
        patched.setattr("hierchat.chat.chat_documents.cut", cutting)
        unread = add(talk, files / "long.txt").unread
    assert (unread == []) is (end is None)
    assert listed(talk) == ([("long.txt", 1_000, False)] if isinstance(end, StoreError) else [])
    assert add(talk, files / "long.txt").unread == []
    assert listed(talk) == [("long.txt", 1_500, True)]  # in its place


def test_a_fork_keeps_its_documents_and_quotes_when_the_other_chat_goes(talk: Talk, files: Path) -> None:
    rules(talk, files)
    talk.send("Quiet when?", max_new_tokens=4)
    before = prompt(talk, talk.messages()[-1].id)
    first, talk.conversation = talk.conversation, talk.store.chats.fork(talk.user, talk.messages()[-1].id)
    delete_for_good(talk.store, talk.user, first)
    assert listed(talk) == [("rules.md", 2, True)]
    assert [file.text for file in quoted(talk, 0)] == ["After ten."]
    assert prompt(talk, talk.messages()[-1].id) == before
    (document,) = talk.service.documents.listed(talk.user, talk.conversation)
    assert talk.service.documents.delete(talk.user, document.id)
    assert quoted(talk, 0) == []
    assert "After ten" not in prompt(talk, talk.messages()[-1].id)


def test_one_is_read_after_the_other_and_each_user_has_their_own(talk: Talk, files: Path) -> None:
    (files / "pipe.txt").write_text("text")
    reading = DocumentReading(talk.conversation, 0, 0, [])
    talk.service.documents.readings[talk.user] = reading
    with pytest.raises(CorpusError, match="Other texts are being read"):
        add(talk, files / "pipe.txt")
    bob = talk.other("bob")
    add(bob, files / "pipe.txt")
    bob.conversation = talk.conversation
    (sentence,) = add(bob, files / "pipe.txt").unread
    assert sentence == f"There is no conversation {talk.conversation}. It may have been deleted."
    reading.ended.set()
    rules(talk, files)
    assert [name for name, *_ in listed(talk)] == ["rules.md"]


def test_passages_that_the_prompt_has_no_room_for_draft_all_the_same(talk: Talk, files: Path) -> None:
    question, most = "Quiet? " * 50, 200
    ids = tokenizer()("a quick fox jumps over the lazy dog", add_special_tokens=False)["input_ids"]
    bias = dict.fromkeys(ids, 60.0) | {END: -100.0}
    first = talk.send(question, max_new_tokens=most, logit_bias=bias)
    (files / "long.md").write_text(f"# Quiet\n{first.text}\n")
    bob = talk.other("bob")
    add(bob, files / "long.md")
    frame = bob.send(question, max_new_tokens=most, logit_bias=bias)
    assert quoted(bob, 0) == []
    assert frame.text == first.text
    assert DOCUMENTS in {run.source for run in bob.service.runs(bob.user, frame.message_id)}
    assert frame.figures.shares[DOCUMENTS] > 0.5
