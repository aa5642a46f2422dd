"""Draw the figures of runs as pictures, each for a light and for a dark page."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

from hierchat.checks.runs import RequestError

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999999", "#B8A200")
"""Okabe and Ito's, told apart by the colour-blind; the yellow darker, for white pages."""
KNOWN = ("context", "history", "target", "hierchat", "statistics", "suffix", "vanilla", "hd-paper")
"""Names that have the same colour in every picture, in the order of COLOURS."""
OTHERS = ("#882255", "#44AA99", "#8877DD", "#AA4499", "#117733", "#C0A060", "#5588AA", "#BB7744", "#77AA55")
"""Tol's muted colours, nearly: for names that are not known, and once COLOURS are used up."""
SHOWN = 6
"""Arms in one picture of groups or days, at most."""
THEMES = {"light": ("#ffffff", "#222222", "#dddddd"), "dark": ("#16181c", "#e6e6e6", "#3a3d42")}
"""Page, ink, grid."""
Figures = Mapping[str, Any]
"""A run's file, as decode.py writes it."""


def draw(paint: Callable[[Any], None], theme: str, size: tuple[float, float] = (9, 4.2)) -> bytes:
    """Return a PNG of what `paint` puts on the axes. Raises RequestError where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RequestError("The report needs matplotlib: pip install -e '.[bench]'") from error
    page, ink, grid = THEMES[theme]
    figure = Figure(figsize=size, dpi=110, facecolor=page, layout="constrained")
    axes = figure.add_subplot(facecolor=page)
    axes.tick_params(colors=ink)
    axes.grid(axis="y", color=grid, linewidth=0.7)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(ink)
    paint(axes)
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts):
        text.set_color(ink)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(
            frameon=False, labelcolor=ink, fontsize=8, ncols=1, loc="center left", bbox_to_anchor=(1, 0.5)
        )
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def speed_by_arm(arms: Sequence[Figures]) -> Callable[[Any], None]:
    """Draw lying bars: tokens per second of every arm, the fastest on top."""
    ranked = sorted(arms, key=lambda arm: arm["tokens_per_second"] or 0)
    colours = _colours(arm["arm"] for arm in arms)

    def paint(axes: Any) -> None:
        bars = axes.barh(
            [arm["arm"] for arm in ranked],
            [arm["tokens_per_second"] or 0 for arm in ranked],
            color=[colours[arm["arm"]] for arm in ranked],
        )
        axes.bar_label(bars, [_said(arm) for arm in ranked], padding=4, fontsize=8)
        axes.grid(visible=False)
        axes.margins(x=0.12)
        axes.set_xlabel("tokens per second")

    return paint


def _said(arm: Figures) -> str:
    rate = f"{arm['tokens_per_second']:.0f}" if arm["tokens_per_second"] else ""
    return f"{rate}  {arm['speedup']:.2f}x" if arm["speedup"] else rate


def best(arms: Sequence[Figures]) -> list[Figures]:
    """Return the fastest few arms but for vanilla, which is the line at 1: so many can be told apart."""
    drafting = [arm for arm in arms if arm["arm"] != "vanilla" and arm["speedup"]]
    return sorted(drafting, key=lambda arm: -arm["speedup"])[:SHOWN]


def speed_by_group(arms: Sequence[Figures]) -> Callable[[Any], None]:
    """Draw bars: speed-up over vanilla, for each group and over all."""
    groups = list(dict.fromkeys(group for arm in arms for group in arm["by_group"]))
    colours = _colours(arm["arm"] for arm in arms)

    def paint(axes: Any) -> None:
        width = 0.8 / max(len(arms), 1)
        for number, arm in enumerate(arms):
            values = [arm["by_group"].get(group, {}).get("speedup") or 0 for group in groups]
            places = [at + (number - (len(arms) - 1) / 2) * width for at in range(len(groups) + 1)]
            axes.bar(
                places,
                [*values, arm["speedup"] or 0],
                width * 0.92,
                label=arm["arm"],
                color=colours[arm["arm"]],
            )
        axes.set_xticks(range(len(groups) + 1), [*groups, "all"])
        axes.axhline(1.0, color="#888888", linewidth=1)
        axes.set_ylabel("speed-up over vanilla")

    return paint


def speed_by_day(arms: Sequence[Figures]) -> Callable[[Any], None]:
    """Draw lines: speed-up over vanilla on each day of a log."""
    colours = _colours(arm["arm"] for arm in arms)

    def paint(axes: Any) -> None:
        for arm in arms:
            days = {
                int(day): figures["speedup"] for day, figures in arm["by_day"].items() if figures["speedup"]
            }
            axes.plot(list(days), list(days.values()), "o-", label=arm["arm"], color=colours[arm["arm"]])
        axes.axhline(1.0, color="#888888", linewidth=1)
        axes.set_xlabel("day")
        axes.set_ylabel("speed-up over vanilla")

    return paint


def tokens_by_width(widths: Mapping[str, Mapping[int, float]]) -> Callable[[Any], None]:
    """Draw lines: tokens per forward against positions per forward; `widths`: by arm and width."""
    colours = _colours(widths)

    def paint(axes: Any) -> None:
        for arm, points in widths.items():
            places = sorted(points)
            axes.plot(places, [points[at] for at in places], "o-", label=arm, color=colours[arm])
        axes.set_xticks(sorted({width for points in widths.values() for width in points}))
        axes.set_xlabel("positions per forward")
        axes.set_ylabel("T, tokens per forward")

    return paint


def latency(contexts: Mapping[str, Mapping[str, float]]) -> Callable[[Any], None]:
    """Draw lines: milliseconds of a forward by its width, for each context length."""

    def paint(axes: Any) -> None:
        for number, (context, by_width) in enumerate(contexts.items()):
            places = [int(width) for width in by_width]
            axes.plot(
                places, list(by_width.values()), "o-", label=f"context {context}", color=COLOURS[number]
            )
        axes.set_ylim(bottom=0)
        axes.set_xlabel("positions per forward")
        axes.set_ylabel("milliseconds")

    return paint


def shares(arms: Sequence[Figures]) -> Callable[[Any], None]:
    """Draw stacked bars: where each arm's tokens came from."""
    sources = list(dict.fromkeys(source for arm in arms for source in arm["sources"]))
    colours = _colours(sources)

    def paint(axes: Any) -> None:
        bottoms = [0.0] * len(arms)
        for source in sources:
            values = [100 * arm["sources"].get(source, 0) for arm in arms]
            axes.bar([arm["arm"] for arm in arms], values, 0.6, bottoms, label=source, color=colours[source])
            bottoms = [low + value for low, value in zip(bottoms, values, strict=True)]
        axes.set_ylabel("tokens, percent")
        axes.tick_params(axis="x", labelrotation=20)

    return paint


def _colours(names: Iterable[str]) -> dict[str, str]:
    """Choose a colour for each name of a picture, no two alike as long as there are enough."""
    wanted = list(dict.fromkeys(names))
    found = {name: COLOURS[KNOWN.index(name)] for name in wanted if name in KNOWN}
    free = cycle([colour for colour in (*COLOURS, *OTHERS) if colour not in found.values()])
    return found | {name: next(free) for name in wanted if name not in found}
