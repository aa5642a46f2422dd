"""Environment variables, corpora and requests: what is wrong gets a sentence that names it."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hierchat.config import data_dir
from hierchat.drafting.growing.kernel_arrays import BREAK, CORPUS, SEED
from hierchat.drafting.vllm import drafter_settings, user_state
from hierchat.drafting.vllm.batch import TARGET
from hierchat.drafting.vllm.drafter_settings import (
    DrafterSettings,
    DrafterSettingsError,
    RequestOptions,
    asked,
)
from hierchat.engine.engine import TARGET as OURS
from hierchat.texts.build import FORM, write
from hierchat.texts.corpora import SEED_NAME
from tests.drafting.vllm.fake_runner import END, VOCABULARY, Engine
from tests.drafting.vllm.test_proposer import POEM, steps_of


def test_all_of_it_and_nothing_need_be_set() -> None:
    variables = {
        "HIERCHAT_DRAFTER_DB": "/books/drafts.db",
        "HIERCHAT_DRAFTER_MODEL": "mine",
        "HIERCHAT_DRAFTER_STATISTICS": os.pathsep.join(["/one", "/two"]),
        "HIERCHAT_DRAFTER_TOKENS": "5000",
        "HIERCHAT_DRAFTER_PORT": "9000",
        "HIERCHAT_DRAFTER_TOKEN": "sixteen letters!",
    }
    expected = DrafterSettings(
        Path("/books/drafts.db"), "mine", (Path("/one"), Path("/two")), 5000, 9000, "sixteen letters!"
    )
    assert drafter_settings.read(variables, "a/model") == expected
    third = drafter_settings.read(variables, "a/model", 2)
    assert (third.file, third.port) == (Path("/books/drafts-2.db"), 9002)
    assert drafter_settings.read({}, "a/model") == DrafterSettings(data_dir() / "vllm-drafts.db", "a/model")


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"PORT": "9000"}, "HIERCHAT_DRAFTER_TOKEN to a secret of 16"),
        ({"PORT": "9000", "TOKEN": "short"}, "HIERCHAT_DRAFTER_TOKEN to a secret of 16"),
        ({"PORT": "70000", "TOKEN": "x" * 16}, "HIERCHAT_DRAFTER_PORT=70000: give a whole number"),
        ({"TOKENS": "many"}, "HIERCHAT_DRAFTER_TOKENS=many"),
        ({"TOKENS": "0"}, "from 1"),
    ],
)
def test_what_is_wrong_is_named(variables: dict[str, str], sentence: str) -> None:
    given = {f"HIERCHAT_DRAFTER_{name}": value for name, value in variables.items()}
    with pytest.raises(DrafterSettingsError, match=sentence):
        drafter_settings.read(given, "a/model")


def make_corpus(folder: Path, name: str = "mine", token: int = 9) -> Path:
    tokens = np.array([*POEM, END, BREAK, 7, token, BREAK], np.int32)
    write(folder, tokens, name=name, texts=2, tokenizer="tokenizer", model="tiny", sources=["test"])
    return folder


def test_corpora_draft_for_everyone(
    engines: Callable[..., Engine], environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = steps_of(engines(), [5, 6, 7], POEM)
    environment.setenv("HIERCHAT_DRAFTER_STATISTICS", str(make_corpus(tmp_path / "corpus")))
    engine = engines()
    assert steps_of(engine, [5, 6, 7], POEM, reply="1") < plain
    assert engine.proposer._figures_of({"user": "", "reply": "1"})["accepted"]["statistics"] > 10


def test_a_corpus_is_what_the_program_stores(tmp_path: Path) -> None:
    """The numbers and names that cannot be imported there."""
    assert (user_state.FORM, user_state.SEED_NAME, TARGET) == (FORM, SEED_NAME, OURS)
    for name, slot in ((SEED_NAME, SEED), ("mine", CORPUS)):
        assert user_state.read_corpus(make_corpus(tmp_path / name, name), VOCABULARY).slot == slot


def test_a_corpus_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    make_corpus(tmp_path / "large", token=VOCABULARY)
    altered = make_corpus(tmp_path / "altered") / "order.npy"
    np.save(altered, np.load(altered) + 1_000_000)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "meta.json").write_text("{}")
    for folder, said in (
        ("missing", "missing cannot be used: No such file"),
        ("large", "another model's tokens"),
        ("altered", r"order\.npy is altered"),
        ("empty", "no corpus, or is damaged"),
    ):
        with pytest.raises(DrafterSettingsError, match=said):
            user_state.read_corpus(tmp_path / folder, VOCABULARY)


def test_requests_say_whose_they_are() -> None:
    said = {"user": "ann", "reply": "m1", "drafts": 3, "learn": 0, "texts": 0}
    extra = {f"hierchat_{name}": value for name, value in said.items()}
    parameters = SimpleNamespace(extra_args=extra, stop_token_ids=[4], eos_token_id=2, max_tokens=9)
    assert asked("cmpl-1", parameters) == RequestOptions("m1", "ann", False, 3, False, frozenset({2, 4}), 9)
    assert asked("cmpl-1", None) == RequestOptions("cmpl-1", learn=False)
    strange = {"hierchat_user": ["ann"], "hierchat_reply": "x" * 201, "hierchat_drafts": "many"}
    assert asked("cmpl-1", SimpleNamespace(extra_args=strange)) == RequestOptions("cmpl-1", learn=False)
