"""`bench vllm` against a server of vLLM's kind: the fake runner behind HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hierchat.cli import main
from tests.integrations.vllm.fake_runner import Engine, recites
from tests.integrations.vllm.test_proposer import POEM


@pytest.fixture
def url(engine: Engine, environment: pytest.MonkeyPatch) -> Iterator[str]:
    assert engine.proposer.channel is not None
    environment.setenv("HIERCHAT_DRAFTER_PORT", str(engine.proposer.channel.port))
    environment.setenv("VLLM_API_KEY", "the key")
    one_at_a_time = threading.Lock()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
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
                engine.proposer._books.wait()
            self._send({"choices": [{"token_ids": request.tokens}]})

        def _send(self, answer: Any) -> None:
            data = json.dumps(answer).encode()
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
    file.write_text("".join(json.dumps({"turns": ["why" * size, "and then"]}) + "\n" for size in range(1, 4)))
    return file


def test_arms_are_compared_with_no_drafts(url: str, questions: Path, engine: Engine, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    given = ["--questions", str(questions), "--url", url, "--together", "1,2", "--max-new-tokens", "40"]
    assert main(["bench", "vllm", *given, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["vllm"] == "0.32.0"
    assert [one["together"] for one in found["together"]] == [1, 2]
    for one in found["together"]:
        arms = one["arms"]
        assert list(arms) == ["none", "ours", "history"]
        assert all(arm["differing"] == 0 and arm["tokens"] == 3 * 40 for arm in arms.values())
        assert arms["none"]["speedup"] == arms["none"]["tokens_per_forward"] == 1
        assert arms["none"]["proposed"] == 0
        assert arms["history"]["tokens_per_forward"] > 3
        assert 0 < arms["history"]["accepted"] <= arms["history"]["proposed"]
    assert engine.proposer._books.held() == (0, 0)  # the bench's user is gone


def test_another_vllm_is_an_arm(url: str, questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    given = ["--questions", str(questions), "--url", url, "--together", "2", "--max-new-tokens", "8"]
    assert main(["bench", "vllm", *given, "--peer", f"ngram={url}", "--json", str(out)]) == 0
    (found,) = json.loads(out.read_text())["together"]
    assert list(found["arms"]) == ["none", "ours", "history", "ngram"]
    other = found["arms"]["ngram"]
    assert (other["tokens"], other["differing"], other["tokens_per_forward"]) == (3 * 8, 0, None)
    with pytest.raises(SystemExit):
        main(["bench", "vllm", *given, "--peer", "ngram"])


@pytest.mark.parametrize("missing", ["HIERCHAT_DRAFTER_PORT", "HIERCHAT_DRAFTER_TOKEN"])
def test_without_the_secrets_it_says_what_to_set(
    url: str,
    questions: Path,
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv(missing)
    assert main(["bench", "vllm", "--questions", str(questions), "--url", url]) == 2
    assert "Set HIERCHAT_DRAFTER_PORT and HIERCHAT_DRAFTER_TOKEN" in capsys.readouterr().err


def test_another_server_is_named(
    url: str, questions: Path, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.setenv("HIERCHAT_DRAFTER_TOKEN", "another secret, as long")
    assert main(["bench", "vllm", "--questions", str(questions), "--url", url]) == 2
    assert "HIERCHAT_DRAFTER_TOKEN" in capsys.readouterr().err
    assert main(["bench", "vllm", "--questions", str(questions), "--url", "http://127.0.0.1:9"]) == 2
    assert "must be vLLM with our drafter" in capsys.readouterr().err
