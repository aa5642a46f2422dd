"""Draw docs/benchmarks.md from the files in results/, and files of runs as a page, plots and Markdown."""

from __future__ import annotations

import base64
import html
import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import plots, tabulate
from benchmarks.plots import Figures
from benchmarks.tabulate import keys, number
from hierchat.checks.runs import RequestError, unreadable

RESULTS = Path(__file__).parent / "results"
DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"
INTRODUCTION = (
    "Drawn by `python -m benchmarks report` from the files in `benchmarks/results/`, one for each measurement: "
    "change those and draw again. [measuring.md](measuring.md) explains commands, arms and figures. Sections "
    "were measured on several machines, each of which is named: compare figures within one table only. "
    "A speed-up is the median of questions. “In all” means all tokens over all seconds; so are the figures of "
    "several users and of vLLM. Figures of GPUs are in [log.md](log.md)."
)
WIDTH = 150
"""Columns of a wrapped line of the document."""
Picture = tuple[str, str, Callable[[Any], None]]
"""A name for the file, a caption, and what paints it."""
HEAD = (
    "arm",
    "tok/s",
    "speed-up",
    "quartiles",
    "own stack",
    "T",
    "draft ms",
    "first token s",
    "MB",
    "differ",
)
RUNS_HEAD = (
    "arm",
    "tok/s",
    "speed-up",
    "quartiles",
    "against llama.cpp",
    "T",
    "first token s",
    "MB",
    "differ",
)
"""Columns of a table that is drawn from raw files. Against llama.cpp: the ratio of both medians of tokens a second."""
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  background: #fff; color: #222 }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.9rem; font-variant-numeric: tabular-nums }
th, td { padding: 0.25rem 0.7rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
img { max-width: 100% }
.table { overflow-x: auto }
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #e6e6e6 } th, td { border-color: #3a3d42 } }
"""


def draw_document(folder: Path = RESULTS) -> str:
    """Draw the Markdown of docs/benchmarks.md from a folder of results, in the order of their names."""
    machines = json.loads((folder / "machines.json").read_text(encoding="utf-8"))
    lines = [
        "# Benchmarks",
        "",
        _wrap(INTRODUCTION),
        "",
        *_markdown_table(("machine", "is"), list(machines.items())),
        "",
    ]
    for file in sorted(folder.glob("[0-9]*.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        revision = f"; revision {result['revision']}" if result["revision"] else ""
        conditions = f"({result['machine']}, {result['date']}{revision})"
        lines += [f"## {result['title']}", _wrap(f"`{result['command']}` {conditions}"), ""]
        lines += [*_markdown_table(*_table_of(result, folder)), ""]
        lines += [*(_wrap(f"- {note}", "  ") for note in result["notes"]), ""]
    return "\n".join(lines)


def _table_of(result: Figures, folder: Path) -> tuple[Sequence[str], list[list[str]]]:
    """Return head and rows of a result: its own, or those of its `runs`, raw output of `decode` by the model's name."""
    if "runs" not in result:
        return result["columns"], result["rows"]
    rows = []
    for name, file in result["runs"].items():
        arms = read(folder / file)["arms"]
        peer = next((arm for arm in arms if arm["arm"] == "llama.cpp"), None)
        for arm in arms:
            cells = dict(zip(HEAD, _row(arm), strict=True))
            against = _ratio(arm, peer) if peer else ""
            rows.append(
                [name, *(against if column == "against llama.cpp" else cells[column] for column in RUNS_HEAD)]
            )
    return ("model", *RUNS_HEAD), rows


def _ratio(arm: Figures, peer: Figures) -> str:
    return f"{arm['tokens_per_second'] / peer['tokens_per_second']:.2f}x"


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def write(files: Sequence[Path], folder: Path) -> Path:
    """Write report.html, report.md and the plots into `folder`; return the page. Raises RequestError."""
    runs = [(file, read(file)) for file in files]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pictures = list(_draw_all(runs, folder))
        page = folder / "report.html"
        page.write_text(_html(runs, pictures, folder), encoding="utf-8")
        (folder / "report.md").write_text(_markdown(runs, pictures), encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{folder} cannot be written: {error.strerror}.") from error
    return page


def read(file: Path) -> Figures:
    """Read the file of a run of `benchmarks decode`, `log`, `replay`, `forward` or `gpu`. Raises RequestError."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(unreadable(file, error)) from error
    if not isinstance(found, dict) or not found.keys() & _DRAWN.keys():
        raise RequestError(f"{file} holds no run of benchmarks decode, log, replay, forward or gpu --all.")
    return found


def tables(run: Figures) -> Iterator[tuple[Sequence[str], list[list[str]]]]:
    """Yield the run's tables: a head and rows of cells."""
    yield from next(draw for key, draw in _DRAWN.items() if key in run)(run)


def _arm_tables(run: Figures) -> Iterator[tuple[Sequence[str], list[list[str]]]]:
    yield HEAD, [_row(arm) for arm in run["arms"]]
    for by, called in (("by_group", "group"), ("by_day", "day")):
        if found := keys(run["arms"], by):
            rows = [
                [arm["arm"], *(_cell(arm.get(by, {}).get(key, {})) for key in found)] for arm in run["arms"]
            ]
            yield (f"arm, by {called}", *found), rows


_DRAWN = {"parts": tabulate.gpu_tables, "contexts": tabulate.forward_tables, "arms": _arm_tables}
"""Tables of a run by what it holds."""


def _row(arm: Figures) -> list[str]:
    quartiles = arm["quartiles"]["speedup"] or ()
    return [
        arm["arm"],
        number(arm["tokens_per_second"], 1, none=""),
        _cell(arm),
        ", ".join(f"{value:.2f}" for value in quartiles),
        number(arm.get("stack_speedup"), 2, none=""),
        number(arm["tokens_per_forward"], 2, none=""),
        number(arm["draft_ms"], 2, none=""),
        number(arm["first_token_seconds"], 2, none=""),
        number(arm.get("peak_mb"), 0, none=""),
        number(arm["mismatches"], 0, none=""),
    ]


def _cell(figures: Figures) -> str:
    if figures.get("speedup"):
        return f"{figures['speedup']:.2f}x"
    return number(figures.get("tokens_per_forward"), 2, none="")


def _title(file: Path, run: Figures) -> str:
    return f"{file.stem}: {run.get('settings', {}).get('kind', 'forward')}"


def _said(run: Figures) -> str:
    """Return how and on what a run was measured."""
    settings = {key: value for key, value in run.get("settings", {}).items() if value not in (None, [])}
    machine = run.get("machine", {})
    parts = {"model": run.get("model"), "backend": run.get("backend"), **settings, **machine}
    return ", ".join(f"{key} {value}" for key, value in parts.items() if key not in ("arms", "file_sha256"))


def _absent(run: Figures) -> list[str]:
    return [f"{arm['arm']} is absent: {arm['reason']}" for arm in run.get("absent", ())]


def _pictures(file: Path, run: Figures) -> Iterator[Picture]:
    name = file.stem
    if "contexts" in run:
        yield f"{name}-latency", f"{name}: what a forward costs", plots.latency(run["contexts"])
        return
    arms = run.get("arms", [])
    timed = [arm for arm in arms if arm["speedup"]]
    if timed:
        yield f"{name}-arms", f"{name}: tokens per second", plots.speed_by_arm(timed)
    if fastest := plots.best(timed):
        yield f"{name}-groups", f"{name}: speed-up by group", plots.speed_by_group(fastest)
    days = [arm for arm in fastest if len(arm.get("by_day", {})) > 1]
    if days:
        yield f"{name}-days", f"{name}: speed-up by day", plots.speed_by_day(days)
    drafting = [arm for arm in arms if len(arm["sources"]) > 1]
    if drafting:
        yield f"{name}-sources", f"{name}: where the tokens came from", plots.shares(drafting)


def _widths(runs: Sequence[tuple[Path, Figures]]) -> Iterator[Picture]:
    """Yield pictures of runs that differ in their width, one per set of questions and temperature."""
    sets: dict[tuple[Any, ...], dict[str, dict[int, float]]] = {}
    for _, run in runs:
        said = run.get("settings", {})
        if not said.get("width"):
            continue
        key = (said.get("file"), said.get("temperature"), said.get("limit"), said.get("carry"))
        for arm in run["arms"]:
            if arm["tokens_per_forward"]:
                sets.setdefault(key, {}).setdefault(arm["arm"], {})[said["width"]] = arm["tokens_per_forward"]
    for place, ((file, *_), by_arm) in enumerate(sets.items()):
        if max(map(len, by_arm.values())) > 1:
            yield f"widths-{place}", f"{file}: tokens per forward by width", plots.tokens_by_width(by_arm)


def _draw_all(runs: Sequence[tuple[Path, Figures]], folder: Path) -> Iterator[tuple[str, str]]:
    """Draw every picture in both themes; yield its name and caption."""
    for name, caption, paint in [*(p for file, run in runs for p in _pictures(file, run)), *_widths(runs)]:
        for theme in plots.THEMES:
            (folder / f"{name}-{theme}.png").write_bytes(plots.draw(paint, theme))
        yield name, caption


def _markdown(runs: Sequence[tuple[Path, Figures]], pictures: Sequence[tuple[str, str]]) -> str:
    lines: list[str] = []
    for file, run in runs:
        lines += [f"## {_title(file, run)}", "", _said(run), ""]
        for head, rows in tables(run):
            lines += [*_markdown_table(head, rows), ""]
        for line in _absent(run):
            lines += [line, ""]
    for name, caption in pictures:
        dark = f'<source media="(prefers-color-scheme: dark)" srcset="{name}-dark.png">'
        lines += [f'<picture>{dark}<img src="{name}-light.png" alt="{caption}"></picture>', ""]
    return "\n".join(lines)


def _html(runs: Sequence[tuple[Path, Figures]], drawn: Sequence[tuple[str, str]], folder: Path) -> str:
    parts: list[str] = []
    for file, run in runs:
        parts += [
            f"<h2>{html.escape(_title(file, run))}</h2>",
            f"<p><small>{html.escape(_said(run))}</small></p>",
        ]
        for head, rows in tables(run):
            parts.append(f'<div class="table"><table><tr>{_cells("th", head)}</tr>')
            parts += [f"<tr>{_cells('td', row)}</tr>" for row in rows]
            parts.append("</table></div>")
        parts += [f"<p>{html.escape(line)}</p>" for line in _absent(run)]
    for name, caption in drawn:
        light, dark = (_inline(folder / f"{name}-{theme}.png") for theme in ("light", "dark"))
        source = f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        image = f'<img src="{light}" alt="{html.escape(caption)}">'
        parts.append(f"<h3>{html.escape(caption)}</h3><picture>{source}{image}</picture>")
    start = '<!doctype html><html lang="en"><meta charset="utf-8"><title>hierchat: measurements</title>'
    meta = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return "\n".join(
        [f"{start}{meta}<style>{STYLE}</style><h1>hierchat: measurements</h1>", *parts, "</html>\n"]
    )


def _cells(tag: str, cells: Sequence[str]) -> str:
    return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)


def _inline(file: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(file.read_bytes()).decode()
