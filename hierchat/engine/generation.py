"""One reply in progress: what belongs to one text, from its prompt to its last token."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from types import MappingProxyType

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_tree import NO_MATCH, DraftCost, DraftTree
from hierchat.drafting.proposer import Proposer, ReadsHidden, Shares
from hierchat.engine.engine import TARGET, Finish, Step
from hierchat.engine.latency import LatencyCurve
from hierchat.engine.runner import CachedSequence, Runner, Segment
from hierchat.engine.sampling.grammar import Grammar
from hierchat.engine.sampling.sampler import Counts
from hierchat.engine.verify import Rows, logprobs, verify, wait_for

# Small models begin to repeat themselves, at temperature 0 above all: finds that in their tokens alone.


PERIODS = 3
"""Times that the same tokens stand in a row."""
LONGEST = 40
"""Tokens of the longest period that counts."""
SHORTEST_TAIL = 24
"""Tokens that must repeat, at least: a row of dashes or a number's zeros are no loop."""
LONGEST_PARAGRAPH = 256
"""The same of a reply for a user, whose paragraphs may repeat;"""
SHORT = 8
"""a period below which it may be what was asked for, as a row of zeros;"""
LONG_ROW = 240
"""tokens from which on it is a loop all the same;"""
SHORTEST_LOOP = 60
"""and those that make one of a longer period."""


def loop_at_end(text: Sequence[int]) -> int:
    """How many tokens at the end repeat what stands before them, period by period; 0 where there is no loop."""
    for period in range(1, min(LONGEST, len(text) // PERIODS) + 1):
        repeated = period * (max(PERIODS, -(-SHORTEST_TAIL // period)) - 1)
        if _repeats(text, period, repeated):
            return repeated
    return 0


def is_looping(reply: Sequence[int]) -> bool:
    """Whether a reply has come to repeat itself: one that nobody wants to read on."""
    for period in range(1, SHORT):
        if _repeats(reply, period, PERIODS * SHORT - period):
            return _repeats(reply, period, LONG_ROW - period)
    return any(
        _repeats(reply, period, max(PERIODS * period, SHORTEST_LOOP) - period)
        for period in range(SHORT, min(LONGEST_PARAGRAPH, len(reply) // PERIODS) + 1)
    )


def _repeats(text: Sequence[int], period: int, repeated: int) -> bool:
    """Whether so many tokens at the end equal those a period before them."""
    end = len(text)
    return (
        repeated + period <= end
        and text[-1] == text[-1 - period]
        and text[end - repeated :] == text[end - repeated - period : end - period]
    )


# When a reply ends: end-of-text token, stop string, a loop or the token limit.


TAIL = 8
"""Tokens decoded beyond the longest stop string, since a character may span several."""


class Stopping:
    """Watches one reply. `decode` turns token ids into text."""

    def __init__(
        self,
        settings: GenerationSettings,
        end_ids: Collection[int],
        decode: Callable[[Sequence[int]], str],
        begun: Sequence[int] = (),
    ) -> None:
        """`begun`: the reply so far, where it is continued."""
        self._settings = settings
        self._end_ids = frozenset(end_ids)
        self._decode = decode
        self._tail = max((len(string) for string in settings.stop), default=0) + TAIL
        self._reply = list(begun)

    def add(self, token: int) -> Finish | None:
        """Add a token to the reply. Returns why the reply ends with it, or None."""
        self._reply.append(token)
        if token in self._end_ids:
            return "end"
        if self._settings.stop:
            text = self._decode(self._reply[-self._tail :])
            if any(string in text for string in self._settings.stop):
                return "stop"
        if self._settings.end_loops and is_looping(self._reply):
            return "loop"
        if len(self._reply) >= self._settings.max_new_tokens:
            return "length"
        return None


NO_DRAFTS = DraftTree()
CHUNK = 128
"""Prompt tokens read between two looks at `stop`."""


class PromptTooLong(ValueError):
    """The prompt leaves no room for a reply."""


class Decoding:
    """A reply over one sequence of a runner: draft, forward, verify, commit, until it ends.

    `propose` and `segment` stand before a forward, which several replies may share, and `take` behind it. `decode`
    turns token ids into text. Where the step was this reply's alone, `latency` learns what it cost. Raises
    PromptTooLong.
    """

    def __init__(
        self,
        sequence: CachedSequence,
        prompt_ids: Sequence[int],
        settings: GenerationSettings,
        end_ids: Collection[int],
        decode: Callable[[Sequence[int]], str],
        drafter: Proposer | None = None,
        stop: threading.Event | None = None,
        latency: LatencyCurve | None = None,
        begun: int = 0,
        grammar: Grammar | None = None,
    ) -> None:
        """`begun`: the last so many of `prompt_ids` are the reply so far. It goes on as it would have by itself;
        `settings.max_new_tokens` counts them, too. `grammar` stands behind them."""
        if not prompt_ids or sequence.context_length <= len(prompt_ids):
            raise PromptTooLong(
                f"The prompt has {len(prompt_ids)} tokens; the model's context holds "
                f"{sequence.context_length}. Shorten the message or start a new conversation."
            )
        self.sequence = sequence
        self.prompt_ids = prompt_ids
        self.settings = settings
        self.stop = stop or threading.Event()
        self.finish: Finish | None = None
        """Why it ended; None while it goes on."""
        self._drafter = drafter
        self._latency = latency
        self._grammar = grammar
        asked = len(prompt_ids) - begun
        self._stopping = Stopping(settings, end_ids, decode, prompt_ids[asked:])
        self._counts = Counts(prompt_ids[:asked], prompt_ids[asked:])
        self._last, self._position = prompt_ids[-1], len(prompt_ids)
        self._read = False
        self._drafts = NO_DRAFTS
        self._tokens: tuple[int, ...] = ()
        self._parents: tuple[int, ...] = ()
        self._began = self._drafted = 0.0

    @property
    def left(self) -> int:
        """Tokens of the prompt that are to be read before the first step."""
        return 0 if self._read else len(self.prompt_ids) - 1 - len(self.sequence.tokens)

    @property
    def position(self) -> int:
        """Tokens of the text so far."""
        return self._position

    def begin(self) -> Step:
        """Keep what the sequence holds of the prompt already."""
        common = common_prefix(self.sequence.tokens, self.prompt_ids[: len(self.prompt_ids) - 1])
        self.sequence.rollback(common)
        self._end_reading()
        return Step(prompt_read=common, prompt_tokens=len(self.prompt_ids))

    def read_piece(self, most: int = CHUNK) -> Step:
        """Commit the next piece of the prompt; its last token opens the first segment. Then begin to draft."""
        began = time.perf_counter()
        piece = self.piece(most).tokens
        self.sequence.read(piece)
        return self._read_so_far(len(piece), (time.perf_counter() - began) * 1e3)

    def piece(self, most: int) -> Segment:
        """The same for a forward that other replies share; `take_piece` stands behind it."""
        held = len(self.sequence.tokens)
        piece = self.prompt_ids[held : min(held + most, len(self.prompt_ids) - 1)]
        return Segment(self.sequence, piece, range(-1, len(piece) - 1), logits=False)

    def take_piece(self, count: int, forward_ms: float) -> Step:
        """Commit a piece of so many tokens."""
        self.sequence.commit(range(count))
        return self._read_so_far(count, forward_ms)

    def _read_so_far(self, count: int, ms: float) -> Step:
        self._end_reading()
        read, total = len(self.sequence.tokens), len(self.prompt_ids)
        return Step(width=count, forward_ms=ms, prompt_read=read, prompt_tokens=total)

    @property
    def given_up(self) -> bool:
        """Whether it is stopped before its first token."""
        return self.stop.is_set() and self._position == len(self.prompt_ids)

    def give_up(self) -> Step:
        """End without a token."""
        self.finish = "stopped"
        total, held = len(self.prompt_ids), len(self.sequence.tokens)
        return Step(prompt_tokens=total, prompt_read=held, finish="stopped")

    def read(self) -> Iterator[Step]:
        """All of the prompt, or up to where it is stopped."""
        yield self.begin()
        while self.finish is None and (self.left or self.given_up):
            yield self.give_up() if self.given_up else self.read_piece()

    def propose(self) -> DraftTree:
        """What may follow the last committed token."""
        self._began = time.perf_counter()
        room = self.sequence.context_length - self._position
        self._drafts = self._drafter.propose(room) if self._drafter else NO_DRAFTS
        return self._drafts

    def propose_beside(self, cost: DraftCost, most: int, replies: int) -> DraftTree:
        """The same in a forward that so many replies share, at its prices; at most `most` drafts of all."""
        drafter, room = self._drafter, self.sequence.context_length - self._position
        if isinstance(drafter, Shares):
            self._drafts = drafter.propose_beside(cost, min(room, most))
        else:
            self._drafts = drafter.propose(min(room, most // replies)) if drafter else NO_DRAFTS
        return self._drafts

    def root(self) -> Segment:
        """The last committed token alone."""
        return Segment(self.sequence, (self._last,), (-1,))

    def segment(self, kept: int | None = None) -> Segment:
        """What goes through the next forward: the last committed token and what was proposed, of which the first `kept`
        nodes."""
        if kept is not None and kept < len(self._drafts):
            self._drafts = self._drafts.cut(kept)
            if isinstance(self._drafter, Shares):
                self._drafter.cut(kept)
        self._tokens = (self._last, *self._drafts.tokens)
        self._parents = (-1, *(parent + 1 for parent in self._drafts.parents))
        self._drafted = time.perf_counter()
        return Segment(self.sequence, self._tokens, self._parents)

    def _end_reading(self) -> None:
        if self.left or self._read:
            return
        self._read = True
        if self._drafter:
            self._drafter.begin(self.prompt_ids)

    def take(self, rows: Rows, *, alone: bool = True) -> Step:
        """Verify the segment, and commit what stands. `alone`: no other sequence was in the forward."""
        wait_for(rows, self.settings)
        forwarded = time.perf_counter()
        drafts, drafter = self._drafts, self._drafter
        found = verify(
            rows,
            self._tokens,
            self._parents,
            self._position,
            self.settings,
            self._counts,
            grammar=self._grammar,
        )
        kept: list[int] = []
        for token in found.tokens:
            kept.append(token)
            self.finish = self._stopping.add(token)
            if self.finish is None and self._position + len(kept) >= self.sequence.context_length:
                self.finish = "context"
            if self.finish:
                break
        nodes = found.nodes[: len(kept)]
        asked = self.settings.logprobs
        told = () if asked is None else logprobs(rows, nodes, kept, asked)
        self.sequence.commit(nodes)
        if drafter:
            if isinstance(drafter, ReadsHidden) and drafter.reads_hidden:
                hidden = rows.hidden(nodes)
                if hidden is not None:
                    drafter.see(hidden)
            drafter.observe(kept, rows.likeliest(nodes, drafter.top) if drafter.top else None)
            if self._latency and alone and not rows.recorded:
                own_ms = (forwarded - self._began) * 1e3 - drafts.models_ms
                self._latency.note(len(self._tokens), self._position, own_ms)
        if self.finish is None and self.stop.is_set():
            self.finish = "stopped"
        self._last, self._position = kept[-1], self._position + len(kept)
        # A chosen token came from the draft node that it matched; the bonus token from the target alone.
        accepted = [node - 1 for node in found.nodes[1:]]
        return Step(
            tokens=tuple(kept),
            sources=tuple([*(drafts.sources[node] for node in accepted), TARGET][: len(kept)]),
            matches=tuple([*map(drafts.match, accepted), NO_MATCH][: len(kept)]),
            chances=tuple([*map(drafts.chance, accepted), None][: len(kept)]),
            logprobs=told,
            proposed=MappingProxyType(dict(Counter(drafts.sources))),
            width=len(self._tokens),
            draft_ms=(self._drafted - self._began) * 1e3,
            forward_ms=(forwarded - self._drafted) * 1e3,
            verify_ms=(time.perf_counter() - forwarded) * 1e3,
            prompt_read=len(self.prompt_ids),
            prompt_tokens=len(self.prompt_ids),
            finish=self.finish,
        )


def step_together(runner: Runner, replies: Sequence[Decoding]) -> list[Step]:
    """A step of each of these replies, whose prompts are read, in one forward of the runner that holds their
    sequences."""
    for reply in replies:
        reply.propose()
    rows = runner.forward([reply.segment() for reply in replies])
    alone = len(replies) == 1
    return [reply.take(mine, alone=alone) for reply, mine in zip(replies, rows, strict=True)]


def common_prefix(first: Sequence[object], second: Sequence[object]) -> int:
    """Length of what two sequences of tokens, or of words, share from their beginning on."""
    same = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        same += 1
    return same
