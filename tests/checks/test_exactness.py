"""verify: finds words that drafting changed, and nothing where it changed none."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hierchat.checks import exactness
from hierchat.checks.exactness import DRAFTERS, WIDEST, Compared, Noise, check
from hierchat.checks.runs import RequestError
from hierchat.cli.main import main
from hierchat.drafting.draft_cost import LatencyCurve
from hierchat.engine.verification import ArrayRows
from hierchat.hierarchy.planner import Hierarchy
from hierchat.runtime.served_model import Levels, LoadedLevel, ServedModel
from tests.testing.questions import SETTINGS, questions, questions_file, tell
from tests.testing.tiny_chat import let_width_matter, runner
from tests.testing.tiny_chat import served as tiny

TOKENS = 16


def with_draft_models() -> ServedModel:
    """Two draft models: one is another random model, one is the target's twin."""
    names, served = ("small", "middle", "tiny"), tiny()
    targets = tuple(runner(seed).open() for seed in (1, 0))
    latencies = (LatencyCurve(), LatencyCurve())
    for latency, ms in zip(latencies, (0.1, 0.2), strict=True):
        latency.note(1, 0, ms)
    served.engine.latency = LatencyCurve()
    served.engine.latency.note(1, 0, 1.0)
    hierarchy = Hierarchy(names, [*latencies, served.engine.latency], {(1, 2): 0.99})
    models = tuple(map(LoadedLevel, names, targets, latencies))
    return replace(served, levels=Levels(models, hierarchy))


@pytest.fixture
def served() -> ServedModel:
    return tiny()


def run(served: ServedModel, drafters: Sequence[str], folder: Path, **settings: Any) -> dict[str, Any]:
    out = Compared(folder / "out.json", {"settings": {}}, drafters)
    changed = SETTINGS.model_copy(update={"max_new_tokens": TOKENS, **settings})
    check(served, questions(2, turns=2), changed, out, tell)
    written = json.loads(out.path.read_text())
    assert written == out.as_dict()
    return written


def test_trees_of_a_trial_keep_to_width_and_limit() -> None:
    for width, limit, most in ((None, None, WIDEST - 1), (None, 2, 2), (6, None, 5), (6, 0, 0)):
        drafter = Noise(100, width, seed=1)
        assert max(len(drafter.propose(limit).tokens) for _ in range(200)) == most


def test_a_right_target(tmp_path: Path) -> None:
    found = run(with_draft_models(), tuple(DRAFTERS), tmp_path, temperature=1.0)
    each = 2 * 2 * TOKENS
    assert (found["questions"], found["tokens"]) == (2, len(DRAFTERS) * each)
    assert (found["mismatches"], found["first"]) == (0, [])
    told = [(one["tokens"], one["mismatches"]) for one in found["by_drafter"].values()]
    assert told == [(each, 0)] * len(DRAFTERS)
    assert found["by_drafter"]["random"]["tokens_per_forward"] >= 1
    assert found["by_drafter"]["adversarial"]["tokens_per_forward"] > 1.3  # deep paths were accepted


def test_logits_that_depend_on_the_width_are_found(served: ServedModel, tmp_path: Path) -> None:
    let_width_matter(served.engine.sequence)
    found = run(served, ("random", "adversarial"), tmp_path)
    each = [one["mismatches"] for one in found["by_drafter"].values()]
    assert min(each) > 0
    assert found["mismatches"] == len(found["first"]) == sum(each)
    for difference in found["first"]:
        assert set(difference) == {"drafter", "question", "turn", "position", "vanilla", "speculative", "gap"}
        assert difference["vanilla"] != difference["speculative"]
        assert difference["gap"] > 0


def test_one_wrong_token_is_reported_where_it_stands(served: ServedModel, tmp_path: Path) -> None:
    """The fifth token of a drafted reply becomes another one."""
    target, generate = served.engine.sequence, served.engine.generate

    def slip(request: Any) -> Any:
        forward = target.forward

        def slipped(tokens: Any, parents: Any, *, padded: bool = True) -> Any:
            rows = forward(tokens, parents, padded=padded)
            if len(target.tokens) == len(request.prompt_ids) + 3:
                changed = np.array(rows)
                changed[0, 40] = 1e4
                return ArrayRows(changed)
            return rows

        target.forward = slipped  # type: ignore[method-assign]
        yield from generate(request)
        target.forward = forward  # type: ignore[method-assign]

    served.engine.generate = slip  # type: ignore[method-assign]
    out = Compared(tmp_path / "out.json", {}, ["default"])
    check(served, questions(1), SETTINGS, out, tell, width=1)
    (difference,) = out.as_dict()["first"]
    assert (difference["question"], difference["turn"], difference["position"]) == ("q0", 0, 4)
    assert difference["speculative"] == 40
    assert difference["gap"] > 0


def test_a_stack_without_draft_models_is_refused_before_a_question(
    served: ServedModel, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match="no draft models"):
        run(served, ("default", "stack"), tmp_path)
    assert not (tmp_path / "out.json").exists()


@pytest.mark.usefixtures("tiny_in_the_catalogue")
class TestCommand:
    """As a user types it."""

    def ask(self, folder: Path, *more: str) -> int:
        fixed = ["--model", "tiny", "--json", str(folder / "out.json"), "--max-new-tokens", "8"]
        return main(["verify", *fixed, "--questions", str(questions_file(folder)), *more])

    def test_a_run_and_its_end(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.ask(tmp_path, "--limit", "2", "--drafter", "random,default") == 0
        written = json.loads((tmp_path / "out.json").read_text())
        assert (written["questions"], written["mismatches"], written["first"]) == (2, 0, [])
        assert (written["model"], written["temperature"]) == ("tiny", 0.0)
        assert list(written["by_drafter"]) == ["random", "default"]
        total, *each = capsys.readouterr().out.splitlines()
        assert total == f"2 questions, {written['tokens']} tokens compared, 0 replies differ."
        assert [line.split(":")[0].strip() for line in each] == ["random", "default"]

    def test_words_that_differ(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("hierchat.checks.exactness.Compared.mismatches", 1)
        assert self.ask(tmp_path, "--limit", "1") == 1

    def test_ctrl_c(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def stopped(*said: Any) -> Any:
            if next(asked):
                raise KeyboardInterrupt
            return plainly(*said)

        plainly, asked = exactness._plainly, count()
        monkeypatch.setattr(exactness, "_plainly", stopped)
        assert self.ask(tmp_path) == 130
        assert json.loads((tmp_path / "out.json").read_text())["questions"] == 1

    def test_bad_input(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.ask(tmp_path, "--json", str(tmp_path)) == 2
        assert "is a folder" in capsys.readouterr().err
        assert self.ask(tmp_path, "--drafter", "default,nobody") == 2
        assert "no drafter is called 'nobody'" in capsys.readouterr().err
