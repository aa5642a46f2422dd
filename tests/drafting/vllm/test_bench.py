"""`benchmarks vllm` against a server of vLLM's kind: the fake runner behind HTTP."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from tests.drafting.vllm.fake_runner import Engine, recites
from tests.drafting.vllm.test_proposer import POEM


@pytest.fixture
def url(engine: Engine, environment: pytest.MonkeyPatch) -> Iterator[str]:
    assert engine.proposer.channel is not None
    environment.setenv("HIERCHAT_DRAFTER_PORT", str(engine.proposer.channel.port))
    environment.setenv("VLLM_API_KEY", "the key")
    one_at_a_time = threading.Lock()

    class Answers(BaseHTTPRequestHandler):
        counted = 0

        def do_GET(self) -> None:
            if self.path == "/metrics":
                Answers.counted += 1  # what is asked before and behind a group is 7 apart
                lines = []
                for what, each in (("draft", 9), ("accepted", 7)):
                    name = f"vllm:spec_decode_num_{what}_tokens_total"
                    lines += [f"# HELP {name}", f'{name}{{engine="0"}} {each * (Answers.counted // 2)}']
                self._give("\n".join(lines).encode())
            else:
                self._send({"data": [{"id": "tiny"}]})

        def do_POST(self) -> None:
            assert self.headers["Authorization"] == "Bearer the key"
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            named = asked.get("vllm_xargs", {})
            extra = {name.removeprefix("hierchat_"): value for name, value in named.items()}
            prompt = [5, 6, 300 + len(asked["messages"][0]["content"])]
            with one_at_a_time:
                request = engine.ask(prompt, recites(POEM), most=asked["max_tokens"], **extra)
                engine.finish()
                engine.proposer._users.wait()
            self._send({"choices": [{"token_ids": request.tokens}]})

        def _send(self, answer: Any) -> None:
            self._give(json.dumps(answer).encode())

        def _give(self, data: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *rest: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(_line({"turns": ["why" * size, "and then"]}) for size in range(1, 8)))
    return file


@pytest.fixture
def given(questions: Path, url: str) -> list[str]:
    return ["vllm", "--questions", str(questions), "--url", url, "--max-new-tokens", "40"]


def test_arms_are_compared_with_no_drafts(
    given: list[str], engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert main([*given, "--together", "1,2", "--limit", "2", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["vllm"] == "0.32.0"
    assert [one["together"] for one in found["together"]] == [1, 2]
    for one in found["together"]:
        arms = one["arms"]
        assert list(arms) == ["none", "bare", "ours", "history"]
        assert list(one["again"]) == ["history"]
        assert all(arm["differing"] == 0 for arm in arms.values())
        assert all(arm["tokens"] == 2 * one["together"] * 40 for arm in arms.values())
        assert arms["none"]["speedup"] == arms["none"]["tokens_per_forward"] == 1
        assert arms["none"]["proposed"] == 0
        again = one["again"]["history"]
        assert again["tokens_per_forward"] > 3
        assert again["differing"] == 0
        assert 0 < again["accepted"] <= again["proposed"]
        assert again["drafts_per_forward"] > 1
        assert one["reading_seconds"] > 0
        assert set(again["without_prompts"]) == {"tokens_per_second", "speedup"}
    printed = capsys.readouterr().out
    assert re.search(r"^history, again +[\d.]+ +[\d.]+ ", printed, re.MULTILINE)
    assert engine.proposer._users.held() == (0, 0)  # the bench's user is gone


def test_another_vllm_is_an_arm(given: list[str], url: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    given += ["--limit", "3", "--together", "1"]
    assert main([*given, "--peer", f"ngram={url}", "--json", str(out)]) == 0
    (found,) = json.loads(out.read_text())["together"]
    assert list(found["arms"])[-1] == list(found["again"])[-1] == "ngram"
    other = found["arms"]["ngram"]
    assert (other["tokens"], other["differing"], other["draft_ms_per_forward"]) == (3 * 40, 0, None)
    assert (other["proposed"], other["accepted"]) == (27, 21)  # 9 and 7 in each of the three groups
    assert other["tokens_per_forward"] == round(3 * 39 / (3 * 39 - 21), 3)
    with pytest.raises(SystemExit):
        main([*given, "--peer", "ngram"])


def test_too_few_questions_are_said(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*given, "--limit", "2", "--together", "4"]) == 2
    assert "too few questions" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["HIERCHAT_DRAFTER_PORT", "HIERCHAT_DRAFTER_TOKEN"])
def test_without_the_secrets_it_says_what_to_set(
    given: list[str], missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(missing)
    assert main([*given, "--limit", "1", "--together", "1"]) == 2
    assert "set HIERCHAT_DRAFTER_PORT and HIERCHAT_DRAFTER_TOKEN" in capsys.readouterr().err


def _line(what: Any) -> str:
    return json.dumps(what) + "\n"
