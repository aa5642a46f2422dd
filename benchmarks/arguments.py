"""Add the flags of the measuring commands. Imports nothing heavy: every command line is parsed here first."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

LINES = "JSON lines with `turns`, and `category`, or `day` and `kind`"
LONG_CONTEXT = "long-context"
WORKLOADS = ("copy", LONG_CONTEXT)
"""Questions that benchmarks.workloads makes."""


def add_benchmarks(parser: argparse.ArgumentParser) -> None:
    """Add a subparser for each measuring command."""
    kinds = parser.add_subparsers(dest="kind", required=True)

    decode = kinds.add_parser("decode", help="arms against each other, each question from an empty history")
    add_asked(decode)
    log = kinds.add_parser("log", help="arms against each other over days of chats, history growing")
    log.add_argument("--log", dest="questions", type=Path, required=True, metavar="FILE", help=LINES)
    log.add_argument(
        "--history",
        type=positive,
        metavar="N",
        help="so many made-up tokens lie beside the history of our arms",
    )
    load = kinds.add_parser("load", help="several users at one engine: who waits how long")
    load.add_argument("--questions", type=Path, required=True, metavar="FILE", help=LINES)
    load.add_argument("--users", type=numbers, default=[1, 2, 4], metavar="N,N,...", help="(1,2,4)")
    load.add_argument("--arms", required=True, metavar="A,B,...", help="as for `benchmarks decode`")
    load.add_argument(
        "--repeats", type=positive, default=1, metavar="N", help="ask everything N times; medians count"
    )
    add_run(load)
    for measured in (decode, log):
        arms = measured.add_mutually_exclusive_group(required=True)
        if measured is log:
            arms.add_argument(
                "--paired",
                dest="arms",
                action="store_const",
                const="vanilla,no-history,hierchat",
                help="what the history brings: each chat with the history so far and without, on the same words",
            )
        arms.add_argument(
            "--arms",
            metavar="A,B,...",
            help="ours: vanilla, context, context+history, no-history, hierchat; published methods behind our own "
            "engine: hd-paper, pld, token-recycling, suffix, llama-cache, arctic-suffix; other programs: transformers, "
            "transformers-bf16, transformers-pld, transformers-assisted, llama.cpp, llama.cpp-lookup, "
            "llama.cpp-lookup-10, llama.cpp-draft, ik, ik-suffix, ik-ngram-mod, flashspec, dejavuu; draft models "
            "alone: hsd, and draft:NAME for one of them; a plan of levels: plan:databases+NAME=LENGTH+...",
        )
        measured.add_argument(
            "--repeats", type=positive, default=1, metavar="N", help="ask everything N times; medians count"
        )
        measured.add_argument(
            "--draft",
            metavar="NAME",
            help="a smaller model with the same tokens, for transformers-assisted, llama.cpp-draft and flashspec",
        )
        add_run(measured)

    _add_traces(kinds)
    index = kinds.add_parser("index", help="what a history costs: lookups, memory, start-up, by its size")
    index.add_argument("--tokens", type=positive, default=10_000_000, metavar="N", help="(10,000,000)")
    index.add_argument("--corpus", type=Path, metavar="FILE", help="a text whose pieces make the history")
    index.add_argument("--json", type=Path, required=True, metavar="OUT", help="where the figures go")
    step = kinds.add_parser("step", help="the engine's own time a step, over a runner that answers at once")
    step.add_argument("--max-new-tokens", type=positive, default=2000, metavar="N", help="(2,000)")
    step.add_argument("--vocabulary", type=positive, default=152_000, metavar="N", help="(152,000)")
    step.add_argument("--json", type=Path, required=True, metavar="OUT", help="where the figures go")
    prompts = kinds.add_parser("prompts", help="first tokens: new and old chats, a restart, documents, edits")
    prompts.add_argument("--questions", type=Path, required=True, metavar="FILE", help=LINES)
    prompts.add_argument(
        "--model", metavar="MODEL", help="a name from `models list`, a folder, or a GGUF file"
    )
    prompts.add_argument("--chat-tokens", type=positive, default=3000, metavar="N", help="of a chat (3,000)")
    prompts.add_argument(
        "--documents", type=numbers, default=[2000, 20_000], metavar="N,N,...", help="tokens (2000,20000)"
    )
    prompts.add_argument(
        "--peers",
        choices=("llama.cpp",),
        help="another program on the same file, in turn, with its own cache",
    )
    prompts.add_argument("--json", type=Path, required=True, metavar="OUT", help="where the figures go")
    retrieval = kinds.add_parser("retrieval", help="how often a question finds the passage that answers it")
    retrieval.add_argument("--json", type=Path, required=True, metavar="OUT", help="where the figures go")
    retrieval.add_argument(
        "--questions", type=Path, metavar="OUT", help="where questions with their passages go, for `decode`"
    )
    forward = kinds.add_parser("forward", help="what a forward costs, by width and context")
    forward.add_argument("--contexts", type=numbers, default=[300], metavar="N,N,...", help="tokens (300)")
    forward.add_argument(
        "--peers",
        type=lambda text: text.split(","),
        default=[],
        metavar="A,B,...",
        help="other programs on the same file, in turn: llama.cpp",
    )
    agreement = kinds.add_parser("agreement", help="a backend against transformers in float32")
    agreement.add_argument("--questions", type=Path, required=True, metavar="FILE", help=LINES)
    agreement.add_argument("--limit", type=positive, default=20, metavar="N")
    agreement.add_argument("--max-new-tokens", type=positive, default=128, metavar="N")
    tokens = kinds.add_parser("tokens", help="a GGUF file's tokenizer against llama.cpp's")
    tokens.add_argument("--questions", type=Path, required=True, metavar="FILE", help=LINES)
    for one in (forward, agreement, tokens):
        one.add_argument(
            "--model", metavar="MODEL", help="a name from `models list`, a folder, or a GGUF file"
        )
        one.add_argument("--json", type=Path, help="write the figures here")
    for one in (forward, agreement):
        one.add_argument("--backend", help="such as blocks or float16; by default the best here")

    simulated = kinds.add_parser(
        "simulate", help="stacks of draft models on GPUs, from sizes and data sheets"
    )
    simulated.add_argument("--json", type=Path, help="write the figures here")

    start = kinds.add_parser("start", help="a first start with empty folders, and the ones after it")
    start.add_argument("--model", metavar="MODEL", help="a name from `models list`, a folder, or a GGUF file")
    start.add_argument("--starts", type=positive, default=2, metavar="N", help="one after another (2)")
    start.add_argument("--json", type=Path, help="write the figures here")

    soak = kinds.add_parser("soak", help="visits again and again: whether memory and handles level off")
    soak.add_argument("--model", metavar="MODEL", help="a name from `models list`, a folder, or a GGUF file")
    soak.add_argument("--minutes", type=positive, default=15, metavar="N", help="(15)")
    soak.add_argument(
        "--users", type=positive, default=8, metavar="N", help="people, one of them a program (8)"
    )
    soak.add_argument("--port", type=positive, default=7880, metavar="N", help="of the server (7880)")
    soak.add_argument("--json", type=Path, help="write the figures here")

    gpu = kinds.add_parser(
        "gpu", help="every way to compute on the GPU: words compared, speeds (three minutes)"
    )
    gpu.add_argument(
        "--all", action="store_true", help="all that needs a GPU, in order of worth; no model is needed"
    )
    gpu.add_argument("--minutes", type=positive, default=25, metavar="N", help="of --all (25)")
    gpu.add_argument("--json", type=Path, metavar="OUT", help="where the figures of --all go, part by part")
    gpu.add_argument("--resume", action="store_true", help="go on from OUT: measure the parts that it lacks")
    gpu.add_argument("--model", metavar="MODEL", help="measure this one beside the default")
    gpu.add_argument("--device", choices=("cuda", "mps", "cpu"), help="try this one")

    page = kinds.add_parser("page", help="the page in a browser, without a model: what one waits for")
    page.add_argument("--messages", type=positive, default=300, metavar="N", help="of the long chat (300)")
    page.add_argument("--megabytes", type=positive, default=50, metavar="N", help="that are imported (50)")
    page.add_argument("--chats", type=int, default=5000, metavar="N", help="of the long list (5000)")
    page.add_argument("--repeats", type=positive, default=7, metavar="N", help="(7)")
    page.add_argument("--json", type=Path, required=True, metavar="OUT", help="where the figures go")

    report = kinds.add_parser(
        "report", help="draw docs/benchmarks.md, or files of runs as a page, plots and Markdown"
    )
    report.add_argument("files", type=Path, nargs="*", metavar="JSON", help="of decode, log, replay, forward")
    report.add_argument("--out", type=Path, metavar="FOLDER", help="where page and plots go (here)")

    served = kinds.add_parser("vllm", help="our drafter inside vLLM, beside vLLM's own (docs/vllm.md)")
    served.add_argument("--questions", type=Path, required=True, metavar="FILE", help=LINES)
    served.add_argument(
        "--limit",
        type=positive,
        default=8,
        metavar="N",
        help="questions for each of the requests at once (8)",
    )
    served.add_argument(
        "--model", metavar="MODEL", help="start vLLM for it: a name from `models list`, or a folder"
    )
    served.add_argument(
        "--methods", default="ngram,suffix", metavar="M,M", help="of vLLM, beside ours (ngram,suffix)"
    )
    served.add_argument(
        "--vllm",
        default="--dtype float32 --max-model-len 2048 --max-num-seqs 8",
        metavar="ARGUMENTS",
        help="of vLLM, in quotes (%(default)s)",
    )
    served.add_argument("--python", type=Path, metavar="FILE", help="a Python that has vLLM")
    served.add_argument(
        "--url", default="http://127.0.0.1:8000", help="without --model: of the vLLM that runs (%(default)s)"
    )
    served.add_argument(
        "--peer", action="append", default=[], type=_peer, metavar="NAME=URL", help="another vLLM, as an arm"
    )
    served.add_argument("--together", type=numbers, default=[1, 4, 8], metavar="N,N,...", help="(1,4,8)")
    served.add_argument("--max-new-tokens", type=positive, default=64, metavar="N", help="of a reply (64)")
    served.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")

    talk = kinds.add_parser(
        "session", help="one conversation of several turns: start, memory, speed, restart"
    )
    talk.add_argument(
        "--questions", type=Path, help="JSON lines with `turns`; by default ten built-in questions"
    )
    talk.add_argument("--model", metavar="MODEL", help="a name from `models list`, a folder, or a GGUF file")
    talk.add_argument("--turns", type=positive, default=10)
    talk.add_argument("--max-new-tokens", type=int, default=128)
    talk.add_argument("--temperature", type=float, default=0.0)
    talk.add_argument("--json", type=Path, help="write the figures here")


def _add_traces(kinds: Any) -> None:
    """Add the subparsers of `benchmarks record` and `benchmarks replay`."""
    record = kinds.add_parser("record", help="the model's replies, each token with its likeliest rivals")
    record.add_argument("--questions", type=Path, required=True, metavar="FILE", help=LINES)
    add_request(record)
    record.add_argument(
        "--out", dest="json", type=Path, required=True, metavar="TRACES", help="gains what it lacks"
    )
    record.set_defaults(corpus=None, width=None)

    replay = kinds.add_parser("replay", help="recorded replies through the drafters, without a model")
    replay.add_argument("--traces", type=Path, required=True, metavar="TRACES", help="of `benchmarks record`")
    replay.add_argument(
        "--arms", required=True, metavar="A,B,...", help="our own, as for `benchmarks decode`"
    )
    replay.add_argument("--limit", type=positive, metavar="N", help="the first N replies")
    replay.add_argument(
        "--width",
        type=positive,
        metavar="N",
        help="positions per forward: N - 1 drafts; by default what pays at --cost",
    )
    replay.add_argument(
        "--cost",
        type=_costs,
        metavar="PLAIN,ROW",
        help="milliseconds of a plain step, and of each further row",
    )
    replay.add_argument("--carry", action="store_true", help="history lasts over the questions, as in a log")
    replay.add_argument("--corpus", type=Path, metavar="PATH", help="texts that draft beside those that ship")
    replay.add_argument("--model", metavar="NAME", help="whose tokenizer; by default the recorded one")
    replay.add_argument("--json", type=Path, required=True, metavar="OUT", help="where the figures go")


def _peer(text: str) -> tuple[str, str]:
    name, given, url = text.partition("=")
    if not (name and given and url):
        raise argparse.ArgumentTypeError(f"{text} is not NAME=URL")
    return name, url


def _costs(text: str) -> tuple[float, float]:
    plain, row = map(float, text.split(","))
    if plain <= 0 or row < 0:
        raise argparse.ArgumentTypeError(f"{text} are no costs")
    return plain, row


def add_asked(parser: argparse.ArgumentParser) -> None:
    """Add flags for a file of questions, or a workload that is made here."""
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--questions", type=Path, metavar="FILE", help=LINES)
    asked.add_argument(
        "--workload",
        choices=WORKLOADS,
        help="made here: a text of 1,500 tokens to copy with a change; questions about a long text",
    )
    parser.add_argument(
        "--prompt-tokens",
        type=numbers,
        metavar="N,N,...",
        help=f"how long prompts of --workload {LONG_CONTEXT} are (by default as long as fits, 8,192 at most)",
    )


def add_request(parser: argparse.ArgumentParser) -> None:
    """Add flags for the number of questions, how replies are chosen, and the model."""
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="questions, evenly over the groups; or chats"
    )
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="per reply (256)")
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0, the default, is greedy"
    )
    parser.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="as in the chat; 1, the default, is off"
    )
    parser.add_argument(
        "--top-k", type=int, default=0, metavar="K", help="as in the chat; 0, the default, is off"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument(
        "--model", metavar="MODEL", help="a name from `models list`, a folder, or a GGUF file"
    )
    parser.add_argument("--backend", metavar="NAME", help="such as blocks or float32; by default the fastest")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the flags of add_request, and those for the arms and the file of the run."""
    add_request(parser)
    parser.add_argument(
        "--width",
        type=positive,
        metavar="N",
        help="positions per forward: N - 1 drafts (by default the program's)",
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        metavar="PATH",
        help="texts that draft beside those that ship, as for `corpus add`",
    )
    parser.add_argument("--json", type=Path, required=True, metavar="OUT", help="where the figures go")
    parser.add_argument("--resume", action="store_true", help="go on from OUT")


def numbers(text: str) -> list[int]:
    """Parse a flag's numbers, separated by commas. Raises argparse.ArgumentTypeError where one is below 1."""
    return [positive(part) for part in text.split(",")]


def positive(text: str) -> int:
    """Parse a flag's number. Raises argparse.ArgumentTypeError below 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number
