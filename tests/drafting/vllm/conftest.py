"""An engine of vLLM's kind without vLLM: its package is a name and a version here."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hierchat.drafting.draft_cost import WIDEST_BATCH, RowCosts
from hierchat.drafting.vllm.custom_proposer import HierchatProposer
from tests.drafting.vllm.fake_runner import Engine, config

TOKEN = "a secret of the test"


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("vllm")
    module.__version__ = "0.32.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    return module


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    monkeypatch.setenv("HIERCHAT_DRAFTER_DB", str(tmp_path / "drafts.db"))
    monkeypatch.setenv("HIERCHAT_DRAFTER_PORT", "0")
    monkeypatch.setenv("HIERCHAT_DRAFTER_TOKEN", TOKEN)
    return monkeypatch


@pytest.fixture
def forwards_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a forward is taken to cost: how fast this machine is must not tell what is drafted."""
    prices = [1000.0 + 20.0 * rows for rows in range(WIDEST_BATCH)]
    monkeypatch.setattr(RowCosts, "step_ms", lambda costs, context: prices)


@pytest.fixture
def engines(environment: pytest.MonkeyPatch, forwards_of_a_second: None) -> Iterator[Callable[..., Engine]]:
    """Makes engines over the same file."""
    made: list[HierchatProposer] = []

    def make(**how: Any) -> Engine:
        made.append(HierchatProposer(config(**how)))
        return Engine(made[-1])

    yield make
    for proposer in made:
        proposer.close()


@pytest.fixture
def engine(engines: Callable[..., Engine]) -> Engine:
    return engines()
