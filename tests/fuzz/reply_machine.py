"""Replies of several users that queue, share an engine's forwards, are stopped, left, or fail: each is, token for
token, the one that it is alone, nobody waits for ever, and nobody's reading shortens another one's."""

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cache
from itertools import product

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from hierchat.checks.exactness import Noise
from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.proposer import Proposer
from hierchat.drafting.source import Source
from hierchat.engine.batching import AHEAD, LEAST_CHUNK
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.engine import GenerationRequest, Step
from hierchat.engine.generation import common_prefix
from hierchat.engine.local import LocalEngine
from hierchat.engine.sampling.sampler import BrokenLogits
from hierchat.engine.scheduler import MOST_WAITING, QueueFull, Scheduler, Ticket
from hierchat.models.formats.blocks import pack
from tests.fuzz.machines import Machine, one_of
from tests.testing.tiny import CONTEXT, block_model, random_tokens, text_of, tiny_model, tokens_of

PLACES = 3
USERS = 3
LENGTHS = (1, 5, 40, 130, 200)
LONGEST = 30
"""Tokens of a reply."""
pick = st.integers(0, 999)


@cache
def engine_of(kind: str) -> LocalEngine:
    model = block_model(tiny_model(kind), lambda floats: pack(floats, 8))  # type: ignore[arg-type]
    runner = CpuRunner(model, context_length=CONTEXT, threads=1, sequences=PLACES)
    return LocalEngine(runner.open(), (), text_of, PLACES)


def prompt_of(length: int, beginning: int) -> tuple[int, ...]:
    """Texts that begin alike, and go on each in its own way."""
    shared = random_tokens(min(length, 40), beginning % 2)
    return (*shared, *random_tokens(max(length - 40, 0), beginning))


@cache
def alone(kind: str, prompt: tuple[int, ...], sampled: bool) -> tuple[int, ...]:
    engine = engine_of(kind)
    engine.clear()
    found = tuple(tokens_of(engine.generate(GenerationRequest(prompt, how(sampled)))))
    engine.clear()
    return found


def how(sampled: bool) -> GenerationSettings:
    return GenerationSettings(seed=7, max_new_tokens=LONGEST, temperature=0.8 if sampled else 0.0)


class Failing(Drafter):
    """Fails at its third draft, alone or beside others."""

    calls = 0

    def _propose(self, cost, limit):  # type: ignore[no-untyped-def]
        self.calls += 1
        if self.calls == 3:
            raise BrokenLogits("no numbers")
        return super()._propose(cost, limit)


@dataclass(eq=False)
class Asked:
    """A request: it waits for its turn, is being written, or has ended."""

    request: GenerationRequest
    expected: tuple[int, ...]
    ticket: Ticket
    fails: bool
    steps: Generator[Step, None, None] | None = None
    tokens: list[int] = field(default_factory=list)
    stopped: bool = False


class ReplyMachine(Machine):
    examples = 6

    @initialize(kind=st.sampled_from(["llama", "gemma3"]))
    def begins(self, kind: str) -> None:
        self.kind, self.engine, self.queue = kind, engine_of(kind), Scheduler()
        self.queue.places = PLACES
        self.replies: list[Asked] = []
        self.known: dict[int, list[tuple[int, ...]]] = {user: [] for user in range(USERS)}
        for beginning, length, sampled in product(range(3), LENGTHS, (False, True)):
            alone(kind, prompt_of(length, beginning), sampled)  # before others are in the batch
        self.engine.clear()

    def teardown(self) -> None:
        """All that is left comes to its end, in the order in which it came."""
        if not hasattr(self, "replies"):
            return
        self.replies = [
            one for one in self.replies if one.ticket in (*self.queue.holders, *self.queue.waiting)
        ]
        try:
            while self.replies:
                assert any(self.advance(one) for one in list(self.replies))
            assert not self.queue.holders
            assert not self.queue.waiting
        finally:
            for one in self.replies:
                if one.steps:
                    one.steps.close()

    @rule(
        user=st.integers(0, USERS - 1), length=st.sampled_from(LENGTHS), beginning=st.integers(0, 2),
        sampled=st.booleans(), drafts=st.sampled_from(["none", "right", "noise", "failing"]),
    )  # fmt: skip
    def ask(self, user: int, length: int, beginning: int, sampled: bool, drafts: str) -> None:
        try:
            ticket = self.queue.join(shares=True)
        except QueueFull:
            assert len(self.queue.waiting) == MOST_WAITING
            return
        prompt = prompt_of(length, beginning)
        expected = alone(self.kind, prompt, sampled)
        drafters: dict[str, Proposer | None] = {
            "none": None,
            "right": Drafter([Source.of([expected[2:12], expected[9:]])], width=7),
            "noise": Noise(64, 6, seed=beginning),
            "failing": Failing(),
        }
        request = GenerationRequest(prompt, how(sampled), drafters[drafts], user=user)
        self.replies.append(Asked(request, expected, ticket, drafts == "failing"))

    going = precondition(lambda self: self.replies)

    @going
    @rule(pick=pick, steps=st.integers(1, 12))
    def go_on(self, pick: int, steps: int) -> None:
        one = one_of(self.replies, pick)
        while steps and one in self.replies and self.advance(one):
            steps -= 1

    @going
    @rule(pick=pick)
    def stop(self, pick: int) -> None:
        one = one_of(self.replies, pick)
        one.request.stop.set()
        one.stopped = True

    @going
    @rule(pick=pick)
    def leave(self, pick: int) -> None:
        """As when its reader is gone: in the queue, or in mid-reply."""
        self.end(one_of(self.replies, pick))

    @rule(pick=pick)
    def measure(self, pick: int) -> None:
        """The baseline, between two steps: nothing is committed by it."""
        assert self.engine.measure_vanilla(how(False)) >= 0

    def advance(self, one: Asked) -> bool:
        """Take a step of a reply if it is its turn."""
        if one.steps is None:
            its_turn = self.queue.waiting[0] is one.ticket and len(self.queue.holders) < PLACES
            assert one.ticket.take(0) == its_turn
            if one.ticket not in self.queue.holders:
                return False
            one.steps = self.engine.generate(one.request)
            step = next(one.steps)
            prompt, user = one.request.prompt_ids, one.request.user
            assert user is not None
            read = max((common_prefix(text, prompt[:-1]) for text in self.known[user]), default=0)
            assert step.prompt_read <= read  # of this user's own texts alone
            self.known[user].append((*prompt, *one.expected))
        else:
            try:
                step = next(one.steps)
            except BrokenLogits:
                assert one.fails
                self.end(one)
                return True
        one.tokens += step.tokens
        assert tuple(one.tokens) == one.expected[: len(one.tokens)]
        if step.finish:
            assert step.finish == "length" or one.stopped
            assert step.finish == "stopped" or tuple(one.tokens) == one.expected
            self.end(one)
        return True

    def end(self, one: Asked) -> None:
        if one.steps:
            one.steps.close()
        one.ticket.leave()
        self.replies.remove(one)

    @precondition(lambda self: sum(one.steps is not None for one in self.replies) > 1)
    @rule(pick=pick)
    def nobody_starves(self, pick: int) -> None:
        """While one reply is read, all others that have a place are read and written."""
        reader = one_of([one for one in self.replies if one.steps], pick)
        batch = self.engine._batch
        before = [(one, one.reply.left, one.reply.position) for one in batch._running]
        enough = sum(left for _, left, _ in before) // LEAST_CHUNK + 2
        enough += batch._steps
        while batch._steps < enough and reader in self.replies and self.advance(reader):
            pass
        for one, left, position in before if batch._steps >= enough else ():
            went_on = not one.reply.left if left else one.reply.position > position
            assert went_on or one.reply.finish or one.error or len(one.steps) >= AHEAD
