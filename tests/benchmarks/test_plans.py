"""Arms of draft models: what was expected of them beside what was measured, plans for GPUs."""

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import tabulate
from benchmarks.arms import OwnArm, parse_arms
from benchmarks.decode import measure
from benchmarks.summary import summarise
from hierchat.runtime.served_model import ServedModel
from tests.testing.fake_arms import result
from tests.testing.questions import SETTINGS, questions, tell, with_draft_models

ARMS = [
    "vanilla",
    "hierchat",
    "oracle",
    "hsd",
    "draft:small",
    "plan:databases",
    "plan:small=3",
    "plan:databases+small=2+middle=5",
]


@pytest.fixture(scope="module")
def served() -> ServedModel:
    return with_draft_models()


def test_all_arms_say_the_same_words(served: ServedModel, tmp_path: Path) -> None:
    arms = [OwnArm(name, served) for name in parse_arms(",".join(ARMS))]
    out = result(tmp_path, ARMS)
    measure(served, arms, questions(2), SETTINGS, out, tell, carry=False)
    figures = {name: summarise(out.rows, name) for name in ARMS}
    assert [figures[name]["mismatches"] for name in ARMS] == [0] * len(ARMS)
    assert figures["plan:databases+small=2+middle=5"]["tokens_per_forward"] > 3  # the twin writes nearly all
    assert figures["oracle"]["tokens_per_forward"] > 5
    assert set(figures["oracle"]["sources"]) == {"oracle", "target"}
    assert set(figures["draft:small"]["sources"]) <= {"small", "target"}
    planned = [name for name in ARMS if figures[name]["plan_ms"]]
    assert planned == ARMS[5:]
    for name in planned:
        assert figures[name]["plan_ms"]["expected"] > 0
        assert figures[name]["plan_ms"]["measured"] > 0
    console = Console(record=True, width=140)
    tabulate.show(out.as_dict(), console)
    assert "expected ms a token" in console.export_text()
