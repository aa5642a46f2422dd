"""`hierchat prove` passes as the program is, and each fault makes its own line fail."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hierchat import connections
from hierchat.chat import completions
from hierchat.chat.service import ChatService
from hierchat.checks import proofs
from hierchat.checks import prove as proving
from hierchat.checks.proofs import GONE, LEAVES, MEMORY, NAMES, SPEED, WORDS, Line, Proofs
from hierchat.checks.prove import Proof
from hierchat.cli.main import main
from hierchat.config import cache_dir, data_dir
from hierchat.engine import generation
from hierchat.runtime.template import ChatTemplate
from hierchat.store import Store
from hierchat.store.backups import Backups
from hierchat.store.connection import Connection
from tests.testing.tiny_chat import let_width_matter, ready_slot

KERNELS = cache_dir() / "kernels"


@pytest.fixture
def compiled(places: Path) -> Path:
    """Folders of the test's own, with the kernels that are compiled already."""
    (places / "CACHE").mkdir()
    (places / "CACHE" / "kernels").symlink_to(KERNELS, target_is_directory=True)
    return places


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proofs]:
    """All checks over the tiny model, in this process."""
    monkeypatch.setattr(connections, "_made", {})
    connections.record()
    with Store.open(tmp_path / "data" / "hierchat.db") as store:
        service = ChatService(store, ready_slot())
        yield Proofs(service, tmp_path / "data", lambda doing: None)
        service.close()


def test_all_promises_are_kept_by_the_program_itself(compiled: Path) -> None:
    """As a user runs it who has no model: in processes of its own, in a network without a way out."""
    data_dir().mkdir()
    assert main(["prove", "--json", str(compiled / "out.json")]) == 0
    found = proving.PROOF.validate_json((compiled / "out.json").read_bytes())
    assert [line.name for line in found.lines] == list(NAMES)
    assert [line.kept for line in found.lines] == [True, True, True, True, True, None]
    assert found.model == proving.TINY
    assert [
        file.name for file in data_dir().iterdir() if file.name != "logs"
    ] == []  # the user's data is not touched


def test_one_broken_promise_or_a_missing_line_fails() -> None:
    right = [Line(name, True, "") for name in NAMES]
    assert Proof("tiny", tuple(right), 1.0).kept
    assert not Proof("tiny", tuple(right[1:]), 1.0).kept
    assert not Proof("tiny", (*right[1:], Line(WORDS, False, "")), 1.0).kept


def test_words_that_the_width_changes(checks: Proofs) -> None:
    let_width_matter(checks.service.served.local.sequence)
    assert checks.same_words().kept is False


def test_a_draft_that_is_accepted_though_it_is_wrong(checks: Proofs, monkeypatch: pytest.MonkeyPatch) -> None:
    verify = generation.verify

    def believing(rows: Any, drafts: Any, *more: Any) -> Any:
        path, chosen = verify(rows, drafts, *more)
        if not drafts.tokens or len(chosen) > 1:
            return path, chosen
        return path, [drafts.tokens[0]]

    monkeypatch.setattr(generation, "verify", believing)
    line = checks.same_words()
    assert line.kept is False
    assert "replies differ" in line.detail


def test_a_comparison_with_other_words(checks: Proofs, monkeypatch: pytest.MonkeyPatch) -> None:
    from hierchat.chat import comparison

    judge = comparison.verdict
    monkeypatch.setattr(comparison, "verdict", lambda *given: replace(judge(*given), identical=False))
    line = checks.speed()
    assert (line.name, line.kept) == (SPEED, False)


@pytest.mark.parametrize("event", ["", "socket.connect", "socket.getaddrinfo"])
def test_a_packet_that_leaves(checks: Proofs, monkeypatch: pytest.MonkeyPatch, event: str) -> None:
    answer = completions.Completions.answer

    def telling(*given: Any) -> Any:
        if event == "socket.connect":
            sys.audit(event, None, ("203.0.113.7", 443))
        elif event:
            sys.audit(event, "collector.example", 443, 0, 0, 0)
        return answer(*given)

    monkeypatch.setattr(completions.Completions, "answer", telling)
    line = checks.nothing_leaves()
    assert (line.name, line.kept) == (LEAVES, not event)
    if event:
        assert ("203.0.113.7, port 443" if event == "socket.connect" else "collector.example") in line.detail


NATIVE = """
import ctypes, socket, struct, sys
from pathlib import Path
from hierchat.checks import proofs
def run(self):
    libc = ctypes.CDLL(None)
    where = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(443), socket.inet_aton("203.0.113.7"))
    libc.connect(libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0), where, len(where))
    yield self.nothing_leaves()
proofs.Proofs.run = run
proofs.main("", Path(sys.argv[1]))
"""
LOST_MESSAGE = """
import sys
if "store" in sys.orig_argv:
    from dataclasses import replace
    from hierchat.store.messages import Messages
    add = Messages.add
    Messages.add = lambda self, user, chat, message: add(self, user, chat, replace(message, text=""))
"""
LOST_PIECE = """
import sys
if "store" in sys.orig_argv:
    from hierchat.store.replies import Replies
    append = Replies.append
    def later(self, reply, text, *more):
        append(self, reply, text.rpartition(" part")[0], *more)
    Replies.append = later
"""


def broken(folder: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the programs that are started from now on."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(how)
    path = [str(folder), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))


@pytest.mark.parametrize("how", [LOST_MESSAGE, LOST_PIECE])
def test_a_message_that_is_lost(
    checks: Proofs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(proofs, "KILLS", 1)
    broken(tmp_path / "broken", how, monkeypatch)
    line = checks.nothing_lost()
    assert line.kept is False
    assert "are missing" in line.detail


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has networks of a process")
def test_a_packet_of_a_native_library(compiled: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NATIVE, compiled / "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        *_, last = program.stdout
    line = Line(**json.loads(last))
    if "only connections of Python" in line.detail:
        pytest.skip("this system allows no network of a process's own")
    assert (line.name, line.kept) == (LEAVES, False)
    assert "1 by a native library" in line.detail


def no_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "rewrite", lambda self: True)


def kept_backups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backups, "forget_chats", lambda self, *chats: True)


def written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    send = ChatService.send

    def telling(self: ChatService, user: int, question: Any, *more: Any) -> Any:
        with (self.store.path.parent / "questions.log").open("a") as log:
            log.write(question.text)
        return send(self, user, question, *more)

    monkeypatch.setattr(ChatService, "send", telling)


@pytest.mark.parametrize(
    ("how", "where"),
    [(no_rewrite, "hierchat.db"), (kept_backups, "backups"), (written_down, "questions.log")],
)
def test_a_text_that_outlives_its_deletion(
    checks: Proofs, monkeypatch: pytest.MonkeyPatch, how: Callable[[pytest.MonkeyPatch], None], where: str
) -> None:
    assert checks.gone_after_deletion().kept
    how(monkeypatch)
    line = checks.gone_after_deletion()
    assert (line.name, line.kept) == (GONE, False)
    assert where in line.detail


def kept_text(monkeypatch: pytest.MonkeyPatch) -> None:
    send, kept = ChatService.send, list[str]()

    def telling(self: ChatService, user: int, question: Any, *more: Any) -> Any:
        kept.append(question.text)
        return send(self, user, question, *more)

    monkeypatch.setattr(ChatService, "send", telling)


def kept_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, kept = ChatTemplate.ids, list[Any]()

    def telling(*given: Any, **more: Any) -> Any:
        kept.append(np.array(found := ids(*given, **more), np.int32))
        return found

    monkeypatch.setattr(ChatTemplate, "ids", telling)


@pytest.fixture
def one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search the memory once after a deletion: what is kept for good is not gone later either."""
    monkeypatch.setattr(proofs, "_LOOKS", 1)


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="needs Linux's /proc")
@pytest.mark.usefixtures("one_look")
def test_a_text_that_objects_keep(checks: Proofs, monkeypatch: pytest.MonkeyPatch) -> None:
    kept_text(monkeypatch)
    kept_tokens(monkeypatch)
    line = checks.gone_from_memory()
    assert (line.name, line.kept) == (MEMORY, False)
    assert "in use: " in line.detail
    assert {"str", "ndarray"} <= {*line.detail.partition("in use: ")[2].split(", ")}


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="needs Linux's /proc")
@pytest.mark.usefixtures("one_look")
def test_a_text_that_is_never_overwritten(checks: Proofs) -> None:
    checks.service.deleted_texts.overwrites.clear()
    line = checks.gone_from_memory()
    assert (line.name, line.kept) == (MEMORY, False)
    assert "copies of a deleted chat are left" in line.detail


def test_a_model_that_is_not_here_is_named(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (places / "CONFIG").mkdir()
    (places / "CONFIG" / "models.yaml").write_text(
        "models:\n  far:\n    source: {hub: {repo: some/model, revision: main}}\n"
    )
    assert main(["prove", "--model", "far"]) == 2
    assert "far is not on this machine" in capsys.readouterr().err
