"""Compare's two configurations, the result, and the panel that keeps results."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from hierchat.chat.comparison import USUAL, Comparison, Side, Verdict
from hierchat.chat.frames import Figures
from hierchat.config import GenerationSettings
from hierchat.page.panels.comparisons_panel import difference, drawn, export, headline
from hierchat.store import Store
from hierchat.store.records import NewMessage
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import REPLY, FakeService

HOSTILE = "</text><script>alert(1)</script> \"&amp;' <img src=x onerror=alert(1)>"


def result(question: str = "Why?", second: str = REPLY, **changed: object) -> Comparison:
    sides, settings = {}, GenerationSettings().model_dump(mode="json")
    for arm, text, speed in (("first", REPLY, 20.0), ("second", second, 50.0)):
        figures = Figures(
            tokens=130, seconds=130 / speed, tokens_per_second=speed, tokens_per_forward=2.5, shares={"target": 1.0}
        )  # fmt: skip
        used = USUAL[arm]
        sides[arm] = Side(used.name, "SmolLM2 135M", "smol:1", "blocks", used, settings, text, figures)
    verdict = Verdict(second == REPLY, 130, None, 2.5, "Word for word the same.", True, "Identical.")
    made = {"machine": "Some Processor, 2 cores", "hierchat": "0.2.0", "alone": True, "at": 1_790_000_000.0}
    return Comparison(question, **{"sides": sides, "verdict": verdict, **made, **changed})


def keep(store: Store, question: str = "Why is the sky blue?", second: str = REPLY) -> int:
    user = store.users.ensure("local")
    made = result(question, second, at=time.time())
    chat = store.chats.create(user, "Sky")
    store.messages.add(user, chat, NewMessage(None, question))
    return store.comparisons.add(user, chat, question, made.at, made.to_json())


def test_the_first_differing_word_is_marked_in_both() -> None:
    words = " ".join(f"w{number}" for number in range(40))
    left, right = difference(f"{words} same cat <b> end", f"{words} same dog <b> end")
    for text, word in ((left, "cat "), (right, "dog ")):
        assert text.startswith("… w")
        assert f'<mark class="hc-other hc-first-other">{word}</mark>&lt;b&gt; end' in text
        assert text.count("hc-first-other") == 1
    assert difference("the same", "the same") == ("", "")
    left, right = difference("one two", "one two three")
    assert "(nothing)" in left
    assert ">three</mark>" in right


def test_the_page_holds_what_was_asked_as_text() -> None:
    page = drawn(result(HOSTILE, HOSTILE))
    assert "<script" not in page
    assert "<img" not in page


def test_the_headline_is_the_second_side_against_the_first() -> None:
    made = result()
    for speedup, tokens, said in (
        (2.5, 130, "2.5\u00d7 faster, word for word the same"),
        (0.5, 130, "2.0\u00d7 slower, word for word the same"),
        (1.01, 130, "As fast, word for word the same"),
        (2.5, 63, "Word for word the same"),
    ):
        sides = {
            arm: replace(one, figures=replace(one.figures, tokens=tokens)) for arm, one in made.sides.items()
        }
        assert headline(replace(made, sides=sides, verdict=replace(made.verdict, speedup=speedup))) == said


def test_the_file_holds_both_sides() -> None:
    assert json.loads(export(result("It's why?")))["sides"]["first"]["text"] == REPLY


def saved(page: Page, name: str, folder: Path) -> Path:
    with page.expect_download() as coming:
        page.get_by_role("button", name=name, exact=True).click()
    path = folder / coming.value.suggested_filename
    coming.value.save_as(path)
    return path


@pytest.mark.browser
def test_compare_streams_both_and_judges(chat: Chat, service: FakeService) -> None:
    page = chat.page
    service.script.hold()
    chat.compare()
    chat.send("And in Rust?")
    second, first = page.locator("#hc-second"), page.locator("#hc-first")
    expect(second).to_contain_text("tokens")
    expect(first).to_contain_text("Not started yet")
    service.script.release(2)  # of which most have passed
    expect(first).to_contain_text("tokens")
    verdict = page.locator("#hc-verdict")
    expect(verdict).to_contain_text(
        "Word for word the same. “With drafts” is 2.0", timeout=driving.PATIENCE_MS
    )
    expect(verdict).to_contain_text("the same words, proved")
    chat.idle()
    page.locator("#hc-back").click()
    expect(chat.replies).to_have_count(1)
    expect(page.locator("#hc-versus")).to_be_hidden()
    service.script.hold()
    chat.send("Both, and stopped")
    expect(second).to_contain_text("tokens")
    chat.stop.click()
    chat.idle()
    chat.compare(False)
    service.script.release()
    chat.ask("And plain?")
    expect(chat.replies).to_have_count(3)


@pytest.mark.browser
def test_two_configurations_are_chosen_compared_kept_saved_and_deleted(
    chat: Chat, service: FakeService, tmp_path: Path
) -> None:
    page, against = chat.page, chat.page.locator("#hc-against")
    chat.compare()
    page.locator("#hc-setup summary").focus()
    page.keyboard.press("Enter")
    second = page.get_by_role("group", name="Second, which stays in the chat")
    second.get_by_label("Drafts").select_option("without")
    expect(against).to_have_text("Without drafts (1) vs. Without drafts (2)")
    second.get_by_label("Drafts").select_option("with")
    second.get_by_label("Model").select_option("SmolLM2 135M")
    expect(against).to_have_text("Without drafts vs. SmolLM2 135M")
    chat.send("Why is the sky blue?")
    expect(page.locator("#hc-result .hc-arm h2").last).to_have_text("SmolLM2 135M")
    chat.idle()
    chat.press("Reset")
    expect(against).to_have_text("Without drafts vs. With drafts")
    chat.press("All comparisons")
    expect(page).to_have_url(re.compile(r"\?view=comparisons$"))
    row = page.locator(".hc-results li")
    expect(row).to_contain_text("2.0\u00d7 faster, word for word the same. Without drafts vs. SmolLM2 135M")
    row.get_by_role("button", name="Why is the sky blue?", exact=True).click()
    expect(page.locator(".hc-one .hc-user")).to_have_text("Why is the sky blue?")
    path = saved(page, "Save as JSON", tmp_path)
    assert json.loads(path.read_text(encoding="utf-8"))["question"] == "Why is the sky blue?"
    chat.press("Delete…")
    chat.press("Delete")
    expect(page.locator("#hc-comparisons")).to_contain_text("Nothing here yet")
    assert service.store.comparisons.all(service.user, 9) == []
