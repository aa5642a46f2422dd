"""The Insights view: what its parts say, and what is chosen there."""

from __future__ import annotations

from datetime import date, timedelta

from hierchat.language import spoken
from hierchat.page.panels import insights_panel
from hierchat.runtime.costs import Meter, meters
from hierchat.store.records import DraftingFigures, OverTimeFigures, SourceCount
from tests.page.stored import SMALL, measured_reply
from tests.testing.fake_service import FakeService
from tests.testing.visitor import Visitor, visible

TODAY = date(2026, 3, 10)


def figures(speedup: float | None = 2.0, tokens: int = 100, **changed: object) -> DraftingFigures:
    usual = {
        "replies": 3, "tokens": tokens, "tokens_per_forward": 2.0, "proposed": 90, "accepted": 45,
        "sources": {"history": SourceCount(60, 30), "context": SourceCount(30, 15)}, "speedup": speedup,
        "compared": 2 if speedup else 0, "saved_seconds": 100.0 if speedup else 0.0, "draft_ms": 0.2,
    }  # fmt: skip
    return DraftingFigures(**{**usual, **changed})


NONE = figures(None, 0, replies=0, tokens_per_forward=None, proposed=0, accepted=0, sources={})


def over(days: dict[date, DraftingFigures], whole: DraftingFigures | None = None) -> OverTimeFigures:
    return OverTimeFigures(whole or (figures() if days else NONE), days, {"k": figures()} if days else {})


def test_tiles_say_over_how_many_replies_and_claim_nothing_that_was_not_measured() -> None:
    for measured, parts in (
        (
            figures(),
            ("2.0\u00d7 faster", "median of 2 replies", "saved by drafts measured in 2 of 3 replies"),
        ),
        (
            figures(0.8, saved_seconds=-100.0),
            ("1.2\u00d7 slower than without drafts", "2 min lost by drafts"),
        ),
        (figures(1.02), ("As fast as without drafts", "45 % of the tokens came from drafts")),
    ):
        said = visible(insights_panel.tiles(measured))
        assert [part for part in parts if part not in said] == []
    with spoken("de"):
        assert "1.234.567" in visible(insights_panel.tiles(figures(tokens=1_234_567)))
    unmeasured = visible(insights_panel.tiles(figures(None)))
    assert "\u00d7" not in unmeasured
    assert unmeasured.count("\u2013") == 2
    assert visible(insights_panel.tiles(NONE)).count("\u2013") == 3


def test_days_without_a_baseline_are_left_out_shares_are_of_all_tokens_and_long_ranges_go_by_weeks() -> None:
    days = {
        TODAY - timedelta(days=4): figures(1.5),
        TODAY - timedelta(days=2): figures(None),
        TODAY: figures(3.0),
    }
    said = visible(insights_panel.speed_card(over(days), TODAY, 7, True))
    assert "6 Mar 1.5\u00d7 faster than without drafts 2" in said
    assert "8 Mar \u2013" not in said
    drawn = insights_panel.shares_card(over({TODAY: figures()}), TODAY, 7, True)
    assert "10 Mar 15 % 30 %" in visible(drawn)  # context, history
    begin = TODAY - timedelta(days=100)
    long = {begin: figures(), begin + timedelta(days=1): figures(tokens=300), TODAY: figures()}
    said = visible(insights_panel.shares_card(over(long), TODAY, None, True))
    assert "Week from" in said
    assert "30 Nov 8 % 15 %" in said  # 30 and 60 of 400: two days of one week
    assert "2 Mar" not in said  # a week without replies


def test_names_from_a_model_are_escaped() -> None:
    sources = {"<img src=x>": SourceCount(4, 2)}
    page = insights_panel.replies_page(
        OverTimeFigures(figures(sources=sources), {TODAY: figures(sources=sources)}, {"k": figures(), "l": figures()}),
        {"k": "<b>k", "l": "l"}, TODAY, 7, True,
    )  # fmt: skip
    assert "<img" not in page
    assert "<b>k" not in page


def test_cards_of_the_machine() -> None:
    drawn = insights_panel.meters_card([Meter("", 2 * 10**9, 6 * 10**9, 16 * 10**9), Meter("<0>", 1, 1, 10)])
    assert "hierchat 2.0 GB, others 4.0 GB, of 16.0 GB" in visible(drawn)
    assert "&lt;0&gt;" in drawn
    for meter in meters():
        assert 0 < meter.ours <= meter.used <= meter.total


def test_range_and_model_choose_what_is_drawn(service: FakeService) -> None:
    user = service.user
    measured_reply(service.store, service.store.users.ensure("other"), 0, speedup=9.0)  # not theirs
    measured_reply(service.store, user, 0, speedup=3.0)
    measured_reply(service.store, user, 20, SMALL, speedup=2.0)
    measured_reply(service.store, user, 90, speedup=1.0)
    page = Visitor(service, view="insights")
    assert "Speed by model" in page.says("hc-insights-replies")
    for days, said in (("30 days", "2.5"), ("All", "2.0"), ("7 days", "3.0")):
        page.give("hc-range", days, "input")
        assert page.says("hc-insights-replies").startswith(f"Speed {said}\u00d7 faster")
    page.give("hc-writer", SMALL[1], "input")
    assert page.says("hc-insights-replies").startswith("Speed \u2013")
    assert "choose a longer range" in page.says("hc-insights-replies")
    again = Visitor(service, view="insights")  # what was chosen stays
    assert (again.chosen("hc-writer"), again.value("hc-range")) == (SMALL[0], "7 days")
