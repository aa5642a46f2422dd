"""What the Models view shows, and does, over a real slot, a fake hub and files of this machine."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hierchat.models.architectures import families
from hierchat.models.catalogue import Catalogue, Gguf, ModelEntry, ModelSource, Size, read_catalogue
from hierchat.models.progress import CatalogueError, ModelError, Progress, Report
from hierchat.runtime import costs
from hierchat.runtime.costs import MODULES_SECONDS, REACHED
from hierchat.runtime.model_manager import FAST, ModelManager, ModelRow, Offer
from hierchat.runtime.model_slot import ModelSlot, SlotStatus
from hierchat.store.records import ModelSpeed
from tests.testing.fake_hub import REPO, FakeHub
from tests.testing.fake_shelf import Figures
from tests.testing.tiny_chat import served, settle
from tests.testing.tiny_files import of_gguf, save_tiny, serving_hub
from tests.testing.waiting import until

pytestmark = pytest.mark.usefixtures("places")


@pytest.fixture
def hub(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serving_hub({"tiny.Q8_0.gguf": tiny_gguf.read_bytes()}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def on_hub(name: str, **fields: object) -> ModelEntry:
    source = ModelSource(gguf=Gguf(repo=REPO, file="tiny.Q8_0.gguf"))
    return ModelEntry(name=name, source=source, **fields)  # type: ignore[arg-type]


def manager_of(*entries: ModelEntry, bring: object = None) -> ModelManager:
    found = Catalogue(models={entry.name: entry for entry in entries}, default=entries[0].name)
    slot = ModelSlot(found, load=lambda name, report: served(name))
    return ModelManager(slot, Figures(), bring)  # type: ignore[arg-type]


def row(manager: ModelManager, name: str) -> ModelRow:
    return next(row for row in manager.rows(1) if row.name == name)


def test_fetched_loaded_ejected_and_removed(hub: FakeHub) -> None:
    manager = manager_of(on_hub("tiny"))
    assert manager.names == []
    assert (row(manager, "tiny").state, row(manager, "tiny").have) == ("absent", 0)
    assert row(manager, "tiny").maker == REPO.split("/")[0]
    with pytest.raises(ModelError, match=r"tiny is not on this machine\. Download it first"):
        manager.load("tiny")
    assert not [path for _, path, _ in hub.asked if path.endswith(".gguf")]
    manager.download("tiny")
    until(lambda: not manager.busy)
    fetched = row(manager, "tiny")
    assert (fetched.download.phase, fetched.download.message) == ("done", "")
    assert (fetched.state, fetched.size) == ("here", len(hub.files["tiny.Q8_0.gguf"]))
    assert manager.names == ["tiny"]
    asked = len(hub.asked)
    manager.load("tiny")
    settle(manager._slot)
    assert row(manager, "tiny").loaded
    with pytest.raises(ModelError, match=r"tiny is in use\. Eject"):
        manager.remove("tiny")
    manager.eject()
    until(lambda: not manager.busy)
    manager.take("tiny")
    assert settle(manager._slot).status.phase == "ready"
    manager.eject()
    until(lambda: not manager.busy)
    assert len(hub.asked) == asked  # loading asks the network for nothing
    assert manager._slot.status.phase == "none"
    assert manager._slot.model is None
    frees = manager.frees("tiny")
    assert frees > len(hub.files["tiny.Q8_0.gguf"])  # what was converted goes, too
    before = _used()
    manager.remove("tiny")
    assert before - _used() == frees
    assert (row(manager, "tiny").state, row(manager, "tiny").download) == ("absent", None)
    assert manager.names == []


def _used() -> int:
    cache = Path(os.environ["HIERCHAT_CACHE"])
    kept = [cache / "hub", cache / "blocks"]
    files = {file.resolve() for folder in kept for file in folder.rglob("*") if file.is_file()}
    return sum(file.stat().st_size for file in files if file.suffix != ".lock")


def test_choosing_what_is_here_while_another_one_is_fetched(hub: FakeHub, tiny_gguf: Path) -> None:
    go = threading.Event()

    def bring(entry: ModelEntry, report: Report) -> None:
        report(Progress("downloading", 1, 9, entry.name))
        go.wait()
        report(Progress("downloading", 2, 9, entry.name))

    here = of_gguf(tiny_gguf, name="here")
    manager = manager_of(on_hub("tiny"), here, bring=bring)
    manager.download("tiny")
    assert manager.busy
    assert manager.names == ["here"]
    manager.load("here")
    assert settle(manager._slot).status.phase == "ready"
    with pytest.raises(ModelError, match="tiny is being fetched"):
        manager.remove("tiny")
    manager.downloads.stop("tiny")
    go.set()
    until(lambda: not manager.busy)
    assert manager._slot.model.name == "here"


def test_what_does_not_fit_is_refused_before_anything_comes(hub: FakeHub) -> None:
    huge = Size(parameters=10**14, slot=1)
    manager = manager_of(on_hub("huge", size=huge), on_hub("tiny"))
    found = row(manager, "huge")
    assert found.fit.verdict == "no"
    assert "of memory; this machine has" in found.fit.why
    manager.download("huge")
    until(lambda: not manager.busy)
    download = row(manager, "huge").download
    assert download.phase == "failed"
    assert "huge needs about" in download.message
    assert hub.asked == []


def test_a_failed_download_is_told_until_it_was_seen_or_its_model_is_loaded(tiny_gguf: Path) -> None:
    def bring(entry: ModelEntry, report: Report) -> None:
        raise ModelError("The hub cannot be reached.")

    manager = manager_of(of_gguf(tiny_gguf, name="here"), bring=bring)

    def failed() -> bool:
        manager.download("here")
        until(lambda: not manager.busy)
        return bool(row(manager, "here").download)

    assert failed()
    manager.forget_failures((None, ()))
    assert row(manager, "here").download
    manager.forget_failures(manager.failures)
    assert row(manager, "here").download is None
    assert failed()
    manager.load("here")
    assert row(manager, "here").download is None
    settle(manager._slot)


def test_what_was_half_fetched_is_said(hub: FakeHub) -> None:
    manager = manager_of(on_hub("tiny", size=Size(parameters=1000)))
    blobs = Path(os.environ["HIERCHAT_CACHE"]) / "hub" / "models--org--tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc.incomplete").write_bytes(b"12345")
    found = row(manager, "tiny")
    assert (found.state, found.have) == ("partly", 5)
    manager.remove("tiny")
    assert row(manager, "tiny").state == "absent"


def test_speed_is_guessed_until_it_was_measured(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = of_gguf(tiny_gguf, name="here")
    manager = manager_of(entry)
    assert row(manager, "here").speed is None
    monkeypatch.setattr(costs, "BYTES", 2**20)
    assert manager.unmeasured
    manager.measure()
    until(lambda: not manager.busy)
    assert not manager.unmeasured
    measured = costs.kept_bandwidth()
    assert measured
    expected = row(manager, "here").speed
    seconds = tiny_gguf.stat().st_size / (REACHED * measured)
    assert (expected.per_second, expected.replies) == (1 / seconds, 0)
    several = entry.model_copy(update={"size": Size(parameters=1000, active=125)})
    awake = manager_of(several)
    found = row(awake, "here").speed
    assert found.per_second == pytest.approx(8 * expected.per_second)  # an eighth is read
    assert row(awake, "here").fit.needed == row(manager, "here").fit.needed  # all is in memory
    manager._speeds.known["here"] = measured = ModelSpeed(12.5, 3, 1e9)  # type: ignore[attr-defined]
    assert row(manager, "here").speed == measured


def test_what_transformers_computes_is_expected_slower_until_own_kernels_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page asks one place what computes a model: a family that moves to own kernels gets their estimate."""
    monkeypatch.setattr("hierchat.runtime.model_manager.kept_bandwidth", lambda: 31.7e9)
    entry = ModelEntry.model_validate({
        "name": "hybrid", "kind": "nemotron_h", "size": {"parameters": 10**9},
        "source": {"gguf": {"repo": "org/none", "file": "hybrid-Q4_K_M.gguf"}},
    })  # fmt: skip

    def found() -> tuple[float, bool]:
        one = row(manager_of(entry), "hybrid")
        return one.speed.per_second, one.step == "kernels"

    seconds = 1e9 * 4.9 / 8 / (REACHED * 31.7e9)
    floats = 1e9 * 4 / (REACHED * 31.7e9)
    monkeypatch.setattr(families, "ARCHITECTURES", {})
    assert found() == (pytest.approx(1 / (floats + MODULES_SECONDS)), False)
    ours = SimpleNamespace(mixers=(), model_type="nemotron_h")
    monkeypatch.setattr(families, "ARCHITECTURES", {"nemotron_h": ours})
    assert found() == (pytest.approx(1 / seconds), True)


def test_the_fastest_look_counts_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([1.0, 2.0, *[1.5] * (costs.LOOKS - 2)])
    monkeypatch.setattr("hierchat.runtime.costs.reading_rates", lambda *asked: [0.5, next(rates)])
    manager, kept = manager_of(on_hub("tiny")), []
    for _ in range(2):
        manager.measure()
        until(lambda: not manager.busy)
        kept.append(costs.kept_bandwidth())
    assert kept == [2e9, 2e9]


def test_nothing_is_measured_while_a_reply_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written, alone = True, []

    def look(*asked: object) -> list[float]:
        alone.append(not written)
        return [1.0]

    monkeypatch.setattr("hierchat.runtime.costs.reading_rates", look)
    manager = manager_of(on_hub("tiny"))
    with manager._slot.scheduler.turn():
        manager.measure()
        assert manager.busy
        assert manager.unmeasured
        assert manager.best(manager.rows(1)) is None
        written = False
    until(lambda: not manager.busy)
    assert alone == [True] * costs.LOOKS


GB = 10**9
SIZES = {"tiny": GB // 100, "old": GB, "slow": 6 * GB, "large": 13 * GB, "huge": 10**5 * GB}


def sized(monkeypatch: pytest.MonkeyPatch, rate: float, memory: float) -> ModelManager:
    """Models of all sizes, on a machine of this speed and memory (GB)."""
    monkeypatch.setattr("hierchat.runtime.model_manager.kept_bandwidth", lambda: rate * 1e9)
    monkeypatch.setattr("hierchat.models.device_memory.total_memory", lambda device: int(memory * 1e9))
    monkeypatch.setattr("hierchat.models.device_memory.free_memory", lambda device: int(memory * 1e9))
    entries = [packed(name, size) for name, size in SIZES.items()]
    return manager_of(*entries, packed("new", int(0.9 * GB), "2026-10"), packed("newest", GB, "2026-11"))


def packed(name: str, parameters: int, released: str = "") -> ModelEntry:
    source = ModelSource(gguf=Gguf(repo="org/none", file=f"{name}-q4_0.gguf"))
    return ModelEntry(name=name, source=source, size=Size(parameters=parameters), released=released)


def test_the_newest_of_the_size_that_is_fast_enough_is_recommended(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = sized(monkeypatch, 20, 64)
    rows = manager.rows(1)
    best = manager.best(rows)
    assert best.name == "newest"
    assert best.speed.per_second >= FAST
    assert manager.best([one for one in rows if one.name != "newest"]).name == "new"
    assert manager.best([one for one in rows if not one.name.startswith("new")]).name == "old"


def test_nothing_unpacked_is_recommended_where_something_packed_suits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sized(monkeypatch, 200, 64)
    whole = ModelEntry.model_validate({
        "name": "whole", "source": {"hub": {"repo": "org/none"}}, "blocks": 4, "kind": "qwen2",
        "size": {"parameters": 3 * GB}, "released": "2026-12",
    })  # fmt: skip
    both = manager_of(packed("packed", GB), whole)
    assert both.best(both.rows(1)).name == "packed"
    alone = manager_of(whole)
    assert alone.best(alone.rows(1)).name == "whole"


def test_the_offer_stays_until_a_better_model_has_written(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = sized(monkeypatch, 20, 64)
    assert manager.offer() is None  # nothing is loaded

    def settled() -> Offer | None:
        manager.offer()
        until(lambda: not manager.busy)
        return manager.offer()

    manager._slot.status = SlotStatus("tiny", "loading")
    coming = settled()
    assert (coming.tiny, coming.ready, coming.first, coming.best.name) == ("tiny", False, True, "newest")
    manager._slot.model, manager._slot.status = served("tiny"), SlotStatus("tiny", "ready")
    assert settled().ready
    manager._speeds.wrote = {"tiny"}  # type: ignore[attr-defined]
    assert not settled().first
    manager._slot.status = SlotStatus("newest", "loading")
    assert settled() is None
    manager._slot.status = SlotStatus("tiny", "ready")
    assert settled()
    manager._speeds.wrote = {"tiny", "old"}  # type: ignore[attr-defined]
    assert settled() is None


@pytest.mark.parametrize(
    ("rate", "memory", "name"),
    [(20, 64, "newest"), (200, 64, "newest"), (20, 1, "tiny")],
)
def test_the_same_one_is_recommended_whatever_runs_at_the_moment(
    monkeypatch: pytest.MonkeyPatch, rate: float, memory: float, name: str
) -> None:
    manager, found = sized(monkeypatch, rate, memory), []
    for free in (1.0, 0.5, 0.01):
        held = int(free * memory * 1e9)
        monkeypatch.setattr("hierchat.models.device_memory.free_memory", lambda device, held=held: held)
        for measured in ({}, {"large": 1.0, "newest": 1.0}, {"slow": 99.0}):
            known = {name: ModelSpeed(speed, 20) for name, speed in measured.items()}
            manager._speeds.known = known  # type: ignore[attr-defined]
            best = manager.best(manager.rows(1))
            found.append(best and best.name)
    assert set(found) == {name}


GIB = 2**30


@pytest.mark.parametrize(
    ("device", "memory", "rate", "name"),
    [
        ("cpu", 8, 30, "minicpm5-2b"),
        ("cpu", 16, 50, "gemma-4-e4b"),
        ("cpu", 32, 80, "gemma-4-e4b"),
        ("cuda", 8, 0, "lfm3-1.7b"),
        ("cuda", 12, 0, "qwen3.5-4b"),
        ("cuda", 24, 0, "qwen3.5-9b"),
    ],
)
def test_what_is_recommended_is_what_the_documentation_says(
    monkeypatch: pytest.MonkeyPatch, device: str, memory: int, rate: float, name: str
) -> None:
    """The page recommends exactly this for such machines: GiB of memory, and GB of it that are read a second."""
    manager = ModelManager(ModelSlot(read_catalogue(), load=lambda name, report: served(name)), Figures())
    manager._device = device
    monkeypatch.setattr("hierchat.runtime.model_manager.kept_bandwidth", lambda: rate * 1e9)
    monkeypatch.setattr("hierchat.models.device_memory.total_memory", lambda device: int(0.97 * memory * GIB))
    monkeypatch.setattr("hierchat.models.device_memory.free_memory", lambda device: int(0.9 * memory * GIB))
    best = manager.best(manager.rows(1))
    assert best.name == name
    assert read_catalogue().entry(name).released >= "2025-10"
    docs = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    machine = f"{memory} GB, {rate} GB a second" if device == "cpu" else f"GPU of {memory} GB"
    assert f"| {machine} | `{name}` |" in docs


def test_what_is_added_can_be_removed_and_own_files_stay(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "mine")
    slot = ModelSlot(read_catalogue(), load=lambda name, report: served(name))
    manager = ModelManager(slot, Figures())
    assert manager.add(str(folder)) == ("mine", True)
    assert manager.add(str(folder)) == ("mine", False)
    found = row(manager, "mine")
    assert (found.own, found.state) == (True, "here")
    assert manager.frees("mine") == 0
    manager.remove("mine")
    assert "mine" not in slot.catalogue.models
    assert (folder / "config.json").exists()


def test_a_draft_model_is_named_and_stays_while_it_is(tiny_gguf: Path) -> None:
    config = Path(os.environ["HIERCHAT_CONFIG"])
    config.mkdir()
    source = f"source: {{gguf: {{path: {tiny_gguf}}}}}"
    entries = f"  large: {{{source}, drafts: [small]}}\n  small: {{{source}}}\n"
    (config / "models.yaml").write_text("models:\n" + entries)
    manager = ModelManager(ModelSlot(read_catalogue(), load=lambda name, report: served(name)), Figures())
    assert row(manager, "large").drafts == ("small",)
    with pytest.raises(CatalogueError, match="large names small as its draft model"):
        manager.remove("small")
