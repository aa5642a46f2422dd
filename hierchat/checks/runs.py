"""Run questions for checks and measurements: JSON lines with `turns`, settings, machine, result file, progress."""

import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any

import click
import psutil

from hierchat import __version__
from hierchat.engine.engine import OutOfMemory
from hierchat.engine.sampling.sampler import BrokenLogits
from hierchat.models.cache import write_whole
from hierchat.models.progress import ModelError
from hierchat.runtime.costs import processor
from hierchat.runtime.prompt import PromptMessage
from hierchat.runtime.served_model import ServedModel
from hierchat.texts.text_files import CorpusError


class RequestError(Exception):
    """Raised if a run cannot be done, or not in this way; the text is for the user."""


def unreadable(path: Path, error: OSError | ValueError) -> str:
    """Say why a file could not be read, or is not what it should be."""
    if isinstance(error, OSError):
        return f"{path} cannot be read ({error.strerror})."
    if isinstance(error, UnicodeDecodeError):
        return f"{path} is no text in UTF-8. Is it the right file?"
    return f"{path} is no JSON ({error}). Is it the right file?"


MT_BENCH = frozenset(
    ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]
)
"""Spec-Bench's categories that are MT-Bench; its other groups have one category each."""


@dataclass(frozen=True, slots=True)
class Question:
    """Question of one turn or more; `number` is its place in the file, from 0."""

    number: int
    name: str
    turns: tuple[str, ...]
    category: str = "all"
    """As the file says: its `category`, or a chat's `kind`."""
    day: int | None = None

    @property
    def group(self) -> str:
        """Return the question's category; for all of MT-Bench's together "mt_bench"."""
        return "mt_bench" if self.category in MT_BENCH else self.category


def read_questions(path: Path) -> list[Question]:
    """Read all questions of a file, in order. Raises RequestError."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(unreadable(path, error)) from error
    try:
        every = [_question(number, json.loads(line)) for number, line in enumerate(lines)]
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(
            f'{path}: every line must be a JSON object with "turns": [...], a list of texts'
        ) from error
    asking = [question for question in every if question.turns]
    if not asking:
        raise RequestError(f'{path}: there are no questions; "turns" must list them as text')
    return asking


def _question(number: int, said: Any) -> Question:
    turns = said["turns"]
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        raise TypeError('"turns" must list questions as text')
    return Question(
        number,
        name=str(said.get("question_id", said.get("id", number))),
        turns=tuple(turns),
        category=str(said.get("category") or said.get("kind") or "all"),
        day=said.get("day"),
    )


def spread(questions: Sequence[Question], limit: int | None = None) -> list[Question]:
    """Order questions by one of each group in turn, and of each category within, so that any beginning is balanced."""
    return _in_turn(_in_turn(questions, attrgetter("category")), attrgetter("group"))[:limit]


def _in_turn(questions: Iterable[Question], key: Callable[[Question], str]) -> list[Question]:
    """Return one question of each kind, then a second one of each, and so on."""
    kinds: dict[str, list[Question]] = {}
    for question in questions:
        kinds.setdefault(key(question), []).append(question)
    return [question for one_each in zip_longest(*kinds.values()) for question in one_each if question]


@dataclass
class Dialogue:
    """One conversation as the chat would hold it: prompts contain all earlier turns and leave `room` tokens."""

    served: ServedModel
    room: int
    _said: list[PromptMessage] = field(default_factory=list)
    _opened: bool = False
    """Whether the last prompt ended where the model begins to think."""

    def ask(self, text: str) -> list[int]:
        """Add a question, and return the token ids of its prompt. Raises MessageTooLong."""
        self._said.append(PromptMessage("user", text))
        prompt = self.served.prompts.build(self._said, self.room, self.served.end_ids)
        self._opened = prompt.thinking
        return prompt.ids

    def answered(self, reply: Sequence[int]) -> None:
        text = self.served.prompts.thinking.text(reply, opened=self._opened)
        self._said.append(PromptMessage("assistant", text, tuple(reply)))


def require_writable(path: Path) -> None:
    """Raise RequestError unless the file can be written, so that no run is in vain."""
    if path.is_dir():
        raise RequestError(f"{path} is a folder; name a file in it.")
    part = path.with_name(f".{path.name}.part")
    try:
        part.touch()
        part.unlink()
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}.") from error


def write(path: Path, result: dict[str, Any], rows: str) -> None:
    """Replace a run's file in one step. The list under the key `rows` comes last, one element a line."""
    head = json.dumps({key: value for key, value in result.items() if key != rows}, indent=2)
    lines = ",\n".join(json.dumps(row) for row in result[rows])
    write_whole(path, f'{head[:-2]},\n  "{rows}": [\n{lines}\n  ]\n}}\n'.encode())


def machine() -> dict[str, str | int | float]:
    """Return processor, cores, memory (GiB), the versions that matter and the revision of this program."""
    import torch  # takes seconds

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "processor": processor(),
        "cores": psutil.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": gpu,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "hierchat": __version__,
        "revision": _revision(),
    }


def _revision() -> str:
    git = ["git", "-C", str(Path(__file__).parents[1])]
    with suppress(OSError):
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True)
        if commit.returncode == 0:
            return commit.stdout.strip() + (" with changes" if changed.stdout.strip() else "")
    return ""


ERRORS = (RequestError, CorpusError, ModelError, BrokenLogits, OutOfMemory, MemoryError)
"""What the user can do something about; anything else is a fault of the program."""


def answered(act: Callable[[], int], out: Path | None = None) -> int:
    """Run a command, or say why it cannot run; return `act`'s exit code, 2 for an error, 130 for Ctrl-C."""
    try:
        if out:
            require_writable(out)
        return act()
    except ERRORS as error:
        say(f"hierchat: {str(error) or type(error).__name__}")
        return 2
    except KeyboardInterrupt:
        say("Stopped before anything was measured.")
        return 130


def say(text: str) -> None:
    """Print a text to the person at the terminal, beside the figures."""
    print(text, file=sys.stderr, flush=True)


Tell = Callable[[str, int], None]
"""Takes what comes next, and how many units were done since the last call."""


@contextmanager
def bar(total: int, done: int = 0) -> Iterator[Tell]:
    """Draw a progress bar over `total` units of work, `done` of them before, between measurements only."""
    with click.progressbar(
        list[str](),
        total,
        show_pos=True,
        item_show_func=lambda doing: doing,
        file=sys.stderr,
        update_min_steps=0,
    ) as drawn:
        drawn.update(done)
        yield lambda doing, advance: drawn.update(advance, doing)
