"""The order of the Models panel, what is folded away in it, and the field that narrows it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from hierchat.models.catalogue import read_catalogue
from hierchat.models.load.check import Fit
from hierchat.page.panels.models_view import Present, models
from hierchat.runtime.costs import Speed
from hierchat.runtime.downloads import Download
from hierchat.runtime.model_manager import READABLE, ModelRow
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService, SlotStatus
from tests.testing.fake_shelf import row

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


def listed() -> list[ModelRow]:
    return [
        row("SmolLM2 135M", 135_000_000, "here", loaded=True),
        replace(row("Phi 4", 4_000_000_000), licence="MIT", maker="microsoft"),
        replace(row("R1 7B", 7_000_000_000), licence="MIT", maker="deepseek-ai"),
        row("Qwen3 1.7B", 1_720_000_000, maker="Qwen"),
        row("Qwen3 32B", 32_800_000_000, fit=NO, maker="Qwen"),
        row("Llama 70B", 70_000_000_000, fit=NO, maker="meta-llama"),
    ]


def shown(chat: Chat) -> list[str]:
    """Names of the models that can be seen."""
    return chat.page.locator("#hc-models-list .hc-model:visible > h3").all_inner_texts()


def field(chat: Chat) -> Locator:
    return chat.page.get_by_label("Filter the list by name, maker or licence")


def said(chat: Chat) -> Locator:
    return chat.page.locator("#hc-models-shown")


@pytest.mark.browser
def test_filter_and_fold_survive_what_draws_the_list_anew(chat: Chat, service: FakeService) -> None:
    service.models.listed = listed()
    chat.open("?view=models")
    rest = chat.page.get_by_text("2 models that do not fit this machine or are too slow here")
    large = chat.page.locator('[data-model="Llama 70B"]')
    expect(large).to_be_hidden()
    rest.focus()
    chat.page.keyboard.press("Enter")
    expect(large).to_be_visible()
    service.models.download("Qwen3 1.7B")
    chat.page.get_by_role("button", name="Download Phi 4", exact=True).click()
    coming = chat.page.locator('[data-model="Qwen3 1.7B"]')
    expect(coming).to_contain_text("Downloading: 41 MB of 1.0 GB")
    expect(large).to_be_visible()
    field(chat).fill("qwen")
    expect(said(chat)).to_have_text("Shown: 2 of 6 models.")
    progress = Download("Qwen3 1.7B", "downloading", 82_000_000, 1_032_000_000, 5_200_000.0)
    service.models.change("Qwen3 1.7B", download=progress, state="partly", have=82_000_000)
    expect(coming).to_contain_text("Downloading: 82 MB of 1.0 GB")
    assert shown(chat) == ["Qwen3 1.7B", "Qwen3 32B"]
    expect(field(chat)).to_have_value("qwen")
    service.models.listed = [one for one in service.models.listed if one.name != "Qwen3 32B"]
    expect(said(chat)).to_have_text("Shown: 1 of 5 models.")
    field(chat).fill("")
    expect(large).to_be_visible()
    chat.page.get_by_text("1 model that does not fit this machine or is too slow here").click()
    expect(large).to_be_hidden()


def catalogue() -> list[ModelRow]:
    """As many as there really are; the larger ones do not fit."""
    found = []
    for n, entry in enumerate(read_catalogue().models.values()):
        size = entry.size.parameters if entry.size else 1_000_000_000
        more: dict[str, Any] = {"fit": NO} if size > 12e9 else {}
        speed = Speed(40e9 / size)
        found.append(
            replace(
                row(entry.name, size, "absent" if n else "here", **more), licence=entry.licence, speed=speed
            )
        )
    return found
