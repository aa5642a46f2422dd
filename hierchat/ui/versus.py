"""Plain and speculative decoding side by side: recorded as they run, replayed in their own times."""

from __future__ import annotations

import html
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from hierchat.chat.frames import Arm, CompareFrame, Frame, Verdict
from hierchat.ui import status
from hierchat.ui.figures import figures_line
from hierchat.ui.markdown import Growing
from hierchat.ui.outline import below_message

if TYPE_CHECKING:
    from hierchat.ui.sessions import Session

ARMS: tuple[Arm, Arm] = ("vanilla", "speculative")
_REPLAY_SECONDS = 1 / 12


def words() -> dict[Arm, Growing]:
    """Texts of both arms, as they will grow."""
    return {arm: Growing() for arm in ARMS}


def column(frame: Frame | None, words: Growing) -> tuple[str, str]:
    """Text and figures of one arm."""
    if frame is None or frame.phase == "waiting":
        return "", status.waiting("Not started yet")
    if frame.phase == "reading":
        return "", status.reading_line(frame)
    text = below_message(words.render(frame.text, ended=frame.phase == "done"))
    if frame.finish == "error":
        return text, status.error(frame.notice or "This arm failed.")
    return text, figures_line(frame.figures, "stopped" if frame.finish == "stopped" else "")


def verdict_line(verdict: Verdict) -> str:
    """The sentence above both columns."""
    kind = "hc-same" if verdict.identical else "hc-differs"
    proof = status.proof_line(verdict.exact, verdict.identical)
    return f'<div class="hc-verdict {kind}" role="status">{html.escape(verdict.sentence)} {proof}</div>'


def asked(text: str, files: str = "") -> str:
    """The prompt of a comparison; `files` as HTML."""
    return f'<div class="hc-asked">{files}<div class="hc-user" dir="auto">{html.escape(text)}</div></div>'


def record(
    session: Session, frames: Generator[CompareFrame, None, None]
) -> Generator[CompareFrame, None, None]:
    """The same frames, noting when each arm's came."""
    session.recording, session.verdict = [], ""
    began = time.monotonic()
    with closing(frames):
        for frame in frames:
            for arm, state in frame.arms.items():
                if state.phase != "waiting" and (frame.running == arm or state.phase == "done"):
                    session.recording.append((arm, time.monotonic() - began, state))
            if frame.verdict is not None:
                session.verdict = verdict_line(frame.verdict)
            yield frame


def tracks(recording: list[tuple[Arm, float, Frame]]) -> dict[Arm, list[tuple[float, Frame]]]:
    """Each arm's frames with the seconds since its own first one; frames after its end are left out."""
    result: dict[Arm, list[tuple[float, Frame]]] = {arm: [] for arm in ARMS}
    for arm, at, frame in recording:
        track = result[arm]
        if not track or track[-1][1].phase != "done":
            track.append((at, frame))
    return {arm: [(at - track[0][0], frame) for at, frame in track] for arm, track in result.items()}


def replay(session: Session) -> Iterator[dict[Arm, Frame | None]]:
    """Both arms from their recorded times, started together; real time passes between what it yields."""
    recorded = tracks(session.recording)
    length = max((track[-1][0] for track in recorded.values() if track), default=0.0)
    began = time.monotonic()
    while True:
        now = time.monotonic() - began
        yield {
            arm: next((frame for at, frame in reversed(track) if at <= now), None)
            for arm, track in recorded.items()
        }
        if now >= length:
            return
        time.sleep(_REPLAY_SECONDS)
