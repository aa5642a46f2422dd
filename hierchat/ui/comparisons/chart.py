"""Tokens over time, both sides, as an inline SVG."""

from __future__ import annotations

import html
from collections.abc import Sequence

from hierchat.chat.comparison import ARMS, Comparison, Moment
from hierchat.language import _

WIDTH, HEIGHT = 560, 220
LEFT, RIGHT, TOP, BOTTOM = 44, 16, 12, 36


def chart(result: Comparison) -> str:
    """One line for each side. `data-ms` and the ends of the axis let the page's script draw a moving line over it."""
    tracks = {arm: [moment for moment in result.sides[arm].moments if moment[1]] for arm in ARMS}
    last_ms = max((track[-1][0] for track in tracks.values() if track), default=0) or 1
    most = max((track[-1][1] for track in tracks.values() if track), default=0) or 1
    lines = "".join(f'<path class="hc-line-{arm}" d="{_path(tracks[arm], last_ms, most)}"/>' for arm in ARMS)
    up, across = HEIGHT - BOTTOM, WIDTH - RIGHT
    said = "; ".join(
        _("{name}: {tokens:,} tokens after {seconds:.1f} seconds").format(
            name=result.sides[arm].name, tokens=track[-1][1], seconds=track[-1][0] / 1e3
        )
        for arm, track in tracks.items()
        if track
    )
    key = "".join(
        '<li><svg viewBox="0 0 28 8" width="28" height="8" aria-hidden="true">'
        f'<path class="hc-line-{arm}" d="M0 4H28"/></svg>{html.escape(result.sides[arm].name)}</li>'
        for arm in ARMS
    )
    return (
        f'<figure class="hc-chart"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(said)}" '
        f'data-ms="{last_ms}" data-left="{LEFT}" data-right="{across}">'
        f'<path class="hc-axis" d="M{LEFT} {TOP}V{up}H{across}"/>'
        f'<text x="{LEFT - 6}" y="{TOP + 10}" text-anchor="end">{most:,}</text>'
        f'<text x="{LEFT - 6}" y="{up}" text-anchor="end">0</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 14}">0 s</text>'
        f'<text x="{across}" y="{HEIGHT - 14}" text-anchor="end">{last_ms / 1e3:.1f} s</text>'
        f'{lines}<path class="hc-now" d="M{LEFT} {TOP}V{up}" visibility="hidden"/></svg>'
        f"<figcaption>{_('Tokens over time')}<ul>{key}</ul></figcaption></figure>"
    )


def _path(track: Sequence[Moment], last_ms: int, most: int) -> str:
    places = [
        (
            LEFT + ms / last_ms * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - tokens / most * (HEIGHT - TOP - BOTTOM),
        )
        for ms, tokens, _ in track
    ]
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places) if places else ""
