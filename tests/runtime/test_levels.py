"""The draft models below a model: which are loaded, which are left out and why, and what is kept of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_tree import LatencyCurve
from hierchat.drafting.proposer import Proposer

# Before the cache moves, so that these are compiled once
from hierchat.engine.draft_model import FewerTokens
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.latency import PROBES
from hierchat.engine.runner import CachedSequence
from hierchat.hierarchy.plan import Plan
from hierchat.models import device_memory
from hierchat.models.catalogue import ModelEntry, Size
from hierchat.models.load.tokenizer_files import KNOWN_TOKENS_FILE
from hierchat.runtime.drafters import Levels, Memory, with_models
from hierchat.store import Store
from tests.testing.tiny_chat import ready_slot

from ..chat.conftest import talk_on
from .drafts import (
    KNOWN,
    LAYERS,
    catalogue,
    cut_off,
    damaged_list,
    distilled,
    list_of_another,
    model,
    no_list,
    nowhere_a_number,
    other_tokens,
    poisoned,
    recurrent,
    save,
    slot,
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models come again and again: what their self-test found is kept."""
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


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "tokens": (other_tokens, r"^other tokens: the target has \d+ tokens and the draft model \d+$"),
    "cut": (cut_off, r"model\.safetensors is broken: .* Fetch or copy it again"),
    "list": (damaged_list, rf"{KNOWN_TOKENS_FILE} cannot be read: .* Distil the draft again"),
    "another": (list_of_another, r"Distil the draft again"),
    "none": (no_list, r"tokens, and the list of them is missing\. Distil the draft again"),
    "state": (recurrent, "taken back"),
    "numbers": (nowhere_a_number, "computes no numbers"),
}


def test_what_drafts_and_what_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One target with every kind of draft model beside it: what is left out takes none of the others along."""
    save(tmp_path / "small", model())
    save(tmp_path / "stranger", model(2, seed=1))
    save(tmp_path / "slow", model(LAYERS))
    np.save(distilled(tmp_path / "distilled") / KNOWN_TOKENS_FILE, KNOWN)
    for name, (make, _) in BROKEN.items():
        make(tmp_path / name)
    models = catalogue(tmp_path, "stranger", "slow", "small", "distilled", *BROKEN, "absent", "large")
    models.models["absent"] = ModelEntry(name="absent", source={"hub": {"repo": "nobody/small"}})  # type: ignore[arg-type]
    large = models.entry("small").model_copy(update={"name": "large", "size": Size(parameters=10**9)})
    models.models["large"] = large
    monkeypatch.setattr(device_memory, "free_memory", lambda device: 10**9)
    served, levels = slot(models)
    names = levels.hierarchy.names
    assert (set(names[:2]), names[2:]) == ({"small", "distilled"}, ("stranger", "target"))
    costs = [one.latency.step_ms(0)[0] for one in levels.models]
    assert costs == sorted(costs)
    assert served.engine.sequence not in levels.sequences
    at = names.index("small")
    assert prior(levels, names.index("stranger")) < 0.5 < 0.9 < prior(levels, at) <= 1.0
    few = levels.sequences[names.index("distilled")]
    assert isinstance(few, FewerTokens)
    assert few.vocabulary == served.engine.sequence.vocabulary
    reasons = {one.name: one.reason for one in levels.left_out}
    assert set(reasons) == {*BROKEN, "slow", "absent", "large"}
    for name, (_, why) in BROKEN.items():
        assert re.search(why, reasons[name]), name
    assert reasons["absent"] == "not on this machine; `python -m hierchat models get absent` fetches it"
    assert re.fullmatch(r"no faster than the model itself: 12\.\d ms each time .*", reasons["slow"])
    assert re.search(r"large needs about 4\.6 GB of memory on cpu .* 1\.0 GB are free", reasons["large"])
    for _ in range(50):
        levels.hierarchy.agreement(at, 3, 0).note(["kept"], 0)
    some = levels.only(["small"])
    assert (some.hierarchy.names, some.left_out) == (("small", "target"), levels.left_out)
    assert some.models == (levels.models[at],)
    assert prior(some) > 0.9 > prior(levels, at)  # as after loading
    assert levels.only([]).hierarchy.names == ("target",)
    for name in ("target", "cut", "nobody"):
        with pytest.raises(KeyError, match=name):
            levels.only(["small", name])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_draft_that_one_token_makes_compute_no_numbers_is_left_out_then(
    tmp_path: Path, value: float
) -> None:
    """The proof at the load reads no text with that token. The reply is the model's own, and goes on."""
    poison = 65
    poisoned(tmp_path / "poisoned", "model.embed_tokens.weight", poison, value)
    save(tmp_path / "small", model())
    served, levels = slot(catalogue(tmp_path, "poisoned", "small"))
    hierarchy, settings = levels.hierarchy, GenerationSettings(max_new_tokens=24)
    assert set(hierarchy.names) == {"poisoned", "small", "target"}
    level = hierarchy.names.index("poisoned")

    def reply(prompt: list[int], drafter: Proposer | None = None) -> list[int]:
        return [
            token
            for step in served.engine.generate(GenerationRequest(prompt, settings, drafter))
            for token in step.tokens
        ]

    plan = Plan((level, hierarchy.target), (4,), retrieval=True)
    for prompt, broken in (([5, 7, 9], False), ([5, poison, 7, 9], True), ([5, 7, 9], True)):
        drafter = with_models(served, Memory(), settings, Event(), levels, plan)
        assert reply(prompt, drafter) == reply(prompt)
        assert ("computed no numbers" in hierarchy.without(level, 9)) == broken
    assert level not in hierarchy.found(9).plan.levels


def test_a_distilled_draft_below_blocks(tmp_path: Path) -> None:
    np.save(distilled(tmp_path / "small") / KNOWN_TOKENS_FILE, KNOWN)
    _, levels = slot(catalogue(tmp_path, "small", blocks=8))
    assert levels.hierarchy.names == ("small", "target")
    assert isinstance(levels.sequences[0], FewerTokens)


def test_the_chat_goes_on(tmp_path: Path, store: Store) -> None:
    save(tmp_path / "small", model())
    cut_off(tmp_path / "broken")
    models = catalogue(tmp_path, "small", "broken")
    talk = talk_on(store, ready_slot(lambda name, report: replace(slot(models, store)[0], name=name)))
    assert talk.send("hello").finish == "length"
    talk.service.close()


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
        (small,) = levels.models
        assert store.learned.latency(*small.key) == small.latency.state()
    with Store.open(tmp_path / "chat.db") as store:
        with monkeypatch.context() as patched:
            patched.setattr("hierchat.runtime.drafters.agreement", lambda *_: pytest.fail("compared again"))
            _, again = slot(models, store)
        assert again.hierarchy.state() == state
        assert again.key == levels.key
        _, other = slot(catalogue(tmp_path, "other"), store)
        assert other.hierarchy.state() != state


def test_damage_is_a_fresh_start(tmp_path: Path, store: Store) -> None:
    save(tmp_path / "small", model())
    models = catalogue(tmp_path, "small")
    _, levels = slot(models, store)
    fresh = levels.hierarchy.state()
    learned(levels)
    assert levels.key
    for damaged in (b"damaged", b'{"names": ["other", "target"]}'):
        for key in (levels.models[0].key, levels.key):
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
    assert levels.key
    assert store.learned.latency(*levels.key) is None
    store.close()
