"""Define `hierchat verify`, `hierchat prove` and `hierchat doctor`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hierchat.cli import options
from hierchat.cli.options import FILE, Command, counts, max_tokens, positive, seeds, shares, temperatures
from hierchat.config import GenerationSettings
from hierchat.language import error_words

if TYPE_CHECKING:
    from hierchat.models.catalogue import Backend

DRAFTERS = {
    "default": "the program's own",
    "stack": "all draft models at every step",
    "random": "noise",
    "adversarial": "the target's second choices",
}
"""What may draft in `verify`."""


def _drafters(text: str) -> list[str]:
    """Parse names of drafters "A,B,...", each once. Raises click.BadParameter."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in DRAFTERS:
            raise click.BadParameter(f"no drafter is called {name!r}; there are {', '.join(DRAFTERS)}")
    return names


@click.command("verify", cls=Command, help="Compare replies with drafting on and off, token for token.")
@click.option(
    "--questions",
    type=FILE,
    required=True,
    metavar="FILE",
    help="JSON lines with `turns`, and `category`, or `day` and `kind`",
)
@click.option(
    "--drafter",
    type=_drafters,
    default="default",
    metavar="A,B,...",
    help="; ".join(f"{name}: {what}" for name, what in DRAFTERS.items()) + " (default)",
)
@click.option(
    "--users", type=positive, default=1, metavar="N", help="so many ask at once, and share forwards (1)"
)
@click.option("--limit", type=positive, metavar="N", help="questions, evenly over the groups")
@click.option("--max-new-tokens", type=max_tokens, default=256, metavar="N", help="per reply (256)")
@click.option("--temperature", type=temperatures, default=0.0, metavar="T", help="0, the default, is greedy")
@click.option("--top-p", type=shares, default=1.0, metavar="P", help="as in the chat; 1, the default, is off")
@click.option("--top-k", type=counts, default=0, metavar="K", help="as in the chat; 0, the default, is off")
@click.option("--seed", type=seeds, default=0, metavar="S")
@click.option("--model", metavar="MODEL", help="a name from `models list`, a folder, or a GGUF file")
@options.backend_option
@click.option(
    "--width",
    type=positive,
    metavar="N",
    help="positions per forward: N - 1 drafts (by default the program's)",
)
@click.option(
    "--corpus", type=FILE, metavar="PATH", help="texts that draft beside those that ship, as for `corpus add`"
)
@click.option("--json", type=FILE, required=True, metavar="OUT", help="where the figures go")
def verify_command(model: str | None, **flags: Any) -> int:
    """Return 0, 1 for words that differ, 2 for an error, 130 for Ctrl-C."""
    from hierchat.checks.runs import answered  # these take seconds

    name = options.catalogue_name(model)
    return answered(lambda: _verify(model=name, **flags), flags["json"])


def _verify(
    *,
    model: str | None,
    questions: Path,
    drafter: list[str],
    users: int,
    limit: int | None,
    backend: "Backend | None",
    width: int | None,
    corpus: Path | None,
    json: Path,
    **sampling: Any,
) -> int:
    from hierchat.checks.exactness import Compared, check
    from hierchat.checks.runs import bar, machine, read_questions, spread
    from hierchat.models.catalogue import read_catalogue
    from hierchat.runtime.loading import LoadOptions, load_served_model
    from hierchat.texts.corpora import require_readable

    if corpus:
        require_readable(corpus)
    settings, asked = GenerationSettings(**sampling), spread(read_questions(questions), limit)
    catalogue = read_catalogue()
    how = LoadOptions(backend, corpus=corpus, places=users, catalogue=catalogue)
    with options.terminal_progress() as report:
        served = load_served_model(catalogue.entry(model), how, report)
    recorded = {"file": questions.name, "drafters": drafter, "users": users, "limit": limit, "width": width}
    head = {
        "machine": machine(),
        "model": served.name,
        "backend": served.engine.backend,
        "settings": {**recorded, **sampling, "corpus": str(corpus) if corpus else None},
        "exact": served.engine.exact,
        **{key: sampling[key] for key in ("temperature", "seed")},
    }
    result = Compared(json, head, drafter)
    stopped = False
    try:
        with bar(len(asked)) as tell:
            check(served, asked, settings, result, tell, width=width, users=users)
    except KeyboardInterrupt:
        stopped = True
    summary = result.as_dict()
    print(
        f"{summary['questions']:,} questions, {summary['tokens']:,} tokens compared, "
        f"{summary['mismatches']} replies differ."
    )
    for name, figures in summary["by_drafter"].items():
        print(
            f"  {name}: {figures['tokens']:,} tokens, {figures['tokens_per_forward']} per forward, "
            f"{figures['mismatches']} replies differ"
        )
    for difference in summary["first"]:
        print("  " + ", ".join(f"{key} {value}" for key, value in difference.items()))
    return 1 if result.mismatches else 130 if stopped else 0


@click.command("prove", cls=Command)
@options.model_option
@click.option("--json", type=FILE, metavar="OUT", help="where the result goes, too")
def prove_command(model: str | None, json: Path | None) -> int:
    """Prove on this machine that no word changes, nothing leaves, nothing is lost, and what is deleted is gone.

    It takes about two minutes, needs no network and does not touch your data. Returns 0, 1 for a broken promise,
    2 for an error, 130 for Ctrl-C."""
    from hierchat.checks.runs import answered  # takes seconds

    return answered(lambda: _prove(options.catalogue_name(model), json), json)


def _prove(model: str | None, out: Path | None) -> int:
    from json import dumps

    from rich.console import Console

    from hierchat.checks.prove import prove
    from hierchat.models.cache import write_whole

    console = Console(stderr=True)
    with console.status("starting") as shown:
        proof = prove(model, lambda doing: shown.update(error_words(doing)))
    if out:
        write_whole(out, dumps(proof.as_dict(), indent=2).encode() + b"\n")
    marks = {True: "kept", False: "BROKEN", None: ""}
    rows = [(error_words(line.name), marks[line.kept], error_words(line.detail)) for line in proof.lines]
    Console().print(options.table(("Promise", "", proof.model), rows, ()))
    print(f"{'All promises are kept' if proof.kept else 'NOT PROVED'} ({proof.seconds:.0f} s).")
    return 0 if proof.kept else 1


@click.command("doctor", cls=Command)
@options.database_option
def doctor_command(db: Path | None) -> int:
    """Print a report of machine, versions, kernels and database; return 1 where something is wrong."""
    from hierchat.checks.doctor import print_report

    return print_report(db)
