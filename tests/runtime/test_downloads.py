"""Fetching beside the model that answers, a search of the hub, and a closer look at what was found."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hierchat.models.catalogue import ModelEntry, read_catalogue
from hierchat.models.load.check import Fit
from hierchat.models.progress import FetchError, ModelError, Progress, Report
from hierchat.runtime.costs import REACHED
from hierchat.runtime.downloads import Downloads, HubSearch, Judged, Look, Search
from hierchat.runtime.model_manager import ModelManager
from hierchat.runtime.model_slot import ModelSlot
from tests.testing.fake_hub import REPO, FakeHub
from tests.testing.fake_shelf import Figures
from tests.testing.tiny_chat import catalogue, served
from tests.testing.tiny_files import serving_hub, tiny_config
from tests.testing.waiting import until

pytestmark = pytest.mark.usefixtures("places")
ENTRIES = catalogue("one", "two").models


def phase(downloads: Downloads, name: str) -> str:
    download = downloads.of(name)
    return download.phase if download else ""


class Bringing:
    """Comes piece by piece, as far as it is let."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.go = threading.Semaphore(0)
        self.done: dict[str, int] = {}

    def __call__(self, entry: ModelEntry, report: Report) -> None:
        self.came.append(entry.name)
        while self.done.get(entry.name, 0) < 3:
            report(Progress("downloading", 100 * self.done.get(entry.name, 0), 300, entry.name))
            self.go.acquire()
            self.done[entry.name] = self.done.get(entry.name, 0) + 1
        report(Progress("converting", 0, None, entry.name))
        self.go.acquire()


def test_one_after_another() -> None:
    bringing = Bringing()
    downloads = Downloads(bringing)
    for name in ("one", "two", "one"):
        downloads.start(ENTRIES[name])
    until(lambda: phase(downloads, "one") == "downloading")
    assert phase(downloads, "two") == "waiting"
    assert downloads.busy
    bringing.go.release(8)
    until(lambda: not downloads.busy)
    assert bringing.came == ["one", "two"]
    assert phase(downloads, "one") == phase(downloads, "two") == "done"


def test_what_was_stopped_goes_on_where_it_stopped() -> None:
    bringing = Bringing()
    downloads = Downloads(bringing)
    downloads.start(ENTRIES["one"])
    downloads.start(ENTRIES["two"])
    until(lambda: phase(downloads, "one") == "downloading")
    downloads.stop("two")
    assert phase(downloads, "two") == "stopped"  # it had not begun
    downloads.stop("one")
    assert phase(downloads, "one") == "stopping"
    downloads.start(ENTRIES["one"])  # too early: it is still stopping
    downloads.forget("one")
    bringing.go.release()
    until(lambda: phase(downloads, "one") == "stopped")
    assert bringing.done == {"one": 1}
    downloads.start(ENTRIES["one"])
    until(lambda: (one := downloads.of("one")) and one.done == 100)
    bringing.go.release(3)
    until(lambda: phase(downloads, "one") == "done")
    assert bringing.came == ["one", "one"]


def test_what_goes_wrong_is_a_sentence_and_the_next_one_comes() -> None:
    def bring(entry: ModelEntry, report: Report) -> None:
        if entry.name == "one":
            raise FetchError("one cannot be fetched.")
        raise KeyError("odd")

    downloads = Downloads(bring)
    downloads.start(ENTRIES["one"])
    downloads.start(ENTRIES["two"])
    until(lambda: not downloads.busy)
    one, two = downloads.of("one"), downloads.of("two")
    assert one
    assert two
    assert (one.phase, one.message) == ("failed", "one cannot be fetched.")
    assert two.phase == "failed"
    assert "did not expect" in two.message


@pytest.fixture
def hub(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    body = tiny_gguf.read_bytes()
    with serving_hub({"tiny-f16.gguf": body, "tiny-Q8_0.gguf": body}) as server:
        server.found = [{"id": REPO}, {"id": "org/other"}]
        server.told = {"tags": ["license:mit"]}
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def manager() -> ModelManager:
    slot = ModelSlot(read_catalogue(), load=lambda name, report: served(name))
    return ModelManager(slot, Figures())


def answered(search: HubSearch) -> Search:
    until(lambda: not search.busy)
    assert search.now
    return search.now


def looked(search: HubSearch, repo: str = REPO, file: str | None = None) -> Look:
    search.look(repo, file)
    found = answered(search).look
    assert found
    return found


def test_found_looked_at_added_fetched_and_loaded(hub: FakeHub, manager: ModelManager) -> None:
    assert not hub.asked
    manager.hub.search("tiny")
    assert [model.repo for model in answered(manager.hub).found] == [REPO, "org/other"]
    look = looked(manager.hub)
    assert look.described
    assert look.judged
    assert (look.phase, look.file, look.described.step) == ("done", "tiny-Q8_0.gguf", "kernels")
    assert look.judged.fit.verdict == "yes"
    assert [(one.name, bool(one.size)) for one in look.choices] == [
        ("tiny-Q8_0.gguf", True),
        ("tiny-f16.gguf", True),
    ]
    other = looked(manager.hub, file="tiny-f16.gguf")
    assert (other.phase, other.file) == ("done", "tiny-f16.gguf")
    assert sum(path == f"/api/models/{REPO}" for _, path, _ in hub.asked) == 1  # known from the first look
    assert not any(path.endswith(".gguf") and asked is None for _, path, asked in hub.asked)  # heads alone
    assert other.described
    assert manager.name_of(other.described) == ""
    name = manager.add_and_load()
    assert manager.name_of(other.described) == name == "tiny-f16"
    assert (read_catalogue().entry(name).licence, read_catalogue().entry(name).kind) == ("mit", "llama")
    with pytest.raises(ModelError, match="org/tiny is in the list already"):
        manager.add_and_load()
    until(lambda: manager._slot.status.phase == "ready" and not manager.busy)
    assert manager._slot.status.name == name
    assert next(row for row in manager.rows(1) if row.name == name).state == "here"


def test_safetensors_are_judged_by_config_json_and_what_the_hub_counts(
    hub: FakeHub, manager: ModelManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hierchat.runtime.model_manager.kept_bandwidth", lambda: 1e10)
    config = json.dumps(tiny_config(hidden_size=1024, vocab_size=1000).to_dict()).encode()
    hub.files = {"config.json": config, "model.safetensors": b"", "tiny-Q8_0.gguf": b"none"}
    hub.told = {"safetensors": {"parameters": {"BF16": 10**9}, "total": 10**9}}
    manager.hub.search("tiny")
    answered(manager.hub)
    look = looked(manager.hub)
    assert look.described
    assert look.judged
    assert look.file == ""
    assert [one.name for one in look.choices] == ["", "tiny-Q8_0.gguf"]
    assert look.described.entry.size.embeddings == 1000 * 1024  # tied
    assert look.judged.speed.per_second == pytest.approx(REACHED * 1e10 / (10**9 * 9 / 8))
    assert look.judged.fit.needed
    assert look.judged.fit.needed > 10**9
    hub.told = {"safetensors": {"parameters": {"BF16": 10**14}, "total": 10**14}}
    manager.hub.leave(look=True)
    huge = looked(manager.hub)
    assert huge.judged.fit.verdict == "no"
    with pytest.raises(ModelError, match="Choose a model"):
        manager.add_and_load()
    assert not any(path.endswith(".safetensors") for _, path, _ in hub.asked)
    broken = looked(manager.hub, file="tiny-Q8_0.gguf")
    assert (broken.phase, broken.described) == ("failed", None)
    assert "no GGUF file" in broken.message


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"config.json": b"[" * 10**6, "model.safetensors": b""}, "does not say what model it is"),
        ({"<b>.gguf": b"GGUF\x03\x00"}, "no GGUF file"),
    ],
)
def test_what_cannot_run_or_is_rubbish_is_said(
    hub: FakeHub, manager: ModelManager, files: dict[str, bytes], said: str
) -> None:
    hub.files = files
    manager.hub.search("tiny")
    answered(manager.hub)
    look = looked(manager.hub)
    assert (look.phase, look.described) == ("failed", None)
    assert said in look.message


def test_what_the_hub_refuses_is_said(hub: FakeHub, manager: ModelManager) -> None:
    hub.status = 429
    manager.hub.search("tiny")
    assert (answered(manager.hub).phase, answered(manager.hub).found) == ("failed", ())
    assert "too many questions" in answered(manager.hub).message
    hub.status = 0
    manager.hub.search("tiny")
    answered(manager.hub)
    assert "no public repository org/other" in looked(manager.hub, "org/other").message
    hub.gated = True
    assert "org/tiny is gated or private. Accept its licence" in looked(manager.hub).message
    with pytest.raises(ModelError, match="org/unknown is not among what was found"):
        manager.hub.look("org/unknown")


def test_a_slow_hub_is_waited_for_and_left(hub: FakeHub) -> None:
    search = HubSearch(lambda described: Judged(Fit("yes", ""), None))
    hub.answering.clear()
    search.search("words")
    assert search.busy
    search.leave()
    assert (search.busy, search.now) == (False, None)
    hub.answering.set()
    until(lambda: all(thread.name != "hub search" for thread in threading.enumerate()))
    assert search.now is None  # what nobody waits for any more is not shown
    search.search("again")
    assert answered(search).words == "again"
