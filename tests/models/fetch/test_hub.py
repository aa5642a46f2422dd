"""A small hub on localhost: what is fetched through the hub's library; what a search finds; what either may be told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hierchat.models.catalogue import Gguf, Hub, ModelEntry, ModelSource
from hierchat.models.fetch import hub as hub_module
from hierchat.models.fetch.bring import fetched_size, get, is_fetched
from hierchat.models.fetch.hub import MOST_FOUND, HubFile, hub_model, search
from hierchat.models.load.load_model import load
from hierchat.models.progress import (
    BrokenFileError,
    FetchError,
    GatedError,
    MissingError,
    ModelError,
    OfflineError,
    Progress,
)
from tests.testing.fake_hub import COMMIT, REPO, FakeHub

NOWHERE = "http://127.0.0.1:9"


def entry(repo: str = REPO, revision: str = COMMIT) -> ModelEntry:
    return ModelEntry(name="tiny", source=ModelSource(hub=Hub(repo=repo, revision=revision)))


@pytest.mark.parametrize("revision", ["main", COMMIT])
def test_download_brings_what_is_needed_and_loads(hub: FakeHub, revision: str) -> None:
    not_wanted = dict.fromkeys(("pytorch_model.bin", "README.md", "original/model.safetensors"), b"any")
    hub.files |= not_wanted
    seen: list[Progress] = []
    folder = get(entry(revision=revision), seen.append)
    there = {file.name for file in folder.iterdir()}
    assert "model.safetensors" in there
    assert there.isdisjoint({*not_wanted, "original"})
    wanted = sum(len(data) for name, data in hub.files.items() if name in there)
    assert (seen[-1].done, seen[-1].total) == (wanted, wanted)
    asked = len(hub.asked)
    assert load(entry(revision=revision), "cpu").context_length == 256
    assert len(hub.asked) == asked  # what is there needs no network
    assert fetched_size(entry(revision=revision)) == wanted


def test_interrupted_body_is_resumed(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    hub.cut = 1
    folder = get(entry())
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    ranges = [asked[2] for asked in hub.asked if asked[0] == "GET" and "safetensors" in asked[1]]
    starts = [int(asked.removeprefix("bytes=").split("-")[0]) for asked in ranges if asked]
    assert starts[-1] > len(hub.files["model.safetensors"]) // 3


def test_an_altered_file_is_not_kept(hub: FakeHub) -> None:
    hub.spoil = 1
    with pytest.raises(BrokenFileError, match=r"came altered\. Try again"):
        get(entry())
    assert not is_fetched(entry())
    assert (get(entry()) / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_gated_and_missing_repositories_revisions_and_files(hub: FakeHub) -> None:
    gguf = ModelSource(gguf=Gguf(repo=REPO, revision=COMMIT, file="none.gguf"))
    for missing, said in (
        (entry("org/other"), "no public repository org/other"),
        (entry(revision="no-such"), "no revision 'no-such'"),
        (ModelEntry(name="tiny", source=gguf), r"has none of none\.gguf"),
    ):
        with pytest.raises(MissingError, match=said):
            get(missing)
    hub.gated = True
    with pytest.raises(GatedError, match=r"Accept its licence at http.*org/tiny.*hf auth login"):
        get(entry())


def test_gguf_of_a_repository_for_machines_without_gpu(hub: FakeHub, tiny_gguf: Path) -> None:
    hub.files["tiny.gguf"] = tiny_gguf.read_bytes()
    cpu = ModelSource(gguf=Gguf(repo=REPO, revision=COMMIT, file="tiny.gguf"))
    both = ModelEntry(name="tiny", source=ModelSource(hub=Hub(repo="org/other")), cpu=cpu)
    assert (get(both, device="cpu") / "hierchat.json").exists()
    assert is_fetched(both, "cpu")
    with pytest.raises(MissingError):
        get(both, device="cuda")


def test_offline_and_failing_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    hub.failing = True
    with pytest.raises(FetchError, match="hub answered 500"):
        get(entry())
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    with pytest.raises(OfflineError, match="hub cannot be reached"):
        get(entry())


# What the hub tells of its models


@pytest.fixture
def few(hub_of: Callable[[dict[str, bytes]], FakeHub]) -> FakeHub:
    return hub_of({"config.json": b"{}", "model.safetensors": b"1234", "t-Q4_K_M.gguf": b"12"})


def told(repo: str = "Qwen/Qwen3-0.6B", **more: Any) -> dict[str, Any]:
    files = [{"rfilename": name} for name in ("config.json", "model.safetensors", "README.md")]
    said = {"downloads": 12345, "gated": False, "pipeline_tag": "text-generation", "siblings": files}
    return {"id": repo, **said, "tags": ["license:apache-2.0"], "config": {"model_type": "qwen3"}, **more}


def test_what_is_asked_and_what_is_told(few: FakeHub) -> None:
    numbers = {"parameters": {"BF16": 596_049_920}, "total": 596_049_920}
    parts = ("-Q4_0", "-Q8_0-00001-of-00002", "-mmproj-f16", "-F16-00001-of-99999")
    files = [{"rfilename": f"b{part}.gguf"} for part in parts]
    quantised = {"total": 4_022_468_096, "architecture": "qwen3"}
    few.found = [
        told("a/b-GGUF", downloads=3, siblings=files, gguf=quantised, config=None, gated="manual"),
        told(safetensors=numbers),
    ]
    first, second = search("  qwen3\n gguf ")
    assert few.searches[0]["search"] == ["qwen3 gguf"]
    assert few.searches[0]["limit"] == [str(MOST_FOUND)]
    assert (first.repo, first.downloads) == ("Qwen/Qwen3-0.6B", 12345)
    assert (first.licence, first.parameters, first.size) == ("apache-2.0", 596_049_920, 1_192_099_840)
    assert (first.gated, first.packed, first.not_for_chat, first.gguf) == (False, False, "", [])
    assert (second.kind, second.gated, second.gguf) == ("qwen3", True, [HubFile("b-Q4_0.gguf")])
    assert (second.parameters, second.size, second.safetensors) == (4_022_468_096, None, [])


def test_what_is_not_to_chat_with_is_told(few: FakeHub) -> None:
    for more, why in (
        ({"config": {"model_type": "bert"}}, "made to fill in words"),
        ({"pipeline_tag": "text-to-image"}, "made for text to image"),
        ({"siblings": [{"rfilename": "adapter_config.json"}]}, "an addition to another model"),
        ({"siblings": [{"rfilename": "model.onnx"}]}, "neither safetensors nor a GGUF file"),
        ({"tags": ["mlx"]}, "packed for Apple's MLX"),
    ):
        few.found = [told(**more)]
        assert why in search("any")[0].not_for_chat


def test_one_repository_with_the_sizes_of_its_files(few: FakeHub) -> None:
    """A model in several files is one, if all of them are there."""
    few.told = {"safetensors": {"parameters": {"I32": 10, "BF16": 5}, "total": 15}}
    few.files |= {"t-F16-00001-of-00002.gguf": b"123", "t-F16-00002-of-00002.gguf": b"4567"}
    few.files |= {"t-F32-00001-of-00002.gguf": b"123"}
    model = hub_model(REPO)
    assert model.gguf == [HubFile("t-Q4_K_M.gguf", 2), HubFile("t-F16-00001-of-00002.gguf", 7)]
    assert model.safetensors == [HubFile("model.safetensors", 4)]
    assert (model.packed, model.size) == (True, 50)


def test_what_is_no_model_is_left_out(few: FakeHub) -> None:
    names = (7, "no-owner", "<b>/x", "../../etc", "a/b/c")
    few.found = [None, 7, "Qwen/Qwen3", [], {}, *({"id": name} for name in names), told()]
    assert [model.repo for model in search("any")] == ["Qwen/Qwen3-0.6B"]


def test_rubbish_in_every_field_is_nothing_told(few: FakeHub) -> None:
    for rubbish in (None, -1, 10**30, True, "\x1b[31mred", ["a"], [{}], {"total": "x", "parameters": [1]}):
        fields = ("downloads", "tags", "config", "gguf", "safetensors", "siblings", "pipeline_tag", "gated")
        few.found = [{"id": "a/b", **dict.fromkeys(fields, rubbish)}]
        (model,) = search("any")
        assert (model.licence, model.parameters, model.gguf, model.safetensors) == ("", None, [], [])
        assert "\x1b" not in model.task
        assert isinstance(model.not_for_chat, str)


def test_what_is_no_hub_is_called_so(few: FakeHub) -> None:
    for body in (b"", b"<html>", b"{}", b"null", b"[" * 100_000, b"\xff\xfe", b'"text"'):
        few.found = body
        with pytest.raises(FetchError, match=r"does not speak as a hub does\. Check HF_ENDPOINT"):
            search("any")


def test_a_hub_that_refuses(few: FakeHub) -> None:
    for number, (few.status, said) in enumerate((
        (429, "had too many questions from here. Wait some minutes"),
        (500, "answered 500 for the search. Try again later"),
    )):  # fmt: skip
        with pytest.raises(FetchError, match=said):
            search("any")
        assert len(few.asked) == number + 1  # once: nobody asks again by himself


def test_a_repository_that_is_gated_gone_or_oddly_named(few: FakeHub) -> None:
    few.error_code, few.status = "GatedRepo", 403
    with pytest.raises(GatedError, match=r"org/tiny is gated\. Accept its licence at http"):
        hub_model(REPO)
    few.error_code, few.status = "", 404
    with pytest.raises(MissingError, match="There is no public repository org/tiny"):
        hub_model(REPO)
    few.status = 429
    with pytest.raises(OfflineError, match="too many questions"):
        hub_model(REPO)
    asked = len(few.asked)
    for name in ("../../etc/passwd", "org/tiny?x=1", "org", "a/b/c", "", "<b>/c"):
        with pytest.raises(MissingError):
            hub_model(name)
    assert len(few.asked) == asked
    few.status, few.told = 0, {"id": "<script>"}
    with pytest.raises(FetchError, match="does not speak as a hub"):
        hub_model(REPO)


def test_nothing_is_asked_without_words_network_or_leave(
    few: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MissingError, match="Type what the model's name holds"):
        search(" \n ")
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "1")
            with pytest.raises(OfflineError, match="HF_HUB_OFFLINE is set"):
                search("any")
    assert few.asked == []
    said = r"cannot be reached at http://127\.0\.0\.1:9\. Connect"
    for wrong, sentence in (
        (f"{NOWHERE}/", said),
        ("nonsense", r"\."),
        ("http://", r"\."),
        ("ftp://x", r"\."),
    ):
        monkeypatch.setenv("HF_ENDPOINT", wrong)
        with pytest.raises(ModelError, match=sentence):
            search("any")


def test_a_hub_that_does_not_answer_is_given_up(few: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_TIMEOUT", 0.2)
    few.answering.clear()
    with pytest.raises(OfflineError, match="cannot be reached"):
        search("any")


def test_a_hub_that_leads_elsewhere_leads_no_token_there(
    hub_of: Callable[[dict[str, bytes]], FakeHub], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published files do lie elsewhere; who serves them learns of no key, and a file of this machine is none."""
    other, hub = hub_of({}), hub_of({})
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.leads_to = f"{other.url}/api/models"
    assert search("qwen") == []
    assert (hub.keys, other.keys) == (["Bearer hf_secret"], [None])
    for hub.leads_to in ("file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://x/"):
        with pytest.raises((FetchError, OfflineError)):
            search("qwen")
