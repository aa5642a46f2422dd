"""The default model: the same words with drafting on or off, a start that compiles nothing more, texts that draft."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.source import Source
from hierchat.drafting.suffix_index import BREAK
from hierchat.engine.backends import select_implementation
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.models.catalogue import Backend, read_catalogue
from hierchat.models.load.load_model import load
from hierchat.models.load.tokenizer_files import load_tokenizer
from hierchat.runtime.prompt import PromptBuilder, PromptMessage
from hierchat.texts.corpora import statistics
from tests.end_to_end.program import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

QUESTIONS = (
    "Name five trees that grow in the north.",
    "Write a Python function that reverses a string.",
    "Count from one to twenty in words.",
    "Now write the same function in JavaScript.",
    "List the months of the year.",
    "Write a polite note that cancels a dinner.",
    "List the months of the year in reverse.",
    "Give me a recipe for pancakes.",
    "Repeat this sentence three times: the ferry leaves at noon.",
    "What is the difference between a list and a tuple in Python?",
    "Write an HTML table with two rows of three cells.",
    "Make a JSON object for a book with title, author and year.",
)
TOKENS = 40


class Chat:
    """The default model, asked single questions."""

    def __init__(self, backend: Backend) -> None:
        entry = read_catalogue().entry()
        loaded = load(entry, "cpu", backend=backend)
        self.engine = LocalEngine(
            select_implementation(loaded).runner.open(), loaded.end_ids, loaded.tokenizer.decode
        )
        self._prompts = PromptBuilder(loaded.tokenizer, loaded.context_length, entry.system_prompt)

    def prompt(self, question: str) -> list[int]:
        return self._prompts.build([PromptMessage("user", question)], TOKENS, self.engine.end_ids).ids

    def answer(
        self, question: str, settings: GenerationSettings, drafter: Drafter | None = None, padded: bool = True
    ) -> tuple[list[int], int]:
        """Tokens of the reply, and how many of them were drafted."""
        steps = list(
            self.engine.generate(GenerationRequest(self.prompt(question), settings, drafter, padded=padded))
        )
        drafted = sum(source != "target" for step in steps for source in step.sources)
        return [token for step in steps for token in step.tokens], drafted


@pytest.fixture(
    scope="module",
    params=["blocks", *(pytest.param(kind, marks=pytest.mark.large) for kind in ("float32", "float16"))],
)
def chat(request: pytest.FixtureRequest) -> Chat:
    return Chat(request.param)


def settings(temperature: float, seed: int = 0) -> GenerationSettings:
    return GenerationSettings(max_new_tokens=TOKENS, temperature=temperature, seed=seed)


def test_the_target_proved_row_invariance(chat: Chat) -> None:
    assert chat.engine.exact


@pytest.mark.parametrize(("temperature", "first"), [(0.0, 0), (0.8, 1)], ids=["greedy", "warm"])
def test_speculative_is_vanilla_token_for_token(chat: Chat, temperature: float, first: int) -> None:
    """Every other question greedily, and those between them sampled."""
    history = Source()
    total = accepted = 0
    asked = QUESTIONS[first :: 2 if chat.engine.backend == "blocks" else 4]  # torch is slower
    for seed, question in enumerate(asked):
        vanilla, _ = chat.answer(question, settings(temperature, seed))
        drafter = Drafter([history])
        speculative, drafted = chat.answer(question, settings(temperature, seed), drafter)
        assert speculative == vanilla, question
        history.add(speculative)
        total, accepted = total + len(vanilla), accepted + drafted
    assert total > len(asked) * TOKENS / 2  # replies long enough to mean something
    assert accepted > 0  # and drafts that were put to the test


def test_a_question_that_was_asked_before_is_drafted_from_history(chat: Chat) -> None:
    vanilla, _ = chat.answer(QUESTIONS[1], settings(0.8))
    again, drafted = chat.answer(QUESTIONS[1], settings(0.8), Drafter([Source.of([vanilla])]))
    assert again == vanilla
    assert drafted > len(vanilla) / 2


def test_the_fastest_plain_decoding_differs_at_most_in_a_tie(chat: Chat) -> None:
    """The baseline of every speed-up does not pad: bits may differ, choices only where two logits are equal."""
    for question in QUESTIONS[:4]:
        padded, _ = chat.answer(question, settings(0))
        unpadded, _ = chat.answer(question, settings(0), padded=False)
        pairs = enumerate(zip(padded, unpadded, strict=False))
        if (at := next((at for at, pair in pairs if pair[0] != pair[1]), None)) is not None:
            context = [*chat.prompt(question), *padded[:at]]
            assert chat.engine.logit_gap(context, padded[at], unpadded[at]) < 1e-3, question
        else:
            assert padded == unpadded, question


FIRST_REPLY = """
import sys
from numba.core.event import install_recorder
from hierchat.runtime.drafters import Memory, default_drafter
from hierchat.runtime.loading import LoadOptions, load_served_model
from hierchat.runtime.prompt import PromptMessage
from hierchat.config import GenerationSettings, cache_dir
from hierchat.engine.engine import GenerationRequest
from hierchat.models.catalogue import read_catalogue

served = load_served_model(read_catalogue().entry(None), LoadOptions(stored=True))
assert (cache_dir() / "kernels").is_dir()
memory = Memory()
with install_recorder("numba:compile") as compiling:
    for temperature in (0.0, 0.7):
        asked = [PromptMessage("user", "Write a poem about ferries.")]
        prompt = served.prompts.build(asked, 64, served.engine.end_ids).ids
        settings = GenerationSettings(max_new_tokens=40, temperature=temperature)
        drafter = default_drafter(served, memory)
        steps = served.engine.generate(GenerationRequest(prompt, settings, drafter))
        reply = [token for step in steps for token in step.tokens]
        assert reply
        memory.history[0].add(reply)
print([str(event.data["dispatcher"]) for _, event in compiling.buffer], "torch" in sys.modules)
"""


def test_nothing_is_left_to_compile_and_torch_is_not_there() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_REPLY], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "[] False"


TEXTS = [f"Step {n}: put {n} eggs into the bowl, and stir.\n\n```python\nprint({n})\n```" for n in range(400)]


def test_a_corpus_for_the_default_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATA"):
        monkeypatch.setenv(f"HIERCHAT_{name}", str(tmp_path / name))
    lines = "\n".join(json.dumps({"text": text}) for text in TEXTS)
    (tmp_path / "replies.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    # Neither the weights nor torch: a process of its own, which may not import it
    shut_out = (
        "import sys; sys.modules['torch'] = None; from hierchat.cli.main import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", shut_out, "corpus", "add", str(tmp_path / "replies.jsonl.gz")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tokens for smollm2-135m" in done.stdout

    entry = read_catalogue().entry()
    tokenizer = load_tokenizer(entry)
    found = next(one for one in statistics(entry, tokenizer) if one.name == "replies")
    ends = np.flatnonzero(found.tokens == BREAK)
    read = [tokenizer.decode(ids[ids != BREAK]) for ids in np.split(found.tokens, ends)[:-1]]
    assert read == TEXTS
    # The model writes the same tokens: what follows an ending in the corpus is what it would write
    assert found.tokens[: ends[0]].tolist() == tokenizer(TEXTS[0], add_special_tokens=False)["input_ids"]
