"""What an answer of the page costs: its changes alone."""

from __future__ import annotations

import asyncio
from typing import Any

import gradio as gr
import pytest
from gradio.state_holder import SessionState

from hierchat.page.guard import Page
from hierchat.page.page_app import build_app
from tests.testing.fake_service import FakeService


@pytest.fixture
def page() -> tuple[Page, Any, list[gr.HTML]]:
    with Page() as page:
        parts = [gr.HTML(f"{number}") for number in range(4)]
        gr.Button().click(lambda: {}, None, parts[:3])
    return page, next(iter(page.fns.values())), parts


def answered(page: Page, event: Any, answer: Any) -> tuple[list[Any], int]:
    """What the browser gets, and how many parts were made anew for it."""
    state = SessionState(page)
    got = asyncio.run(page.postprocess_data(event, answer, state))
    return got, sum(state[part._id] is not part for part in event.outputs)


SKIPPED = {"__type__": "update"}


def test_only_what_changes_is_made(page: tuple[Page, Any, list[gr.HTML]]) -> None:
    blocks, event, (first, second, third, _) = page
    assert answered(blocks, event, {first: "a", third: "c"}) == (["a", SKIPPED, "c"], 0)
    assert answered(blocks, event, {third: "c", first: gr.skip()}) == ([SKIPPED, SKIPPED, "c"], 0)
    assert answered(blocks, event, {second: gr.skip()}) == ([SKIPPED] * 3, 0)
    got, made = answered(blocks, event, {second: gr.update(visible=False)})
    assert (got[0], got[1]["visible"], got[2], made) == (SKIPPED, False, SKIPPED, 1)


def test_other_answers_are_gradios(page: tuple[Page, Any, list[gr.HTML]]) -> None:
    blocks, event, (first, *_, other) = page
    assert answered(blocks, event, ["a", "b", "c"])[0] == ["a", "b", "c"]
    for wrong in ({other: "d"}, {first: "a", other: "d"}):
        with pytest.raises(ValueError, match="not specified as output"):
            answered(blocks, event, wrong)


def test_no_event_tells_its_outputs_how_far_it_is(fresh: FakeService) -> None:
    events = build_app(fresh, "").config["dependencies"]
    loud = [event["targets"] for event in events if event["outputs"] and event["show_progress_on"] != []]
    assert len(events) > 50
    assert loud == []
