"""Define `hierchat verify`, `hierchat prove` and `hierchat doctor`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hierchat.cli.options import (
    FILE,
    Command,
    CommandError,
    catalogue_name,
    database_option,
    model_option,
    numbers,
    positive,
    table,
)
from hierchat.language import error_words

if TYPE_CHECKING:
    from hierchat.checks.runs import RunOptions

LONG_CONTEXT = "long-context"
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
    metavar="FILE",
    help="JSON lines with `turns`, and `category`, or `day` and `kind`",
)
@click.option(
    "--workload",
    type=click.Choice(("copy", LONG_CONTEXT)),
    help="made here: a text of 1,500 tokens to copy with a change; questions about a long text",
)
@click.option(
    "--prompt-tokens",
    type=numbers,
    metavar="N,N,...",
    help=f"how long prompts of --workload {LONG_CONTEXT} are (by default as long as fits, 8,192 at most)",
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
@click.option("--max-new-tokens", type=int, default=256, metavar="N", help="per reply (256)")
@click.option("--temperature", type=float, default=0.0, metavar="T", help="0, the default, is greedy")
@click.option("--top-p", type=float, default=1.0, metavar="P", help="as in the chat; 1, the default, is off")
@click.option("--top-k", type=int, default=0, metavar="K", help="as in the chat; 0, the default, is off")
@click.option("--seed", type=int, default=0, metavar="S")
@click.option("--model", metavar="MODEL", help="a name from `models list`, a folder, or a GGUF file")
@click.option("--backend", metavar="NAME", help="such as blocks or float32; by default the fastest")
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
@click.option("--resume", is_flag=True, help="go on from OUT")
def verify_command(model: str | None, drafter: list[str], users: int, **flags: Any) -> int:
    """Return 0, 1 for words that differ, 2 for an error, 130 for Ctrl-C."""
    if bool(flags["questions"]) == bool(flags["workload"]):
        raise click.UsageError("One of --questions and --workload has to be named.")
    from hierchat.checks.runs import RunOptions, answered  # these take seconds

    options = RunOptions.of(flags | {"model": catalogue_name(model)})
    return answered(lambda: _verify(options, drafter, users), flags["backend"], flags["json"])


def _verify(options: "RunOptions", drafters: list[str], users: int) -> int:
    from hierchat.checks.exactness import Compared, check
    from hierchat.checks.runs import STOPPED, MeasuredRun, bar, say, spread

    run = MeasuredRun(options, "verify", {"drafters": drafters, "users": users})
    questions = spread(run.questions, options.limit)
    served = run.load(places=users)
    shown = {key: run.recorded[key] for key in ("temperature", "seed")}
    head = run.head(served) | {"exact": served.engine.exact} | shown
    found = run.earlier(head)
    result = Compared(options.json, head, drafters, found["done"] if found else [])
    stopped = False
    try:
        with bar(len(questions), len(result.rows)) as tell:
            check(served, questions, run.settings, result, tell, width=options.width, users=users)
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
    if stopped:
        say(STOPPED)
    return 1 if result.mismatches else 130 if stopped else 0


@click.command("prove", cls=Command)
@model_option
@click.option("--json", type=FILE, metavar="OUT", help="where the result goes, too")
def prove_command(model: str | None, json: Path | None) -> int:
    """Prove on this machine that no word changes, nothing leaves, nothing is lost, and what is deleted is gone.

    It takes about two minutes, needs no network and does not touch your data. Returns 0, 1 for a broken promise,
    2 for an error, 130 for Ctrl-C."""
    from hierchat.checks.runs import answered  # takes seconds

    return answered(lambda: _prove(catalogue_name(model), json), out=json)


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
    Console().print(table(("Promise", "", proof.model), rows, ()))
    print(f"{'All promises are kept' if proof.kept else 'NOT PROVED'} ({proof.seconds:.0f} s).")
    return 0 if proof.kept else 1


@click.command("doctor", cls=Command)
@database_option
@click.option("--gpu", is_flag=True, hidden=True)
def doctor_command(db: Path | None, gpu: bool) -> int:
    """Print a report of machine, versions, kernels, models and database; return 1 where something is wrong."""
    if gpu:
        raise CommandError(
            "What tries a GPU moved out of the program. In a clone: `python -m benchmarks gpu`."
        )
    from hierchat.checks.doctor import print_report

    return print_report(db)
