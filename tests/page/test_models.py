"""The Models panel: its order, fetching, loading, removing, draft models, adding, and the search of a small hub."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from hierchat.models.fetch.hub import HubFile, HubModel
from hierchat.models.load.add import Described
from hierchat.models.load.check import Fit
from hierchat.page.panels import models_panel
from hierchat.page.panels.models_view import Present, models
from hierchat.runtime.costs import Speed
from hierchat.runtime.downloads import Download, Judged, Look, Search
from hierchat.runtime.model_manager import READABLE, ModelRow
from tests.testing.architectures import write_gguf
from tests.testing.browser import Chat
from tests.testing.fake_hub import REPO, FakeHub
from tests.testing.fake_service import FakeService, SlotStatus
from tests.testing.fake_shelf import row
from tests.testing.raw import ask
from tests.testing.tiny_chat import model as tiny
from tests.testing.tiny_chat import tokenizer

NO = Fit("no", "Needs 21 GB of memory; this machine has 14.9 GB.")


def in_order(rows: list[ModelRow], best: ModelRow | None = None) -> tuple[list[str], list[str]]:
    """Names of those in sight, and of those that are folded away."""
    drawn = models(rows, Present(best, SlotStatus("", "none"), True))
    seen, _, folded = drawn.partition('<details class="hc-models-group')
    return re.findall('data-model="([^"]*)"', seen), re.findall('data-model="([^"]*)"', folded)


def test_what_is_of_no_use_here_is_folded_away() -> None:
    download = Download("coming", "downloading", 1, 2)
    slow, readable = Speed(READABLE - 0.1), Speed(READABLE)
    best = row("best", 4)
    rows = [
        row("present", 1, "here", fit=NO), row("begun", 2, "partly", fit=NO), row("small", 3), best,
        row("large", 5, fit=NO), replace(row("slow", 6), speed=slow), replace(row("slower", 7), speed=readable),
        row("mine", 8, fit=NO, own=True), row("coming", 9, fit=NO, download=download),
        row("tight", 10, fit=Fit("tight", "")), row("unknown", 11, fit=Fit("unknown", "")),
    ]  # fmt: skip
    seen, folded = in_order(rows, best)
    assert seen == ["present", "begun", "best", "small", "slower", "mine", "coming", "tight", "unknown"]
    assert folded == ["large", "slow"]


def test_the_folded_line_stands_only_where_something_is_folded() -> None:
    assert "hc-models-rest" not in models([row("a", 1)], Present(None, SlotStatus("", "none"), True))
    alone = models([row("a", 1, fit=NO)], Present(None, SlotStatus("", "none"), True))
    assert "1 model that does not fit this machine or is too slow here" in alone


def model(chat: Chat, name: str) -> Locator:
    return chat.page.locator(f'.hc-model[data-model="{name}"]')


@pytest.mark.browser
def test_a_model_says_what_it_is_and_lets_others_draft(chat: Chat, service: FakeService) -> None:
    chat.open("?view=models")
    present = model(chat, "SmolLM2 135M")
    expect(present).to_contain_text("Running")
    expect(present).to_contain_text("135M parameters · 81 MB · Apache-2.0")
    expect(present).to_contain_text("61 tokens a second in its last 20 replies")
    expect(model(chat, "Qwen3 0.6B")).to_contain_text("about 48 tokens a second expected")
    large = model(chat, "Qwen3 32B")
    expect(large).to_contain_text("Does not run here. Needs 21 GB")
    expect(large.get_by_role("button")).to_have_count(0)
    expect(model(chat, "Llama 3.2 3B")).to_contain_text("642 MB of 1.9 GB here")
    best = model(chat, "Qwen3 1.7B")
    expect(best).to_contain_text("Recommended")
    expect(best).to_contain_text("Fits. Needs 1.4 GB")
    best.get_by_text("Draft models: none chosen").click()
    expect(best).to_contain_text("SmolLM2 135M: cannot draft, has other tokens")
    expect(best.get_by_role("button", name="Use for drafts")).to_have_count(1)
    chat.press("Use for drafts: Qwen3 0.6B for Qwen3 1.7B")
    said = best.locator(".hc-notice")
    expect(said).to_contain_text("drafts for Qwen3 1.7B from the next time that Qwen3 1.7B is loaded.")
    expect(best.locator("summary")).to_have_text("Draft models: 1 chosen")
    expect(best.get_by_role("button", name="Do not use: Qwen3 0.6B for Qwen3 1.7B")).to_be_focused()
    chat.press("Do not use: Qwen3 0.6B for Qwen3 1.7B")
    expect(said).to_contain_text("no longer drafts")
    expect(best.locator("summary")).to_have_text("Draft models: none chosen")
    pair = "Qwen3 1.7B|Qwen3 0.6B"
    assert service.models.asked == [("draft", pair), ("undraft", pair)]


@pytest.mark.browser
def test_a_model_is_fetched_stopped_taken_up_loaded_and_removed(chat: Chat, service: FakeService) -> None:
    chat.open("?view=models")
    chat.press("Download Qwen3 1.7B")
    fetched = model(chat, "Qwen3 1.7B")
    expect(fetched).to_contain_text("Downloading: 41 MB of 1.0 GB · 5.2 MB a second")
    expect(fetched.locator("progress")).to_be_visible()
    field, shown = chat.page.get_by_label("Filter the list"), chat.page.locator("#hc-models-shown")
    folded = chat.page.get_by_text("1 model that does not fit this machine or is too slow here")
    large = model(chat, "Qwen3 32B")
    expect(large).to_be_hidden()
    folded.focus()
    chat.page.keyboard.press("Enter")
    expect(large).to_be_visible()
    field.fill("qwen3 1")
    expect(shown).to_have_text("Shown: 1 of 5 models.")
    progress = Download("Qwen3 1.7B", "downloading", 82_000_000, 1_032_000_000, 5_200_000.0)
    service.models.change("Qwen3 1.7B", download=progress, state="partly", have=82_000_000)
    expect(fetched).to_contain_text("Downloading: 82 MB of 1.0 GB")  # the page looks again by itself
    expect(chat.page.locator("#hc-models-list .hc-model:visible > h3")).to_have_text(["Qwen3 1.7B"])
    expect(field).to_have_value("qwen3 1")
    field.fill("")
    expect(large).to_be_visible()
    chat.press("Stop Qwen3 1.7B")
    expect(fetched).to_contain_text("Stopped. What was downloaded is kept.")
    chat.press("Resume Qwen3 1.7B")
    expect(fetched).to_contain_text("Downloading")
    assert [act for act, _ in service.models.asked] == ["fetch", "stop", "fetch"]
    assert service.slot.started == []
    service.models.change("Qwen3 1.7B", download=None, state="here")
    service.models.busy = False
    chat.press("Load Qwen3 1.7B")
    expect(fetched).to_contain_text("Running")
    service.models.asked.clear()
    for answer in ("Keep", "Remove"):
        chat.press("Remove Qwen3 0.6B")
        question = chat.page.get_by_role("group", name="Remove Qwen3 0.6B?")
        expect(question).to_contain_text("This frees 358 MB. It can be downloaded again.")
        expect(question.get_by_role("button", name="Keep")).to_be_focused()
        question.get_by_role("button", name=answer).click()
        expect(question).to_have_count(0)
    expect(chat.page.locator("#hc-models-said")).to_contain_text("Qwen3 0.6B is removed from this machine.")
    expect(model(chat, "Qwen3 0.6B")).to_have_count(0)
    assert service.models.asked == [("remove", "Qwen3 0.6B")]


@pytest.mark.browser
def test_what_is_added_is_answered_beside_the_field_and_stays_in_it(chat: Chat, service: FakeService) -> None:
    chat.open("?view=models")
    field = chat.page.get_by_label("Name on the hub, folder or GGUF file")
    said = chat.page.locator("#hc-models-added")
    field.fill("org/tiny")
    field.press("Enter")
    expect(said).to_contain_text("added is in the list now.")
    expect(said).to_be_in_viewport()
    expect(field).to_have_value("org/tiny")
    expect(model(chat, "added")).to_contain_text("Added by you")
    assert service.models.asked == [("add", "org/tiny")]
    chat.press("Show added")
    expect(model(chat, "added")).to_be_in_viewport()
    expect(chat.page.get_by_role("button", name="Load added", exact=True)).to_be_focused()
    chat.press("Add")
    expect(said).to_contain_text("added is in the list already.")
    expect(model(chat, "added")).to_have_count(1)
    service.models.fails = "There is no public repository org/other on the hub. <b>"
    field.fill("org/other")
    chat.press("Add")
    expect(said.get_by_role("alert")).to_have_text(service.models.fails)
    expect(said).to_be_in_viewport()
    expect(field).to_have_value("org/other")
    expect(chat.page.locator("#hc-models-said")).to_be_empty()


@pytest.mark.browser
def test_a_dropped_file_goes_into_the_models_folder(
    chat: Chat, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIERCHAT_DATA", str(tmp_path / "data"))
    body = b"GGUF" + bytes(range(256)) * 30_000
    (tmp_path / "my model.gguf").write_bytes(body)
    (tmp_path / "picture.png").write_bytes(b"PNG")
    (tmp_path / "other.gguf").write_bytes(b"a text")
    chat.open("?view=models")
    said, chosen = chat.page.locator("#hc-model-copying"), chat.page.locator("#hc-model-file")
    chosen.set_input_files(tmp_path / "picture.png")
    expect(said).to_contain_text("picture.png is no GGUF file")
    chosen.set_input_files(tmp_path / "other.gguf")
    expect(said).to_contain_text("This is no GGUF file, whatever its name says.")
    chosen.set_input_files(tmp_path / "my model.gguf")
    expect(model(chat, "added")).to_be_visible()
    expect(said).to_be_empty()
    assert service.models.asked == [("add", "my model.gguf")]
    assert [file.name for file in (tmp_path / "data" / "models").iterdir()] == ["my model.gguf"]
    assert (tmp_path / "data" / "models" / "my model.gguf").read_bytes() == body
    chosen.set_input_files(tmp_path / "my model.gguf")
    expect(said).to_contain_text("There is a file my model.gguf in")
    chat.drop("#hc-panel-models", ("dropped.gguf", b"GGUF and more"))
    added = tmp_path / "data" / "models" / "dropped.gguf"
    chat.until(lambda: service.models.asked[-1] == ("add", "dropped.gguf"))
    expect(said).to_be_empty()
    assert added.read_bytes() == b"GGUF and more"


@pytest.mark.parametrize(
    "name", ["..%2Fevil.gguf", "%2Fetc%2Fevil.gguf", ".hidden.gguf", "evil.sh", "a%00.gguf"]
)
def test_names_that_lead_elsewhere_are_not_taken(
    server: tuple[FakeService, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HIERCHAT_DATA", str(tmp_path / "data"))
    assert ask(server[1], "PUT", f"/models/{name}").status in (400, 404, 405)
    assert not list(tmp_path.rglob("*evil*"))


MARKUP = "<img src=x onerror=alert(1)>"


def listed(repo: str, **more: Any) -> dict[str, Any]:
    files = [{"rfilename": f"t-{kind}.gguf"} for kind in ("Q4_K_M", "Q8_0")]
    told = {"downloads": 12_345, "pipeline_tag": "text-generation", "tags": ["license:apache-2.0"]}
    return {"id": repo, "siblings": files, "gguf": {"total": 596_049_920}, **told, **more}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub({}) as server:
        body = write_gguf(tiny(), tmp_path / "t.gguf", tokenizer()).read_bytes()
        server.files = {"t-Q4_K_M.gguf": body, "t-Q8_0.gguf": body + bytes(10_000), f"{MARKUP}.gguf": b""}
        server.found = [
            listed(REPO),
            listed("org/embeddings", pipeline_tag="feature-extraction", downloads=99),
            listed("org/gated", gated="auto", downloads=1, tags=[f"license:{MARKUP}"]),
        ]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server
        server.answering.set()
        server.shutdown()


def found(chat: Chat, repo: str) -> Locator:
    return chat.page.locator(f'[data-found="{repo}"]')


def search(chat: Chat, words: str) -> None:
    field = chat.page.get_by_label("Words to search for")
    field.fill(words)
    field.press("Enter")


@pytest.mark.browser
def test_a_model_is_searched_for_looked_at_and_taken(chat: Chat, service: FakeService, hub: FakeHub) -> None:
    chat.open("?view=models")
    expect(chat.page.locator("#hc-hub-search")).to_contain_text("Nothing is sent before you press a button")
    said = chat.page.locator("#hc-hub-found")
    hub.answering.clear()
    search(chat, "tiny")
    expect(said).to_contain_text("Asking the hub…")
    hub.answering.set()
    expect(said).to_contain_text("3 models for “tiny”")
    assert [asked["search"] for asked in hub.searches] == [["tiny"]]
    expect(found(chat, REPO)).to_contain_text(
        "596M parameters · 2 GGUF files · apache-2.0 · 12,345 downloads"
    )
    expect(found(chat, "org/embeddings")).to_contain_text("It is made for feature extraction.")
    expect(found(chat, "org/embeddings").get_by_role("button")).to_have_count(0)
    expect(found(chat, "org/gated")).to_contain_text(MARKUP)
    chat.press(f"Details: {REPO}")
    expect(found(chat, REPO)).to_contain_text("Fits. Needs 1.4 GB")
    expect(found(chat, REPO)).to_contain_text("Runs on hierchat's own engine, with drafts.")
    expect(found(chat, REPO)).to_contain_text("about 48 tokens a second expected")
    files = found(chat, REPO).get_by_role("group", name="Files of this model")
    expect(files.get_by_role("button", pressed=True)).to_contain_text("Q4_K_M · ")
    expect(files.get_by_role("button", name=MARKUP)).to_have_count(1)
    files.get_by_role("button", name="t-Q8_0.gguf").click()
    expect(files.get_by_role("button", pressed=True)).to_contain_text("Q8_0 · ")
    chat.press(f"Add and load {REPO}")
    expect(found(chat, REPO)).to_contain_text(
        "It is in the list above as tiny. It is being downloaded, then loaded."
    )
    assert service.models.asked == [("take", f"{REPO}|t-Q8_0.gguf"), ("fetch", "tiny")]
    chat.press(f"Hide details: {REPO}")
    expect(found(chat, REPO).locator(".hc-hub-look")).to_have_count(0)
    hub.status = 429
    search(chat, "again")
    expect(said.get_by_role("alert")).to_contain_text("The hub has had too many questions from here.")


def test_whatever_the_hub_tells_is_text() -> None:
    files = (HubFile(f"{MARKUP}.gguf", 1), HubFile("t.gguf"))
    model = HubModel("a/b", 0, MARKUP, kind=MARKUP, task=MARKUP, files=files)
    plain = HubModel("a/b", 0, MARKUP, files=files)
    looks = [
        Look("a/b", "asking", plain, f"{MARKUP}.gguf"),
        Look("a/b", "failed", plain, f"{MARKUP}.gguf", message=f"{MARKUP} is no GGUF file."),
    ]
    searches = [
        Search(MARKUP, phase, (one,), MARKUP, look)
        for phase in ("asking", "done", "failed")
        for one in (model, plain)
        for look in (None, *looks)
    ]
    for said in [*searches, Search(MARKUP, "done")]:
        assert "<img" not in models_panel.found(said, None)
    assert "&lt;img" in models_panel.found(searches[-1], None)


def test_a_look_offers_what_fits_and_tells_a_lone_file_once() -> None:
    files = (HubFile("t-Q4_K_M.gguf", 300_000_000), HubFile("t-Q8_0.gguf", 600_000_000))
    model = HubModel(REPO, 234_567, "apache-2.0", 596_049_920, files=files)
    described = Described(files[0].name, {"source": {"gguf": {"path": "any"}}}, "kernels")

    def shown(**changed: Any) -> str:
        fits = Judged(Fit("yes", "Needs 0.6 GB of 14.9 GB available."), Speed(48.2))
        look = Look(REPO, "done", model, files[0].name, described, fits)
        return models_panel.found(Search("tiny", "done", (model,), look=replace(look, **changed)), None)

    assert "Add and load" in shown()
    large = shown(judged=Judged(Fit("no", "It needs about 900 GB."), Speed(0.1)))
    assert "Add and load" not in large
    assert "It needs about 900 GB." in large
    lone = (HubFile("config.json", 700), HubFile("model.safetensors", 1_200_000_000))
    said = shown(model=HubModel(REPO, files=lone), file="")
    assert said.count("1.2 GB") == said.count("safetensors") == 1
    assert 'role="group"' not in said
