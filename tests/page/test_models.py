"""The Models panel: its order, fetching, loading, removing, draft models, adding, and the search of a small hub."""

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
from hierchat.page.panels.models_panel import HUB, MODELS, Present, models
from hierchat.runtime.downloads import Download, Judged, Look, Search
from hierchat.runtime.model_manager import READABLE, Offer
from hierchat.store.records import ModelSpeed
from tests.testing.architectures import write_gguf
from tests.testing.browser import Chat
from tests.testing.fake_hub import REPO, FakeHub
from tests.testing.fake_service import FakeService, SlotStatus
from tests.testing.fake_shelf import row
from tests.testing.raw import ask
from tests.testing.tiny_chat import model as tiny
from tests.testing.tiny_chat import tokenizer
from tests.testing.visitor import Visitor, visible

NO = Fit("no", "Needs 21 GB of memory; this machine has 14.9 GB.")


def test_what_helps_stands_first() -> None:
    download = Download("coming", "downloading", 1, 2)
    slow, readable = ModelSpeed(READABLE - 0.1), ModelSpeed(READABLE)
    best = row("best", 40)
    rows = [
        row("present", 10, "here", fit=NO), row("begun", 20, "partly", fit=NO), row("small", 30), best,
        row("large", 50, fit=NO), replace(row("slow", 60), speed=slow), replace(row("slower", 70), speed=readable),
        row("mine", 80, fit=NO, own=True), row("coming", 90, fit=NO, download=download),
    ]  # fmt: skip
    useful = ["present", "begun", "best", "small", "slower", "mine", "coming", "large", "slow"]
    drawn = models(rows, Present(best, SlotStatus("", "none"), True))
    assert re.findall('data-model="([^"]*)"', drawn) == useful


def test_a_better_model_than_the_tiny_one_is_offered_by_one_click() -> None:
    best = replace(row("best", 3_000_000_000, good_for=("chat", "code"), sees=True), speed=ModelSpeed(15.0))

    def cards(offer: Offer, download: Download | None = None) -> list[str]:
        drawn = str(MODELS.offer(offer, download))
        return [visible(card) for card in drawn.split("<section")[1:]]

    (alone,) = cards(Offer("small", True, False, best))  # something was written: no need to say how to start
    assert "Get best" in alone
    fetching = Download("best", "downloading", 1_000_000, 2_000_000)
    offer = Offer("small", True, False, best)
    drawn = MODELS.offer(offer, fetching)
    assert "<progress" in drawn
    assert 'data-act="hc_model_stop"' in drawn
    assert 'data-act="hc_model_take"' not in drawn
    assert "Load best" in cards(replace(offer, best=replace(best, state="here")))[0]


def test_what_does_not_fit_is_not_offered() -> None:
    full, tight = (
        Fit("full", "Needs 3 GB of 2 GB available."),
        Fit("tight", "Needs 2 GB of 2.5 GB available."),
    )
    for fit, offered in ((tight, True), (full, False), (NO, False)):
        for state in ("absent", "partly"):
            drawn = models([row("any", 4, state, fit=fit)], Present(None, SlotStatus("", "none"), True))
            assert ('data-act="hc_model_fetch"' in drawn) == offered


def model(page: Visitor, name: str) -> str:
    """The words of a model's rows; empty where it is not listed."""
    drawn = page.html("hc-models-list").partition(f'data-model="{name}"')[2]
    return drawn and visible("<i " + drawn.partition("</tbody>")[0])


def test_a_model_is_fetched_stopped_taken_up_loaded_and_removed(service: FakeService) -> None:
    page, name = Visitor(service, view="models"), "Qwen3 1.7B"
    page.press("hc_model_fetch", text=name)
    assert "Downloading: 41 MB of 1.0 GB · 5.2 MB a second" in model(page, name)
    progress = Download(name, "downloading", 82_000_000, 1_032_000_000, 5_200_000.0)
    service.models.change(name, download=progress, state="partly", have=82_000_000)
    page.tick()  # the page looks again by itself
    assert "Downloading: 82 MB of 1.0 GB" in model(page, name)
    page.press("hc_model_stop", text=name)
    assert "Stopped. What was downloaded is kept." in model(page, name)
    page.press("hc_model_fetch", text=name)
    assert [act for act, _ in service.models.asked] == ["fetch", "stop", "fetch"]
    service.models.change(name, download=None, state="here")
    service.models.busy = False
    page.press("hc_model_load", text=name)
    assert "Running" in model(page, name)
    service.models.asked.clear()
    for answer in ("hc_model_keep", "hc_model_removed"):
        page.press("hc_model_remove", text="Qwen3 0.6B")
        question = "Remove Qwen3 0.6B? This frees 358 MB. It can be downloaded again."
        assert question in model(page, "Qwen3 0.6B")
        page.press(answer, text="Qwen3 0.6B")
        assert question not in page.says("hc-models-list")
    assert "Qwen3 0.6B is removed from this machine." in page.says("hc-models-said")
    assert model(page, "Qwen3 0.6B") == ""
    assert service.models.asked == [("remove", "Qwen3 0.6B")]


@pytest.mark.browser
def test_what_is_unfolded_in_the_table_stays_so_and_a_question_has_the_focus(
    visitor: Chat, service: FakeService
) -> None:
    visitor.open("?view=models")
    page, keys = visitor.page, visitor.page.keyboard
    facts = page.locator('[data-model="Qwen3 1.7B"] .hc-model-facts')
    line = page.locator('[data-model="Qwen3 1.7B"] > tr').first
    for shown in (True, False):  # a click anywhere in the row opens it, the next one closes it
        line.locator("td").nth(1).click()
        expect(facts).to_be_visible(visible=shown)
    page.get_by_label("Details of Qwen3 1.7B").focus()
    keys.press("Enter")
    expect(facts).to_be_visible()
    visitor.press("Download Qwen3 1.7B")
    expect(page.locator(".hc-model progress")).to_be_visible()
    expect(facts).to_be_visible()
    page.get_by_label("Name on the hub, folder or GGUF file").fill("org/tiny")
    keys.press("Enter")
    visitor.press("Remove added")
    expect(page.get_by_role("group", name="Remove added?").get_by_role("button", name="Keep")).to_be_focused()


@pytest.mark.browser
def test_a_dropped_file_goes_into_the_models_folder(
    visitor: Chat, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIERCHAT_DATA", str(tmp_path / "data"))
    body = b"GGUF" + bytes(range(256)) * 30_000
    (tmp_path / "my model.gguf").write_bytes(body)
    (tmp_path / "other.gguf").write_bytes(b"a text")
    visitor.open("?view=models")
    said = visitor.page.locator("#hc-model-copying")

    def choose(name: str) -> None:
        with visitor.page.expect_file_chooser() as chooser:
            visitor.press("Choose a file…")
        chooser.value.set_files(tmp_path / name)

    choose("other.gguf")
    expect(said).to_contain_text("This is no GGUF file, whatever its name says.")
    choose("my model.gguf")
    expect(visitor.page.locator('[data-model="added"]')).to_be_visible()
    expect(said).to_be_empty()
    assert service.models.asked == [("add", "my model.gguf")]
    assert [file.name for file in (tmp_path / "data" / "models").iterdir()] == ["my model.gguf"]
    assert (tmp_path / "data" / "models" / "my model.gguf").read_bytes() == body
    choose("my model.gguf")
    expect(said).to_contain_text("There is a file my model.gguf in")
    visitor.drop("#hc-panel-models", ("dropped.gguf", b"GGUF and more"))
    visitor.until(lambda: service.models.asked[-1] == ("add", "dropped.gguf"))
    assert (tmp_path / "data" / "models" / "dropped.gguf").read_bytes() == b"GGUF and more"


def test_names_that_lead_elsewhere_are_not_taken(
    server: tuple[FakeService, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIERCHAT_DATA", str(tmp_path / "data"))
    for name in ("..%2Fevil.gguf", "%2Fetc%2Fevil.gguf", ".hidden.gguf", "evil.sh", "a%00.gguf"):
        assert ask(server[1], "PUT", f"/models/{name}").status in (400, 404, 405), name
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
def test_a_model_is_searched_for_looked_at_and_taken(
    visitor: Chat, service: FakeService, hub: FakeHub
) -> None:
    visitor.open("?view=models")
    expect(visitor.page.locator("#hc-hub-search")).to_contain_text(
        "Nothing is sent before you press a button"
    )
    said = visitor.page.locator("#hc-hub-found")
    hub.answering.clear()
    search(visitor, "tiny")
    expect(said).to_contain_text("Asking the hub…")
    hub.answering.set()
    expect(said).to_contain_text("3 models for “tiny”")
    assert [asked["search"] for asked in hub.searches] == [["tiny"]]
    expect(found(visitor, REPO)).to_contain_text(
        "596M parameters · 2 GGUF files · apache-2.0 · 12,345 downloads"
    )
    expect(found(visitor, "org/embeddings")).to_contain_text("It is made for feature extraction.")
    expect(found(visitor, "org/embeddings").get_by_role("button")).to_have_count(0)
    expect(found(visitor, "org/gated")).to_contain_text(MARKUP)
    visitor.press(f"Details: {REPO}")
    expect(found(visitor, REPO)).to_contain_text("Needs 1.4 GB")
    expect(found(visitor, REPO)).to_contain_text("Runs on hierchat's own engine, with drafts.")
    expect(found(visitor, REPO)).to_contain_text("about 48 tokens a second expected")
    files = found(visitor, REPO).get_by_role("group", name="Files of this model")
    expect(files.get_by_role("button", pressed=True)).to_contain_text("t-Q4_K_M.gguf · ")
    expect(files.get_by_role("button", name=MARKUP)).to_have_count(1)
    files.get_by_role("button", name="t-Q8_0.gguf").click()
    expect(files.get_by_role("button", pressed=True)).to_contain_text("t-Q8_0.gguf · ")
    visitor.press(f"Add and load {REPO}")
    expect(found(visitor, REPO)).to_contain_text(
        "It is in the list above as tiny. It is being downloaded, then loaded."
    )
    assert service.models.asked == [("take", f"{REPO}|t-Q8_0.gguf"), ("fetch", "tiny")]
    visitor.press(f"Hide details: {REPO}")
    expect(found(visitor, REPO).locator(".hc-hub-look")).to_have_count(0)
    hub.status = 429
    search(visitor, "again")
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
        assert "<img" not in HUB.found(said, None)
    assert "&lt;img" in HUB.found(searches[-1], None)


def test_a_look_offers_what_fits() -> None:
    files = (HubFile("t-Q4_K_M.gguf", 300_000_000), HubFile("t-Q8_0.gguf", 600_000_000))
    model = HubModel(REPO, 234_567, "apache-2.0", 596_049_920, files=files)
    described = Described(files[0].name, {"source": {"gguf": {"path": "any"}}}, "kernels")

    def shown(**changed: Any) -> str:
        fits = Judged(Fit("yes", "Needs 0.6 GB of 14.9 GB available."), ModelSpeed(48.2))
        look = Look(REPO, "done", model, files[0].name, described, fits)
        return HUB.found(Search("tiny", "done", (model,), look=replace(look, **changed)), None)

    assert "Add and load" in shown()
    large = shown(judged=Judged(Fit("no", "It needs about 900 GB."), ModelSpeed(0.1)))
    assert "Add and load" not in large
    assert "It needs about 900 GB." in large
