"""`python -m hierchat import | export | backup | forget`. All return the process's exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from hierchat.config import data_dir
from hierchat.store import LOCAL_USER, Store
from hierchat.texts.exporting import export_json, export_markdown
from hierchat.texts.importers.tree import TransferError
from hierchat.texts.importing import KNOWN, Import

_WORD = "forget"


def run(args: argparse.Namespace) -> int:
    """One of the four. Raises TransferError and StoreError."""
    if args.command == "import":
        return _import(args)
    if args.command == "export":
        return _export(args)
    return _backup(args) if args.command == "backup" else _forget(args)


def _import(args: argparse.Namespace) -> int:
    path = _database(args.db)
    if args.db and not path.parent.is_dir():
        raise TransferError(f"There is no folder {path.parent}. Make it, or name another file with --db.")
    with Store.open(path) as store:
        importing = Import(
            store, store.users.ensure(args.user or LOCAL_USER), map(Path.expanduser, args.files)
        )
        with _bar("importing", importing.total) as bar:
            for _ in importing:
                bar.update(bar.task_ids[0], completed=importing.done)
    for reason in importing.reasons:
        print(f"not imported: {reason}", file=sys.stderr)
    if importing.bad > len(importing.reasons):
        print(f"and {importing.bad - len(importing.reasons):,} more", file=sys.stderr)
    print(_told(importing))
    if importing.outcomes or importing.bad or importing.presets:
        return 0 if importing.outcomes or importing.presets else 1
    raise TransferError(f"No chat was found. What can be read is {KNOWN}.")


def _told(importing: Import) -> str:
    """What was imported."""
    outcomes = importing.outcomes
    lines = [
        f"{_chats(outcomes['new'])} new, {outcomes['grown']:,} grown, {outcomes['same']:,} here before: "
        f"{importing.messages:,} messages, {importing.characters:,} characters added."
    ]
    if importing.presets:
        lines.append(f"Presets of settings that are new: {importing.presets:,}.")
    if importing.bad:
        lines.append(f"{importing.bad:,} could not be read.")
    if importing.messages:
        lines.append("They draft from the next reply on; a model reads them once, beside the first replies.")
    return "\n".join(lines)


def _export(args: argparse.Namespace) -> int:
    with _opened(args.db) as store:
        user = _user(store, args.user)
        if args.conversation is None:
            shelves = (False, True)
            chosen = [one.id for shelf in shelves for one in store.chats.find(user, limit=-1, archived=shelf)]
        else:
            chosen = [store.chats.get(user, args.conversation).id]
        out = args.out.expanduser().absolute()
        presets = store.presets.all(user) if args.conversation is None else []
        export = (
            export_json(store, user, chosen, out, presets)
            if args.format == "json"
            else export_markdown(store, user, chosen, out)
        )
        written = 0
        with _bar("exporting", len(chosen)) as bar:
            for written in export:
                bar.update(bar.task_ids[0], completed=written)
    print(f"{_chats(written)} written to {out}")
    return 0


def _backup(args: argparse.Namespace) -> int:
    out = args.out.expanduser().absolute()
    with _opened(args.db) as store:
        store.connection.backup(out)
        path = store.path
    print(f"{out}: {_size(out.stat().st_size)}, checked.")
    print(
        f"To restore it, end hierchat and copy it to {path}. Delete {path.name}-wal and -shm there, if they are."
    )
    return 0


def _forget(args: argparse.Namespace) -> int:
    with _opened(args.db) as store:
        name = args.user or LOCAL_USER
        user = store.users.ids().get(name)
        if user is None:
            whole = store.connection.rewrite()  # what an earlier run could not
            print(f"Nothing is stored of a user {name!r}.")
        else:
            chats, messages = store.users.counts(user)
            if not args.yes and not _sure(f"{_chats(chats)} with {messages:,} messages of {name!r}"):
                print("Nothing was deleted.")
                return 1
            written = store.generated.size(user).tokens
            before = _on_disk(store.path)
            whole = store.users.forget(user)
            freed = max(0, before - _on_disk(store.path))
            print(f"Deleted: {_chats(chats)}, {messages:,} messages. The file is {freed:,} bytes smaller.")
            if written:
                print(f"And {written:,} tokens that models wrote for themselves.")
            print("What stays: corpora, and models that earlier versions taught from your history.")
    if not whole:
        print(
            f"{store.path} is in use or the disk is full: bytes of what was deleted may be left in it. End hierchat, "
            f"then run `hierchat forget` again.",
            file=sys.stderr,
        )
    return 0 if whole else 1


def _sure(what: str) -> bool:
    """Asks twice. Raises TransferError where nobody can answer."""
    if not sys.stdin.isatty():
        raise TransferError("This deletes chats for good. Say --yes where no terminal can ask you.")
    if input(f"Delete {what} for good? [y/N] ").strip().lower() not in ("y", "yes"):
        return False
    return input(f"Only a backup can bring them back. Type '{_WORD}' to go on: ").strip() == _WORD


def _database(given: Path | None) -> Path:
    return (given or data_dir() / "hierchat.db").expanduser().absolute()


def _opened(given: Path | None) -> Store:
    """A database that is there."""
    path = _database(given)
    if not path.exists():
        raise TransferError(f"There is no {path}. Name the database with --db.")
    return Store.open(path)


def _user(store: Store, given: str | None) -> int:
    name, users = given or LOCAL_USER, store.users.ids()
    if name not in users:
        there = f"There are: {', '.join(users)}." if users else "There are none."
        raise TransferError(f"There is no user {name!r} in {store.path}. {there} Name one with --user.")
    return users[name]


@contextmanager
def _bar(what: str, total: int) -> Iterator[Progress]:
    """A bar on a terminal, nothing elsewhere."""
    columns = (TextColumn(what), BarColumn(bar_width=30), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True, disable=not sys.stdout.isatty()) as bar:
        bar.add_task(what, total=total)
        yield bar


def _chats(count: int) -> str:
    return f"{count:,} chat{'' if count == 1 else 's'}"


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _on_disk(path: Path) -> int:
    sides = (path, path.with_name(path.name + "-wal"))
    return sum(side.stat().st_size for side in sides if side.exists())
