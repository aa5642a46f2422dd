"""The draft models below a model: which are loaded, which are left out and why, and what is kept of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

# Before the cache moves, so that these are compiled once
from hierchat.engine.draft_model import FewerTokens
from hierchat.engine.latency import PROBES, LatencyCurve
from hierchat.engine.runner import CachedSequence
from hierchat.models import device_memory
from hierchat.models.catalogue import Size
from hierchat.models.load.tokenizer_files import KNOWN_TOKENS_FILE, write_known
from hierchat.runtime.levels import Levels
from hierchat.store import Store
from tests.testing.tiny_chat import ready_slot

from ..chat.conftest import talk_on
from ..chat.drafts import (
    KNOWN,
    LAYERS,
    catalogue,
    cut_off,
    damaged_list,
    distilled,
    list_of_another,
    model,
    no_list,
    other_tokens,
    recurrent,
    save,
    slot,
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same models come again and again: what their self-test found is kept."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _places(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration of each test's own, and no GPU."""
    monkeypatch.setenv("HIERCHAT_CACHE", str(cache))
    monkeypatch.setenv("HIERCHAT_CONFIG", str(tmp_path / "config"))
    monkeypatch.setattr(device_memory, "cuda_driver", lambda: False)
    monkeypatch.setattr("hierchat.runtime.costs.measure", by_size)


def by_size(latency: LatencyCurve, sequence: CachedSequence, seconds: float) -> None:
    """What steps cost, without a clock: which of two is faster must not depend on what else the machine does."""
    inner = sequence._inner if isinstance(sequence, FewerTokens) else sequence
    config = inner.runner.model.config
    ms = float(config["num_hidden_layers"] if isinstance(config, dict) else config.num_hidden_layers)
    for width in PROBES:
        latency.note(width, len(sequence.tokens), ms * (1 + width / 100))


def prior(levels: Levels, below: int = 0) -> float:
    """What was measured of a draft model and the target after loading."""
    return levels.hierarchy.agreement(below, levels.hierarchy.target, 0).acceptance().overall


def left_out(levels: Levels) -> str:
    """Why the only draft is not there."""
    assert levels.sequences == levels.latencies == ()
    assert levels.hierarchy.names == ("target",)
    ((name, reason),) = [(one.name, one.reason) for one in levels.left_out]
    assert name == "small"
    return reason


def test_a_smaller_model_stands_below_the_target(tmp_path: Path) -> None:
    save(tmp_path / "small", model())
    served, levels = slot(catalogue(tmp_path, "small"))
    assert levels.hierarchy.names == ("small", "target")
    assert levels.left_out == ()
    (target,), (latency,) = levels.sequences, levels.latencies
    assert target is not served.engine.sequence
    assert latency is not served.engine.latency
    assert latency.step_ms(0)[0] > 0
    assert 0.9 < prior(levels) <= 1.0  # it is the same model


def test_a_model_that_says_something_else_agrees_seldom(tmp_path: Path) -> None:
    save(tmp_path / "small", model(seed=1))
    _, levels = slot(catalogue(tmp_path, "small"))
    assert 0.0 <= prior(levels) < 0.5


@pytest.mark.parametrize("blocks", [None, 8])
def test_a_distilled_draft_answers_for_all_tokens(tmp_path: Path, blocks: int | None) -> None:
    write_known(distilled(tmp_path / "small"), KNOWN)
    served, levels = slot(catalogue(tmp_path, "small", blocks=blocks))
    assert levels.hierarchy.names == ("small", "target")
    assert isinstance(levels.sequences[0], FewerTokens)
    assert levels.sequences[0].vocabulary == served.engine.sequence.vocabulary
    assert 0.0 <= prior(levels) <= 1.0


def test_the_faster_draft_stands_lower(tmp_path: Path) -> None:
    for name, layers in (("middle", 3), ("small", 1)):
        save(tmp_path / name, model(layers))
    _, levels = slot(catalogue(tmp_path, "middle", "small"))
    assert set(levels.hierarchy.names) == {"middle", "small", "target"}
    costs = [latency.step_ms(0)[0] for latency in levels.latencies]
    assert costs == sorted(costs)


# Left out


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (other_tokens, r"^other tokens: the target has \d+ tokens and the draft model \d+$"),
        (cut_off, r"model\.safetensors is broken: .* Fetch or copy it again"),
        (damaged_list, rf"{KNOWN_TOKENS_FILE} cannot be read: .* Distil the draft again"),
        (list_of_another, r"Distil the draft again"),
        (no_list, r"tokens, and the list of them is missing\. Distil the draft again"),
        (recurrent, "taken back"),
    ],
)
def test_a_draft_that_cannot_be_used_is_left_out(
    tmp_path: Path, make: Callable[[Path], None], why: str
) -> None:
    make(tmp_path / "small")
    _, levels = slot(catalogue(tmp_path, "small"))
    assert re.search(why, left_out(levels))


def test_a_draft_that_was_not_fetched_is_left_out_and_not_fetched(tmp_path: Path) -> None:
    _, levels = slot(catalogue(tmp_path, "small", source={"hub": {"repo": "nobody/small"}}))
    assert left_out(levels) == "not on this machine; `python -m hierchat models get small` fetches it"


def test_a_draft_that_is_no_faster_is_left_out(tmp_path: Path) -> None:
    save(tmp_path / "small", model(LAYERS))
    _, levels = slot(catalogue(tmp_path, "small", layers=1))
    assert re.fullmatch(
        r"no faster than the model itself: [\d.]+ ms each time it runs, the model [\d.]+", left_out(levels)
    )


def test_a_draft_that_does_not_fit_into_memory_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "small", model())
    monkeypatch.setattr(device_memory, "free_memory", lambda device: 10**9)
    _, levels = slot(catalogue(tmp_path, "small", size=Size(parameters=10**9)))
    assert re.search(r"small needs about 4\.6 GB of memory on cpu .* 1\.0 GB are free", left_out(levels))


def test_one_that_is_left_out_does_not_take_the_others_along(tmp_path: Path) -> None:
    cut_off(tmp_path / "broken")
    save(tmp_path / "small", model())
    _, levels = slot(catalogue(tmp_path, "broken", "small"))
    assert levels.hierarchy.names == ("small", "target")
    assert [one.name for one in levels.left_out] == ["broken"]
    assert prior(levels) > 0.9


def test_without_drafts_there_is_nothing_below(tmp_path: Path) -> None:
    _, levels = slot(catalogue(tmp_path))
    assert levels.sequences == levels.left_out == ()


@pytest.mark.parametrize("make", [lambda folder: save(folder, model()), cut_off])
def test_the_chat_goes_on(tmp_path: Path, store: Store, make: Callable[[Path], Any]) -> None:
    make(tmp_path / "small")
    models = catalogue(tmp_path, "small")
    talk = talk_on(store, ready_slot(lambda name, report: replace(slot(models, store)[0], name=name)))
    assert talk.send("hello").finish == "length"
    talk.service.close()


# Some of them, and what is kept


def test_some_of_them(tmp_path: Path) -> None:
    for name, layers in (("middle", 3), ("small", 1)):
        save(tmp_path / name, model(layers))
    cut_off(tmp_path / "broken")
    _, levels = slot(catalogue(tmp_path, "broken", "middle", "small"))
    at = levels.hierarchy.names.index("middle")
    for _ in range(50):
        levels.hierarchy.agreement(at, 2, 0).note(["kept"], 0)
    few = levels.only(["middle"])
    assert few.hierarchy.names == ("middle", "target")
    assert few.sequences == (levels.sequences[at],)
    assert few.latencies == (levels.latencies[at],)
    assert few.left_out == levels.left_out
    assert prior(few) > 0.9 > prior(levels, at)  # as after loading
    assert levels.only([]).hierarchy.names == ("target",)
    for name in ("target", "broken", "nobody"):
        with pytest.raises(KeyError, match=name):
            levels.only(["small", name])


def learned(levels: Levels) -> bytes:
    """What is known of them after some steps."""
    hierarchy = levels.hierarchy
    hierarchy.begin_reply()
    hierarchy.agreement(0, 1, 0).note(["kept", "kept", "bonus"], 1)
    hierarchy.agreement(0, 1, 5_000).note(["kept", "corrected"], 2)
    hierarchy.retrieval_estimate(0, 0).note(3, True, 1.5)
    hierarchy.saw_tree(2.5, 3.0)
    return hierarchy.state()


def test_what_was_learned_is_there_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, layers in (("small", 1), ("other", 1)):
        save(tmp_path / name, model(layers))
    models = catalogue(tmp_path, "small")
    with Store.open(tmp_path / "chat.db") as store:
        _, levels = slot(models, store)
        assert levels.hierarchy.state() != (state := learned(levels))
        levels.keep(store.learned)
        assert store.learned.latency(*levels.keys[0]) == levels.latencies[0].state()
    with Store.open(tmp_path / "chat.db") as store:
        with monkeypatch.context() as patched:
            patched.setattr("hierchat.runtime.levels.agreement", lambda *_: pytest.fail("compared again"))
            _, again = slot(models, store)
        assert again.hierarchy.state() == state
        assert again.keys == levels.keys
        _, other = slot(catalogue(tmp_path, "other"), store)
        assert other.hierarchy.state() != state


@pytest.mark.parametrize("damaged", [b"", b"{}", b"damaged", b'{"names": ["other", "target"]}'])
def test_damage_is_a_fresh_start(tmp_path: Path, store: Store, damaged: bytes) -> None:
    save(tmp_path / "small", model())
    models = catalogue(tmp_path, "small")
    _, levels = slot(models, store)
    fresh = levels.hierarchy.state()
    learned(levels)
    for key in levels.keys:
        store.learned.keep_latency(*key, damaged)
    _, again = slot(models, store)
    assert again.hierarchy.names == ("small", "target")
    assert again.hierarchy.state() == fresh


def test_what_cannot_be_kept_is_not_heard_of(tmp_path: Path) -> None:
    save(tmp_path / "small", model())
    store = Store.open(tmp_path / "chat.db")
    _, levels = slot(catalogue(tmp_path, "small"), store)
    db = store.connection._idle[-1]
    db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")
    levels.keep(store.learned)
    assert store.learned.latency(*levels.keys[-1]) is None
    store.close()
