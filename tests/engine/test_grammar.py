"""Replies that follow a grammar: the same with drafts and without, and nothing but what the grammar allows."""

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from llguidance import LLMatcher

from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.proposer import Proposer
from hierchat.drafting.source import Source
from hierchat.engine.engine import TARGET, GenerationRequest, Step
from hierchat.engine.local import LocalEngine
from hierchat.engine.sampling.grammar import GrammarError, Grammars, bounded
from tests.engine.drafters import Adversary, Noise, Oracle
from tests.testing.tiny import tokens_of
from tests.testing.tiny_chat import END, served, tokenizer

ITEM = {
    "type": "object",
    "properties": {"a": {"enum": ["one", "two"]}, "b": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "minItems": 3, "maxItems": 9, "items": ITEM}
GRAMMAR = LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA), {"whitespace_flexible": False})
DRAFTERS: dict[str, Callable[[Sequence[int]], Proposer]] = {
    "history": lambda reply: Drafter([Source.of([reply])]),
    "oracle": Oracle,
    "past the end": lambda reply: Oracle([*reply, END, END, 9, 9]),
    "adversary": Adversary,
    "noise": lambda reply: Noise(nodes=12),
}
SETTINGS: dict[str, dict[str, object]] = {
    "greedy": {},
    "top": {"temperature": 1.5, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "seed": 4},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
}


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return served().local


def steps(
    engine: LocalEngine,
    settings: GenerationSettings,
    drafter: Proposer | None = None,
    begun: int = 0,
    ids: Sequence[int] = (5, 6, 7),
) -> list[Step]:
    engine.clear()
    return list(engine.generate(GenerationRequest(ids, settings, drafter, begun=begun)))


@pytest.mark.parametrize("sampled", SETTINGS)
def test_drafts_change_no_token_of_it(engine: LocalEngine, sampled: str) -> None:
    """Nor what goes on behind its end; and a reply goes on where its grammar stood."""
    settings = GenerationSettings(grammar=GRAMMAR, max_new_tokens=400, **SETTINGS[sampled])
    plain = tokens_of(steps(engine, settings))
    assert len(json.loads(tokenizer().decode(plain, skip_special_tokens=True))) >= 3
    assert plain[-1] == END
    for drafted, drafter in DRAFTERS.items():
        found = steps(engine, settings, drafter(plain))
        assert tokens_of(found) == plain, drafted
        if drafted in ("history", "oracle"):
            assert sum(source != TARGET for step in found for source in step.sources) > 10
    assert tokens_of(steps(engine, settings, None, 20, [5, 6, 7, *plain[:20]])) == plain[20:]


def test_what_is_no_grammar_is_refused(engine: LocalEngine) -> None:
    for text in ("start: foo(", '{"grammars": [{"json_schema": {"type": "nothing"}}]}'):
        with pytest.raises(GrammarError):
            steps(engine, GenerationSettings(grammar=text))
    with pytest.raises(GrammarError, match="No text can follow it"):
        steps(engine, GenerationSettings(grammar=str(LLMatcher.grammar_from_json_schema('{"$ref": "#"}'))))
    with pytest.raises(GrammarError, match="no token that ends"):
        Grammars(tokenizer(), (), 340).check(GRAMMAR)
    with pytest.raises(GrammarError, match="without grammars"):
        steps(LocalEngine(engine.sequence, {END}, engine.decode), GenerationSettings(grammar=GRAMMAR))


def test_a_row_that_is_longer_than_the_vocabulary() -> None:
    """Models pad their vocabulary: what has no token is never chosen."""
    grammar = Grammars(tokenizer(), {END}, len(tokenizer()) + 60).begin(GRAMMAR)
    row = np.zeros(len(tokenizer()) + 60, np.float32)
    row[-60:] = 9.0
    allowed = np.flatnonzero(np.isfinite(grammar.masked(row)))
    assert len(allowed) > 0
    assert allowed.max() < len(tokenizer())
    assert row[-1] == 9.0  # the row itself stays as it was


def of_keys(count: int) -> dict[str, object]:
    names = [f"k{number}" for number in range(count)]
    return {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "required": names,
    }


def of_links(count: int) -> dict[str, object]:
    """A chain of links: each but the last names the next."""
    links = {f"a{number}": {"$ref": f"#/$defs/a{number + 1}"} for number in range(count)}
    return {"$ref": "#/$defs/a0", "$defs": links | {f"a{count}": {"type": "string"}}}


def nested(levels: int) -> dict[str, object]:
    return {"type": "array", "items": nested(levels - 1)} if levels else {"type": "string"}


MANY_FACTORS = {"allOf": [{"type": "integer", "multipleOf": number + 2} for number in range(20)]}


def test_what_is_too_long_is_refused(engine: LocalEngine) -> None:
    assert engine.grammars
    for check, text in (
        (bounded, {"const": "x" * 300_000}),
        (engine.grammars.check, "start: " + '"a" ' * 70_000),
    ):
        with pytest.raises(GrammarError, match="at most 262,144 characters"):
            check(text)  # type: ignore[operator]


@pytest.mark.parametrize("schema", [of_links(50), of_keys(1000), nested(30), MANY_FACTORS])
def test_schemas_that_people_use_are_within_bounds(schema: dict[str, object]) -> None:
    assert bounded(schema) is schema


@pytest.mark.parametrize(
    "schema", [of_links(3000), {"type": "object", "required": of_keys(12_000)["required"]}, MANY_FACTORS]
)
def test_a_grammar_that_ends_its_process_is_refused(engine: LocalEngine, schema: dict[str, object]) -> None:
    """In this process, the first two would overflow the stack."""
    text = str(LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    assert engine.grammars
    with pytest.raises(GrammarError, match="too much time or memory"):
        engine.grammars.check(text)
    engine.grammars.check(GRAMMAR)  # others go on
