"""Measure `benchmarks decode` and `benchmarks log`: every arm answers every question, in turn.

decode: each question starts from an empty history. log: the chats of some days in order, each arm carrying its own
history along, but for the arm no-history. In both, a prompt holds the arm's own earlier replies to the same question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.arms import NO_HISTORY, Arm, rotated
from benchmarks.peers.environment import ArmError
from benchmarks.summary import Row, merged_repeats, summarise
from hierchat.checks import runs
from hierchat.checks.runs import Dialogue, Question, RequestError, Tell
from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import LEAD
from hierchat.models.progress import ModelError
from hierchat.runtime.prompt import MessageTooLong
from hierchat.runtime.served_model import ServedModel

WARM_UP = "Name five trees that grow in the north."
WARM_UP_TOKENS = 32


class Measured:
    """Hold what a run has measured so far, and its file. `head`: what stands before the figures."""

    def __init__(
        self, path: Path, head: dict[str, Any], names: Sequence[str], rows: Sequence[Row] = ()
    ) -> None:
        self.path = path
        self.head = head
        self.names = list(names)
        self.rows = list(rows)
        self.absent: dict[str, str] = {}
        """Arms that cannot run, or could not go on, with the reason."""

    def as_dict(self) -> dict[str, Any]:
        """Return the run as it stands in the file."""
        rows = merged_repeats(self.rows)
        answered = [name for name in self.names if any(name in row["arms"] for row in self.rows)]
        return {
            **self.head,
            "arms": [summarise(rows, name) for name in answered],
            "absent": [{"arm": arm, "reason": reason} for arm, reason in self.absent.items()],
            "questions": self.rows,
        }

    def write(self) -> None:
        runs.write(self.path, self.as_dict(), rows="questions")


def measure(
    served: ServedModel,
    arms: Sequence[Arm],
    questions: Sequence[Question],
    settings: GenerationSettings,
    result: Measured,
    tell: Tell,
    *,
    carry: bool,
    repeats: int = 1,
) -> None:
    """Answer the questions that `result` lacks, and write it after each. `carry`: history lasts over the questions;
    each of the repeats begins anew.

    An arm that fails is out. Raises RequestError when none is left.
    """
    present = list(arms)

    def out(arm: Arm, error: Exception) -> None:
        result.absent[arm.name] = _reason(error)
        present.remove(arm)
        arm.close()

    warm = GenerationSettings(
        **{**settings.model_dump(), "max_new_tokens": min(WARM_UP_TOKENS, settings.max_new_tokens)}
    )
    for arm in arms:
        tell(f"warming up {arm.name}", 0)
        try:
            for _ in range(2):  # the second time, history has something to draft
                _ask(arm, (WARM_UP,), served, warm)
            last = max((row.get("repeat", 0) for row in result.rows), default=0)
            _restart(arm, [row for row in result.rows if row.get("repeat", 0) == last] if carry else ())
        except Exception as error:  # whatever an arm dies of, the others go on
            out(arm, error)

    done = {(row.get("repeat", 0), row["question"]) for row in result.rows}
    rounds = [(repeat, at, question) for repeat in range(repeats) for at, question in enumerate(questions)]
    for turn, (repeat, at, question) in enumerate(rounds):
        if (repeat, question.number) in done:
            continue
        row = row_of(question) | {"repeat": repeat}
        for arm in rotated(present, turn) if present else ():
            tell(f"{question.group} {question.name}: {arm.name}", 0)
            if not carry or at == 0 or arm.name == NO_HISTORY:
                arm.forget()
            try:
                row["arms"][arm.name] = _ask(arm, question.turns, served, settings)
            except MessageTooLong as error:  # for all arms alike
                row |= {"arms": {}, "skipped": str(error)}
                break
            except Exception as error:
                out(arm, error)
        if not present:
            result.write()
            raise RequestError(
                "No arm can go on. " + "; ".join(f"{a}: {r}" for a, r in result.absent.items())
            )
        result.rows.append(row)
        result.write()
        tell("", 1)


def _ask(
    arm: Arm, turns: Sequence[str], served: ServedModel, settings: GenerationSettings
) -> list[dict[str, Any]]:
    """Answer each turn; each reply becomes history at once, as in the chat."""
    talk = Dialogue(served, settings.max_new_tokens)
    answers = []
    for text in turns:
        prompt = talk.ask(text)
        answer, lead = arm.answer(prompt, settings), list(prompt[-LEAD:])
        talk.answered(answer.reply)
        arm.learn(answer.reply, lead)
        answers.append(asdict(answer) | {"lead": lead})
    return answers


def _restart(arm: Arm, rows: Sequence[Row]) -> None:
    """Give the arm the history that it had when an earlier run ended."""
    arm.forget()
    for row in rows:
        for turn in row["arms"].get(arm.name, ()):
            arm.learn(turn["reply"], turn["lead"])


def row_of(question: Question) -> Row:
    """Make the row of a question that no arm has answered yet."""
    return {
        "question": question.number,
        "name": question.name,
        "group": question.group,
        "category": question.category,
        "day": question.day,
        "arms": {},
    }


def _reason(error: Exception) -> str:
    named = not isinstance(error, (ArmError, ModelError)) or not str(error)
    return f"{type(error).__name__}: {error}" if named else str(error)
