"""The decode loop: draft, forward, verify, commit, until the reply ends."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from types import MappingProxyType

from hierchat.config import GenerationSettings
from hierchat.drafting.proposer import Proposer
from hierchat.drafting.tree import DraftTree
from hierchat.engine.cuda.late_rows import LateRows
from hierchat.engine.errors import clear_memory_errors
from hierchat.engine.latency import LatencyCurve
from hierchat.engine.sampling.sampler import Counts
from hierchat.engine.sampling.top import prepare
from hierchat.engine.step import TARGET, Step
from hierchat.engine.stopping import Stopping
from hierchat.engine.target import Rows, Target
from hierchat.engine.verify import await_rows, choose_from, likeliest, verify

CHUNK = 128
"""Prompt tokens read between two looks at `stop`."""


class PromptTooLong(ValueError):
    """The prompt leaves no room for a reply."""


class Engine:
    """One target and the loop around it; one reply at a time. `decode` turns token ids into text.

    `latency` is what a step costs, refined by every step that might have drafted.
    """

    def __init__(
        self, target: Target, end_ids: Collection[int], decode: Callable[[Sequence[int]], str]
    ) -> None:
        self.target = target
        self.end_ids = frozenset(end_ids)
        self.decode = decode
        self.latency = LatencyCurve()
        prepare()

    def generate(
        self,
        prompt_ids: Sequence[int],
        settings: GenerationSettings,
        drafter: Proposer | None = None,
        stop: threading.Event | None = None,
        *,
        padded: bool = True,
    ) -> Generator[Step, None, None]:
        """Steps of one reply; the last one has `finish`.

        Without a drafter this is vanilla decoding, and padded=False its fastest form: the baseline of every speed-up.
        Slots that hold a common prefix with `prompt_ids` are reused. Raises PromptTooLong, sampler.BrokenLogits,
        errors.OutOfMemory.
        """
        with clear_memory_errors():
            yield from self._generate(prompt_ids, settings, drafter, stop or threading.Event(), padded)

    def _generate(
        self,
        prompt_ids: Sequence[int],
        settings: GenerationSettings,
        drafter: Proposer | None,
        stop: threading.Event,
        padded: bool,
    ) -> Generator[Step, None, None]:
        room = self.target.context_length - len(prompt_ids)
        if not prompt_ids or room < 1:
            raise PromptTooLong(
                f"The prompt has {len(prompt_ids)} tokens; the model's context holds "
                f"{self.target.context_length}. Shorten the message or start a new conversation."
            )
        yield from self._read(prompt_ids, stop)
        if stop.is_set():
            yield Step(prompt_tokens=len(prompt_ids), prompt_read=len(self.target.tokens), finish="stopped")
            return
        if drafter:
            drafter.begin(prompt_ids)
        stopping = Stopping(settings, self.end_ids, self.decode)
        counts = Counts(prompt_ids)
        last, position, finish = prompt_ids[-1], len(prompt_ids), None
        while finish is None:
            began = time.perf_counter()
            drafts = drafter.propose(self.target.context_length - position) if drafter else DraftTree()
            drafted = time.perf_counter()
            tokens = (last, *drafts.tokens)
            parents = (-1, *(parent + 1 for parent in drafts.parents))
            rows = self.target.forward(tokens, parents, padded=padded)
            await_rows(rows, settings)
            forwarded = time.perf_counter()
            found = verify(rows, tokens, parents, position, settings, counts)
            kept: list[int] = []
            for token in found.tokens:
                kept.append(token)
                finish = stopping.add(token)
                if finish is None and position + len(kept) >= self.target.context_length:
                    finish = "context"
                if finish:
                    break
            nodes = found.nodes[: len(kept)]
            self.target.commit(nodes)
            if drafter:
                drafter.observe(kept, likeliest(rows, nodes, drafter.top) if drafter.top else None)
                if not _recorded(rows):
                    own_ms = (forwarded - began) * 1e3 - drafts.models_ms
                    self.latency.note(len(tokens), position, own_ms)
            if finish is None and stop.is_set():
                finish = "stopped"
            last, position = kept[-1], position + len(kept)
            yield Step(
                tokens=tuple(kept),
                sources=_sources(found.nodes, drafts, len(kept)),
                proposed=MappingProxyType(dict(Counter(drafts.sources))),
                width=len(tokens),
                draft_ms=(drafted - began) * 1e3,
                forward_ms=(forwarded - drafted) * 1e3,
                verify_ms=(time.perf_counter() - forwarded) * 1e3,
                prompt_read=len(prompt_ids),
                prompt_tokens=len(prompt_ids),
                finish=finish,
            )

    def _read(self, prompt: Sequence[int], stop: threading.Event) -> Iterator[Step]:
        """Commit all of the prompt but its last token, which opens the first block."""
        target, needed = self.target, len(prompt) - 1
        common = common_prefix(target.tokens, prompt[:needed])
        target.rollback(common)
        yield Step(prompt_read=common, prompt_tokens=len(prompt))
        while common < needed and not stop.is_set():
            began = time.perf_counter()
            chunk = prompt[common : min(common + CHUNK, needed)]
            target.read(chunk)
            common += len(chunk)
            yield Step(
                width=len(chunk),
                forward_ms=(time.perf_counter() - began) * 1e3,
                prompt_read=common,
                prompt_tokens=len(prompt),
            )

    @clear_memory_errors()
    def measure_vanilla(self, settings: GenerationSettings, forwards: int = 3) -> float:
        """Milliseconds of a step of the fastest plain decoding where the slots stand now: median of `forwards`.

        Nothing is committed: the next turn finds the slots as they were.
        """
        target = self.target
        last = target.tokens[-1] if target.tokens else 0
        times = []
        for _ in range(forwards + 1):
            began = time.perf_counter()
            rows = target.forward((last,), (-1,), padded=False)
            choose_from(rows, 0, len(target.tokens) + 1, settings)
            took = (time.perf_counter() - began) * 1e3
            if not _recorded(rows):
                times.append(took)
            if len(times) == forwards:
                break
        return sorted(times or [took])[len(times) // 2]

    def logit_gap(self, context: Sequence[int], first: int, second: int) -> float:
        """Difference of two tokens' raw logits after `context`."""
        for _ in self._read(context, threading.Event()):
            pass
        rows = self.target.forward((context[-1],), (-1,))
        return abs(float(rows[0][first]) - float(rows[0][second]))


def _recorded(rows: Rows) -> bool:
    """Whether the forward took its time for something that the next one finds done."""
    return isinstance(rows, LateRows) and rows.recorded


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of what two token sequences share from their beginning on."""
    same = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        same += 1
    return same


def _sources(nodes: Sequence[int], drafts: DraftTree, kept: int) -> tuple[str, ...]:
    """A chosen token came from the draft node that it matched; the bonus token from the target alone."""
    accepted = [drafts.sources[node - 1] for node in nodes[1:]]
    return tuple([*accepted, TARGET][:kept])
