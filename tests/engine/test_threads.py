"""Threads: one alone while the cores are disturbed, all of them again afterwards."""

from __future__ import annotations

import pytest
import torch

from hierchat.engine.torch.torch_runner import DISTURBED, FIRST_REST, LONGEST_REST, Threads


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    return Threads()


def disturb(threads: Threads) -> None:
    for _ in range(DISTURBED):
        threads.note(1, 100.0)


def rest(threads: Threads) -> int:
    """Forwards done alone until all threads are asked for again."""
    count = 0
    while threads.now == 1:
        threads.note(1, 20.0)
        count += 1
    return count


def test_disturbance_leaves_one_thread_for_a_while_then_longer(threads: Threads) -> None:
    threads.note(1, 10.0)
    rests = []
    for _ in range(7):
        disturb(threads)
        assert threads.now == 1
        rests.append(rest(threads))
    assert rests == [16, 32, 64, 128, 256, 256, 256]
    assert rests[0] == FIRST_REST
    assert rests[-1] == LONGEST_REST


def test_quiet_cores_forget_the_disturbance(threads: Threads) -> None:
    threads.note(1, 10.0)
    disturb(threads)
    rest(threads)
    for _ in range(FIRST_REST):
        threads.note(1, 10.0)
    disturb(threads)
    assert rest(threads) == FIRST_REST


def test_widths_are_judged_apart(threads: Threads) -> None:
    threads.note(1, 10.0)
    for _ in range(5):
        threads.note(128, 200.0)
    assert threads.now == 4
