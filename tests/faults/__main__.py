"""Break the service in every way that a machine can, and count what it loses: `python -m tests.faults --json FILE`.

Each round runs the service in a process of its own, with users at work, lets something happen to it, kills it
(SIGKILL) at a random moment and looks at what the next start finds. The same seed gives the same users, faults and
moments; what the machine does between is its own. `--rounds` or `--minutes` say for how long.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SHIM = "HIERCHAT_FAULTS"
HEAD = struct.Struct("<ccqq")
"""Of each entry of the shim's record."""
SECTOR = 512


@dataclass
class Count:
    """What happened in all rounds of one kind."""

    rounds: int = 0
    kills: int = 0
    told: Counter[str] = field(default_factory=Counter)
    faults: int = 0
    cuts: int = 0
    refused: int = 0
    lost_seconds: float = 0.0
    start_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


class Campaign:
    """Rounds of all kinds, each on databases of its own."""

    def __init__(self, folder: Path, seed: int, seconds: float, cuts: int) -> None:
        self.folder, self.seed, self.seconds, self.cuts = folder, seed, seconds, cuts
        self.counts: dict[str, Count] = {}
        self._owed: dict[str, Any] = {}
        self._number, self._kind = 0, ""

    def round(self, kind: str) -> None:
        self._number, self._kind = self._number + 1, kind
        self.counts.setdefault(kind, Count()).rounds += 1
        # The database goes on from round to round, unless what happens takes acknowledged messages along.
        self.place = self.folder / (f"{kind} {self._number}" if kind in ("log", "power") else kind)
        self.place.mkdir(exist_ok=True)
        self.place.chmod(0o777)
        self.database = self.place / "chat.db"
        KINDS[kind](self, kind, random.Random(f"{self.seed} {self._number}"))

    def kill(self, kind: str, rng: random.Random) -> None:
        """Kill it, also within its start; `two`: two on one file, one after the other."""
        clock = rng.choice([-3600, -86_400, 3600]) if kind == "clock" else 0
        children = [self.begin(rng, clock=clock, name=f"notes {n}") for n in range(2 if kind == "two" else 1)]
        if rng.random() > 0.15:
            self.ready(children)
        time.sleep(rng.uniform(0.05, self.seconds))
        for child in children:
            killed = self.end(child)
            time.sleep(rng.uniform(0, 0.5) if len(children) > 1 else 0)
        self.judge(kind, killed if len(children) == 1 else 0.0)

    def fault(self, kind: str, rng: random.Random) -> None:
        """Let writes fail at random for a while, again and again."""
        child = self.begin(rng, fault=kind)
        self.ready([child])
        time.sleep(rng.uniform(0.5, 2 * self.seconds))
        self.end(child)
        self.judge(kind, 0.0)

    def read_only(self, kind: str, rng: random.Random) -> None:
        """Take away the rights to folder and files from a service that is not root's."""
        child = self.begin(rng, nobody=True)
        self.ready([child])
        for _ in range(2):
            time.sleep(rng.uniform(0.1, self.seconds / 2))
            files = list(self.place.glob("chat.db*"))
            for path, mode in (*((file, 0o444) for file in files), (self.place, 0o555)):
                path.chmod(mode)
            time.sleep(rng.uniform(0.1, self.seconds / 2))
            for path in (self.place, *files):
                path.chmod(0o777)
            self.counts[kind].faults += 1
        self.end(child)
        self.judge(kind, 0.0)

    def log(self, kind: str, rng: random.Random) -> None:
        """Take SQLite's log away after a kill, or its end, or damage it: what the file held before stands."""
        child = self.begin(rng)
        self.ready([child])
        time.sleep(rng.uniform(0.5, 2 * self.seconds))
        self.end(child)
        wal, shm = (self.place / f"chat.db{end}" for end in ("-wal", "-shm"))
        data = wal.read_bytes() if wal.exists() else b""
        match rng.choice(["missing", "cut", "damaged", "no index", "wrong index"]):
            case "missing":
                wal.unlink(missing_ok=True)
                shm.unlink(missing_ok=True)
            case "cut":
                wal.write_bytes(data[: rng.randrange(len(data) + 1)])
            case "damaged" if data:
                at = rng.randrange(len(data))
                wal.write_bytes(data[:at] + rng.randbytes(min(64, len(data) - at)) + data[at + 64 :])
            case "no index":
                shm.unlink(missing_ok=True)
            case _ if shm.exists():
                shm.write_bytes(rng.randbytes(len(shm.read_bytes())))
        self.counts[kind].faults += 1
        folded = [note["began"] for note in self.notes() if note["what"] == "folded" and note["done"]]
        self.judge(kind, 0.0, since=max(folded, default=0.0))

    def power(self, kind: str, rng: random.Random) -> None:
        """Record all writes, and cut them off anywhere: of those since the last sync any may be missing, or torn."""
        from tests.faults.judge import Owed, judged

        self.ready([child := self.begin(rng)])
        self.end(child)  # a database to begin with, whose writes are all in it
        with_users = self.place / "before"
        list(judged(self.database, Owed(), 0.0))
        shutil.copyfile(self.database, with_users)
        (self.place / "notes").unlink()
        child = self.begin(rng, record=self.place / "writes")
        self.ready([child])
        time.sleep(rng.uniform(0.5, 2 * self.seconds))
        self.end(child)
        writes, notes = record_of(self.place / "writes"), self.notes()
        for number in range(self.cuts):
            cut = rng.randrange(len(writes) + 1)
            place = self.place / f"cut {number}"
            place.mkdir()
            durable = replayed(writes[:cut], with_users.read_bytes(), place / "chat.db", rng)
            owed = Owed()
            owed.take(notes)  # what was deleted later may be gone by now
            since = max((note["t"] for note in notes if note["n"] <= durable), default=0.0)
            erased = Owed()
            erased.take(note for note in notes if note["t"] <= since)
            found = judged(place / "chat.db", owed, 0.0, since=since, erased=erased)
            self.take(kind, found, f"cut {number}: ")
            self.counts[kind].cuts += 1
            shutil.rmtree(place)

    # One process of the service
    def begin(self, rng: random.Random, *, name: str = "notes", **how: Any) -> tuple[int, Path]:
        """Fork the service; where it notes."""
        from tests.faults import service

        orders = service.Orders(self.place, rng.getrandbits(24), notes=name, **how)
        notes = self.place / name
        if child := os.fork():
            return child, notes
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            service.quiet(self.place / "log.txt")
            service.run(orders)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)

    def ready(self, children: list[tuple[int, Path]]) -> None:
        for child, notes in children:
            until = time.monotonic() + 120
            while not notes.exists() or '"ready"' not in notes.read_text():
                if os.waitpid(child, os.WNOHANG)[0] or time.monotonic() > until:
                    said = (self.place / "log.txt").read_text()
                    raise SystemExit(f"{self.place.name}: no start. {said[-3000:]}")
                time.sleep(0.02)

    def end(self, child: tuple[int, Path]) -> float:
        """Kill it; when."""
        killed = time.monotonic()
        os.kill(child[0], signal.SIGKILL)
        os.waitpid(child[0], 0)
        self.counts[self._kind].kills += 1
        return killed

    def notes(self) -> list[dict[str, Any]]:
        from tests.faults.judge import notes_of

        return notes_of(self.place.glob("notes*"))

    def judge(self, kind: str, killed: float, since: float | None = None) -> None:
        from tests.faults.judge import COUNTED, Owed, judged

        owed, notes, count = self._owed.setdefault(kind, Owed()), self.notes(), self.counts[kind]
        owed = Owed() if since is not None else owed
        owed.take(notes)
        for file in self.place.glob("notes*"):
            file.unlink()
        count.told.update(note["what"] for note in notes if note["what"] in COUNTED)
        count.refused += sum(note["what"] == "refused" for note in notes)
        count.faults += max((note["failed"] for note in notes if note["what"] == "healed"), default=0)
        count.problems += [f"round {self._number}: {n['why']}" for n in notes if n["what"] == "bug"]
        gaps = [b["t"] - a["t"] for a, b in itertools.pairwise(notes)]
        late = max(gaps[-40:], default=0.0) + (killed - notes[-1]["t"] if killed and notes else 0.0)
        if not killed:
            owed.grown.clear()
        erased = None
        if since is not None:
            (erased := Owed()).take(note for note in notes if note["t"] < since)
        self.take(kind, judged(self.database, owed, killed, since=since, late=late, erased=erased), "")

    def take(self, kind: str, found: Any, where: str) -> None:
        count = self.counts[kind]
        for what, value in found:
            if what == "problem":
                count.problems.append(f"round {self._number}: {where}{value}")
            elif what in ("start_seconds", "lost_seconds"):
                setattr(count, what, max(getattr(count, what), value))
            else:
                count.told[what] += value


KINDS: dict[str, Callable[[Campaign, str, random.Random], None]] = {
    "kill": Campaign.kill,
    "clock": Campaign.kill,
    "two": Campaign.kill,
    "folder": Campaign.read_only,
    **dict.fromkeys(("full", "errors", "short", "read-only"), Campaign.fault),
    "log": Campaign.log,
    "power": Campaign.power,
}


def record_of(file: Path) -> list[tuple[str, str, int, int, bytes]]:
    """What the shim noted: what was done, to which file, where, how much, and the bytes. A mark has the number of a
    user's note in the place of where."""
    data, found, at = file.read_bytes(), [], 0
    while at + HEAD.size <= len(data):
        what, name, place, size = HEAD.unpack_from(data, at)
        at += HEAD.size
        body = data[at : at + size] if what == b"w" else b""
        at += len(body)
        found.append((what.decode(), name.decode(), place, size, body))
    return found


def replayed(
    writes: list[tuple[str, str, int, int, bytes]], before: bytes, path: Path, rng: random.Random
) -> int:
    """Write what a disk may hold at the end of these writes; the last note that it holds for certain."""
    files: dict[str, bytearray] = {"d": bytearray(before)}
    pending: dict[str, list[tuple[str, int, int, bytes]]] = {}
    begun: dict[str, tuple[int, int]] = {}
    marked = durable = -1

    def put(name: str, what: str, at: int, size: int, body: bytes) -> None:
        file = files.setdefault(name, bytearray())
        if what == "t":
            file[at:] = bytes(max(0, at - len(file)))
        else:
            file.extend(bytes(max(0, at - len(file))))
            file[at : at + len(body)] = body

    for what, name, at, size, body in writes:
        if what == "m":
            marked = at
        elif what == "b":
            begun[name] = (len(pending.get(name, [])), marked)
        elif what == "s":
            count, by_then = begun[name]
            for one in pending.get(name, [])[:count]:
                put(name, *one)
            pending[name] = pending.get(name, [])[count:]
            if name == "w":
                durable = by_then
        else:
            pending.setdefault(name, []).append((what, at, size, body))
    for name, left in pending.items():
        kept = rng.choice([0.0, 0.5, 0.9, 1.0])
        for what, at, size, body in left:
            if rng.random() < kept:
                put(name, what, at, size, body)
            elif what == "w" and rng.random() < 0.3:
                put(name, what, at, size, body[: rng.randrange(0, len(body), SECTOR)])
    for name, end in (("d", ""), ("w", "-wal"), ("j", "-journal")):
        if files.get(name):
            path.with_name(path.name + end).write_bytes(files[name])
    return durable


def shim(folder: Path) -> Path:
    """Compile what stands between SQLite and the disk."""
    library = folder / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl", "-lpthread"], check=True)
    return library


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("kinds", nargs="*", help=f"of: {' '.join(KINDS)}")
    parser.add_argument("--rounds", type=int, default=0, help="of each kind")
    parser.add_argument("--minutes", type=float, default=0.0, help="in place of rounds: all kinds by turns")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a round is about")
    parser.add_argument("--cuts", type=int, default=25, help="power cuts in the writes of one round (25)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    folder = Path(os.environ.get(SHIM, "") or tempfile.mkdtemp(prefix="hierchat-faults-"))
    if SHIM not in os.environ:
        folder.chmod(0o755)
        try:
            more = {SHIM: str(folder), "LD_PRELOAD": str(shim(folder)), "HIERCHAT_DATA": str(folder / "data")}
            again = [sys.executable, "-m", "tests.faults", *sys.argv[1:]]
            return subprocess.run(again, env={**os.environ, **more}).returncode
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    from tests.faults import service

    service.warm()
    campaign, began, number = Campaign(folder, args.seed, args.seconds, args.cuts), time.monotonic(), 0
    kinds = args.kinds or [kind for kind in KINDS if kind != "folder" or os.geteuid() == 0]
    while number < args.rounds or time.monotonic() - began < 60 * args.minutes:
        for kind in kinds:
            campaign.round(kind)
        number += 1
        if args.json:
            counts = {kind: vars(count) for kind, count in campaign.counts.items()}
            said = {"seed": args.seed, "seconds": round(time.monotonic() - began), "counts": counts}
            args.json.write_text(json.dumps(said, indent=1))
    for kind, count in campaign.counts.items():
        print(kind, json.dumps(vars(count) | {"problems": len(count.problems)}))
    problems = [f"{kind}: {said}" for kind, count in campaign.counts.items() for said in count.problems]
    print("\n".join(problems[:40]))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
