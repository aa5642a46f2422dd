"""Check the promises with a model and a new database. Runs as a program that leaves the network first."""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import string
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from hierchat import connections
from hierchat.checks import memory
from hierchat.config import GenerationSettings, process_environment
from hierchat.freed_memory import use_one_pool
from hierchat.language import later

if TYPE_CHECKING:
    from hierchat.chat.frames import Frame
    from hierchat.chat.service import ChatService
    from hierchat.store import Store

DRAFTERS = ("default", "adversarial")
TOKENS = 32
"""Tokens of a reply that is compared; of one whose speed is measured, twice as many."""
QUESTIONS = (
    "Write a Python function that returns the n-th Fibonacci number, and explain each line.",
    "List ten animals that live in the sea, with one sentence about each.",
    "Write a short story about a lighthouse keeper who finds a letter.",
)
KILLS = 5
_KILL_SECONDS = 0.1, 0.8
_LOOKS, _FEWER = 3, 10
"""After how many overwritings at most the memory is searched, and by which factor fewer copies there have to be."""
_WINDOW = 8
"""Tokens in a row that identify a text."""


@dataclass(frozen=True, slots=True)
class Line:
    """Result of one check. `kept`: whether the promise is kept; None for a figure that promises nothing."""

    name: str
    kept: bool | None
    detail: str


WORDS, LEAVES, LOST, GONE, MEMORY, SPEED = (
    later("The same words"),
    later("Nothing leaves"),
    later("Nothing is lost"),
    later("Deleted is gone"),
    later("Gone from memory"),
    later("Speed"),
)
NAMES = (WORDS, LEAVES, LOST, GONE, MEMORY, SPEED)
"""All checks, in the order of the table."""


@dataclass
class Proofs:
    """Runs the checks, each of which returns its line. `tell` gets progress; `cut_off`: without a network."""

    service: ChatService
    folder: Path
    tell: Callable[[str], object]
    cut_off: bool = False

    def __post_init__(self) -> None:
        self._store: Store = self.service.store
        self.user = self._store.users.ensure("prove")

    def run(self) -> Iterator[Line]:
        """Yield the line of each check."""
        yield self.same_words()
        yield self.speed()
        yield self.gone_after_deletion()
        yield self.gone_from_memory()
        yield self.nothing_lost()
        yield self.nothing_leaves()

    def same_words(self) -> Line:
        """Compare replies with and without drafts token for token, greedy and sampled, with drafts made to mislead."""
        from hierchat.checks.exactness import Compared, check
        from hierchat.checks.runs import Question

        def passed_on(doing: str, done: int) -> None:
            if doing:
                self.tell(f"same words: {doing}")

        served = self.service.served
        assert served
        tokens, differing = 0, list[str]()
        questions = [
            Question(number, f"question {number}", (text,)) for number, text in enumerate(QUESTIONS[:2])
        ]
        for temperature in (0.0, 1.0):
            settings = GenerationSettings(temperature=temperature, max_new_tokens=TOKENS, seed=7)
            result = Compared(self.folder.parent / "words.json", {"settings": {}}, DRAFTERS)
            check(served, questions, settings, result, passed_on)
            found = result.as_dict()
            tokens += found["tokens"]
            differing += [
                f"{one['question']}, temperature {temperature:g}, drafts {one['drafter']}, token {one['position']}"
                for one in found["first"]
            ]
        if differing:
            return Line(WORDS, False, later(f"{len(differing)} replies differ. The first: {differing[0]}"))
        if not tokens:
            return Line(WORDS, False, later("The model wrote nothing that could be compared."))
        return Line(
            WORDS, True, later(f"{tokens:,} tokens, greedy and sampled, with misleading drafts: none differs")
        )

    def speed(self) -> Line:
        """Measure replies with and without drafts, in turn."""
        from hierchat.chat.in_progress import NewQuestion

        pairs = list[tuple[float, float]]()
        for number, text in enumerate(QUESTIONS, 1):
            self.tell(f"speed: reply {number} of {len(QUESTIONS)}, without drafts and with them")
            chat = self.service.chats.create(self.user)
            settings = GenerationSettings(max_new_tokens=2 * TOKENS)
            *_, last = self.service.compare(
                self.user, NewQuestion(chat, None, text), settings, threading.Event()
            )
            if (verdict := last.verdict) is None:
                return Line(
                    SPEED, False, last.arms["second"].notice or later("A reply did not come to its end.")
                )
            if not verdict.identical:
                return Line(SPEED, False, later(f"A comparison has other words: {verdict.sentence}"))
            speeds = [last.arms[arm].figures.tokens_per_second for arm in ("first", "second")]
            if speeds[0] and speeds[1]:
                pairs.append((speeds[0], speeds[1]))
        if not pairs:
            return Line(SPEED, None, later("The replies were too short to measure."))
        plain, drafted = (median(pair[side] for pair in pairs) for side in (0, 1))
        return Line(
            SPEED,
            None,
            later(
                f"{plain:.1f} tokens/s without drafts, {drafted:.1f} with them: {drafted / plain:.2f}x "
                f"(medians of {len(pairs)} new chats)"
            ),
        )

    def gone_after_deletion(self) -> Line:
        """Delete a chat with all that belongs to it, also from the backups, and look for it in every byte."""
        self.tell("deletion: a chat with a file and a document")
        service, word = self.service, _random_word()
        chat = self._chat_about(word)
        others = [one.id for one in self._store.chats.find(self.user, limit=-1) if one.id != chat]
        assert service.served
        service.completions.keep(service.served, now=True)
        self._store.backups.make()
        runs = _forms(self._tokens([chat])) - _forms(self._tokens(others))
        sought = {word.encode(), word.encode("utf-16-le"), *runs}
        before = list(self._found(sought))
        if not any(word in what for what, _ in before):
            return Line(GONE, False, later("The chat was not found in the files before it was deleted."))
        self.tell("deletion: looking for it in every file")
        service.chats.delete(self.user, chat)
        service.chats.delete_from_backups(self.user)
        if left := sorted({name for _, name in self._found(sought)}):
            return Line(GONE, False, later(f"Of a deleted chat something is left in {', '.join(left)}"))
        if (self._store.prefixes.path / str(self.user) / str(chat)).exists():
            return Line(GONE, False, later("Of a deleted chat the folder of what was read is left."))
        if not all(self._store.messages.path(self.user, one) for one in others):
            return Line(GONE, False, later("Another chat lost its messages."))
        size = sum(len(data) for _, data in self._files())
        return Line(
            GONE,
            True,
            later(
                f"no word and no run of tokens of a deleted chat in {size / 1e6:.1f} MB of files, backups included "
                f"({len(before):,} places before)"
            ),
        )

    def gone_from_memory(self) -> Line:
        """Delete a chat with all that belongs to it, and look for its text and tokens in the memory of this process."""
        from hierchat.freed_memory import overwrite_small_pieces

        self.tell("memory: a chat with a file and a document")
        chat, sought = self._disguised_chat()
        try:
            before = memory.copies(sought).total()
        except OSError:
            return Line(MEMORY, None, later("This system lets no process search its own memory."))
        if not before:
            return Line(MEMORY, False, later("The chat was not found in memory before it was deleted."))
        self.tell("memory: looking for a deleted chat")
        self.service.chats.delete(self.user, chat)
        self.service.chats.delete_from_backups(self.user)
        for times in range(1, _LOOKS + 1):
            self.service.deleted_texts.wait(times)
            overwrite_small_pieces()  # as the page has its threads do
            left, kinds = memory.copies(sought), memory.held(sought)
            if left["here"] * _FEWER <= before and not kinds:
                break
        if kinds:
            return Line(MEMORY, False, later(f"A deleted chat is in objects in use: {', '.join(kinds)}"))
        if elsewhere := left.total() - left["here"]:
            return Line(MEMORY, False, later(f"A child process has {elsewhere} copies of a deleted chat."))
        if left["here"] * _FEWER > before:
            return Line(
                MEMORY, False, later(f"{left['here']} of {before} copies of a deleted chat are left.")
            )
        return Line(
            MEMORY,
            True,
            later(
                f"{before} copies of a chat's text and tokens before its deletion; after it none in any object in use, "
                f"and {left['here']} in freed pieces of memory"
            ),
        )

    def nothing_lost(self) -> Line:
        """Kill a process that stores a chat, again and again, and look for all that it had acknowledged."""
        from hierchat.store import LOCAL_USER, Store
        from hierchat.store.backups import examine

        database = self.folder.parent / "killed" / "hierchat.db"
        database.parent.mkdir()
        told, missing = 0, 0
        for number in range(1, KILLS + 1):
            self.tell(f"kills: {number} of {KILLS}")
            notes = database.with_name(f"notes-{number}")
            with notes.open("wb") as out:
                process = subprocess.Popen(
                    [sys.executable, "-m", "hierchat.checks.proofs", "store", str(database)],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    env=process_environment(),
                )
            while not notes.stat().st_size and process.poll() is None:
                time.sleep(0.02)
            time.sleep(random.uniform(*_KILL_SECONDS))
            ended = process.poll() is not None
            process.kill()
            process.wait()
            if ended:
                return Line(LOST, False, later("The process that stores ended before it was killed."))
            acknowledged = [json.loads(line) for line in notes.read_bytes().split(b"\n")[:-1]]
            with Store.open(database) as store:
                user = store.users.ensure(LOCAL_USER)
                there = {
                    message.id: message.text
                    for chat in store.chats.find(user, limit=-1)
                    for message in store.messages.path(user, chat.id)
                }
            told += len(acknowledged)
            missing += sum(not there.get(id, "").startswith(text) for id, text in acknowledged)
            if (health := examine(database)).state != "well":
                return Line(
                    LOST, False, later(f"After a kill the database is {health.state} ({health.detail}).")
                )
        if missing:
            return Line(
                LOST, False, later(f"{missing:,} of {told:,} messages and pieces of replies are missing.")
            )
        return Line(
            LOST,
            True,
            later(f"{KILLS} kills at random moments: all {told:,} messages and pieces of replies are there"),
        )

    def nothing_leaves(self) -> Line:
        """Use what works offline, and list the attempts to reach another machine since the start of this process."""
        self.tell("connections: a chat, a document, an export, an import")
        chat = self.service.chats.create(self.user)
        first = self._ask(chat, QUESTIONS[1])
        self._read(chat, "lighthouses")
        self._ask(chat, "What does the document say?", first.message_id)
        file = self.folder.parent / "export.json"
        for _ in self.service.data.exporting(self.user, file, markdown=False, chat=chat)[1]:
            pass
        importing = self.service.data.importing(self._store.users.ensure("import"), [file])
        for _ in importing:
            pass
        if not importing.messages:
            return Line(LEAVES, False, later("The export of a chat could not be imported."))
        tried = [f"{one.address} ({one.asker})" for one in connections.attempts()]
        if unseen := max(packets_without_route() - sum(one.times for one in connections.attempts()), 0):
            tried.append(later(f"{unseen} by a native library"))
        if tried:
            return Line(LEAVES, False, later(f"Tried to reach other machines: {', '.join(tried)}"))
        how = (
            later("all packets of the process were watched, in a network without a way out")
            if self.cut_off
            else later("only connections of Python were watched: this system allows no network of its own")
        )
        return Line(
            LEAVES, True, later(f"a chat, a document, an export and an import tried to reach nobody; {how}")
        )

    def _ask(self, chat: int, text: str, below: int | None = None, **more: Any) -> Frame:
        from hierchat.chat.in_progress import NewQuestion

        settings = GenerationSettings(max_new_tokens=TOKENS)
        question = NewQuestion(chat, below, text, **more)
        *_, last = self.service.send(self.user, question, settings, threading.Event())
        if last.finish in (None, "error"):
            raise RuntimeError(last.notice or "a reply did not come to its end")
        return last

    def _chat_about(self, word: str) -> int:
        """Write a chat with a file and a document, all about a word."""
        from hierchat.store.records import Attachment

        chat = self.service.chats.create(self.user)
        self.service.chats.rename(self.user, chat, f"Of {word}")
        attached = Attachment(f"{word}.txt", 20, f"All about {word}.")
        first = self._ask(chat, f"Tell me of {word} and of what else begins like it.", files=[attached])
        self._read(chat, word)
        self._ask(chat, f"What does the document say about {word}?", first.message_id)
        return chat

    def _disguised_chat(self) -> tuple[int, list[bytes]]:
        import numpy as np

        assert self.service.served
        word = _random_word()
        chat = self._chat_about(word)
        texts = [self.service.served.prompts.tokenizer(word)["input_ids"], *self._tokens([chat])]
        runs = [text[len(text) // 2 - _WINDOW :][: 2 * _WINDOW] for text in texts if len(text) > 2 * _WINDOW]
        sought = [word.encode(form) for form in ("utf-8", "utf-16-le", "utf-32-le")]
        sought += [np.array(run, kind).tobytes() for run in runs for kind in ("<i4", "<i8")]
        return chat, [memory.disguised(one) for one in sought]

    def _read(self, chat: int, word: str) -> None:
        file = self.folder.parent / f"{word}.txt"
        file.write_text(f"A document about {word}, of which little is known.\n" * 3)
        self.service.documents.read(self.user, chat, [file], to_project=False, ours=False)
        self.service.documents.readings[self.user].ended.wait()
        file.unlink()

    def _tokens(self, chats: Iterable[int]) -> list[list[int]]:
        messages = (message for chat in chats for message in self._store.messages.path(self.user, chat))
        return [self._store.replies.tokens(self.user, one.id) for one in messages if one.role == "assistant"]

    def _files(self) -> Iterator[tuple[Path, bytes]]:
        for path in self.folder.rglob("*"):
            with suppress(OSError):  # deleted meanwhile
                if path.is_file():
                    yield path, path.read_bytes()

    def _found(self, sought: Iterable[bytes]) -> Iterator[tuple[str, str]]:
        for path, data in self._files():
            for one in sought:
                if one in data:
                    yield one.decode(errors="replace"), str(path.relative_to(self.folder))


def _random_word() -> str:
    return "".join(random.SystemRandom().choices(string.ascii_lowercase, k=40))


def _forms(texts: Iterable[list[int]]) -> set[bytes]:
    """Return runs of tokens as columns, indexes and JSON contain them."""
    import numpy as np

    runs = {tuple(text[at : at + _WINDOW]) for text in texts for at in range(len(text) - _WINDOW + 1)}
    binary = {np.array(run, kind).tobytes() for run in runs for kind in ("<i4", "<i8")}
    return binary | {mark.join(map(str, run)).encode() for run in runs for mark in (", ", ",")}


# The network of this process
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
"""CLONE_NEWUSER and CLONE_NEWNET of Linux."""


def leave_network() -> bool:
    """Move this process, before it has threads, to a network without any route; return whether the system allows it."""
    if sys.platform != "linux":
        return False
    user, group, system = os.getuid(), os.getgid(), ctypes.CDLL(None)
    if not hasattr(system, "unshare"):
        return False
    if system.unshare(_NEW_NETWORK) == 0:
        return True
    if system.unshare(_NEW_USER | _NEW_NETWORK):
        return False
    with suppress(OSError):
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path("/proc/self", name).write_text(text)
    return True


def packets_without_route() -> int:
    """Count the packets that found no way out of this process's network; 0 where that is not known."""
    total = 0
    with suppress(OSError, ValueError, KeyError):
        names, values = (
            line.split()[1:]
            for line in Path("/proc/self/net/snmp").read_text().splitlines()
            if line.startswith("Ip:")
        )
        total += int(dict(zip(names, values, strict=True))["OutNoRoutes"])
        six = dict(line.split() for line in Path("/proc/self/net/snmp6").read_text().splitlines())
        total += int(six["Ip6OutNoRoutes"])
    return total


# The process that is killed
def store_until_killed(database: Path) -> None:
    """Store chats without end. Prints the id and text of each message, or reply so far, once it is stored."""
    from hierchat.store import LOCAL_USER, Store
    from hierchat.store.records import NewMessage, NewTurn, TurnFigures

    turn = NewTurn("proof", "proof", {}, 0, drafted=False)

    with Store.open(database) as store:
        user = store.users.ensure(LOCAL_USER)
        chat, last = store.chats.create(user), None
        for number in count():
            text = f"Question {number} of {os.getpid()}"
            last = store.messages.add(user, chat, NewMessage(last, text))
            print(json.dumps([last, text]), flush=True)
            last, text = store.replies.begin(user, chat, last, turn), ""
            for part in range(8):
                text += f" part {part}"
                store.replies.append(last, text, [part], ["target"])
                print(json.dumps([last, text]), flush=True)
            if number % 2:  # the others stay as they grew: the last text would hide a piece that was lost
                store.replies.finish(last, text, "complete", TurnFigures())


# The model, and the program
def write_tiny_model(folder: Path) -> None:
    """Write a tiny random model, for a machine that has none: a byte is a token."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({letter: number for number, letter in enumerate(["<|end|>", *letters])}, []))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    end = {"bos_token": "<|end|>", "eos_token": "<|end|>", "pad_token": "<|end|>"}
    PreTrainedTokenizerFast(tokenizer_object=raw, chat_template=template, **end).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(letters) + 1, hidden_size=64, intermediate_size=128, num_hidden_layers=2, bos_token_id=0,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048, eos_token_id=0, pad_token_id=0,
        tie_word_embeddings=False, initializer_range=0.2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def main(model: str, folder: Path) -> None:
    """Run all checks with a model of the catalogue, or a tiny one; print progress as JSON texts, results as objects."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries may print
    cut_off = leave_network()
    connections.record()
    use_one_pool()
    threading.Thread(target=_end_with_parent, args=[folder], daemon=True).start()

    def tell(what: Any) -> None:
        print(json.dumps(what), file=out, flush=True)

    from hierchat import logs
    from hierchat.chat.service import ChatService
    from hierchat.models.catalogue import Catalogue, Folder, ModelEntry, ModelSource, read_catalogue
    from hierchat.models.progress import Progress, Report
    from hierchat.runtime.loading import LoadOptions, load_served_model
    from hierchat.runtime.model_slot import ModelSlot
    from hierchat.runtime.served_model import ServedModel
    from hierchat.store import Store

    catalogue = read_catalogue()
    os.environ["HIERCHAT_DATA"] = str(folder / "data")
    logs.set_up()
    if not model:
        write_tiny_model(folder / "tiny")
        entry = ModelEntry(name="tiny", source=ModelSource(folder=Folder(path=folder / "tiny")))
        catalogue, model = Catalogue(models={"tiny": entry}, default="tiny"), "tiny"

    def load(name: str, report: Report) -> ServedModel:
        def passed_on(progress: Progress) -> None:
            tell(f"loading {name}: {progress.phase}")
            report(progress)

        return load_served_model(
            catalogue.entry(name), LoadOptions(waits=False, catalogue=catalogue), passed_on
        )

    with Store.open(folder / "data" / "hierchat.db") as store:
        slot = ModelSlot(catalogue, load=load)
        slot.start(model)
        while slot.status.phase not in ("ready", "failed"):
            time.sleep(0.05)
        if not slot.model:
            raise RuntimeError(slot.status.message)
        slot.model.drafting_ready.wait()
        with closing(ChatService(store, slot)) as service:
            for line in Proofs(service, folder / "data", tell, cut_off).run():
                tell(asdict(line))


def _end_with_parent(folder: Path) -> None:
    while os.read(0, 1):  # not by sys.stdin, whose lock a thread may not hold as the program ends
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    if sys.argv[1] == "store":
        store_until_killed(Path(sys.argv[2]))
    else:
        main(sys.argv[2], Path(sys.argv[3]))
