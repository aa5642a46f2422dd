"""The queue before the engine."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from hierchat.engine.scheduler import QueueFull, Scheduler, Ticket


def test_first_come_first_served_bounded_and_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.engine.scheduler.MOST_WAITING", 2)
    scheduler = Scheduler()
    first, second = scheduler.join(), scheduler.join()
    with pytest.raises(QueueFull, match="try again"):
        scheduler.join()
    assert (first.ahead, second.ahead) == (0, 1)
    assert first.take(0)
    assert not second.take(0)
    first.leave()
    assert second.take(0)
    with scheduler.turn(0) as mine:
        assert not mine
    second.leave()
    with scheduler.turn(0) as mine:
        assert mine


def test_turns_come_in_the_order_of_arrival_and_one_at_a_time() -> None:
    scheduler, order, within = Scheduler(), list[int](), list[int]()

    def use(number: int, ticket: Ticket) -> None:
        assert ticket.take(60)
        within.append(number)
        assert len(within) == 1
        order.append(number)
        within.clear()
        ticket.leave()

    with ThreadPoolExecutor(5) as pool, scheduler.turn() as mine:
        assert mine
        waiting = [pool.submit(use, number, scheduler.join()) for number in range(5)]
    assert [one.exception() for one in waiting] == [None] * 5
    assert order == [0, 1, 2, 3, 4]


def test_what_goes_first_passes_replies_that_wait_or_step_aside() -> None:
    scheduler = Scheduler()
    held, waiting = scheduler.join(), scheduler.join()
    assert held.take(0)
    loading, other = scheduler.join(first=True), scheduler.join(first=True)
    assert waiting.ahead == 1  # of two loads and a reply
    held.step_aside()
    assert [ticket.take(0) for ticket in (held, waiting, other)] == [False] * 3
    assert loading.take(0)
    loading.leave()
    assert other.take(0)
    other.leave()
    assert not waiting.take(0)
    assert held.take(0)


def test_spare_time_is_nobodys_turn_and_ends_when_somebody_comes() -> None:
    scheduler = Scheduler()
    with scheduler.turn(0), scheduler.spare() as wanted:
        assert wanted is None
        assert scheduler.idle_seconds == 0
    with scheduler.spare() as wanted:
        assert wanted is not None
        assert not wanted.is_set()
        ticket = scheduler.join()
        assert wanted.is_set()
        assert ticket.ahead == 0  # of replies
        assert not ticket.take(0)
    assert ticket.take(0)
    ticket.leave()
    assert scheduler.idle_seconds > 0
    with scheduler.spare() as wanted:
        assert wanted is not None
        assert not wanted.is_set()


def test_replies_share_places_and_what_needs_the_engine_for_itself_holds_off_those_behind() -> None:
    scheduler = Scheduler()
    scheduler.places = 2
    one, *replies = (scheduler.join(shares=True) for _ in range(3))
    assert one.take(0)
    assert replies[0].take(0)
    assert not replies[1].take(0)
    assert replies[1].ahead == 1  # one of two must end
    one.leave()
    assert replies[1].ahead == 0
    assert replies[1].take(0)
    scheduler.places = 4
    alone, behind = scheduler.join(), scheduler.join(shares=True)
    assert alone.ahead == 2
    assert behind.ahead == 2  # one of the two, and what waits before
    assert not behind.take(0)
    replies[0].leave()
    assert not alone.take(0)
    replies[1].leave()
    assert alone.take(0)
    assert not behind.take(0)
    alone.leave()
    assert behind.take(0)
