"""What was read is kept on disk with the same bits, for its user alone, and nothing there can change a word."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hierchat.config import GenerationSettings
from hierchat.engine.cpu import prefixes
from hierchat.engine.cpu.memory import CHUNK
from hierchat.engine.cpu.prefixes import Prefixes
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from tests.engine.cpu.test_states import model_of
from tests.testing.tiny import block_model, random_tokens, tiny_model

KINDS = ["dense", "qwen35"]
LENGTH = 300
USER, CHAT = 3, 8


def runner_of(kind: str) -> CpuRunner:
    model = block_model(tiny_model("llama")) if kind == "dense" else model_of(kind)
    runner = CpuRunner(model, context_length=2 * LENGTH, threads=2, sequences=2)
    runner.identity = kind
    return runner


@pytest.fixture(scope="module", params=KINDS)
def runner(request: pytest.FixtureRequest) -> Iterator[CpuRunner]:
    runner = runner_of(request.param)
    yield runner
    runner.team.close()


class Program:
    """An engine over `runner` and the files in `folder`, as after a start."""

    def __init__(self, runner: CpuRunner, folder: Path, most: int = 2**30) -> None:
        self.allowed = True
        self.files = Prefixes(runner, folder / "prefixes", lambda user, chat: self.allowed, most)
        self.engine = LocalEngine(runner.open(), (), str, places=2)
        self.engine.pool.restore = self.files.restore
        self.done: set[tuple[int, str]] = set()

    def close(self) -> None:
        self.engine.clear()
        for sequence in self.engine.pool.sequences:
            sequence.close()

    def reply(
        self, prompt: list[int], user: int | None = USER, chat: int | None = CHAT
    ) -> tuple[list[int], int]:
        """The tokens of a reply, and how many tokens of its prompt were not read."""
        settings = GenerationSettings(max_new_tokens=8, temperature=0)
        request = GenerationRequest(prompt, settings, user=user, chat=chat)
        steps = list(self.engine.generate(request))
        return [token for step in steps for token in step.tokens], steps[0].prompt_read

    def keep(self) -> int:
        """Write all that there is to write, and count the files."""
        count = 0
        while copied := self.files.next_copy(self.engine.pool.texts(), self.done):
            self.done.add((copied.user, copied.name))
            self.files.write(copied)
            count += 1
        return count


@pytest.fixture
def start(runner: CpuRunner, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    running: list[Program] = []

    def begin(**how: int) -> Program:
        while running:
            running.pop().close()
        running.append(Program(runner, tmp_path, **how))
        return running[0]

    yield begin
    for one in running:
        one.close()


def vocabulary(runner: CpuRunner) -> int:
    return min(runner.vocabulary, runner._tokens)


def text(runner: CpuRunner, seed: int = 1) -> list[int]:
    return random_tokens(LENGTH, seed, vocabulary(runner))


def bits(program: Program, runner: CpuRunner, prompt: list[int], user: int) -> list[bytes]:
    """All that the slots hold of a prompt, and the logits after it."""
    with program.engine.pool.sequence(prompt, user, CHAT) as sequence:
        held = len(sequence.tokens)
        sequence.read(prompt[held:])
        logits = np.array(sequence.forward([5, 6], [-1, 0])).tobytes()
        pages = [program.files._page(sequence, n, CHUNK) for n in range(len(prompt) // CHUNK)]
    return [*pages, logits]


def test_a_restored_text_has_the_same_bits_and_words(
    runner: CpuRunner, start: Callable[..., Program]
) -> None:
    prompt, first = text(runner), start()
    words, read = first.reply(prompt)
    assert read == 0
    longer = [*prompt, *words, *random_tokens(20, 4, vocabulary(runner))]
    fresh = bits(first, runner, longer, USER + 1)
    expected = first.reply(longer, USER + 2)[0]
    first.reply(prompt)
    assert first.keep() > LENGTH // CHUNK
    second = start()
    assert bits(second, runner, longer, USER) == fresh
    second = start()
    found, read = second.reply(longer)
    assert found == expected
    assert read >= LENGTH
    other = start()
    assert other.reply(longer, USER + 1) == (expected, 0)  # another user's


def test_only_what_belongs_to_a_chat_that_may_be_kept(
    runner: CpuRunner, start: Callable[..., Program], tmp_path: Path
) -> None:
    program = start()
    program.reply(text(runner), USER, None)
    assert program.keep() == 0
    program.allowed = False
    program.reply(text(runner))
    assert program.keep() == 0
    program.allowed = True
    copied = program.files.next_copy(program.engine.pool.texts(), set())
    assert copied
    program.allowed = False  # deleted after it was copied
    program.files.write(copied)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_text_in_use_while_its_users_texts_are_deleted_is_not_kept(
    runner: CpuRunner, start: Callable[..., Program]
) -> None:
    program = start()
    with program.engine.pool.sequence(text(runner), USER, CHAT) as sequence:
        sequence.read(text(runner))
        program.engine.wipe(USER)
    assert program.keep() == 0
    assert program.reply(text(runner))[1] == LENGTH - 1  # the slots serve it still


def test_damaged_files_are_deleted_and_read_anew(
    runner: CpuRunner, start: Callable[..., Program], tmp_path: Path
) -> None:
    prompt, first = text(runner), start()
    expected = first.reply(prompt)[0]
    first.keep()
    whole = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    random = np.random.default_rng(2)
    for _ in range(60):
        for path, data in whole.items():
            path.write_bytes(data)
        path = list(whole)[int(random.integers(len(whole)))]
        changed = bytearray(whole[path])
        match int(random.integers(4)):
            case 0:
                changed[int(random.integers(len(changed)))] ^= 1 << int(random.integers(8))
            case 1:
                del changed[int(random.integers(len(changed))) :]
            case 2:
                changed += b"x"
            case _:
                changed[:] = whole[next(other for other in whole if other != path)]  # under a foreign name
        path.write_bytes(bytes(changed))
        program = start()
        assert program.reply(prompt)[0] == expected
        used = not path.exists()
        assert used or path.read_bytes() == bytes(changed)
    for path in whole:
        path.write_bytes(b"")
    assert start().reply(prompt) == (expected, 0)


def test_another_models_files_are_not_used(
    runner: CpuRunner, start: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = start()
    expected = program.reply(text(runner))[0]
    program.keep()
    monkeypatch.setattr(runner, "identity", "another processor")
    assert start().reply(text(runner)) == (expected, 0)


def test_a_folder_that_is_deleted_in_use_and_two_programs(
    runner: CpuRunner, start: Callable[..., Program], tmp_path: Path
) -> None:
    program = start()
    program.reply(text(runner))
    copied = program.files.next_copy(program.engine.pool.texts(), set())
    assert copied
    program.files.write(copied)
    shutil.rmtree(tmp_path / "prefixes")
    other = Prefixes(runner, tmp_path / "prefixes", lambda user, chat: True, 2**30)
    other.write(copied)
    program.files.write(copied)  # the same file once more
    names = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert names == [copied.name]
    shutil.rmtree(tmp_path / "prefixes")
    assert start().reply(text(runner))[1] == 0


def test_no_more_bytes_than_allowed_and_none_of_a_full_disk(
    runner: CpuRunner, start: Callable[..., Program], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = start()
    program.reply(text(runner))
    copied = program.files.next_copy(program.engine.pool.texts(), set())
    assert copied
    size = len(copied.data) + prefixes.DIGEST
    files = Prefixes(runner, tmp_path / "prefixes", lambda user, chat: True, 2 * size)
    for second, name in enumerate("ab"):
        files.write(copied._replace(name=name))
        os.utime(next(tmp_path.rglob(name)), (second, second))  # the clock of files may not have gone on
    assert files._read(next(tmp_path.rglob("a")))  # used last
    files.write(copied._replace(name="c"))
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"a", "c"}
    full = shutil._ntuple_diskusage(1000 * size, 900 * size, 100 * size)
    monkeypatch.setattr(prefixes.shutil, "disk_usage", lambda path: full)
    files.write(copied._replace(name="d"))
    assert not list(tmp_path.rglob("d"))
    monkeypatch.setattr(prefixes, "open", _no_room, raising=False)
    monkeypatch.setattr(prefixes.shutil, "disk_usage", lambda path: full._replace(free=900 * size))
    with pytest.raises(OSError, match="No space"):
        files.write(copied._replace(name="e"))
    assert start().reply(text(runner))[1] == 0


def _no_room(*how: object) -> None:
    raise OSError(28, "No space left on device")
