"""Try every way to compute on the GPU, as Markdown to paste into a report; or measure all that needs one (--all)."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from benchmarks.measured_run import read
from benchmarks.tabulate import gpu_tables, show_tables
from hierchat import __version__
from hierchat.checks.doctor import anonymous
from hierchat.checks.exactness import Compared, check
from hierchat.checks.runs import Dialogue, Question, machine
from hierchat.config import GenerationSettings
from hierchat.engine.backends import IMPLEMENTATIONS
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.fallback import folder as records
from hierchat.models.cache import write_whole
from hierchat.models.catalogue import Backend, read_catalogue
from hierchat.models.device_memory import best_device
from hierchat.models.progress import ModelError
from hierchat.runtime.drafters import Memory, reply_drafter
from hierchat.runtime.served_model import ServedModel

ANY = "any"
"""Stands for the first implementation that works."""
HEAD = [
    "model", "computed by", "self-test", "words compared", "tok/s plain", "with drafts", "T", "ms of a forward",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tried:
    """Result of one model on one way to compute; `found` as `figures` has it, or `failed` alone."""

    model: str
    implementation: str
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Tell whether the way works, and drafts changed no word where none may."""
        differ = self.found.get("verify", {}).get("mismatches", 0)
        return "failed" not in self.found and not (self.found["exact"] and differ)


def block(device: Sequence[str], tried: Sequence[Tried]) -> str:
    """Format the report as Markdown. `device`: what to say of it and of what it was tried with."""
    head = ["### python -m benchmarks gpu", "", *(f"- {line}" for line in device), ""]
    table = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    table += ["| " + " | ".join(_cells(one)) + " |" for one in tried]
    failed = [f"- {one.model}, {_way(one)}: {one.found['failed']}" for one in tried if "failed" in one.found]
    noted = [f"- {one.model}: {one.found['note']}" for one in tried if one.found.get("note")]
    below = ["", "T is tokens per forward. A forward is over 1, 2, 4, 8, 16 and 32 rows."]
    return "\n".join([*head, *table, *below, *([""] if failed or noted else []), *failed, *noted])


def _cells(one: Tried) -> list[str]:
    found = one.found
    if "failed" in found:
        return [one.model, _way(one), "failed", *["" for _ in HEAD[3:]]]
    verify = found.get("verify")
    words = f"{verify['tokens']:,} tokens, {verify['mismatches']} replies differ" if verify else "no drafts"
    exact = f"exact, multiples of {found['quantum']}" if found["exact"] else "not exact"
    return [
        f"{one.model}, {found['backend']}",
        _way(one),
        exact if verify else found["way"] or "no drafts",
        words,
        f"{found['plain']:.1f}",
        f"{found['drafted']:.1f}" if "drafted" in found else "",
        f"{found['per_forward']:.2f}" if "per_forward" in found else "",
        ", ".join(f"{ms:.2f}" for ms in found["forward_ms"].values()),
    ]


def _way(one: Tried) -> str:
    name = one.found.get("implementation", one.implementation)
    return {ANY: "the first that works", **IMPLEMENTATIONS}.get(name, "kernels of ours on the processor")


EACH_S = 240
"""Seconds after which a way counts as hanging; compiling everything takes a quarter of them."""
NO_GPU = (
    "There is no GPU here that PyTorch can use, so there is nothing to try. If there is one, check its driver, and "
    "that PyTorch was installed for it."
)
PACKAGES = ("torch", "transformers", "triton", "bitsandbytes")
Try = Callable[[str, str, str], dict[str, Any]]
"""(model, implementation, device) to figures, or `failed`."""


def try_gpu(model: str | None, device: str | None, tries: Try | None = None) -> int:
    """Try each way in a process of its own and print the report; return 1 where a way fails or changes a word, or where
    there is no GPU. `model`: one that is measured beside the default."""
    tries, named = tries or in_process, device is not None
    try:
        if (device := device or best_device()) == "cpu" and not named:
            print(NO_GPU)
            return 1
        catalogue = read_catalogue()
        default = catalogue.entry(None).name
        chosen = catalogue.entry(model).name
    except ModelError as error:
        print(f"hierchat: {error}", file=sys.stderr)
        return 1
    asked = [(default, implementation) for implementation in implementation_names(device)]
    asked += [(chosen, ANY)] if chosen != default else []
    tried = []
    for number, (name, implementation) in enumerate(asked, 1):
        way = IMPLEMENTATIONS.get(implementation, "the first that works")
        print(f"{number} of {len(asked)}: {name}, {way} ...", file=sys.stderr)
        tried.append(Tried(name, implementation, tries(name, implementation, device)))
    print(anonymous(block(_device(device), tried)))
    right = all(one.right for one in tried)
    if right:
        for file in records().glob("*.json"):  # what hung in an earlier start does so no more
            file.unlink(missing_ok=True)
    return 0 if right else 1


def implementation_names(device: str) -> list[str]:
    """Name the implementations that a device may have for a model without windows, the fastest first."""
    if device.startswith("cpu"):
        return ["slots", "plain"]
    graphs = device.startswith("cuda") and find_spec("triton") is not None
    return list(IMPLEMENTATIONS) if graphs else list(IMPLEMENTATIONS)[1:]


def in_process(*which: str, seconds: float | None = None) -> dict[str, Any]:
    """Try one way, or measure one part, in a process of its own. One that hangs or dies is a failure, too; what it had
    measured until then is kept."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, "-m", __name__, *which, str(out)]
        failed, found, seconds = "", dict[str, Any](), seconds or EACH_S
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds)
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
                failed = f"the program ended with {done.returncode}: {last}"
        except subprocess.TimeoutExpired:
            failed = f"it did not end within {seconds:g} seconds"
        with suppress(OSError, ValueError):
            found = json.loads(out.read_text(encoding="utf-8"))
        return found | {"failed": failed} if failed else found


LEAST_S = 20
"""Seconds without which no part begins: loading its libraries takes half of them."""


def measure_parts(
    minutes: float,
    out: Path,
    device: str | None,
    resume: bool,
    measure: Callable[..., dict[str, Any]] = in_process,
) -> int:
    """Measure all that needs a card, in order of worth and for so many minutes; write `out` after each part and print
    tables. `resume`: keep the parts of `out` that are done. Returns 1 if a part failed. Raises RequestError."""
    from benchmarks.gpu_parts import PARTS  # takes seconds

    end, device = time.monotonic() + 60 * minutes, device or best_device()
    settings = {"kind": "gpu", "device": device, "card": _device(device)[0]}
    earlier = read(out, settings) if resume else None
    parts: dict[str, dict[str, Any]] = earlier["parts"] if earlier else {}
    result = {"machine": machine(), "settings": settings, "parts": parts}
    default = read_catalogue().entry(None).name
    ways = {f"{default}, {way}": way for way in implementation_names(device)}
    for name in (*PARTS, *ways):
        if name in parts and "failed" not in parts[name]:
            continue
        left = round(end - time.monotonic())
        print(f"{name}: {left} seconds left ...", file=sys.stderr)
        if left < LEAST_S:
            parts[name] = {"failed": "no time was left"}
        elif way := ways.get(name):
            found = measure(default, way, device, seconds=min(left, EACH_S))
            parts[name] = _as_part(Tried(default, way, found))
        else:
            parts[name] = measure(name, device, seconds=left)
        write_whole(out, json.dumps(result, indent=2).encode())
    show_tables(gpu_tables(result))
    return 1 if any("failed" in part for part in parts.values()) else 0


def _as_part(tried: Tried) -> dict[str, Any]:
    row = {tried.model: dict(zip(HEAD[1:], _cells(tried)[1:], strict=True))}
    failed = {} if tried.right else {"failed": tried.found.get("failed", "drafts changed a word")}
    return {"rows": row, **failed}


def measure_one(name: str, device: str, out: Path) -> None:
    """Measure one part, and write what is known so far after each row."""
    from benchmarks.gpu_parts import PARTS, shapes_on

    found: dict[str, Any] = {"rows": {}}
    try:
        for label, figures in PARTS[name](shapes_on(device), device):
            found["rows"][label] = figures
            out.write_text(json.dumps(found), encoding="utf-8")
    except Exception as error:  # the next part is still wanted
        found["failed"] = f"{type(error).__name__}: {error}"
    out.write_text(json.dumps(found), encoding="utf-8")


def _device(device: str) -> list[str]:
    here = [name for name in PACKAGES if find_spec(name)]
    versions = ", ".join(f"{name} {version(name)}" for name in here)
    name = (
        "the processor in a GPU's place" if device == "cpu" else f"{device} (Apple), {platform.processor()}"
    )
    if device == "cuda":
        import torch

        about = torch.cuda.get_device_properties(0)
        name = (
            f"{about.name}, {about.total_memory / 2**30:.0f} GiB, compute capability {about.major}.{about.minor}, "
            f"CUDA {torch.version.cuda}"
        )
    lines = [f"{name}, {platform.platform()}", f"hierchat {__version__}, {versions}"]
    return [*lines, f"{datetime.now(UTC):%Y-%m-%d}"]


ASKED = (
    "Name five trees that grow in the north, each with one sentence.",
    "Write a short Python function that counts the words of a text.",
    "Repeat word for word: The river rises in the hills, runs past three villages and ends in a lake. In spring the "
    "river floods the meadows, and in summer children wade through it.",
)
DRAFTERS = ("default", "random", "adversarial")
SETTINGS = GenerationSettings(max_new_tokens=48)
WARM = GenerationSettings(max_new_tokens=8)
WIDTHS = (1, 2, 4, 8, 16, 32)
FORWARDS = 9
"""Forwards of each width; the median counts."""


def figures(served: ServedModel) -> dict[str, Any]:
    """Measure a model that was just loaded: words changed by drafts, tokens a second, milliseconds of a forward.
    Without drafts nothing is compared, and forwards have one row."""
    from benchmarks.gpu_parts import forwards

    engine, runner = served.local, served.local.runner
    found: dict[str, Any] = {
        "implementation": served.implementation,
        "backend": runner.backend,
        "exact": runner.exact,
        "quantum": getattr(runner, "quantum", 1),
        "way": getattr(runner, "way", ""),
        "note": served.note,
    }
    if runner.drafts:
        questions = [Question(number, str(number), (text,)) for number, text in enumerate(ASKED)]
        with TemporaryDirectory() as folder:
            compared = Compared(Path(folder) / "verify.json", {}, DRAFTERS)
            check(served, questions, SETTINGS, compared, lambda doing, done: None)
        said = compared.as_dict()
        found["verify"] = {"tokens": said["tokens"], "mismatches": said["mismatches"]}
    engine.clear()
    found["plain"], _ = _speed(served, drafts=False)
    if runner.drafts:
        found["drafted"], found["per_forward"] = _speed(served, drafts=True)
    widths = WIDTHS if runner.drafts else WIDTHS[:1]
    found["forward_ms"] = {
        str(width): ms for width, ms in forwards(engine.sequence, widths, FORWARDS).items()
    }
    return found


def _speed(served: ServedModel, *, drafts: bool) -> tuple[float, float]:
    """Return tokens a second behind the prompt, and tokens per forward."""
    from benchmarks.gpu_parts import speed, written

    memory, found = Memory(), dict[str, Any]()

    def request(text: str, settings: GenerationSettings) -> GenerationRequest:
        prompt = Dialogue(served, settings.max_new_tokens).ask(text)
        drafter = reply_drafter(served, memory, settings, Event()) if drafts else None
        return GenerationRequest(prompt, settings, drafter, padded=drafts)

    for settings, asked in ((WARM, ASKED[:1]), (SETTINGS, ASKED)):
        found = speed(written(served.engine, (request(text, settings) for text in asked)))
    return found["tokens/s"], found["T"]


def try_one(model: str, implementation: str, device: str) -> dict[str, Any]:
    """Return the figures of one model on one way; or `failed`, the reason."""
    try:
        entry = read_catalogue().entry(model)
        from hierchat.models.load.check import by_engine
        from hierchat.runtime.loading import LoadOptions, load_served_model  # this takes seconds

        # Keeps our own kernels out, which would compute it on the processor
        own = by_engine(entry, device, None)
        backend: Backend | None = "float16" if own else None
        only = None if implementation == ANY else implementation
        served = load_served_model(entry, LoadOptions(backend, device, only, waits=False))
        served.drafting_ready.wait()
        return figures(served)
    except ModelError as error:
        return {"failed": str(error)}


def main(*which: str) -> None:
    """Write the figures of one way (MODEL IMPLEMENTATION DEVICE OUT) or of one part (PART DEVICE OUT)."""
    *which_one, out = which
    if len(which_one) == 2:
        measure_one(which_one[0], which_one[1], Path(out))
    else:
        Path(out).write_text(json.dumps(try_one(*which_one)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
