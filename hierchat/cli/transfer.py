"""Define `hierchat import | export | backup | restore | forget`: chats from and to files, and their deletion."""

import sys
import time
from pathlib import Path

import click

from hierchat.cli.options import FILE, Command, chats, database_option, with_existing_store, with_store
from hierchat.config import database_file
from hierchat.language import _, error_words
from hierchat.models.cache import gigabytes
from hierchat.store import LOCAL_USER, Store
from hierchat.store.backups import backups_of, examine, require_whole, restore
from hierchat.texts.exporting import beside_chats, export_json
from hierchat.texts.importers.tree import TransferError
from hierchat.texts.importing import KNOWN, Import

_WORD = "forget"
user_option = click.option(
    "--user",
    metavar="NAME",
    help="whose: local, of a page without a login (the default), or that of an account",
)


@click.command("import", cls=Command)
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@user_option
@with_store
def import_command(store: Store, files: tuple[Path, ...], user: str | None) -> int:
    """Bring chats in: JSON as it was exported, its zip, or a folder. Raises TransferError and StoreError."""
    importing = Import(store, store.users.ensure(user or LOCAL_USER), map(Path.expanduser, files))
    with click.progressbar(length=importing.total, label="importing", hidden=not sys.stdout.isatty()) as bar:
        for _done in importing:
            bar.update(importing.done - bar.pos)
    for reason in importing.reasons:
        print(_("not imported: {why}").format(why=error_words(reason)), file=sys.stderr)
    came, added = importing.outcomes, {"messages": importing.messages, "characters": importing.characters}
    told = _(
        "{new} new, {grown:,} grown, {same:,} here before: {messages:,} messages, {characters:,} characters added."
    )
    print(told.format(new=chats(came["new"]), grown=came["grown"], same=came["same"], **added))
    if importing.presets:
        print(_("Presets of settings that are new: {n:,}.").format(n=importing.presets))
    if importing.bad:
        print(_("{n:,} could not be read.").format(n=importing.bad))
    if importing.messages:
        print(_("Replies use them from now on; a model reads them once, during the first replies."))
    brought = importing.outcomes or importing.presets or importing.projects
    if brought or importing.bad:
        return 0 if brought else 1
    raise TransferError(f"No chat was found. What can be read is {KNOWN}.")


@click.command("export", cls=Command)
@click.argument("out", type=FILE)
@user_option
@with_existing_store
def export_command(store: Store, out: Path, user: str | None) -> None:
    """Write your chats into OUT, a new file. Raises TransferError and StoreError."""
    out, users = out.expanduser().absolute(), store.users.ids()
    if (id := users.get(user or LOCAL_USER)) is None:
        there = f"There are: {', '.join(users)}." if users else "There are none."
        why = f"There is no user {user or LOCAL_USER!r} in {store.path}. {there} Name one with --user."
        raise TransferError(why)
    found = [*store.chats.find(id, limit=-1), *store.chats.find(id, limit=-1, archived=True)]
    chosen = [one.id for one in found]
    export = export_json(store, id, chosen, out, beside_chats(store, id))
    with click.progressbar(
        export, length=len(chosen), label="exporting", hidden=not sys.stdout.isatty()
    ) as growing:
        written = max(growing, default=0)
    print(_("{chats} written to {path}").format(chats=chats(written), path=out))


@click.command("backup", cls=Command)
@click.argument("out", type=FILE)
@with_existing_store
def backup_command(store: Store, out: Path) -> None:
    """Copy the database into OUT, a new file, while the chat may run. Raises TransferError and StoreError."""
    out = out.expanduser().absolute()
    store.connection.backup(out)
    size = gigabytes(out.stat().st_size)
    print(_("Copied to {path}, {size}, and checked.").format(path=out, size=size))
    print(_("To bring it back, end hierchat and call `hierchat restore {path}`.").format(path=out))
    print(_("Not in it: models, models.yaml and mcp.json, and the texts of your own that draft."))


@click.command("restore", cls=Command)
@click.argument("backup", required=False, type=FILE)
@database_option
def restore_command(backup: Path | None, db: Path | None) -> None:
    """Put a backup in the place of the database, which is kept beside it. Without BACKUP, list those that hierchat
    made by itself. Raises StoreError."""
    path = database_file(db)
    if backup is None:
        for copy in backups_of(path):
            _tell(copy)
        return
    backup = backup.expanduser().absolute()
    require_whole(backup)
    _tell(backup)
    if path.exists():
        _tell(path)
    before = restore(backup, path)
    with Store.open(path) as store:
        print(_("Restored: {path} has {chats} now.").format(path=path, chats=chats(_count(store.path))))
    if before:
        print(_("The database that was there before is {path}.").format(path=before))


def _tell(database: Path) -> None:
    size = gigabytes(database.stat().st_size)
    print(f"{database}  {time.strftime('%Y-%m-%d %H:%M', time.localtime(database.stat().st_mtime))}  {size}  "
          f"{chats(_count(database))}")  # fmt: skip


def _count(database: Path) -> int:
    return examine(database).chats


@click.command("forget", cls=Command)
@click.option("--yes", is_flag=True, help="do not ask")
@click.option(
    "--deleted", is_flag=True, help="only from the daily backups, what the database has no more; chats stay"
)
@user_option
@with_existing_store
def forget_command(store: Store, yes: bool, deleted: bool, user: str | None) -> int:
    """Delete all chats of a user for good. Raises TransferError and StoreError."""
    name = user or LOCAL_USER
    if deleted:
        return _forget_in_backups(store, name, yes)
    if (id := store.users.ids().get(name)) is None:
        copies = store.backups.forget(name)  # what an earlier run could not
        whole = store.connection.rewrite() and copies
        print(_("Nothing is stored of a user {name!r}.").format(name=name))
    else:
        count, messages = store.users.counts(id)
        if not yes and not _sure(f"{chats(count)} with {messages:,} messages of {name!r}"):
            print(_("Nothing was deleted."))
            return 1
        whole = store.users.forget(id)
        print(_("Deleted: {chats}, {messages:,} messages.").format(chats=chats(count), messages=messages))
        print(_("What stays: corpora, and models that earlier versions taught from your history."))
    if not whole:
        print(
            f"{store.path} is in use or the disk is full: bytes of what was deleted may be left in it. End hierchat, "
            f"then run `hierchat forget` again.",
            file=sys.stderr,
        )
    return 0 if whole else 1


def _forget_in_backups(store: Store, name: str, yes: bool) -> int:
    if not yes and not _sure(f"all chats of {name!r} that are only in the daily backups"):
        print(_("Nothing was deleted."))
        return 1
    id = store.users.ids().get(name)
    whole = store.backups.forget(name) if id is None else store.backups.forget_missing(name, id)
    if whole:
        print(_("The daily backups hold no chat that was deleted."))
    else:
        print(_("A daily backup could not be rewritten. Try again when nothing uses it."), file=sys.stderr)
    return 0 if whole else 1


def _sure(what: str) -> bool:
    """Ask whether to delete. Raises TransferError if there is no terminal to ask on."""
    if not sys.stdin.isatty():
        raise TransferError("This deletes chats for good. Say --yes where no terminal can ask you.")
    return input(f"Delete {what} for good? Type '{_WORD}' to go on: ").strip() == _WORD
