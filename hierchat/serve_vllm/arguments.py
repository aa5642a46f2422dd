"""The flags of `hierchat serve-vllm`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hierchat.serve import add_page_flags


def add_serve_vllm(commands: Any) -> None:
    """The flags."""
    parser = commands.add_parser(
        "serve-vllm", help="the chat over vLLM, which is installed and started for it (docs/serving.md)"
    )
    parser.add_argument(
        "served", metavar="MODEL", help="a name from `models list`, a folder, or OWNER/NAME on the hub"
    )
    parser.add_argument(
        "--tensor-parallel", type=int, default=1, metavar="N", help="GPUs that share the model (1)"
    )
    parser.add_argument(
        "--python", type=Path, metavar="FILE", help="a Python that has vLLM; none is installed then"
    )
    parser.add_argument(
        "--vllm", default="", metavar="ARGUMENTS", help="further arguments of vLLM, in quotes"
    )
    parser.add_argument("--no-drafts", action="store_true", help="vLLM alone, without our drafter")
    add_page_flags(parser)
