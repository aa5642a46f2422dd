"""benchmarks record and replay: a replay counts the same forwards as decoding."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.arms import Carried, OwnArm
from benchmarks.record import CHOICE, Trace, earlier, read_traces, record
from benchmarks.replay import Replayed, replay, without_model
from hierchat.checks.runs import Question, RequestError
from hierchat.drafting.drafter import LEAD
from hierchat.runtime.served_model import ServedModel
from tests.benchmarks.test_published import QUICK
from tests.testing.questions import SETTINGS, questions, questions_file, tell
from tests.testing.tiny_chat import served as tiny

WIDTH = 6
SAID = {"model": "tiny", "seed": 0}


@pytest.fixture(scope="module")
def served() -> ServedModel:
    return tiny()


def recorded(served: ServedModel, path: Path, asked: list[Question], **changed: Any) -> list[Trace]:
    settings = SETTINGS.model_copy(update=changed)
    said = {**SAID, **{key: getattr(settings, key) for key in CHOICE}}
    assert record(served, asked, settings, path, said, tell, earlier(path, said)) == 0
    return read_traces(path)


def test_it_goes_on_where_a_crash_left_half_a_line(served: ServedModel, tmp_path: Path) -> None:
    path = tmp_path / "t"
    recorded(served, path, questions(2, turns=2), temperature=0.8)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:50])
    with pytest.raises(RequestError, match="no JSON"):
        read_traces(path)
    recorded(served, path, questions(2, turns=2), temperature=0.8)
    assert path.read_bytes() == whole
    with pytest.raises(RequestError, match="seed was 0 and is 1"):
        earlier(path, {**SAID, "seed": 1})


def test_as_many_forwards_as_with_the_model(served: ServedModel, tmp_path: Path) -> None:
    temperature = 0.7
    asked = [Question(n, str(n), ("the same thing",), "again") for n in range(2)]
    traces = recorded(served, tmp_path / "t", asked, temperature=temperature)
    names = ["vanilla", "context", "context+history", "hierchat", *QUICK]
    out = Replayed(tmp_path / "out.json", {}, names)
    standing_in = without_model(None, control=served.prompts.control_tokens)
    arms = [Carried(name, standing_in, WIDTH) for name in names]
    replay(arms, traces, None, out, tell, carry=True)
    settings = SETTINGS.model_copy(update={"temperature": temperature})
    for name in names:
        arm, live = OwnArm(name, served, WIDTH), []
        for trace in traces:
            answer = arm.answer(trace.prompt, settings)
            assert answer.reply == trace.reply
            arm.learn(answer.reply, trace.prompt[-LEAD:])
            live.append((answer.forwards, answer.sources))
        found = [turn for row in out.rows for turn in row["arms"][name]]
        assert [(turn["forwards"], turn["sources"]) for turn in found] == live, name
    figures = {arm["arm"]: arm["tokens_per_forward"] for arm in out.as_dict()["arms"]}
    assert figures["vanilla"] == 1
    assert figures["suffix"] > 1  # the second question is the first again


@pytest.mark.usefixtures("tiny_in_the_catalogue")
def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked, traces, out = questions_file(tmp_path), tmp_path / "traces.jsonl", tmp_path / "out.json"
    taken = ["--model", "tiny", "--max-new-tokens", "8", "--out", str(traces)]
    assert main(["record", "--questions", str(asked), "--limit", "3", *taken]) == 0
    assert main(["record", "--questions", str(asked), *taken]) == 0
    assert len(read_traces(traces)) == 4
    how = ["--traces", str(traces), "--json", str(out)]
    arms = ["--arms", "vanilla,hierchat,suffix"]
    assert main(["replay", *how, *arms, "--width", "6", "--cost", "5,0.8"]) == 0
    written = json.loads(out.read_text())
    assert [arm["arm"] for arm in written["arms"]] == ["vanilla", "hierchat", "suffix"]
    assert set(written["arms"][1]["by_group"]) == {"qa", "mt_bench", "rag"}
    assert all(arm["tokens"] == sum(len(t.reply) for t in read_traces(traces)) for arm in written["arms"])
    assert "suffix" in capsys.readouterr().out
    for wrong, said in (
        (arms, "say --width or --cost"),
        (["--arms", "transformers", "--width", "6"], "There are vanilla"),
    ):
        assert main(["replay", *how, *wrong]) == 2
        assert said in capsys.readouterr().err
