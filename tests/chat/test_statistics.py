"""A reply's text, spans and figures out of its steps."""

from types import MappingProxyType

import pytest

from hierchat.chat.frames import Figures
from hierchat.chat.statistics import ReplyStatistics, stored_figures, text_pieces
from hierchat.config import GenerationSettings
from hierchat.engine.engine import Step
from tests.testing.tiny_chat import END, tokenizer

EURO = [tokenizer().convert_tokens_to_ids(token) for token in ("â", "Ĥ", "¬")]  # its three bytes


def decode(tokens: list[int]) -> str:
    return tokenizer().decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def ids_of(text: str) -> list[int]:
    return tokenizer()(text, add_special_tokens=False)["input_ids"]


def step(tokens: list[int], sources: list[str] | None = None, **fields: object) -> Step:
    return Step(tuple(tokens), tuple(sources or ["target"] * len(tokens)), **fields)


def test_an_unfinished_character_is_left_out_unless_the_reply_ends_and_special_tokens_are_no_text() -> None:
    statistics = ReplyStatistics(decode)
    shown = []
    for token in [*ids_of("1 "), *EURO, *ids_of("."), *EURO[:2]]:
        statistics.add(step([token]))
        shown.append(statistics.text)
    assert shown[-6:] == ["1 ", "1 ", "1 €", "1 €.", "1 €.", "1 €."]
    statistics.add(step([END], finish="end"))
    assert statistics.text == "1 €.\ufffd"
    assert statistics.figures().tokens == len(shown) + 1


def test_what_could_not_be_stored_is_no_text_of_a_servers_reply_either() -> None:
    statistics = ReplyStatistics(decode)
    for number, text in enumerate(("the river", ", the", " end")):
        statistics.add(step([number], text=text))
    statistics.cut(2)
    assert (statistics.text, statistics.tokens) == ("the river, the", [0, 1])
    statistics.cut(0)
    assert (statistics.text, statistics.tokens) == ("", [])


@pytest.mark.parametrize(
    ("stops", "text", "by"),
    [
        (("river",), "the ", "river"),
        (("end", "riv"), "the ", "riv"),
        (("sea",), "the river, the end", None),
    ],
)
def test_a_stop_string_and_what_follows_is_cut(stops: tuple[str, ...], text: str, by: str | None) -> None:
    statistics = ReplyStatistics(decode, GenerationSettings(stop=tuple(stops)))
    statistics.add(step(ids_of("the river, the end"), finish="stop"))
    assert statistics.text == text
    assert statistics.stop_string == statistics.record().stop_string == by


def test_a_character_belongs_to_the_run_that_completes_it() -> None:
    tokens = [*ids_of("a"), *EURO, *ids_of("b")]
    assert text_pieces(tokens, [2, 1, 1, 1], decode) == ["a", "", "€", "b"]


def test_figures_of_a_reply() -> None:
    statistics = ReplyStatistics(decode)
    statistics.vanilla_ms = 50.0
    statistics.add(Step(prompt_read=4, prompt_tokens=9))
    statistics.add(Step(width=4, forward_ms=30.0, prompt_read=8, prompt_tokens=9))
    assert statistics.figures() == Figures()
    stopped = ReplyStatistics(decode)
    stopped.add(Step(finish="stopped"))
    assert stopped.figures() == Figures(finish="stopped")
    drafted = {
        "proposed": {"context": 2, "history": 2},
        "draft_ms": 5.0,
        "forward_ms": 60.0,
        "verify_ms": 5.0,
    }
    statistics.add(step([5, 6, 7], ["context", "history", "target"], **drafted))
    statistics.add(step([8], forward_ms=30.0))
    assert statistics.figures() == Figures(
        tokens=4,
        seconds=pytest.approx(0.1),
        first_token_seconds=pytest.approx(0.1),
        tokens_per_second=pytest.approx(40),
        tokens_per_forward=2.0,
        acceptance_rate=0.5,
        acceptance=MappingProxyType({"context": 0.5, "history": 0.5}),
        forwards=2,
        draft_ms=2.5,
        forward_ms=45.0,
        verify_ms=2.5,
        prompt_tokens=9,
        prompt_read=4,
        read_seconds=0.03,
        speedup=pytest.approx(2),
        baseline_tokens_per_second=pytest.approx(20),
        baseline="measured",
        shares=MappingProxyType({"target": 0.5, "context": 0.25, "history": 0.25}),
    )


def test_time_counts_from_send_on_and_says_what_others_took() -> None:
    statistics = ReplyStatistics(decode)
    statistics.waited_ms, statistics.loading_ms["compiling"] = 17_000.0, 2_000.0  # in the queue
    statistics.add(Step(width=4, forward_ms=500.0, waited_ms=300.0), 19_900.0)
    statistics.add(step([5, 6], forward_ms=100.0, waited_ms=700.0), 20_800.0)
    figures = statistics.figures()
    assert (figures.total_seconds, figures.first_token_seconds) == (20.8, 20.8)
    assert (figures.waited_seconds, figures.loading) == (18.0, {"compiling": 2.0})
    assert stored_figures(statistics.record(), 2).whole_seconds == 20.8
    later = ReplyStatistics(decode)
    later.resume([5, 6], ["target", "target"], statistics.record())
    later.add(step([7], forward_ms=100.0), 1_200.0)
    assert (later.figures().total_seconds, later.figures().waited_seconds) == (22.0, 18.0)
    assert later.figures().first_token_seconds == 20.8


def test_without_a_clock_reading_and_writing_are_the_time() -> None:
    statistics = ReplyStatistics(decode)
    statistics.add(Step(width=4, forward_ms=500.0))
    statistics.add(step([5], forward_ms=100.0))
    figures = statistics.figures()
    assert (figures.total_seconds, figures.waited_seconds) == (None, None)
    unknown = (figures.speedup, figures.baseline, figures.baseline_tokens_per_second, figures.acceptance_rate)
    assert unknown == (None,) * 4  # no baseline, and nothing was proposed
    assert figures.whole_seconds == pytest.approx(0.6)
    crashed = ReplyStatistics(decode)
    crashed.resume([5], ["target"], None)
    crashed.add(step([6], forward_ms=100.0), 900.0)
    assert crashed.figures().total_seconds is None
