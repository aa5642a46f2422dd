"""The Models panel in a real browser: downloading, loading, removing, adding, a dropped file."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.page.raw import ask
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService, SlotStatus

pytestmark = pytest.mark.browser


def model(chat: Chat, name: str) -> Locator:
    return chat.page.locator(f'.hc-model[data-model="{name}"]')


def press(chat: Chat, label: str) -> None:
    chat.page.get_by_role("button", name=label, exact=True).click()


def test_every_model_says_what_it_is_and_whether_it_fits(chat: Chat) -> None:
    chat.open("?view=models")
    present = model(chat, "SmolLM2 135M")
    expect(present).to_contain_text("Running")
    expect(present).to_contain_text("135M parameters · 81 MB · Apache-2.0")
    expect(present).to_contain_text("61 tokens a second in its last 20 replies")
    expect(model(chat, "Qwen3 0.6B")).to_contain_text("about 48 tokens a second expected")
    best = model(chat, "Qwen3 1.7B")
    expect(best).to_contain_text("Recommended")
    expect(best).to_contain_text("Fits. Needs 1.4 GB")
    best.locator("summary").click()
    expect(best).to_contain_text("SmolLM2 135M: cannot draft, has other tokens")
    large = model(chat, "Qwen3 32B")
    expect(large).to_contain_text("Does not run here. Needs 21 GB")
    expect(large.get_by_role("button")).to_have_count(0)
    expect(model(chat, "Llama 3.2 3B")).to_contain_text("642 MB of 1.9 GB here")


def test_a_draft_model_is_chosen_and_taken_away(chat: Chat, service: FakeService) -> None:
    chat.open("?view=models")
    target = model(chat, "Qwen3 1.7B")
    target.get_by_text("Draft models: none chosen").click()
    expect(target.get_by_role("button", name="Let it draft")).to_have_count(
        1
    )  # not where the tokens are others
    press(chat, "Let it draft: Qwen3 0.6B for Qwen3 1.7B")
    said = target.locator(".hc-notice")
    expect(said).to_contain_text(
        "Qwen3 0.6B drafts for Qwen3 1.7B from the next time that Qwen3 1.7B is loaded."
    )
    expect(target.locator("summary")).to_have_text("Draft models: 1 chosen")
    expect(target.get_by_role("button", name="No longer: Qwen3 0.6B for Qwen3 1.7B")).to_be_focused()
    chat.shot("models-drafts")
    press(chat, "No longer: Qwen3 0.6B for Qwen3 1.7B")
    expect(said).to_contain_text("no longer drafts")
    expect(target.locator("summary")).to_have_text("Draft models: none chosen")
    pair = "Qwen3 1.7B|Qwen3 0.6B"
    assert service.models.asked == [("draft", pair), ("undraft", pair)]


def test_fetching_is_asked_for_watched_stopped_and_taken_up(chat: Chat, service: FakeService) -> None:
    chat.open("?view=models")
    press(chat, "Download Qwen3 1.7B")
    fetched = model(chat, "Qwen3 1.7B")
    expect(fetched).to_contain_text("Downloading: 41 MB of 1.0 GB · 5.2 MB a second")
    expect(fetched.locator("progress")).to_be_visible()
    service.models.change("Qwen3 1.7B", download=None)
    expect(fetched).not_to_contain_text("Downloading")  # the page looks again by itself
    service.models.download("Qwen3 1.7B")
    expect(fetched).to_contain_text("Downloading")
    press(chat, "Stop Qwen3 1.7B")
    expect(fetched).to_contain_text("Stopped. What was downloaded is kept.")
    press(chat, "Resume Qwen3 1.7B")
    expect(fetched).to_contain_text("Downloading")
    assert [act for act, _ in service.models.asked] == ["fetch", "fetch", "stop", "fetch"]
    assert service.slot.started == []
    service.models.change("Qwen3 1.7B", download=None, state="here")
    service.models.busy = False
    press(chat, "Load Qwen3 1.7B")
    expect(fetched).to_contain_text("Running")


def test_removing_asks_first_and_says_what_it_frees(chat: Chat, service: FakeService) -> None:
    chat.open("?view=models")
    press(chat, "Remove Qwen3 0.6B")
    question = chat.page.get_by_role("group", name="Remove Qwen3 0.6B?")
    expect(question).to_contain_text("This frees 358 MB. It can be downloaded again.")
    expect(question.get_by_role("button", name="Keep")).to_be_focused()
    chat.page.keyboard.press("Enter")
    expect(question).to_have_count(0)
    assert service.models.asked == []
    press(chat, "Remove Qwen3 0.6B")
    question.get_by_role("button", name="Remove").click()
    expect(chat.page.locator("#hc-models-said")).to_contain_text("Qwen3 0.6B is removed from this machine.")
    expect(model(chat, "Qwen3 0.6B")).to_have_count(0)


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
    chat.shot("models-added")
    chat.page.get_by_role("button", name="Show added", exact=True).click()
    expect(model(chat, "added")).to_be_in_viewport()
    expect(chat.page.get_by_role("button", name="Load added", exact=True)).to_be_focused()
    press(chat, "Add")
    expect(said).to_contain_text("added is in the list already.")
    expect(model(chat, "added")).to_have_count(1)
    service.models.fails = "There is no public repository org/other on the hub. <b>"
    field.fill("org/other")
    press(chat, "Add")
    expect(said.get_by_role("alert")).to_have_text(service.models.fails)
    expect(said).to_be_in_viewport()
    expect(field).to_have_value("org/other")
    expect(chat.page.locator("#hc-models-said")).to_be_empty()


@pytest.mark.parametrize("view", ["?view=models"])
def test_what_waits_for_a_reply_says_so_and_can_be_cancelled(
    chat: Chat, service: FakeService, view: str
) -> None:
    service.slot.status = SlotStatus("Qwen3 0.6B", "waiting")
    chat.open(view)
    line = chat.page.locator("#hc-host")
    expect(line).to_contain_text("Qwen3 0.6B is loaded as soon as the reply that is being written has ended.")
    expect(line).to_be_in_viewport()
    chat.shot(f"models-waits{'-panel' if view else ''}")
    line.get_by_role("button", name="Cancel").click()
    expect(line).to_be_empty()
    expect(chat.page.locator("#hc-model input")).to_have_value("SmolLM2 135M")
    assert service.models.asked == [("cancel", "")]


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
    chat.page.evaluate(
        """() => {
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File(['GGUF and more'], 'dropped.gguf'));
            const at = document.querySelector('#hc-panel-models');
            for (const type of ['dragover', 'drop']) {
                at.dispatchEvent(new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true }));
            }
        }"""
    )
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
