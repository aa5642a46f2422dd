"""Generate one reply: read its prompt, then draft, forward, verify and commit until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_cost import DraftCost, LatencyCurve
from hierchat.drafting.draft_tree import NO_MATCH, DraftTree
from hierchat.drafting.payoff import DraftingGate
from hierchat.drafting.proposer import PROMPT_STATES, DraftCoroutine, Proposer
from hierchat.engine.engine import TARGET, Finish, GenerationRequest, Step
from hierchat.engine.runner import CachedSequence, Segment
from hierchat.engine.sampling.grammar import Grammar
from hierchat.engine.sampling.sampler import Counts
from hierchat.engine.verification import Rows, Sampler, verify

# Small models begin to repeat themselves, at temperature 0 above all: found in their tokens alone.

PERIODS = 3
"""Times that the same tokens stand in a row."""
LONGEST_PARAGRAPH = 256
"""Tokens of the longest period in a reply for a user, whose paragraphs may repeat."""
SHORT = 8
"""Tokens of a period below which it may be what was asked for, as a row of zeros."""
LONG_ROW = 240
"""Tokens from which on such a short period is a loop all the same."""
SHORTEST_LOOP = 60
"""Tokens that make a loop of a longer period."""


def is_looping(reply: Sequence[int]) -> bool:
    """Tell whether a reply has begun to repeat itself, so that nobody wants to read on."""
    longest = max(min(LONGEST_PARAGRAPH, len(reply) // PERIODS), SHORT - 1)
    before, period = list(reply[-1 - longest : -1])[::-1], 0
    for _ in range(before.count(reply[-1]) if before else 0):
        period = before.index(reply[-1], period) + 1  # that of a loop ends with the same token
        if period >= SHORT:
            if repeats(reply, period, max(PERIODS * period, SHORTEST_LOOP) - period):
                return True
        elif repeats(reply, period, PERIODS * SHORT - period):
            return repeats(reply, period, LONG_ROW - period)
    return False


def repeats(text: Sequence[int], period: int, repeated: int) -> bool:
    """Tell whether the last `repeated` tokens are those that come `period` tokens before each of them."""
    end = len(text)
    return (
        repeated + period <= end
        and text[-1] == text[-1 - period]
        and text[end - repeated :] == text[end - repeated - period : end - period]
    )


@dataclass(frozen=True, slots=True)
class Detokenizer:
    """Turn a model's token ids into text, and know which of them end a reply."""

    decode: Callable[[Sequence[int]], str]
    end_ids: Collection[int] = ()


TAIL = 8
"""Tokens decoded beyond the longest stop string, of which each byte may be one: other characters may begin there."""


class Stopping:
    """Watch one reply for what ends it: end-of-text token, stop string, loop or token limit."""

    def __init__(
        self, settings: GenerationSettings, detokenizer: Detokenizer, begun: Sequence[int] = ()
    ) -> None:
        """Start with `begun`, the reply so far, where it is continued."""
        self._settings = settings
        self._detokenizer = detokenizer
        self._tail = (
            max((len(string.encode("utf-8", "replace")) for string in settings.stop), default=0) + TAIL
        )
        self._reply = list(begun)

    def add(self, token: int) -> Finish | None:
        """Add a token to the reply. Return why the reply ends with it, or None."""
        self._reply.append(token)
        if token in self._detokenizer.end_ids:
            return "end"
        if self._settings.stop:
            text = self._detokenizer.decode(self._reply[-self._tail :])
            if any(string in text for string in self._settings.stop):
                return "stop"
        if self._settings.end_loops and is_looping(self._reply):
            return "loop"
        if len(self._reply) >= self._settings.max_new_tokens:
            return "length"
        return None


NO_DRAFTS = DraftTree()
WAITED_S = 5e-5
"""Seconds of a wait for a device that still computes, at least."""
CHUNK = 128
"""Prompt tokens read between two looks at `stop`, at most."""


class PromptTooLong(ValueError):
    """A prompt leaves no room for a reply in the context window."""


class Generation:
    """Generates one reply over one sequence of a runner. Call `propose` and `segment` before a forward, `take` after
    it. `latency` learns the cost of forwards of this reply alone. `grammar` follows the reply so far."""

    def __init__(
        self,
        sequence: CachedSequence,
        request: GenerationRequest,
        detokenizer: Detokenizer,
        latency: LatencyCurve | None = None,
        grammar: Grammar | None = None,
    ) -> None:
        """Open the reply. Raises PromptTooLong."""
        prompt, settings = request.prompt_ids, request.settings
        if not prompt or sequence.context_length <= len(prompt):
            raise PromptTooLong(
                f"The prompt has {len(prompt)} tokens; the model's context holds "
                f"{sequence.context_length}. Shorten the message or start a new conversation."
            )
        self.sequence = sequence
        self.prompt_ids = prompt
        self.settings = settings
        self.stop = request.stop
        self.finish: Finish | None = None
        """Why it ended; None while it goes on."""
        self.position = len(prompt)
        """Tokens of the text so far."""
        self._drafter = drafter = request.drafter
        self._reader = drafter if drafter and drafter.reads_hidden else None
        self._latency = latency
        self._gate = DraftingGate(request.payoff if latency else None)
        self._rested = False
        """Whether nothing is drafted for this step, because drafting does not pay now."""
        self._step_ms: Sequence[float] = (1.0,)
        """Milliseconds of this step with 0, 1, 2, ... drafts, in the present batch."""
        self._proposed_ms = 0.0
        asked = len(prompt) - request.begun
        self._stopping = Stopping(settings, detokenizer, prompt[asked:])
        self._sampler = Sampler(settings, Counts(prompt[:asked], prompt[asked:]), grammar)
        self._last = prompt[-1]
        self._read = False
        self._drafts = NO_DRAFTS
        self._began = self._drafted = 0.0

    @property
    def left(self) -> int:
        """Return how many tokens of the prompt are to be read before the first step."""
        return 0 if self._read else len(self.prompt_ids) - 1 - len(self.sequence.tokens)

    @property
    def given_up(self) -> bool:
        """Tell whether it is stopped before its first token."""
        return self.stop.is_set() and self.position == len(self.prompt_ids)

    def begin(self) -> Step:
        """Keep what the sequence holds of the prompt already, and start the reply."""
        self.sequence.rollback(common_prefix(self.sequence.tokens, self.prompt_ids[:-1]))
        return self._after_reading()

    def read_chunk(self, most: int = CHUNK) -> Step:
        """Commit the next chunk of the prompt in a forward of its own."""
        began = time.perf_counter()
        chunk, position = self.chunk(most), len(self.sequence.tokens)
        self._see(self.sequence.read(chunk.tokens, chunk.hidden), position)
        return self._after_reading(len(chunk.tokens), (time.perf_counter() - began) * 1e3)

    def chunk(self, most: int) -> Segment:
        """Return the next chunk of the prompt for a forward that others share; then call `take_chunk`."""
        held, end = len(self.sequence.tokens), len(self.prompt_ids) - 1
        near = end - PROMPT_STATES if self._reader else end
        hidden = held >= near  # states of what stands before are not wanted
        chunk = self.prompt_ids[held : min(held + most, end if hidden else near)]
        return Segment(self.sequence, chunk, range(-1, len(chunk) - 1), logits=False, hidden=hidden)

    def take_chunk(self, count: int, rows: Rows, forward_ms: float) -> Step:
        """Commit a chunk of so many tokens, read in a forward that brought `rows` and took `forward_ms`."""
        self._see(rows.hidden(range(count)) if self._reader else None, len(self.sequence.tokens))
        self.sequence.commit(range(count))
        return self._after_reading(count, forward_ms)

    def _see(self, hidden: NDArray[np.float32] | None, position: int) -> None:
        if hidden is not None and self._reader:
            self._reader.see(hidden, position)

    def _after_reading(self, count: int = 0, ms: float = 0.0) -> Step:
        """Report how much is read; once that is all but the last token, of the first segment, drafting begins."""
        if not self.left and not self._read:
            self._read = True
            if self._drafter:
                self._drafter.begin(self.prompt_ids)
                self._gate.begin()
        read, total = len(self.sequence.tokens), len(self.prompt_ids)
        return Step(width=count, forward_ms=ms, prompt_read=read, prompt_tokens=total)

    def give_up(self) -> Step:
        """End without a token."""
        self.finish = "stopped"
        total, held = len(self.prompt_ids), len(self.sequence.tokens)
        return Step(prompt_tokens=total, prompt_read=held, finish="stopped")

    def read(self) -> Iterator[Step]:
        """Read all of the prompt, or up to where it is stopped."""
        yield self.begin()
        while self.finish is None and (self.left or self.given_up):
            yield self.give_up() if self.given_up else self.read_chunk(self.sequence.runner.chunk)

    @property
    def _room(self) -> int:
        return self.sequence.context_length - self.position

    def propose(self) -> DraftTree:
        """Draft what may follow the last committed token."""
        self._began = time.perf_counter()
        self._drafts = NO_DRAFTS
        if self._latency:
            self._step_ms = self._latency.step_ms(self.position)
        if self._drafter and self._opens(self._step_ms[0]):
            self._drafts = self._drafter.propose(self._room)
        self._proposed_ms = (time.perf_counter() - self._began) * 1e3
        return self._drafts

    def _opens(self, token_ms: float) -> bool:
        """Tell whether to draft now; then the drafter observes what it missed. `token_ms`: what a token is worth."""
        self._rested = not self._gate.opens(token_ms)
        if not self._rested and self._drafter and (missed := self._gate.missed):
            self._drafter.observe(missed)
            missed.clear()
        return not self._rested

    def drafting(self, cost: DraftCost, most: int, replies: int) -> DraftCoroutine:
        """Propose drafts for a forward that `replies` share, at costs of that batch; at most `most` for all of them."""
        began = time.perf_counter()
        self._drafts, self._step_ms = NO_DRAFTS, cost.steps_ms
        if self._drafter and self._opens(self._step_ms[0] / replies):
            self._drafts = yield from self._drafter.drafting(cost, min(self._room, most))
        self._proposed_ms = (time.perf_counter() - began) * 1e3
        return self._drafts

    def segment(self, kept: int | None = None) -> Segment:
        """Return the segment of the next forward: the last committed token and the first `kept` of the drafts."""
        if kept is not None and kept < len(self._drafts):
            self._drafts = self._drafts.cut(kept)
            if self._drafter:
                self._drafter.cut(kept)
        drafts = self._drafts
        self._drafted = time.perf_counter()
        parents = (-1, *(parent + 1 for parent in drafts.parents))
        return Segment(self.sequence, (self._last, *drafts.tokens), parents)

    def _observe(self, drafter: Proposer, rows: Rows, nodes: Sequence[int], kept: Sequence[int]) -> None:
        """Show the drafter what was committed, and learn what drafting brought and took."""
        if self._rested:
            self._gate.rest(self.sequence.tokens, kept)
            if self._reader:  # it cannot do without the states of a token
                drafter.observe(self._gate.missed)
                self._gate.missed.clear()
            return
        began = time.perf_counter()
        drafter.observe(kept, rows.likeliest(nodes, drafter.top) if drafter.top else None)
        took_ms, drafts = (time.perf_counter() - began) * 1e3 + self._proposed_ms, len(self._drafts)
        rows_ms = self._step_ms[min(drafts, len(self._step_ms) - 1)] - self._step_ms[0]
        self._gate.learn(len(kept) - 1, took_ms, rows_ms)

    def wait_for(self, rows: Rows) -> None:
        """Wait until what the reply reads of rows is there."""
        self._sampler.wait_for(rows)

    def take(self, rows: Rows, *, alone: bool = True) -> Step:
        """Verify the segment and commit the accepted tokens. `alone`: no other sequence was in the forward."""
        asked = time.perf_counter()
        self.wait_for(rows)
        forwarded = time.perf_counter()
        drafts, drafter = self._drafts, self._drafter
        path, chosen = verify(rows, drafts, self.position, self._sampler)
        kept: list[int] = []
        for token in chosen:
            kept.append(token)
            self.finish = self._stopping.add(token)
            if self.finish is None and len(kept) >= self._room:
                self.finish = "context"
            if self.finish:
                break
        nodes = path[: len(kept)]
        self._see(rows.hidden(nodes) if self._reader else None, len(self.sequence.tokens))
        self.sequence.commit(nodes)
        if drafter:
            self._observe(drafter, rows, nodes, kept)
            # Results that were there already may have been so for long
            waited = not self.sequence.runner.answers_later or forwarded - asked > WAITED_S
            if self._latency and alone and waited and not rows.recorded and self._gate.measures:
                self._latency.note(1 + len(drafts), self.position, (forwarded - self._drafted) * 1e3)
        if self.finish is None and self.stop.is_set():
            self.finish = "stopped"
        self._last = kept[-1]
        self.position += len(kept)
        # A chosen token came from the draft node that it matched; the bonus token from the target alone.
        accepted = [node - 1 for node in path[1:]]
        return Step(
            tokens=tuple(kept),
            sources=tuple([*(drafts.sources[node] for node in accepted), TARGET][: len(kept)]),
            matches=tuple([*map(drafts.match, accepted), NO_MATCH][: len(kept)]),
            chances=tuple([*map(drafts.chance, accepted), None][: len(kept)]),
            proposed=MappingProxyType(
                {one: drafts.sources.count(one) for one in dict.fromkeys(drafts.sources)}
            ),
            width=1 + len(drafts),
            draft_ms=(self._drafted - self._began) * 1e3,
            forward_ms=(forwarded - self._drafted) * 1e3,
            verify_ms=(time.perf_counter() - forwarded) * 1e3,
            prompt_read=len(self.prompt_ids),
            prompt_tokens=len(self.prompt_ids),
            finish=self.finish,
        )


def common_prefix(first: Sequence[object], second: Sequence[object]) -> int:
    """Count the tokens, or words, that two sequences share from their beginning on."""
    same = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        same += 1
    return same
