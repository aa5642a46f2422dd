"""Replies in progress that share their forwards: each is the one that it is alone, whatever the others do."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from hierchat.checks.exactness import Noise
from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.source import Source
from hierchat.engine.batching import LEAST_CHUNK, STALL_MS, ChunkedPrefill, SequencePool
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.cuda.cuda_runner import REGIMES
from hierchat.engine.engine import GenerationRequest, Step
from hierchat.engine.generation import CHUNK, Generation
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import Runner, TooManySequences
from hierchat.models.formats.blocks import pack
from tests.drafting.databases import Steps
from tests.engine.test_cuda_runner import runner_of as cuda_runner
from tests.testing.tiny import CONTEXT, Kind, block_model, random_tokens, text_of, tiny_model, tokens_of

PLACES = 4


def runner(kind: Kind, threads: int, sequences: int) -> Runner:
    model = block_model(tiny_model(kind), lambda floats: pack(floats, 8))
    return CpuRunner(model, context_length=CONTEXT, threads=threads, sequences=sequences)


RUNNERS = (
    {kind: runner(kind, 2, PLACES) for kind in get_args(Kind)}
    | {
        f"cuda {regime}": cuda_runner(regime, sequences=PLACES, length=CONTEXT)
        for regime in (REGIMES[0], REGIMES[2])
    }
    | {f"cuda, {kind}": cuda_runner(REGIMES[0], kind, PLACES, CONTEXT) for kind in ("lfm2", "qwen3_5_text")}
)
ENGINES = {kind: LocalEngine(one.open(), (), text_of, PLACES) for kind, one in RUNNERS.items()}


@pytest.fixture(params=["gemma3", *(kind for kind in ENGINES if kind.startswith("cuda"))])
def engine(request: pytest.FixtureRequest) -> LocalEngine:
    """On the processor one with windows; which architecture it is changes nothing of how replies share it."""
    return fresh(request.param)


def fresh(kind: str) -> LocalEngine:
    ENGINES[kind].clear()
    return ENGINES[kind]


def how(number: int, tokens: int = 40) -> GenerationSettings:
    sampled = {"temperature": 0.8, "top_p": 0.9} if number % 2 else {}
    return GenerationSettings(seed=number, max_new_tokens=tokens, **sampled)


def knowing(text: list[int], number: int):
    """Drafts of which some are right: trees of two kinds, or none at all."""
    if number % 3 == 2:
        return Noise(64, 6, seed=number)
    return Drafter([Source.of([text[2:12], text[9:30], random_tokens(8, number)])], width=9 - number)


def at_once(engine: LocalEngine, asked: list[tuple]) -> list[list[Step]]:
    """Steps of replies that are pulled from a thread each: (prompt, settings, drafter). All have begun before the first
    goes on, so that they meet however fast the machine is."""
    begun = [
        engine.generate(GenerationRequest(prompt, settings, drafter, user=user))
        for user, (prompt, settings, drafter) in enumerate(asked)
    ]
    first = [next(steps) for steps in begun]
    with ThreadPoolExecutor(len(asked)) as pool:
        return [[one, *rest] for one, rest in zip(first, pool.map(list, begun), strict=True)]


@limits(max_examples=15, deadline=None)
@given(
    kind=st.sampled_from(sorted(ENGINES)),
    lengths=st.lists(
        st.one_of(st.integers(1, 40), st.sampled_from([127, 128, 129, 300])), min_size=2, max_size=PLACES
    ),
    seed=st.integers(0, 99),
)
def test_each_reply_is_the_one_that_it_is_alone(kind: str, lengths: list[int], seed: int) -> None:
    """Greedy and sampled, prompts of any length, drafts of any kind; each ends when it is done."""
    engine = fresh(kind)
    prompts = [random_tokens(length, seed + number) for number, length in enumerate(lengths)]
    settings = [how(number, 20 + 15 * number) for number in range(len(prompts))]
    alone = [
        tokens_of(engine.generate(GenerationRequest(prompt, one)))
        for prompt, one in zip(prompts, settings, strict=True)
    ]
    drafters = [knowing(reply, number) for number, reply in enumerate(alone)]
    found = at_once(engine, list(zip(prompts, settings, drafters, strict=True)))
    assert [tokens_of(steps) for steps in found] == alone
    assert [steps[-1].finish for steps in found] == ["length"] * len(prompts)


def test_they_share_forwards_and_drafts_share_rows(engine: LocalEngine) -> None:
    prompts = [random_tokens(20, number) for number in range(PLACES)]
    alone = [tokens_of(engine.generate(GenerationRequest(prompt, how(0, 60)))) for prompt in prompts]
    found = at_once(
        engine,
        [
            (prompt, how(0, 60), Drafter([Source.of([reply])], latency=engine.latency))
            for prompt, reply in zip(prompts, alone, strict=True)
        ],
    )
    shared = [step for steps in found for step in steps if step.batch_size > 1]
    assert shared
    assert max(step.batch_size for step in shared) <= PLACES
    assert [tokens_of(steps) for steps in found] == alone
    assert all(step.waited_ms >= 0 for steps in found for step in steps)


def test_no_more_replies_than_places_and_one_that_is_stopped_frees_its_own(engine: LocalEngine) -> None:
    stops = [threading.Event() for _ in range(PLACES)]
    steps = [
        engine.generate(
            GenerationRequest(random_tokens(9, number), how(0, 400), None, stops[number], user=number)
        )
        for number in range(PLACES)
    ]
    for one in steps:
        next(one)
    with pytest.raises(TooManySequences, match="4 replies"):
        next(engine.generate(GenerationRequest(random_tokens(3, 1), how(0), user=9)))
    for stop in stops:
        stop.set()
    assert [list(one)[-1].finish for one in steps] == ["stopped"] * PLACES
    assert tokens_of(engine.generate(GenerationRequest(random_tokens(3, 1), how(0, 5), user=9)))


def test_the_next_forward_computes_while_a_step_is_looked_at(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device alone; then a measurement comes between, and whoever leaves takes no token of a forward along."""
    prompt, begun = random_tokens(9, 5), list[int]()
    alone = tokens_of(engine.generate(GenerationRequest(prompt, how(1, 12))))
    begin, later = Generation.segment, engine.runner.answers_later
    monkeypatch.setattr(Generation, "segment", lambda *given: begun.append(1) or begin(*given))
    steps = engine.generate(GenerationRequest(prompt, how(1, 12)))
    first = next(step for step in steps if step.tokens)
    assert len(begun) == 1 + later == 1 + ("Cuda" in type(engine.runner).__name__)
    engine.measure_vanilla(how(1))
    assert tokens_of([first, *steps]) == alone
    assert len(begun) == len(alone)
    steps = engine.generate(GenerationRequest(prompt, how(1, 12)))
    first = next(step for step in steps if step.tokens)
    steps.close()
    assert engine.sequence.tokens == prompt
    assert tokens_of(engine.generate(GenerationRequest(prompt, how(1, 12)))) == alone


def test_a_chunk_of_a_prompt_goes_along_with_the_steps_of_another(engine: LocalEngine) -> None:
    """Both share forwards: of the chunk no logits are computed."""
    forwards: list[list[bool]] = []
    own = engine.runner
    whole = own.forward
    own.forward = lambda blocks, **how: (
        forwards.append([one.logits for one in blocks]) or whole(blocks, **how)
    )  # type: ignore[method-assign]
    try:
        writing = engine.generate(GenerationRequest(random_tokens(5, 1), how(0, 60), user=1))
        began = [next(step for step in writing if step.tokens)]
        reading = engine.generate(GenerationRequest(random_tokens(300, 2), how(1, 10), user=2))
        other = [next(reading)]  # it is among the replies in progress from here on
        thread = threading.Thread(target=lambda: other.extend(reading))
        thread.start()
        mine = [*began, *writing]
        thread.join()
    finally:
        del own.forward  # type: ignore[method-assign]
    assert [True, False] in forwards
    assert tokens_of(mine) == tokens_of(engine.generate(GenerationRequest(random_tokens(5, 1), how(0, 60))))
    assert tokens_of(other) == tokens_of(
        engine.generate(GenerationRequest(random_tokens(300, 2), how(1, 10)))
    )
    chunks = [step for step in other if step.width and not step.tokens]
    assert sum(step.width for step in chunks) == 299
    assert all(step.forward_ms > 0 for step in chunks)


def each(ms: float) -> Steps:
    """Let each row of a step cost so much."""
    return Steps([ms * rows for rows in range(1, 33)])


@pytest.mark.parametrize("costs", [(1.0, 2.0), (47.0, 0.6), (99.0, 12.0), (400.0, 40.0)])
def test_users_share_the_time_alike(costs: tuple[float, float]) -> None:
    """Four users with prompts of like length, on slow machines and fast ones: a step of a batch and a row of a prompt
    take so many milliseconds. The slowest gets at least 0.7 of what the fastest does, and nobody who writes stalls."""
    step_ms, row_ms = costs
    prefill, clock, users, questions, reply = ChunkedPrefill(each(row_ms)), 0.0, 4, 6, 100
    left, asked, written, spent = [120] * users, [0.0] * users, [0] * users, [0.0] * users
    done = [0] * users
    while min(done) < questions:
        reading = [user for user in range(users) if left[user] and done[user] < questions]
        writing = [user for user in range(users) if not left[user] and done[user] < questions]
        ms = step_ms if writing else 0.0
        if reading:
            waited = [clock - asked[user] for user in reading]
            reader = reading[prefill.next_reader([left[user] for user in reading], waited)]
            most = prefill.tokens(step_ms, len(reading), len(writing)) if writing else CHUNK
            chunk = min(most, left[reader])
            left[reader] -= chunk
            prefill.note(chunk, chunk * row_ms)
            assert not writing or chunk * row_ms <= max(STALL_MS, step_ms, LEAST_CHUNK * row_ms)
            ms += chunk * row_ms
        clock += ms
        for user in writing:
            written[user] += 1
            if written[user] == reply:
                spent[user] += clock - asked[user]
                done[user] += 1
                asked[user], left[user], written[user] = clock, 120, 0
    assert min(spent) / max(spent) >= 0.7


def test_a_brief_question_passes_a_long_text_but_not_for_ever() -> None:
    prefill = ChunkedPrefill(each(10.0))
    assert prefill.next_reader([2000, 50], [0.0, 0.0]) == 1
    assert prefill.next_reader([2000, 50], [30_000.0, 0.0]) == 0


@pytest.fixture
def pool() -> SequencePool:
    return SequencePool(runner("llama", 1, 3).open(), 3)


def read(pool: SequencePool, text: list[int], user: int | None = None) -> int:
    """A reply to this text; how much of it was held."""
    with pool.sequence(text, user) as sequence:
        held = len(sequence.tokens)
        sequence.rollback(held)
        sequence.read(text[held:])
    return held


def test_the_least_recently_used_gives_its_text_up(pool: SequencePool) -> None:
    texts = [random_tokens(60, number) for number in range(4)]
    assert [read(pool, text) for text in texts] == [0] * 4
    assert [pool.shared(text) for text in texts] == [0, 60, 60, 60]
    assert [read(pool, [*text, 7]) for text in texts[1:]] == [60, 60, 60]
    pool.forget(texts[1], 20)
    assert [pool.shared(text) for text in texts] == [0, 20, 60, 60]
    pool.clear()
    assert [pool.shared(text) for text in texts] == [0] * 4


def test_a_common_beginning_is_taken_over_and_stays_with_its_owner(pool: SequencePool) -> None:
    system = random_tokens(40, 1)
    first, second = [*system, *random_tokens(90, 2)], [*system, *random_tokens(90, 3)]
    read(pool, first)
    with pool.sequence(second) as sequence:
        held = sequence.tokens[:]
        sequence.rollback(min(len(held), 40))
        assert sequence.tokens == system
    assert pool.shared(first) == len(first)


def test_what_was_read_for_one_user_is_nothing_to_another(pool: SequencePool) -> None:
    text = random_tokens(80, 1)
    read(pool, text, user=1)
    assert pool.shared(text, user=1) == 80
    assert pool.shared(text, user=2) == 0
    assert pool.shared(text) == 0
    assert read(pool, text, user=2) == 0
    for user in (3, 4, 5):
        assert read(pool, text, user) == 0  # also in a sequence that held it for another


def written(pool: SequencePool) -> int:
    """Slots that hold keys or values."""
    layers = pool.latest.runner.slots
    keys = sum(np.abs(one.keys).sum(axis=(1, 2, 3)) for one in layers)
    return int(np.count_nonzero(keys + sum(np.abs(one.values).sum(axis=(1, 2, 4)) for one in layers)))


def test_the_slots_of_a_deleted_chat_are_overwritten_and_those_of_others_stay(pool: SequencePool) -> None:
    deleted, other = random_tokens(300, 1), random_tokens(150, 2)
    for chat, text in ((1, deleted), (2, other)):
        with pool.sequence(text, 7, chat) as sequence:
            sequence.read(text)
    with pool.sequence(deleted[:200], 7, 3) as sequence:  # a fork, which holds pages of the other one
        assert len(sequence.tokens) == 200
        sequence.forward(random_tokens(5, 4), range(-1, 4))
    with pool.sequence(random_tokens(30, 5), 8, 4) as sequence:
        sequence.read(random_tokens(30, 5))
    assert written(pool) > 200 + 150 + 30
    pool.wipe(7, [1])
    assert written(pool) == 200 + 150 + 30
    assert [pool.shared(text, 7) for text in (deleted, other)] == [200, 150]
    pool.wipe(7, [3])
    assert written(pool) == 150 + 30
    pool.wipe(7)
    assert written(pool) == 30


def test_a_page_that_two_texts_share_keeps_what_the_longer_one_has_there(pool: SequencePool) -> None:
    text = random_tokens(256, 1)
    with pool.sequence(text, 7, 1) as one:
        one.read(text)
        two = one.runner.open()
        two.adopt(one, text[:128])
        two.rollback(60)
        two.wipe()
        assert written(pool) == 256
        two.close()
