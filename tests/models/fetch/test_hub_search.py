"""What the hub tells of its models, and what it may tell instead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hierchat.models.fetch import hub as hub_module
from hierchat.models.fetch.hub import MOST_FOUND, HubFile, hub_model, search
from hierchat.models.progress import FetchError, GatedError, MissingError, ModelError, OfflineError
from tests.testing.fake_hub import REPO, FakeHub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub({"config.json": b"{}", "model.safetensors": b"1234", "t-Q4_K_M.gguf": b"12"}) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server
        server.answering.set()
        server.shutdown()


def told(repo: str = "Qwen/Qwen3-0.6B", **more: Any) -> dict[str, Any]:
    files = [{"rfilename": name} for name in ("config.json", "model.safetensors", "README.md")]
    said = {"downloads": 12345, "gated": False, "pipeline_tag": "text-generation", "siblings": files}
    return {"id": repo, **said, "tags": ["license:apache-2.0"], "config": {"model_type": "qwen3"}, **more}


def test_what_is_asked_and_what_is_told(hub: FakeHub) -> None:
    numbers = {"parameters": {"BF16": 596_049_920}, "total": 596_049_920}
    parts = ("-Q4_0", "-Q8_0-00001-of-00002", "-mmproj-f16", "-F16-00001-of-99999")
    files = [{"rfilename": f"b{part}.gguf"} for part in parts]
    quantised = {"total": 4_022_468_096, "architecture": "qwen3"}
    hub.found = [
        told("a/b-GGUF", downloads=3, siblings=files, gguf=quantised, config=None, gated="manual"),
        told(safetensors=numbers),
    ]
    first, second = search("  qwen3\n gguf ")
    assert hub.searches[0]["search"] == ["qwen3 gguf"]
    assert hub.searches[0]["limit"] == [str(MOST_FOUND)]
    assert (first.repo, first.downloads) == ("Qwen/Qwen3-0.6B", 12345)
    assert (first.licence, first.parameters, first.size) == ("apache-2.0", 596_049_920, 1_192_099_840)
    assert (first.gated, first.packed, first.not_for_chat, first.gguf) == (False, False, "", [])
    assert (second.kind, second.gated, second.gguf) == ("qwen3", True, [HubFile("b-Q4_0.gguf")])
    assert (second.parameters, second.size, second.safetensors) == (4_022_468_096, None, [])


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"config": {"model_type": "bert"}}, "made to fill in words"),
        ({"pipeline_tag": "text-to-image"}, "made for text to image"),
        ({"siblings": [{"rfilename": "adapter_config.json"}]}, "an addition to another model"),
        ({"siblings": [{"rfilename": "model.onnx"}]}, "neither safetensors nor a GGUF file"),
        ({"tags": ["mlx"]}, "packed for Apple's MLX"),
    ],
)
def test_what_is_not_to_chat_with_is_told(hub: FakeHub, more: dict[str, Any], why: str) -> None:
    hub.found = [told(**more)]
    assert why in search("any")[0].not_for_chat


def test_one_repository_with_the_sizes_of_its_files(hub: FakeHub) -> None:
    hub.told = {"safetensors": {"parameters": {"I32": 10, "BF16": 5}, "total": 15}}
    model = hub_model(REPO)
    assert model.gguf == [HubFile("t-Q4_K_M.gguf", 2)]
    assert model.safetensors == [HubFile("model.safetensors", 4)]
    assert (model.packed, model.size) == (True, 50)


def test_a_model_in_several_files_is_one(hub: FakeHub) -> None:
    hub.files |= {"t-F16-00001-of-00002.gguf": b"123", "t-F16-00002-of-00002.gguf": b"4567"}
    hub.files |= {"t-F32-00001-of-00002.gguf": b"123"}
    assert hub_model(REPO).gguf == [HubFile("t-Q4_K_M.gguf", 2), HubFile("t-F16-00001-of-00002.gguf", 7)]


@pytest.mark.parametrize(
    "one",
    [
        None, 7, "Qwen/Qwen3", [], {},
        {"id": 7}, {"id": "no-owner"}, {"id": "<b>/x"}, {"id": "../../etc"}, {"id": "a/b/c"},
    ],
)  # fmt: skip
def test_what_is_no_model_is_left_out(hub: FakeHub, one: object) -> None:
    hub.found = [one, told()]
    assert [model.repo for model in search("any")] == ["Qwen/Qwen3-0.6B"]


def test_rubbish_in_every_field_is_nothing_told(hub: FakeHub) -> None:
    for rubbish in (None, -1, 10**30, True, "\x1b[31mred", ["a"], [{}], {"total": "x", "parameters": [1]}):
        fields = ("downloads", "tags", "config", "gguf", "safetensors", "siblings", "pipeline_tag", "gated")
        hub.found = [{"id": "a/b", **dict.fromkeys(fields, rubbish)}]
        (model,) = search("any")
        assert (model.licence, model.parameters, model.gguf, model.safetensors) == ("", None, [], [])
        assert "\x1b" not in model.task
        assert isinstance(model.not_for_chat, str)


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"null", b"[" * 100_000, b"\xff\xfe", b'"text"'])
def test_what_is_no_hub_is_called_so(hub: FakeHub, body: bytes) -> None:
    hub.found = body
    with pytest.raises(FetchError, match=r"does not speak as a hub does\. Check HF_ENDPOINT"):
        search("any")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (429, "had too many questions from here. Wait some minutes"),
        (500, "answered 500 for the search. Try again later"),
        (503, "answered 503"),
        (401, r"refused the search \(401\). Log in again"),
    ],
)
def test_a_hub_that_refuses(hub: FakeHub, status: int, said: str) -> None:
    hub.status = status
    with pytest.raises(FetchError, match=said):
        search("any")
    assert len(hub.asked) == 1  # once: nobody asks again by himself


def test_a_repository_that_is_gated_gone_or_oddly_named(hub: FakeHub) -> None:
    hub.status = 404
    with pytest.raises(MissingError, match="There is no public repository org/tiny"):
        hub_model(REPO)
    hub.status = 429
    with pytest.raises(OfflineError, match="too many questions"):
        hub_model(REPO)
    asked = len(hub.asked)
    for name in ("../../etc/passwd", "org/tiny?x=1", "org", "a/b/c", "", "<b>/c"):
        with pytest.raises(MissingError):
            hub_model(name)
    assert len(hub.asked) == asked
    hub.status, hub.told = 0, {"id": "<script>"}
    with pytest.raises(FetchError, match="does not speak as a hub"):
        hub_model(REPO)


def test_gated_while_it_is_looked_at(hub: FakeHub) -> None:
    hub.error_code, hub.status = "GatedRepo", 403
    with pytest.raises(GatedError, match=r"org/tiny is gated\. Accept its licence at http"):
        hub_model(REPO)


def test_nothing_is_asked_without_words_network_or_leave(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MissingError, match="Type what the model's name holds"):
        search(" \n ")
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "1")
            with pytest.raises(OfflineError, match="HF_HUB_OFFLINE is set"):
                search("any")
    assert hub.asked == []
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9/")
    with pytest.raises(OfflineError, match=r"cannot be reached at http://127\.0\.0\.1:9\. Connect"):
        search("any")
    for wrong in ("nonsense", "http://", "ftp://x"):
        monkeypatch.setenv("HF_ENDPOINT", wrong)
        with pytest.raises(ModelError, match=r"\."):
            search("any")


def test_a_hub_that_does_not_answer_is_given_up(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_TIMEOUT", 0.2)
    hub.answering.clear()
    with pytest.raises(OfflineError, match="is too slow"):
        search("any")
