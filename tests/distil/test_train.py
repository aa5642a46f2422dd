"""The draft before it has learned, what it learns, and that it goes on where it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from hierchat.distil import train as module
from hierchat.distil.student import make_student
from hierchat.distil.text import WINDOW, Samples, samples
from hierchat.distil.train import CHECKPOINT, State, train
from hierchat.models.errors import UnsupportedError

VOCABULARY = 100
LAYERS = 3
END = 2
KNOWN = np.array([END, *range(10, 45), 97])
LONG = 1e6
"""Minutes in which the learning rate does not fall noticeably."""


def target(**changed: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    numbers = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
    }
    return LlamaForCausalLM(LlamaConfig(**{**numbers, **changed})).eval().requires_grad_(False)


def student(layers: int = 1, known: Any = KNOWN) -> Any:
    return make_student(target(), known, layers)


def text(seed: int = 0, windows: int = 12) -> Samples:
    """Thirty tokens over and over."""
    once = np.random.default_rng(seed).permutation(np.arange(10, 40))
    return samples(np.resize(once, windows * WINDOW + 1), KNOWN, END)


def tell(state: State, loss: float) -> None:
    pass


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def teach(folder: Path, steps: int, draft: Any = None, cut: Samples | None = None, seed: int = 0) -> Any:
    """A draft that was interrupted as soon as it had made so many steps in all."""

    def stop(state: State, loss: float) -> None:
        if state.step == steps:
            raise KeyboardInterrupt

    folder.mkdir(exist_ok=True)
    draft = draft or student()
    with pytest.raises(KeyboardInterrupt):
        train(draft, cut or text(), LONG, seed, folder, stop)
    return draft


def same(one: Any, other: Any) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


# The student


@pytest.mark.parametrize(("layers", "origins"), [(1, [0]), (2, [0, 2]), (3, [0, 1, 2])])
def test_a_student_has_layers_and_embeddings_of_the_target(layers: int, origins: list[int]) -> None:
    whole = target()
    draft = make_student(whole, KNOWN, layers)
    assert (draft.config.num_hidden_layers, draft.config.vocab_size) == (layers, len(KNOWN) + 1)
    for layer, origin in zip(draft.model.layers, origins, strict=True):
        assert same(layer, whole.model.layers[origin])
    assert same(draft.model.norm, whole.model.norm)
    embedding, rows = whole.model.embed_tokens.weight, draft.model.embed_tokens.weight
    assert torch.equal(rows[:-1], embedding[KNOWN])
    others = np.setdiff1d(np.arange(VOCABULARY), KNOWN)
    assert torch.allclose(rows[-1], embedding[others].mean(0))
    assert draft.lm_head.weight is rows
    assert all(parameter.requires_grad for parameter in draft.parameters())


def test_a_student_with_everything_is_the_target() -> None:
    whole = target(tie_word_embeddings=True)
    draft = make_student(whole, np.arange(VOCABULARY), LAYERS).eval()
    block = torch.arange(10, 60)[None]
    with torch.inference_mode():
        assert torch.allclose(draft(block).logits[..., :-1], whole(block).logits, atol=1e-5)


def test_a_student_learns_in_full_precision() -> None:
    draft = make_student(target().bfloat16(), KNOWN, 1)
    assert {parameter.dtype for parameter in draft.parameters()} == {torch.float32}


@pytest.mark.parametrize("layers", [-1, 0, LAYERS + 1])
def test_no_more_layers_than_there_are(layers: int) -> None:
    with pytest.raises(UnsupportedError, match=f"has {LAYERS} layers; give --layers"):
        student(layers)


def test_a_model_of_another_build_is_refused() -> None:
    shape = GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    with pytest.raises(UnsupportedError, match="from a gpt2 model; it takes one like Llama"):
        make_student(GPT2LMHeadModel(shape), KNOWN, 1)


# Teaching


def test_the_text_held_back_is_told_better_and_better(tmp_path: Path) -> None:
    (tmp_path / "early").mkdir()
    whole = target()
    before = train(make_student(whole, KNOWN, 1), text(), 0, 0, tmp_path / "early", tell).measured
    teach(tmp_path, 80, make_student(whole, KNOWN, 1))
    after = train(make_student(whole, KNOWN, 1), text(), 0, 0, tmp_path, tell).measured
    assert [before[0][0], after[0][0]] == [0, 80]
    assert after[0][2] < before[0][2] / 2
    assert after[0][3] > before[0][3] + 0.5
    assert same(whole, target())  # nothing of it was taught


def test_a_token_that_is_not_known_is_one_that_is_got_wrong(tmp_path: Path) -> None:
    cut = text()
    teach(tmp_path, 80, cut=cut)
    cut.held_back[0, WINDOW // 2 + 1 :] = len(KNOWN)
    measured = train(student(), cut, 0, 0, tmp_path, tell).measured
    assert 0.4 < measured[0][3] <= 0.5


def test_text_without_a_known_token_teaches_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    unknown = np.full((9, WINDOW + 1), len(KNOWN))
    draft = teach(tmp_path, 3, cut=Samples(unknown[:-1], unknown[-1:]))
    assert all(parameter.isfinite().all() for parameter in draft.parameters())
    state = train(student(), Samples(unknown[:-1], unknown[-1:]), 0, 0, tmp_path, tell)
    assert state.measured[0][2:] == (0.0, 0.0)


def test_it_is_measured_and_kept_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.0)
    kept: list[tuple[int, list[int]]] = []

    def look(state: State, loss: float) -> None:
        assert np.isfinite(loss)
        if (tmp_path / CHECKPOINT).exists():
            saved = torch.load(tmp_path / CHECKPOINT, weights_only=True)["state"]
            kept.append((saved["step"], [step for step, *_ in saved["measured"]]))
        if state.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(student(), text(), LONG, 0, tmp_path, look)
    assert kept == [(1, [1]), (2, [1, 2])]


# Going on


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    first = teach(tmp_path, 4)
    restored = student()
    assert not same(restored, first)
    state = train(restored, text(), 0, 0, tmp_path, tell)
    assert state.step == 4
    assert same(restored, first)
    with pytest.raises(KeyboardInterrupt):
        train(restored, text(), LONG, 0, tmp_path, interrupt)
    again = train(student(), text(), 0, 0, tmp_path, tell)
    assert again.step == 5
    assert again.seconds > state.seconds
    assert again.measured[:-1] == state.measured


def test_it_learns_the_same_in_one_run_or_in_two(tmp_path: Path) -> None:
    once = teach(tmp_path / "once", 7)
    teach(tmp_path / "twice", 3)
    twice = teach(tmp_path / "twice", 7)
    for one, other in zip(once.parameters(), twice.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    assert not same(once, teach(tmp_path / "seed", 7, seed=1))


def test_an_interruption_of_the_last_measurement_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = teach(tmp_path / "before", 2)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_measure", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(first, text(), 0, 0, tmp_path, tell)
    restored = student()
    train(restored, text(), 0, 0, tmp_path, tell)
    assert same(restored, first)


@pytest.mark.parametrize("keep", [0, 100, 5_000, -1])
def test_a_damaged_checkpoint_says_what_to_do(tmp_path: Path, keep: int) -> None:
    teach(tmp_path, 1)
    file = tmp_path / CHECKPOINT
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match=rf"{CHECKPOINT} cannot be read .* Delete it to begin anew"):
        train(student(), text(), 0, 0, tmp_path, tell)


@pytest.mark.parametrize(
    ("draft", "cut", "seed"),
    [
        (lambda: student(layers=2), text(), 0),
        (lambda: student(known=KNOWN[:-1]), text(), 0),
        (student, text(windows=13), 0),
        (student, text(), 1),
        (lambda: make_student(target(intermediate_size=96), KNOWN, 1), text(), 0),
    ],
    ids=["layers", "tokens", "text", "seed", "target"],
)
def test_a_checkpoint_of_something_else_is_not_gone_on_with(
    tmp_path: Path, draft: Any, cut: Samples, seed: int
) -> None:
    teach(tmp_path, 1)
    whole = (tmp_path / CHECKPOINT).read_bytes()
    with pytest.raises(ValueError, match=r"another draft or another text\. Delete it"):
        train(draft(), cut, 0, seed, tmp_path, tell)
    assert (tmp_path / CHECKPOINT).read_bytes() == whole
