"""Compare the tokenizer that we make of a GGUF file with llama.cpp's, on the same file."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.peers.arm import LLAMA_CPP
from benchmarks.peers.environment import ArmError, python_with
from hierchat.checks.runs import machine, read_questions, say
from hierchat.cli.options import terminal_progress
from hierchat.models.catalogue import read_catalogue
from hierchat.models.fetch.bring import get_gguf
from hierchat.models.load.tokenizer_files import load_tokenizer

PROGRAM = Path(__file__).parent / "peers" / "programs" / "llama_tokens.py"
SHOWN = 20
"""Differences that the result names."""
ODD = (
    *(
        "Hello world",
        " a",
        "a ",
        "  two",
        "   three",
        " " * 30 + "x",
        " " * 40 + "x",
        " \n \n",
        "\n",
        "\n\n\n\n",
        "\t\tx",
        "\r\n",
    ),
    "def f(x):\n    return x ** 2  # a comment\n\n\nclass A:\n\tpass\n",
    "        indented\n    less  \n\n  \nSELECT * FROM t WHERE a <> b;",
    "1234567890 3.14159 1,000,000 day.  20% Ⅷ ½ ²",
    "don't I'm we'll THEY'RE “quoted” ‘single’ - dash…",  # noqa: RUF001
    "naïve café ÅÄÖ ß İstanbul ı ﬁ e\u0301 é ȺȾ 𐍈 𝔘𝔫𝔦",  # noqa: RUF001
    "日本語のテキスト 中文 字符 한국어 Привет, мир مرحبا بالعالم שלום",
    "👍🏽👨\u200d👩\u200d👧 🇩🇪 \u00a0nbsp\u2003em \u200bzero \ufeffmark",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><|eot_id|>",
    "<bos><start_of_turn>user\nhi<end_of_turn>\n<unused5><0x0A>▁under",
    "<s></s> <b>bold</b> [multimodal] null\x00byte",
    "https://example.com/a?b=c&d=%20#x {'a': [1, 2, {'b': None}]} $$\\int_0^1 x^2 dx$$ " + "a" * 50,
)
"""Texts on which tokenizers fall out: white space, digits, scripts, control tokens."""


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Tokenize each text twice: as a user types it, and with control tokens. Raises ArmError where llama.cpp cannot
    be had."""
    entry = read_catalogue().entry(args.model)
    texts = [*ODD, *(turn for question in read_questions(args.questions) for turn in question.turns)]
    with terminal_progress() as report:
        gguf = get_gguf(entry, report, "cpu")
        tokenizer = load_tokenizer(entry, report)
    if gguf is None:
        raise ArmError(f"{entry.name} does not come from a GGUF file, so llama.cpp has no tokenizer of it")
    command: list[str | Path] = [python_with(LLAMA_CPP, say), "-P", PROGRAM, gguf]
    differ, count = [], 0
    asked = [{"text": text, "control": control} for control in (False, True) for text in texts]
    done = subprocess.run(
        command, input="".join(json.dumps(one) + "\n" for one in asked), capture_output=True, text=True
    )
    if done.returncode:
        raise ArmError(f"llama.cpp could not read {gguf}: {done.stderr.strip()[-300:]}")
    for one, line in zip(asked, done.stdout.splitlines(), strict=True):
        found = tokenizer(
            one["text"], add_special_tokens=False, split_special_tokens=not one["control"], verbose=False
        )["input_ids"]
        count += len(found)
        if found != (theirs := json.loads(line)):
            differ.append({**one, "ours": found, "llama.cpp": theirs})
    return {
        "machine": machine(),
        "model": entry.name,
        "texts": len(asked),
        "tokens": count,
        "differ": len(differ),
        "first": differ[:SHOWN],
    }
