"""Run questions for checks and measurements, from a file of JSON lines with `turns` or a workload made here:
options, settings, model, the file of the run, and an earlier one to go on from."""

import hashlib
import importlib
import inspect
import json
import platform
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self, get_args

import psutil
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hierchat import __version__
from hierchat.config import GenerationSettings
from hierchat.engine.engine import OutOfMemory, UnsupportedModel
from hierchat.engine.sampling.sampler import BrokenLogits
from hierchat.models.cache import sha256, write_whole
from hierchat.models.catalogue import Backend, ModelEntry, nearest, read_catalogue
from hierchat.models.load.tokenizer_files import load_tokenizer
from hierchat.models.progress import ModelError, terminal_progress
from hierchat.runtime.costs import processor
from hierchat.runtime.loading import LoadOptions, load_served_model
from hierchat.runtime.prompt import PromptMessage
from hierchat.runtime.served_model import ServedModel
from hierchat.texts.corpora import require_readable
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


def unknown(what: str, name: str, known: Iterable[str]) -> RequestError:
    """Return the error about a name that is none of `known`, with the nearest of them."""
    return RequestError(f"No {what} is called {name!r}. {nearest(name, known)}")


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


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Questions of one run; `name`: the file or workload; `sha256`: of its content."""

    questions: list[Question]
    name: str
    sha256: str


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
    """Order questions by taking one of each group in turn, and of each category within a group, so that any
    beginning of the list, such as its first `limit`, holds about equally many of each."""
    groups: dict[str, list[Question]] = {}
    for question in _in_turn(questions, [question.category for question in questions]):
        groups.setdefault(question.group, []).append(question)
    by_group = [question for group in groups.values() for question in group]
    return _in_turn(by_group, [question.group for question in by_group])[:limit]


def _in_turn(questions: Sequence[Question], keys: Sequence[str]) -> list[Question]:
    """Order questions by the first of each key, the second of each, ...; keys in order of their appearance."""
    seen: dict[str, int] = {}
    ranked = []
    for at, (question, key) in enumerate(zip(questions, keys, strict=True)):
        rank = seen[key] = seen.get(key, -1) + 1
        ranked.append((rank, list(seen).index(key), at, question))
    return [question for *_, question in sorted(ranked, key=lambda item: item[:3])]


LONG_CONTEXT = "long-context"
WORKLOADS = ("copy", LONG_CONTEXT)
COPY_TOKENS = 1_500
"""Tokens of a text to be copied with a change."""
LONG_TOKENS = 8_192
"""Tokens of a prompt about a long text, less where the context is shorter; reply and template come on top."""
MOST = 8_192
"""Tokens of a prompt and its reply where the catalogue does not say what a model can hold."""
SPARE = 256
"""Tokens for the template, the question and what a cut leaves over."""
COPIES = (
    ("textwrap", "TextWrapper", "LineWrapper"),
    ("shlex", "shlex", "shell_lexer"),
    ("heapq", "heap", "pile"),
    ("bisect", "lo", "low"),
    ("calendar", "weekday", "day_of_week"),
    ("queue", "maxsize", "capacity"),
    ("fnmatch", "pat", "pattern"),
    ("string", "Template", "Pattern"),
)
"""A module, and a name in it that is to be changed."""
LONG = (
    (("argparse", "shlex"), "What does the class ArgumentParser do? Answer in a few sentences."),
    (("textwrap", "difflib"), "Repeat the docstring of the function `wrap` in `textwrap`, word for word."),
    (("heapq", "statistics"), "List the public functions of `heapq`, each with one sentence."),
    (("calendar", "datetime"), "Write a short program that uses these modules to print this month."),
)
"""Modules whose sources stand in the prompt, and what is asked about them."""
Length = Callable[[str], int]
"""Tokens of a text."""


def question_set(
    workload: str, entry: ModelEntry, settings: GenerationSettings, sizes: Sequence[int] = ()
) -> QuestionSet:
    """Make the questions of one of WORKLOADS from the sources of Python's own library, so that nothing is
    downloaded. `sizes`: the most tokens of a long context's prompts; by default as many as the model can hold
    with its replies. Raises RequestError for those that it cannot, and a ModelError."""
    holds = entry.context_length or MOST
    most = holds - settings.max_new_tokens
    for size in sizes:
        if not 2 * SPARE <= size <= most:
            raise RequestError(
                f"--prompt-tokens: {size:,} is not {2 * SPARE:,} to {most:,}. {entry.name} holds {holds:,} tokens, "
                f"{settings.max_new_tokens:,} of them for the reply."
            )
    with terminal_progress() as report:
        tokenizer = load_tokenizer(entry, report)
    questions = questions_of(
        workload, lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"]), most, sizes
    )
    texts = "\n".join(text for question in questions for text in question.turns)
    return QuestionSet(questions, workload, hashlib.sha256(texts.encode()).hexdigest())


def questions_of(workload: str, length: Length, most: int, sizes: Sequence[int] = ()) -> list[Question]:
    """Return the questions of one of WORKLOADS; `most`: tokens that a prompt may have. Each of `sizes` is a
    category of its own."""
    if workload == "copy":
        asked = [(workload, text) for text in _copies(length, most)]
    elif sizes:
        asked = [(f"{workload}-{size}", text) for size in sizes for text in _long(length, size)]
    else:
        asked = [(workload, text) for text in _long(length, min(LONG_TOKENS, most))]
    return [
        Question(number, f"{workload}-{number}", (text,), category)
        for number, (category, text) in enumerate(asked)
    ]


def _copies(length: Length, most: int) -> list[str]:
    return [
        f"Repeat this file word for word, but rename `{old}` to `{new}` everywhere. Write nothing else.\n\n"
        f"```python\n{_beginning(_source(module), min(COPY_TOKENS, most - SPARE), length)}```"
        for module, old, new in COPIES
    ]


def _long(length: Length, size: int) -> list[str]:
    texts = ((question, "\n".join(map(_source, modules))) for modules, question in LONG)
    return [
        f"```python\n{_beginning(text, size - SPARE, length)}```\n\n{question}" for question, text in texts
    ]


def _source(module: str) -> str:
    return inspect.getsource(importlib.import_module(module))


def _beginning(text: str, tokens: int, length: Length) -> str:
    """Return as many whole lines of a text's beginning as have at most `tokens` tokens."""
    lines = text.splitlines(keepends=True)
    counts = range(1, len(lines) + 1)
    return "".join(lines[: bisect_right(counts, tokens, key=lambda count: length("".join(lines[:count])))])


@dataclass
class Dialogue:
    """Holds one conversation as the chat would: every prompt contains all earlier turns. `room`: tokens that
    a prompt leaves for its reply, where the context has them."""

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


def read(path: Path, expected: dict[str, Any]) -> dict[str, Any] | None:
    """Read an earlier run's file to go on from; None if there is none. Raises RequestError if it is no run,
    or one with other `expected` values."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RequestError(f"{unreadable(path, error)} Leave --resume out to start anew.") from error
    if not isinstance(found, dict) or not isinstance(found.get("settings"), dict):
        raise RequestError(f"{path} holds no run to go on from.")
    flat = {**found, **found["settings"]}
    if differing := differences(flat, expected):
        raise RequestError(f"{path} holds another run: {'; '.join(differing)}. Name another file.")
    return found


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return sentences about the values of a file that differ from the expected ones."""
    return [
        f"{key} was {found.get(key)!r} and is {value!r}"
        for key, value in expected.items()
        if found.get(key) != value
    ]


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
    """Return the commit, and whether the program differs from it; empty outside a clone."""
    git = ["git", "-C", str(Path(__file__).parents[1])]
    with suppress(OSError):
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True)
        if commit.returncode == 0:
            return commit.stdout.strip() + (" with changes" if changed.stdout.strip() else "")
    return ""


ERRORS = (RequestError, CorpusError, ModelError, UnsupportedModel, BrokenLogits, OutOfMemory, MemoryError)
"""What the user can do something about; anything else is a fault of the program."""
STOPPED = "Stopped. What was measured is kept; the same command with --resume goes on."


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a command of checks or benchmarks; `json` is the file of the run."""

    json: Path
    questions: Path | None = None
    workload: str | None = None
    prompt_tokens: Sequence[int] | None = None
    limit: int | None = None
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    model: str | None = None
    backend: Backend | None = None
    width: int | None = None
    corpus: Path | None = None
    resume: bool = False

    @classmethod
    def of(cls, flags: Mapping[str, Any]) -> Self:
        """Take the flags of a command that are options of a run."""
        return cls(**{one.name: flags[one.name] for one in fields(cls) if one.name in flags})


class MeasuredRun:
    """One run over questions: its options, checked before a model loads, and the head of its file."""

    def __init__(self, options: RunOptions, kind: str, own: dict[str, Any]) -> None:
        """Check the options; `own`: settings of this kind of run. Raises RequestError, CorpusError and ModelError."""
        import torch

        self._options = options
        if options.corpus:
            require_readable(options.corpus)
        sampling = ("max_new_tokens", "temperature", "top_p", "top_k", "seed")
        chosen = {name: getattr(options, name) for name in sampling}
        self.settings = settings_of(**chosen)
        self.entry = read_catalogue().entry(options.model)
        if options.prompt_tokens and options.workload != LONG_CONTEXT:
            raise RequestError(
                f"--prompt-tokens goes with --workload {LONG_CONTEXT}, whose prompts have any length."
            )
        if options.workload:
            sizes = options.prompt_tokens or ()
            found = question_set(options.workload, self.entry, self.settings, sizes)
        elif path := options.questions:
            found = QuestionSet(read_questions(path), path.name, sha256(path))
        else:
            raise RequestError("Name --questions, or a --workload.")
        self.questions = found.questions
        self.threads = torch.get_num_threads()  # before a forward under load makes it one
        self.recorded: dict[str, Any] = {
            "kind": kind,
            "file": found.name,
            "file_sha256": found.sha256,
            "prompt_tokens": options.prompt_tokens,
            "limit": options.limit,
            **chosen,
            "width": options.width,
            "corpus": str(options.corpus) if options.corpus else None,
            **own,
        }
        self._machine: dict[str, Any] = machine()

    def load(self, places: int = 1) -> ServedModel:
        """Load the run's model on its backend. `places`: replies that it writes at once."""
        asked, catalogue = self._options, read_catalogue()
        options = LoadOptions(asked.backend, corpus=asked.corpus, places=places, catalogue=catalogue)
        with terminal_progress() as report:
            return load_served_model(self.entry, options, report)

    def head(self, served: ServedModel) -> dict[str, Any]:
        """Return the head of the run's file: machine, model, backend and settings."""
        return {
            "machine": self._machine,
            "model": served.name,
            "backend": served.engine.backend,
            "settings": self.recorded,
        }

    def earlier(self, head: dict[str, Any]) -> dict[str, Any] | None:
        """Return the earlier result to go on from, with --resume and if there is one; its machine stays the first's."""
        if not self._options.resume:
            return None
        found = read(
            self._options.json, {"model": head["model"], "backend": head["backend"], **self.recorded}
        )
        if found is None:
            say(f"{self._options.json} is not there yet: starting anew.")
            return None
        now, then = head["machine"], found["machine"]
        changed = {key: value for key, value in now.items() if then.get(key) != value}
        head["machine"] = then
        if changed:
            say(f"This is no longer what the figures before were measured on: {changed}")
            head["resumed"] = [*found.get("resumed", ()), changed]
        return found


def settings_of(**flags: Any) -> GenerationSettings:
    """Build generation settings from flags. Raises RequestError, naming the flag that is wrong."""
    try:
        return GenerationSettings(**flags)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise RequestError(f"--{str(wrong['loc'][0]).replace('_', '-')}: {wrong['msg']}") from error


def answered(act: Callable[[], int], backend: str | None = None, out: Path | None = None) -> int:
    """Run a command, or say why it cannot run, and return the exit code: that of `act`, 2 for an error, 130
    for Ctrl-C. An unknown backend and a file `out` that cannot be written are errors before all else."""
    try:
        if backend and backend not in get_args(Backend):
            raise unknown("backend", backend, get_args(Backend))
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
    """Draw a progress bar over `total` units of work, `done` of them before; between measurements only, so
    that it takes nothing from them."""
    columns = (TextColumn("{task.description}"), BarColumn(30), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    period = 3600  # seconds: questions take long
    with Progress(*columns, console=console, auto_refresh=False, speed_estimate_period=period) as drawn:
        task = drawn.add_task("", total=total, completed=done)

        def tell(doing: str, advance: int = 0) -> None:
            drawn.update(task, description=doing, advance=advance, refresh=True)

        yield tell
