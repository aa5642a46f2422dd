"""Training a draft head: it learns, goes on where it ended, and what it was trained on takes it along when it goes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from hierchat.cli import chat as commands
from hierchat.config import GenerationSettings
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.local import LocalEngine
from hierchat.models.formats.blocks import pack
from hierchat.models.formats.head_files import KNOWN, card_of, tensors_of
from hierchat.runtime import head_training, loading
from hierchat.runtime.head_training import HeadTraining, TooFewTexts, look, pieces_of, texts_of
from hierchat.runtime.served_model import HEAD, Learned, ServedModel
from hierchat.store import LOCAL_USER, Store
from hierchat.store.generated import GeneratedText
from hierchat.texts.build import Statistics
from hierchat.texts.corpora import SEED_NAME
from tests.testing import tiny_chat
from tests.testing.tiny import CONTEXT, block_model, text_of, tiny_model

TARGET = block_model(tiny_model(), lambda floats: pack(floats, 8))


@pytest.fixture(scope="module")
def served() -> ServedModel:
    engine = LocalEngine(CpuRunner(TARGET, context_length=CONTEXT, threads=2).open(), (), text_of)
    return replace(tiny_chat.served(), engine=engine, model_key="key of heads")


@pytest.fixture(scope="module")
def texts(served: ServedModel) -> list[list[int]]:
    """What the model itself writes behind some beginnings."""
    found = []
    for number in range(24):
        prompt = [number, number + 1]
        steps = served.local.plain(prompt, GenerationSettings(max_new_tokens=100))
        found.append([*prompt, *(token for _, step in steps for token in step.tokens)])
    return found


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_training, "FEWEST", 500)
    monkeypatch.setattr(head_training, "HELD_OUT", 4)


def trained(served: ServedModel, texts: list[list[int]], rounds: int = 1) -> HeadTraining:
    training = HeadTraining(served, texts)
    for _ in range(rounds):
        training.round(2e-3)
    return training


def test_it_learns_and_goes_on_where_it_ended(served: ServedModel, texts: list[list[int]]) -> None:
    several = texts * 3  # what is held out is trained on, too: of a random model nothing else can be learned
    begun = trained(served, several, rounds=30)
    right = begun.accuracy()
    assert right[0] > HeadTraining(served, several).accuracy()[0] + 0.1
    data = begun.to_bytes()
    card = card_of(data)
    assert card
    assert (card.target, card.model) == (served.model_key, served.name)
    assert card.tokens >= 30 * 8 * 16
    again = HeadTraining(served, several, data)
    assert again.card == card
    assert again.accuracy()[0] == pytest.approx(right[0], abs=0.03)  # but for halves in place of floats
    begun.module.fc.data[0, 0] = float("nan")
    useless = [(replace(served, model_key="another"), data), (served, data[: len(data) // 2])]
    for other, begun_with in [*useless, (served, begun.to_bytes())]:  # of another model; broken; no number
        assert HeadTraining(other, several, begun_with).card.tokens == 0


def test_what_it_reads(served: ServedModel) -> None:
    text = list(range(40))
    piece = look(served.local.sequence, text)
    served.local.clear()
    expected = served.local.sequence.forward(text, range(-1, 39))
    assert piece.labels.tolist() == [int(expected[node].argmax()) for node in range(40)]
    hidden = expected.hidden(range(40))
    assert hidden is not None
    assert np.abs(piece.states * piece.scales[:, None] - hidden).max() <= np.abs(hidden).max() / 127
    assert [len(one) for one in pieces_of([[1] * 300, [2] * 15, [3] * 16])] == [128, 128, 44, 16]


def test_too_little_text_is_told(served: ServedModel) -> None:
    with pytest.raises(TooFewTexts, match=r"There are 100 tokens of text .* at least 500"):
        HeadTraining(served, [[1] * 100])


def test_it_is_stopped(served: ServedModel, texts: list[list[int]]) -> None:
    """At every place where it asks whether it goes on: what was not finished counts for nothing."""
    training, left = HeadTraining(served, texts), iter(range(1000))
    training.round(1e-3, lambda: next(left) >= 0)
    asked, card = next(left), training.card
    for most in (0, 1, asked // 2, asked - 1):
        calls = iter([True] * most)
        training.run(60, goes_on=lambda calls=calls: next(calls, False))
        assert training.judge(lambda: False).tokens == card.tokens
    assert tensors_of(training.to_bytes())[KNOWN].size > 0


def test_texts_are_a_users_own_and_those_that_ship(served: ServedModel, tmp_path: Path) -> None:
    shipped = np.array([1, 2, 3, -1, 4, 5, -1], np.int32)
    with_texts = replace(
        served,
        statistics=(
            Statistics(SEED_NAME, shipped, shipped[:0]),
            Statistics("mine", shipped + 9, shipped[:0]),
        ),
    )
    with Store.open(tmp_path / "a.db") as store:
        user, other = store.users.ensure("ann"), store.users.ensure("bob")
        for owner, ids in ((user, (7, 8)), (other, (9, 9))):
            text = GeneratedText(0, ids, done=True)
            assert store.generated.keep(owner, served.model_key, "k", text, None, deletions=0)
        assert [text for text in texts_of(store, user, with_texts) if text] == [[1, 2, 3], [4, 5], [7, 8]]


def test_it_drafts_for_its_user_and_goes_with_whatever_is_deleted(
    served: ServedModel, texts: list[list[int]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = trained(served, texts).to_bytes()
    with Store.open(tmp_path / "a.db") as store:
        user, other = store.users.ensure("ann"), store.users.ensure("bob")
        learned = Learned(store)
        assert learned.head(user, served) is None
        served.heads.clear()
        assert store.learned.keep(user, served.model_key, HEAD, data)
        head = learned.head(user, served)
        assert head is not None
        assert learned.head(user, served) is head
        assert learned.head(other, served) is None
        for deleted in (store.generated.delete, store.learned.forget):
            deleted(user)
            assert learned.head(user, served) is None
            assert not store.learned.by_model(user, HEAD)
            store.learned.keep(user, served.model_key, HEAD, data)
        assert store.learned.keep(user, served.model_key, HEAD, data[:-9])
        served.heads.clear()
        with caplog.at_level(logging.WARNING):
            assert learned.head(user, served) is None
        assert "The draft head of tiny is not used" in caplog.text
        served.heads.clear()


@pytest.fixture
def run(served: ServedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command over a database of the test's own."""
    monkeypatch.setattr(loading, "load_served_model", lambda *given: served)
    monkeypatch.setattr(commands.options, "catalogue_name", lambda model: None)
    return lambda *words: CliRunner().invoke(commands.head_command, [*words, "--db", str(tmp_path / "a.db")])


def test_the_commands(
    run: Callable[..., Result], texts: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_training, "texts_of", lambda *given: texts)
    file = tmp_path / "tiny.head"

    def said(*words: str) -> str:
        done = run(*words)
        assert done.exception is None, done.output
        return done.output

    assert "There are none yet" in said("list")
    assert "tokens a step by it alone" in said("train", "--minutes", "0.05")
    said("train", "--minutes", "0.05", "--out", str(file))
    card = card_of(file.read_bytes())
    assert card
    assert card.model == "tiny"
    for _ in range(2):
        assert said("list").startswith("tiny: trained for")
        assert "is removed" in said("remove", "tiny")
        assert "There are none yet" in said("list")
        assert said("add", str(file)).startswith("tiny: trained for")
    assert run("add", str(tmp_path / "a.db")).exit_code != 0
    said("remove", "tiny")
    assert "no draft head of 'tiny'" in str(run("remove", "tiny").exception)


def test_a_text_that_is_deleted_meanwhile_takes_the_head_along(
    run: Callable[..., Result], texts: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*given: object) -> list[list[int]]:
        with Store.open(tmp_path / "a.db") as store:
            store.learned.forget(store.users.ensure(LOCAL_USER))
        return texts

    monkeypatch.setattr(head_training, "texts_of", read)
    assert "was deleted meanwhile" in str(run("train", "--minutes", "0.02").exception)
    with Store.open(tmp_path / "a.db") as store:
        assert not store.learned.by_model(store.users.ensure(LOCAL_USER), HEAD)
