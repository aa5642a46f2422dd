"""Define `hierchat models` and `hierchat corpus`: what can answer, and the texts that draft."""

import sys
from pathlib import Path

import click
from rich.console import Console

from hierchat.cli.options import Group, catalogue_name, table, terminal_progress
from hierchat.language import _
from hierchat.models.cache import count, gigabytes, size_of
from hierchat.models.catalogue import Catalogue, read_catalogue
from hierchat.models.device_memory import best_device
from hierchat.models.fetch.bring import bring, fetched_size, is_fetched
from hierchat.models.load.check import expected_step, refusal, require_runnable
from hierchat.models.load.tokenizer_files import known_tokens, load_tokenizer, tokens_sha256
from hierchat.models.runnable import ComputePath
from hierchat.texts import corpora
from hierchat.texts.build import Recipe
from hierchat.texts.corpora import Stored, name_of, require_free_name
from hierchat.texts.text_files import CorpusError, TextReader, find

models_command = Group("models")
corpus_command = Group("corpus")
ORIGINS = ("wheel", "hub", "folder", "gguf")
_NAMED = 10
"""Files that are named at most, of those that were not read as usual."""
_BRIEFLY: dict[ComputePath, str] = {
    "kernels": "own engine",
    "slots": "transformers",
    "plain": "transformers, no drafts",
}


@models_command.command("list", help="the catalogue")
def list_models() -> None:
    catalogue, device, rows = read_catalogue(), best_device(), []
    for name, entry in catalogue.models.items():
        here, size = is_fetched(entry, device), fetched_size(entry, device)
        if here and (why := refusal(entry, device)):
            click.echo(f"{name}: {why}", err=True)
        step = expected_step(entry, device)
        rows.append(
            (
                name,
                "*" if name == catalogue.default else "-",
                count(entry.size.parameters) if entry.size else "?",
                gigabytes(size) if here else "partly" if size else "-",
                "a server" if entry.engine else _BRIEFLY[step] if step else "?",
                entry.licence,
                entry.engine.openai.url
                if entry.engine
                else next(kind for kind in ORIGINS if getattr(entry.source_on(device), kind)),
                ", ".join(entry.drafts) or "-",
            )
        )
    columns = ("model", "default", "size", "on disk", "computed by", "licence", "from", "drafts")
    if sys.stdout.isatty():
        Console().print(table(columns, rows, ("size", "on disk")))
    else:
        print("\n".join("\t".join(row) for row in rows))


@models_command.command("get", help="fetch a model now")
@click.argument("name")
def get_model(name: str) -> int:
    entry = read_catalogue().entry(name)
    try:
        with terminal_progress() as report:
            require_runnable(entry, progress=report)
            folder = bring(entry, report)
    except KeyboardInterrupt:
        click.echo("Stopped. The same command goes on.", err=True)
        return 130
    print(f"{name}: {folder}")
    return 0


@corpus_command.command("list", help="what is stored, and for which models")
def list_corpora() -> None:
    catalogue = read_catalogue()
    if not (found := corpora.listed()):
        print(_("There are none yet: python -m hierchat corpus add PATH"))
        return
    columns = ("corpus", "texts", "tokens", "size", "for", "added", "from")
    Console().print(table(columns, [_row(corpus, catalogue) for corpus in found], columns[1:4]))


@corpus_command.command("remove", help="delete a corpus, for all models")
@click.argument("name")
def remove_corpus(name: str) -> None:
    size = gigabytes(corpora.remove(name))
    print(_("{name} is removed: {size} are free again.").format(name=name, size=size))


@corpus_command.command("add", help="files and folders of text, Markdown, code, JSON lines, chats")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--model", metavar="NAME", help="a name from `models list`: whose tokens (the default's)")
@click.option("--name", metavar="NAME", help="by default, as the first path is called")
@click.option("--replace", is_flag=True, help="in place of the corpus of this name")
def add_corpus(paths: tuple[str, ...], model: str | None, name: str | None, replace: bool) -> int:
    name = name or name_of(Path(paths[0]).absolute().name)
    entry = read_catalogue().entry(catalogue_name(model))
    passed_over: list[str] = []
    try:
        with terminal_progress() as report:
            files = find([Path(path).expanduser() for path in paths], passed_over)
            tokenizer = load_tokenizer(entry, report)
            require_free_name(name, tokens_sha256(tokenizer), replace)
            reader = TextReader(files, passed_over)
            sources = [str(Path(path).absolute()) for path in paths]
            recipe = Recipe(name, reader, tokenizer, entry.name, sources)
            made = corpora.add(recipe, report, replace)
    except MemoryError as error:
        raise CorpusError("Memory ran out. Close other programs, or add the corpus in parts.") from error
    except KeyboardInterrupt:
        click.echo(_("Stopped. Nothing was stored."), err=True)
        return 130
    for lines in (reader.notes, [_("not read: {file}").format(file=file) for file in reader.passed_over]):
        for line in lines[:_NAMED]:
            click.echo(line, err=True)
        if len(lines) > _NAMED:
            click.echo(_("and {n:,} more").format(n=len(lines) - _NAMED), err=True)
    said = _("{name}: {n:,} tokens for {model}. Replies use them once hierchat was started again.")
    print(said.format(name=name, n=made.order.size, model=entry.name))
    return 0


def _row(corpus: Stored, catalogue: Catalogue) -> list[str]:
    size = gigabytes(size_of(corpus.folder))
    trouble = f"damaged: {corpus.trouble}" if corpus.trouble else ""
    if not corpus.meta:
        return [corpus.name, "", "", size, trouble, "", ""]
    meta = corpus.meta
    same = [name for name, entry in catalogue.models.items() if known_tokens(entry) == meta.tokenizer]
    models = ", ".join(dict.fromkeys([meta.model, *same]))
    return [
        corpus.name,
        f"{meta.texts:,}",
        f"{meta.tokens:,}",
        size,
        trouble or models,
        f"{meta.made:%Y-%m-%d}",
        ", ".join(meta.sources),
    ]
