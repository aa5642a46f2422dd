"""The Insights view: what its parts say."""

from datetime import date, timedelta

from hierchat.language import spoken
from hierchat.page.panels import insights_panel
from hierchat.store.records import DraftingFigures, OverTimeFigures, SourceCount
from tests.page.stored import measured_reply
from tests.testing.fake_service import FakeService
from tests.testing.visitor import Visitor, visible

TODAY = date(2026, 3, 10)


def figures(speedup: float | None = 2.0, tokens: int = 100, **changed: object) -> DraftingFigures:
    usual = {
        "replies": 3, "tokens": tokens, "tokens_per_forward": 2.0,
        "sources": {"history": SourceCount(60, 30), "context": SourceCount(30, 15)}, "speedup": speedup,
        "compared": 2 if speedup else 0, "saved_seconds": 100.0 if speedup else 0.0,
    }  # fmt: skip
    return DraftingFigures(**{**usual, **changed})


NONE = figures(None, 0, replies=0, tokens_per_forward=None, sources={})


def over(days: dict[date, DraftingFigures], whole: DraftingFigures | None = None) -> OverTimeFigures:
    return OverTimeFigures(whole or (figures() if days else NONE), days)


def test_tiles_claim_nothing_that_was_not_measured() -> None:
    for speedup, said in ((2.0, "2.0\u00d7 faster"), (0.8, "1.2\u00d7 slower"), (1.02, "As fast as")):
        assert said in visible(insights_panel.tiles(figures(speedup)))
    with spoken("de"):
        assert "1.234.567" in visible(insights_panel.tiles(figures(tokens=1_234_567)))
    unmeasured = visible(insights_panel.tiles(figures(None)))
    assert "\u00d7" not in unmeasured
    assert unmeasured.count("\u2013") == 2
    assert visible(insights_panel.tiles(NONE)).count("\u2013") == 3


def test_days_without_a_baseline_are_left_out_and_shares_are_of_all_tokens() -> None:
    days = {
        TODAY - timedelta(days=4): figures(1.5),
        TODAY - timedelta(days=2): figures(None),
        TODAY: figures(3.0),
    }
    said = visible(insights_panel.speed_card(over(days), TODAY))
    assert "6 Mar 1.5\u00d7 faster than without drafts 2" in said
    assert "8 Mar \u2013" not in said
    drawn = visible(insights_panel.shares_card(over({TODAY: figures()}), TODAY))
    assert "10 Mar 15 % 30 %" in drawn  # context, history
    assert "9 Mar 0 %" not in drawn  # a day without replies


def test_names_of_sources_are_escaped() -> None:
    drafted = figures(sources={"<img src=x>": SourceCount(4, 2)})
    assert "<img" not in insights_panel.replies_page(over({TODAY: drafted}, drafted), TODAY)


def test_the_last_30_days_of_one_user_are_drawn(service: FakeService) -> None:
    user = service.user
    measured_reply(service.store, service.store.users.ensure("other"), 0, speedup=9.0)  # not theirs
    measured_reply(service.store, user, 0, speedup=3.0)
    measured_reply(service.store, user, 20, speedup=2.0)
    measured_reply(service.store, user, 90, speedup=1.0)
    page = Visitor(service, view="insights")
    assert page.says("hc-insights-replies").startswith("Last 30 days Speed 2.5\u00d7 faster")
