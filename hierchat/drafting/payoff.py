"""Estimate what drafting brings and what it takes, and leave it out while it does not pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TRIALS, TRIALS_AGAIN = 8, 4
"""Steps in which drafts are asked for, to begin with, and again after a pause."""
PAUSE = 64
"""Steps without drafts that do not pay; each time in a row it doubles, MOST_DOUBLED times at most."""
MOST_DOUBLED = 5
RATE = 0.03
"""Weight of a step in an average."""
DISTURBED = 4.0
"""A step that takes more than so many times the average is counted as that many: the machine did something else."""


@dataclass(slots=True)
class Payoff:
    """Estimate what asking for drafts brings, in one reply or in several."""

    brought: float = 1.0
    """Tokens of a step, on average."""
    asked: int = 0
    """Steps in which drafts were asked for. After a pause few of them count, since the text may be another."""
    silent: int = 0
    """Steps since drafts were asked for."""
    vain: int = 0
    """Pauses in a row after which asking did not pay."""
    took_ms: float = 0.0
    """Milliseconds of asking and of the rows that come of it, on average."""
    pause: int = PAUSE
    """Steps of the first pause."""

    def asks(self, token_ms: float, took_ms: float) -> bool:
        """Decide whether to ask now, which takes `took_ms`. `token_ms`: what a token is worth."""
        if self.asked < TRIALS:
            return True
        if self.brought * token_ms > took_ms:
            self.vain = 0
            return True
        if self.silent < self.pause << min(self.vain, MOST_DOUBLED):
            return False
        self.vain += 1
        self.try_again()
        return True

    def try_again(self) -> None:
        """Ask in the next few steps, whatever asking brought before, and judge by these."""
        self.asked = min(self.asked, TRIALS - TRIALS_AGAIN)

    def spent(self, asked_ms: float, rows_ms: float) -> None:
        """Learn what asking took, and the rows that came of it. Of a disturbed step only a part counts."""
        if self.took_ms > 0.0:
            asked_ms = min(asked_ms, DISTURBED * self.took_ms)
        self.took_ms = self.moved(self.took_ms, asked_ms + rows_ms)

    def moved(self, average: float, value: float) -> float:
        """Move an average that begins with the first value."""
        return average + max(RATE, 1.0 / (self.asked or 1)) * (value - average)


REPEATED = 5
"""Tokens that have occurred one after the other before: the text may go on as it did there."""
SHORTEST_PAUSE = 16
"""Steps of the first pause of all drafting."""
MEASURED_EVERY = 8
"""Steps of a pause of which one is measured."""


def payoff_of_drafting() -> Payoff:
    """Return what is known of all drafting before anything was measured."""
    return Payoff(pause=SHORTEST_PAUSE)


class DraftingGate:
    """Decides, step by step of one reply, whether to draft: all that drafting takes, against plain steps.
    During a pause nothing is proposed or observed. A pause also ends if the text begins to repeat itself."""

    def __init__(self, payoff: Payoff | None) -> None:
        """Start with what earlier replies taught. `payoff` None: drafting is never left out."""
        self._payoff = payoff
        self.missed: list[int] = []
        """Tokens that were committed since the pause began, which the drafter has not observed."""
        self._seen: set[tuple[int, ...]] = set()
        """All REPEATED tokens that occur one after the other in the text; empty until the first pause."""
        self._noted = 0
        """Tokens of the text that are in `_seen`."""

    def begin(self) -> None:
        """Begin a reply: its text may be of another kind, so that drafts are tried anew."""
        if self._payoff:
            self._payoff.try_again()

    def opens(self, token_ms: float) -> bool:
        """Decide whether to draft now. `token_ms`: what a plain step takes for each of its tokens."""
        return self._payoff is None or self._payoff.asks(token_ms, self._payoff.took_ms)

    @property
    def measures(self) -> bool:
        """Tell whether to learn what this step took. During a pause some are enough: even that takes time."""
        return self._payoff is None or self._payoff.silent % MEASURED_EVERY == 0

    def learn(self, accepted: int, took_ms: float, rows_ms: float) -> None:
        """Learn from a step with drafts: accepted drafts, ms of proposing and observing, and ms of the further rows."""
        if (payoff := self._payoff) is None:
            return
        payoff.asked, payoff.silent = payoff.asked + 1, 0
        payoff.brought = payoff.moved(payoff.brought, accepted)
        payoff.spent(took_ms, rows_ms)

    def rest(self, text: Sequence[int], tokens: Sequence[int]) -> None:
        """Note the tokens of a step without drafts. `text`: all that was committed before, the prompt included."""
        payoff = self._payoff
        assert payoff
        payoff.silent += 1
        self.missed += tokens
        if self._noted < len(text):
            new = text[max(self._noted + 1 - REPEATED, 0) :]
            self._seen.update(zip(*(new[at:] for at in range(REPEATED)), strict=False))
        last = tuple(text[1 - REPEATED :])
        for token in tokens:
            last = (*last, token)
            if last not in self._seen:
                self._seen.add(last)
            elif payoff.silent >= SHORTEST_PAUSE:
                payoff.try_again()
            last = last[1:]
        self._noted = len(text) + len(tokens)
