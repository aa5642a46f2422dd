"""Loading where a GPU fails: the processor computes the model, and the user is told."""

import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from hierchat.config import GenerationSettings
from hierchat.engine import backends
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.sampling.sampler import BrokenLogits
from hierchat.models.catalogue import Catalogue, Folder, ModelEntry, ModelSource
from hierchat.models.progress import DeviceError, UnsupportedError
from hierchat.runtime import kernels
from hierchat.runtime.kernels import DRAFTING, Compiling
from hierchat.runtime.loading import LoadOptions, load_served_model
from hierchat.runtime.model_slot import ModelSlot
from tests.testing.tiny import tokens_of
from tests.testing.tiny_chat import model, settle, tokenizer

ON_CPU = LoadOptions(device="cpu")


@pytest.fixture
def entry(tmp_path: Path) -> ModelEntry:
    model().save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    return ModelEntry(name="tiny", source=ModelSource(folder=Folder(path=tmp_path / "model")))


def test_where_a_gpu_fails_the_processor_answers(entry: ModelEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    select_implementation = backends.select_implementation
    asked: list[Any] = []

    def failing(loaded: Any, *given: Any) -> Any:
        asked.append(loaded.device)
        if len(asked) == 1:
            raise DeviceError("NVIDIA Z9 does not compute tiny in any way (memory ran out).")
        return select_implementation(loaded, *given)

    monkeypatch.setattr(backends, "select_implementation", failing)
    reports: list[str] = []
    served = load_served_model(entry, ON_CPU, lambda progress: reports.append(progress.message))
    said = "NVIDIA Z9 does not compute tiny in any way (memory ran out). The processor computes it instead."
    assert served.note == said
    assert said in reports
    assert asked == ["cpu", "cpu"]
    steps = served.engine.generate(GenerationRequest([5, 6, 7], GenerationSettings(max_new_tokens=4)))
    assert [step.finish for step in steps][-1] in ("length", "end")


def test_a_single_rung_that_fails_is_an_error(entry: ModelEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*given: Any) -> Any:
        raise DeviceError("NVIDIA Z9 stopped answering.")

    monkeypatch.setattr(backends, "select_implementation", failing)
    with pytest.raises(DeviceError, match="stopped answering"):
        load_served_model(entry, LoadOptions(device="cpu", implementation="graphs"))


def test_the_first_replies_wait_for_no_drafts(entry: ModelEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    """While what drafts is being compiled the model answers; then the next reply is drafted."""
    compiled = threading.Event()

    class Slow(Compiling):
        def __init__(self, *parts: Any) -> None:
            super().__init__(())

        def __contains__(self, part: str) -> bool:
            return part == DRAFTING and not compiled.is_set()

        def wait(self, part: str, report: Any) -> None:
            assert part != DRAFTING or compiled.wait(60)

    monkeypatch.setattr(kernels, "Compiling", Slow)
    hosted = load_served_model(entry, LoadOptions(device="cpu", waits=False))
    assert hosted.drafts
    assert not hosted.drafting_ready.is_set()
    compiled.set()
    assert hosted.drafting_ready.wait(60)
    assert hosted.drafting_ready.is_set()
    assert load_served_model(entry, ON_CPU).drafting_ready.is_set()


def test_a_hostile_template_is_found_before_the_model_leaves(entry: ModelEntry, tmp_path: Path) -> None:
    evil = tmp_path / "evil"
    shutil.copytree(tmp_path / "model", evil)
    (evil / "chat_template.jinja").write_text("{{ ''.__class__ }}{{ messages[0].content.__class__.x }}")
    entries = {"tiny": entry, "evil": ModelEntry(name="evil", source=ModelSource(folder=Folder(path=evil)))}
    slot = ModelSlot(Catalogue(models=entries, default="tiny"))
    slot.start("tiny")
    present = settle(slot).model
    assert present
    slot.start("evil")
    said = settle(slot).status.message
    assert said.startswith(
        "The chat template of evil was stopped, for it reaches for what is not its own: access to"
    )
    assert said.endswith(" Choose another model, or another file of this one. tiny goes on answering.")
    assert slot.model is present
    with pytest.raises(UnsupportedError, match="The chat template of evil was stopped"):
        load_served_model(entries["evil"], ON_CPU)


@pytest.mark.parametrize("blocks", [None, 8])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_no_numbers_are_told_and_the_model_before_goes_on(
    entry: ModelEntry, tmp_path: Path, blocks: Any, value: float
) -> None:
    """All replies meet them: the load tells. Those with one token do: the reply with it tells, and no other one."""
    poison, entries = 65, {"tiny": entry}
    for name, weight, row in (("damaged", "lm_head", 7), ("poisoned", "model.embed_tokens", poison)):
        file = shutil.copytree(tmp_path / "model", tmp_path / name) / "model.safetensors"
        weights = load_file(file)
        weights[f"{weight}.weight"][row] = value
        save_file(weights, file, {"format": "pt"})
        source = ModelSource(folder=Folder(path=file.parent))
        entries[name] = ModelEntry(name=name, source=source, blocks=blocks)
    slot = ModelSlot(Catalogue(models=entries, default="tiny"))

    def load(name: str) -> str:
        slot.start(name)
        return settle(slot).status.message

    def reply(*prompt: int) -> list[int]:
        assert slot.model
        return tokens_of(
            slot.model.engine.generate(GenerationRequest(prompt, GenerationSettings(max_new_tokens=4)))
        )

    load("tiny")
    said = reply(5, 6, 7)
    assert re.search("damaged (could not|cannot) be .* no numbers.* tiny goes on answering", load("damaged"))
    assert reply(5, 6, 7) == said
    assert load("poisoned") == ""
    with pytest.raises(BrokenLogits, match="its weights are damaged"):
        reply(5, poison, 7)
    assert reply(5, 6, 7)
    assert load("tiny") == ""
    assert reply(5, 6, 7) == said
