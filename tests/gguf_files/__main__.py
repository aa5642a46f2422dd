"""python -m tests.gguf_files OUT: a random Qwen3.5 of ordinary width in Q4_0, to measure with: `python -m benchmarks
forward --model OUT`, and with `--backend float16` the same unpacked."""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.gguf_files.writer import write_family
from tests.testing.tiny_files import tiny_tokenizer

SHAPE = {"vocab_size": 32_000, "hidden_size": 2048, "intermediate_size": 6144, "layer_types": None}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "tie_word_embeddings": False}
LINEAR = {"num_key_heads": 16, "num_value_heads": 32, "key_head_dim": 128, "value_head_dim": 128}
WIDTH = {**SHAPE, **HEADS, **{f"linear_{key}": size for key, size in LINEAR.items()}}
WIDTH |= {"max_position_embeddings": 4096, "bos_token_id": 1, "eos_token_id": 2}


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.gguf_files", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="the file, such as random.gguf")
    parser.add_argument("--layers", type=int, default=16, metavar="N", help="(16)")
    args = parser.parse_args()
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3_5_text", num_hidden_layers=args.layers, **WIDTH)
    model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    kind = gguf.GGMLQuantizationType.Q4_0
    write_family("qwen35", model, args.out, tiny_tokenizer(("ab",)), packed=True, kind=kind)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{args.out}: {count:,} weights, {args.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
