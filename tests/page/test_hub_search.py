"""The search of the hub in a real browser, over a small hub on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from playwright.sync_api import Locator, expect

from hierchat.models.fetch.hub import HubFile, HubModel
from hierchat.models.load.add import Described
from hierchat.models.load.check import Fit
from hierchat.page.panels import models_panel
from hierchat.runtime.costs import Speed
from hierchat.runtime.downloads import Judged, Look, Search
from tests.testing.browser import Chat
from tests.testing.fake_hub import REPO, FakeHub
from tests.testing.fake_service import FakeService

MARKUP = "<img src=x onerror=alert(1)>"


def listed(repo: str, **more: Any) -> dict[str, Any]:
    files = [{"rfilename": f"t-{kind}.gguf"} for kind in ("Q4_K_M", "Q8_0")]
    told = {"downloads": 12_345, "pipeline_tag": "text-generation", "tags": ["license:apache-2.0"]}
    return {"id": repo, "siblings": files, "gguf": {"total": 596_049_920}, **told, **more}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub({}) as server:
        body = _head(tmp_path / "t.gguf")
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


def _head(path: Path) -> bytes:
    """A file of one tensor, whose head says that it is a small Llama."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(256)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_tensor("token_embd.weight", np.zeros((16, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


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
    chat.page.get_by_role("button", name=f"Details: {REPO}").click()
    expect(found(chat, REPO)).to_contain_text("Fits. Needs 1.4 GB")
    expect(found(chat, REPO)).to_contain_text("Runs on hierchat's own engine, with drafts.")
    expect(found(chat, REPO)).to_contain_text("about 48 tokens a second expected")
    files = found(chat, REPO).get_by_role("group", name="Files of this model")
    expect(files.get_by_role("button", pressed=True)).to_contain_text("Q4_K_M · ")
    expect(files.get_by_role("button", name=MARKUP)).to_have_count(1)
    files.get_by_role("button", name="t-Q8_0.gguf").click()
    expect(files.get_by_role("button", pressed=True)).to_contain_text("Q8_0 · ")
    chat.page.get_by_role("button", name=f"Add and load {REPO}").click()
    expect(found(chat, REPO)).to_contain_text(
        "It is in the list above as tiny. It is being downloaded, then loaded."
    )
    assert service.models.asked == [("take", f"{REPO}|t-Q8_0.gguf"), ("fetch", "tiny")]
    chat.page.get_by_role("button", name=f"Hide details: {REPO}").click()
    expect(found(chat, REPO).locator(".hc-hub-look")).to_have_count(0)
    hub.status = 429
    search(chat, "again")
    expect(said.get_by_role("alert")).to_contain_text("The hub has had too many questions from here.")


def drawn() -> Search:
    """A search of the usual kind, with one model looked at."""
    kinds = ("Q2_K", "Q3_K_M", "Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "BF16")
    files = tuple(
        HubFile(f"Qwen3-0.6B-{kind}.gguf", 300_000_000 + 50_000_000 * n) for n, kind in enumerate(kinds)
    )
    model = HubModel("Qwen/Qwen3-0.6B-GGUF", 234_567, "apache-2.0", 596_049_920, files=files)
    image = HubModel("Qwen/Qwen-Image", 98_765, "apache-2.0", 20_430_401_088, task="text-to-image")
    llama = "meta-llama/Llama-3.2-1B-Instruct"
    gated = HubModel(llama, 1_234, "llama3.2", 1_235_814_400, size=2_471_645_608, gated=True)
    described = Described(files[3].name, {"source": {"gguf": {"path": "any"}}}, "kernels")
    fits = Fit("yes", "Needs 0.6 GB of 14.9 GB available.")
    look = Look(model.repo, "done", model, files[3].name, described, Judged(fits, Speed(48.2)))
    return Search("qwen3 gguf", "done", (model, image, gated), look=look)


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


def test_a_look_at_what_does_not_fit_offers_nothing() -> None:
    shown = drawn()
    assert shown.look
    no = Judged(Fit("no", "It needs about 900 GB."), Speed(0.1))
    large = replace(shown, look=replace(shown.look, judged=no))
    assert "Add and load" in models_panel.found(shown, None)
    assert "Add and load" not in models_panel.found(large, None)
    assert "It needs about 900 GB." in models_panel.found(large, None)


def test_where_there_is_nothing_to_choose_the_file_is_told_once() -> None:
    shown = drawn()
    assert shown.look
    files = (HubFile("config.json", 700), HubFile("model.safetensors", 1_200_000_000))
    lone = replace(shown.look, model=HubModel(shown.look.repo, files=files), file="")
    said = models_panel.found(replace(shown, look=lone), None)
    assert said.count("1.2 GB") == said.count("safetensors") == 1
    assert 'role="group"' not in said
