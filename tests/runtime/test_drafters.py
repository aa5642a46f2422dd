"""The draft models below a model: which are loaded or left out and why, what is kept; what texts would bring."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MambaConfig, MambaForCausalLM

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_cost import LatencyCurve
from hierchat.drafting.proposer import Proposer

# Before the cache moves, so that these are compiled once
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import PROBES
from hierchat.engine.runner import CachedSequence
from hierchat.hierarchy.plan import Plan
from hierchat.models import device_memory
from hierchat.models.catalogue import Catalogue, Folder, ModelEntry, Size
from hierchat.runtime.drafters import Memory, with_models
from hierchat.runtime.loading import LoadOptions, load_served_model
from hierchat.runtime.served_model import Levels, ServedModel
from hierchat.store import Store
from tests.testing import tiny_chat as tiny
from tests.testing.tiny_chat import END, tokenizer

LAYERS = 12
"""Layers of the target: a draft with one of them is several times faster."""


@torch.no_grad()
def model(layers: int = 1, seed: int = 0, **changed: Any) -> Any:
    """Only its first layer does anything: with any number of layers it says the same."""
    made = tiny.model(seed, num_hidden_layers=LAYERS, initializer_range=0.3, **changed)
    for layer in made.model.layers[1:]:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    made.model.layers = made.model.layers[:layers]
    made.config.num_hidden_layers = layers
    return made


def save(folder: Path, made: Any, tokens: Any = None) -> Path:
    made.save_pretrained(folder)
    (tokens or tokenizer()).save_pretrained(folder)
    return folder


def catalogue(folder: Path, *drafts: str, layers: int = LAYERS, **fields: Any) -> Catalogue:
    """The target, and drafts in folders beside it; `fields` of the drafts' entries."""
    save(folder / "target", model(layers))

    def entry(name: str, **more: Any) -> ModelEntry:
        return ModelEntry(**{"name": name, "source": {"folder": Folder(path=folder / name)}, **more})

    target = entry("target", drafts=drafts)
    entries = [target, *(entry(name, **{"draft_only": True, **fields}) for name in drafts)]
    return Catalogue(models={one.name: one for one in entries}, default="target")


def slot(models: Catalogue, store: Store | None = None) -> tuple[ServedModel, Levels]:
    """The target, which answers, and what stands below it."""
    served = load_served_model(
        models.entry("target"),
        LoadOptions("float32", catalogue=models, learned=store.learned if store else None),
    )
    settings = GenerationSettings(max_new_tokens=4, logit_bias={END: -100.0})
    assert list(served.engine.generate(GenerationRequest([5, 6, 7], settings)))[-1].finish == "length"
    assert served.levels
    return served, served.levels


# Drafts, and what may be wrong with them


def other_tokens(folder: Path) -> None:
    longer = copy.deepcopy(tokenizer())
    longer.add_tokens(["lighthouse"])
    save(folder, model(vocab_size=len(longer)), longer)


def cut_off(folder: Path) -> None:
    file = save(folder, model()) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def padded(folder: Path) -> None:
    save(folder, model(vocab_size=len(tokenizer()) + 24))


def too_few(folder: Path) -> None:
    save(folder, model(vocab_size=len(tokenizer()) - 8))


def poisoned(folder: Path, weight: str, row: slice | int, value: float) -> None:
    file = save(folder, model()) / "model.safetensors"
    weights = load_file(file)
    weights[weight][row] = value
    save_file(weights, file, {"format": "pt"})


def nowhere_a_number(folder: Path) -> None:
    poisoned(folder, "model.layers.0.mlp.down_proj.weight", 3, float("inf"))


def recurrent(folder: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 1, "time_step_rank": 2}
    made = MambaForCausalLM(MambaConfig(vocab_size=len(tokenizer()), eos_token_id=END, **sizes))
    save(folder, made)


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
    for module in ("drafters", "loading"):
        monkeypatch.setattr(f"hierchat.runtime.{module}.measure", by_size)


def by_size(latency: LatencyCurve, sequence: CachedSequence) -> None:
    """What steps cost, without a clock: which of two is faster must not depend on what else the machine does."""
    config = sequence.runner.model.config
    ms = float(config["num_hidden_layers"] if isinstance(config, dict) else config.num_hidden_layers)
    for width in PROBES:
        latency.note(width, len(sequence.tokens), ms * (1 + width / 100))


def prior(levels: Levels, below: int = 0) -> float:
    """What was measured of a draft model and the target after loading."""
    return levels.hierarchy.agreement(below, levels.hierarchy.target, 0).acceptance().overall


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "tokens": (other_tokens, r"^other tokens: they, or their numbers, are not those of the target$"),
    "cut": (cut_off, r"model\.safetensors is broken: .* Fetch or copy it again"),
    "few": (too_few, r"^other tokens: the target has \d+ tokens and the draft model \d+$"),
    "state": (recurrent, "taken back"),
    "numbers": (nowhere_a_number, "computes no numbers"),
}


def test_what_drafts_and_what_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One target with every kind of draft model beside it: what is left out takes none of the others along."""
    save(tmp_path / "small", model())
    save(tmp_path / "stranger", model(2, seed=1))
    save(tmp_path / "slow", model(LAYERS))
    padded(tmp_path / "padded")
    for name, (make, _) in BROKEN.items():
        make(tmp_path / name)
    models = catalogue(tmp_path, "stranger", "slow", "small", "padded", "packed", *BROKEN, "absent", "large")
    models.models["absent"] = ModelEntry(name="absent", source={"hub": {"repo": "nobody/small"}})  # type: ignore[arg-type]
    large = models.entry("small").model_copy(update={"name": "large", "size": Size(parameters=10**9)})
    packed = models.entry("padded").model_copy(update={"name": "packed", "blocks": 8})
    models.models.update(large=large, packed=packed)
    monkeypatch.setattr(device_memory, "free_memory", lambda device: 10**9)
    served, levels = slot(models)
    names = levels.hierarchy.names
    assert (set(names[:3]), names[3:]) == ({"small", "padded", "packed"}, ("stranger", "target"))
    costs = [one.latency.step_ms(0)[0] for one in levels.models]
    assert costs == sorted(costs)
    assert served.engine.sequence not in levels.sequences
    at = names.index("small")
    assert prior(levels, names.index("stranger")) < 0.5 < 0.9 < prior(levels, at) <= 1.0
    for name in ("padded", "packed"):
        assert levels.sequences[names.index(name)].vocabulary != served.engine.sequence.vocabulary
    reasons = levels.left_out
    assert set(reasons) == {*BROKEN, "slow", "absent", "large"}
    for name, (_, why) in BROKEN.items():
        assert re.search(why, reasons[name]), name
    assert reasons["absent"] == "not on this machine; `python -m hierchat models get absent` fetches it"
    assert re.fullmatch(r"no faster than the model itself: 12\.\d ms each time .*", reasons["slow"])
    assert re.search(r"large needs about 4\.6 GB of memory .* 1\.0 GB are free", reasons["large"])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_draft_that_a_token_makes_compute_no_numbers_is_left_out_then(tmp_path: Path, value: float) -> None:
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
        assert (level in hierarchy.broken) == broken
    assert level not in hierarchy.found(9).plan.levels


def test_what_was_measured_is_kept(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage is a fresh start, and what cannot be kept is not heard of."""
    save(tmp_path / "small", model())
    save(tmp_path / "other", model())
    models, keys = catalogue(tmp_path, "small"), list[tuple[str, str]]()
    keep = store.learned.keep_agreement
    with monkeypatch.context() as patched:
        patched.setattr(store.learned, "keep_agreement", lambda *key: keys.append(key[:2]) or keep(*key))
        _, levels = slot(models, store)
    priors = levels.hierarchy.priors
    assert set(priors) == {(0, 1)}
    with Store.open(store.path) as reopened, monkeypatch.context() as patched:
        patched.setattr("hierchat.runtime.drafters.agreement", lambda *_: pytest.fail("compared again"))
        _, again = slot(models, reopened)
    assert again.hierarchy.priors == priors
    assert slot(catalogue(tmp_path, "other"), store)[1].hierarchy.names == ("other", "target")
    for damaged in (b"damaged", b'{"names": ["other", "target"]}', b"[[0, 1, 1.5]]", b"[[0, 1]]", b"3"):
        for key in keys:
            store.learned.keep_agreement(*key, damaged)
        _, again = slot(models, store)
        assert again.hierarchy.names == ("small", "target")
        assert again.hierarchy.priors == priors
    store.connection._idle[-1].execute("PRAGMA query_only = ON")
    assert slot(models, store)[1].hierarchy.priors == priors
