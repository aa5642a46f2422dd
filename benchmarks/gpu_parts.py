"""Measure a GPU part by part: its kernels, and models with random weights that are made on it, so that no file is
needed. On the processor the same parts run over tiny shapes, with plain products unless Triton interprets."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from benchmarks import plain_kernels
from benchmarks.forward import random_tokens
from hierchat.config import GenerationSettings
from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.draft_tree import DraftTree
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.payoff import payoff_of_drafting
from hierchat.drafting.proposer import Proposer
from hierchat.drafting.source import Successors
from hierchat.engine.cuda.cuda_runner import CudaRunner, Out
from hierchat.engine.cuda.graphs import Graphs, capture
from hierchat.engine.cuda.packed import FORMATS, IQ4, POWER, Packed, unfilled
from hierchat.engine.cuda.packed_modules import packed_matrices, replace_matrices
from hierchat.engine.cuda.sixteen_bits import ROUTERS, use_our_products
from hierchat.engine.engine import Engine, GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import CachedSequence
from hierchat.engine.selftest import require_right_device
from hierchat.models.formats.gguf_module import filled, matrices_of, stored

Row = tuple[str, dict[str, Any]]
"""A label and its figures by column."""
Multiply = Callable[..., torch.Tensor]
"""Product of rows [rows, inputs] and a matrix, with a bias: [rows, outputs], of the dtype of the rows."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of all that is measured."""

    dtype: torch.dtype
    checked: tuple[int, int]
    """Outputs and inputs of the matrices that are compared with a reference, and"""
    streamed: tuple[int, int]
    """of those whose bandwidth is measured; all of a type are `streamed_bytes`, more than a cache holds."""
    streamed_bytes: int
    models: Mapping[str, Mapping[str, Any]]
    context: int
    prompt: int
    reply: int
    widths: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    repeats: int = 15


_DENSE = {"model_type": "llama", "tie_word_embeddings": False}
_EXPERTS = {"model_type": "qwen3_moe", "norm_topk_prob": True, "tie_word_embeddings": False}
_HYBRID = {"model_type": "qwen3_5_text", "tie_word_embeddings": True}
"""Gated DeltaNet in three layers of four."""


def _sizes(
    hidden: int, inner: int, layers: int, heads: int, key_heads: int, vocabulary: int, **more: Any
) -> dict[str, Any]:
    return {
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": key_heads, "vocab_size": vocabulary,
        "head_dim": more.pop("head_dim", hidden // heads), "max_position_embeddings": 32_768, **more,
    }  # fmt: skip


FULL = Shapes(
    torch.bfloat16,
    (4096, 4096),
    (14_336, 4096),
    1 << 29,
    {
        "8B": _DENSE | _sizes(4096, 14_336, 32, 32, 8, 128_256),
        "1.5B": {"model_type": "qwen2"} | _sizes(1536, 8960, 28, 12, 2, 151_936, tie_word_embeddings=True),
        "7B": {"model_type": "qwen2"} | _sizes(3584, 18_944, 28, 28, 4, 152_064, tie_word_embeddings=False),
        "Qwen3.5 4B": _HYBRID | _sizes(2560, 9216, 32, 16, 4, 248_320, head_dim=256),
        "30B-A3B": _EXPERTS
        | _sizes(
            2048, 6144, 48, 32, 4, 151_936,
            head_dim=128, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8,
        ),
    },
    context=8192,
    prompt=4000,
    reply=128,
)  # fmt: skip
TINY = Shapes(
    torch.float32,
    (40, 256),
    (64, 256),
    1 << 14,
    {
        "8B": _DENSE | _sizes(256, 256, 1, 4, 2, 300),
        "1.5B": {"model_type": "qwen2"} | _sizes(256, 256, 1, 4, 2, 300, tie_word_embeddings=True),
        "7B": {"model_type": "qwen2"} | _sizes(256, 256, 1, 4, 2, 300, tie_word_embeddings=False),
        "Qwen3.5 4B": _HYBRID
        | _sizes(
            256,
            256,
            4,
            4,
            2,
            300,
            linear_key_head_dim=64,
            linear_value_head_dim=64,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
        ),
        "30B-A3B": _EXPERTS
        | _sizes(256, 256, 1, 4, 2, 300, moe_intermediate_size=256, num_experts=4, num_experts_per_tok=2),
    },
    context=256,
    prompt=40,
    reply=8,
    widths=(1, 2),
    repeats=1,
)


def shapes_on(device: str) -> Shapes:
    """Return what is measured on a device: on the processor tiny shapes, which try the command itself."""
    return TINY if device == "cpu" else FULL


# Kernels.


def product_on(device: str) -> Multiply:
    """Return the product over blocks of a device. The processor has it if Triton interprets (TRITON_INTERPRET)."""
    if device == "cpu" and not os.environ.get("TRITON_INTERPRET"):
        return plain_kernels.multiply
    from hierchat.engine.cuda.triton_blocks import multiply

    return multiply


SCALE = 1e-4
"""Scales of random blocks, at most."""


def random_packed(name: str, outputs: int, inputs: int, device: str, dtype: torch.dtype) -> Packed:
    """Make a matrix of a block type with random numbers and small scales, on the device."""
    made = unfilled(name, outputs, inputs, device, dtype)
    for part in (made.codes, made.above, made.words):
        if part.is_floating_point():
            part.normal_(std=0.02)
        else:
            bounds = torch.iinfo(part.dtype)
            part.random_(bounds.min, bounds.max)
    if made.format.scale == POWER:
        made.halves.copy_(torch.randint(105, 115, made.halves.shape, device=device) * 257)
    else:
        scales = SCALE * torch.rand(made.halves.shape, device=device)
        made.halves.copy_(scales.half().view(torch.int16))
    if made.format.scale == IQ4:
        made.halves[:, 1].random_(0, 2**15)
    return made


TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest error of a product, as a part of the sizes that are added."""
ROWS = 75
"""Rows of the product that is compared; a few of them must have the same bits by themselves."""


def kernels(shapes: Shapes, device: str) -> Iterator[Row]:
    """Compare each block type's product with float64, rows with themselves among fewer others, and experts' products
    with those of one expert."""
    require_right_device(torch.device(device), shapes.dtype)
    multiply, wrong = product_on(device), list[str]()
    for name in FORMATS:
        matrix = random_packed(name, *shapes.checked, device, shapes.dtype)
        x = torch.randn(ROWS, matrix.inputs, device=device).to(shapes.dtype)
        wide, weights = multiply(x, matrix, None), matrix.floats().double()
        off = (wide.double() - x.double() @ weights.T).abs() / (x.double().abs() @ weights.abs().T)
        parts = (slice(0, 1), slice(37, 39), slice(60, 67), slice(10, 42))
        apart = all(torch.equal(multiply(x[rows], matrix, None), wide[rows]) for rows in parts)
        error = float(off.max())
        if error > TOLERANCES[shapes.dtype] or not apart:
            wrong.append(name)
        yield name, {"largest error": error, "rows never mix": apart}
    apart = experts_apart(shapes, device)
    wrong += [] if apart else ["experts"]
    yield "Q4_K, experts", {"rows never mix": apart}
    if wrong:
        raise ArithmeticError(f"{', '.join(wrong)}: wrong products")


def experts_apart(shapes: Shapes, device: str) -> bool:
    """Return whether a row's products with the experts that it chose have the bits of those experts' own products."""
    multiply, (outputs, inputs), name = product_on(device), shapes.checked, "Q4_K"
    experts = [random_packed(name, outputs, inputs, device, shapes.dtype) for _ in range(6)]
    parts = [
        torch.cat([getattr(one, part) for one in experts], dim=dim)
        for part, dim in (("codes", 1), ("above", 1), ("halves", 2), ("words", 2))
    ]
    stack = Packed(name, len(experts) * outputs, inputs, *parts)
    x = torch.randn(ROWS, inputs, device=device).to(shapes.dtype)
    chosen = torch.rand(ROWS, len(experts), device=device).topk(2, dim=1).indices
    if multiply is plain_kernels.multiply:
        found = multiply(x, stack, routing=plain_kernels.grouped(chosen, len(experts)))
    else:
        from hierchat.engine.cuda import triton_blocks

        found = triton_blocks.multiply(x, stack, routing=triton_blocks.grouped(chosen, len(experts)))
    alone = torch.stack([multiply(x, one, None) for one in experts], 1)
    return torch.equal(found, alone.take_along_dim(chosen[..., None], 1).flatten(0, 1))


def milliseconds(body: Callable[[], Any], device: str, repeats: int) -> float:
    """Time `body` on the device, recorded as a graph on CUDA: the median, after one that is not counted."""
    run = capture(body).replay if device.startswith("cuda") else body
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        run()
        _synchronise(device)
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times[1:])


def _synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def bandwidth(shapes: Shapes, device: str) -> Iterator[Row]:
    """Measure the gigabytes of weights that products of each block type read in a second, beside a copy."""
    multiply = product_on(device)
    source = torch.empty(shapes.streamed_bytes, dtype=torch.uint8, device=device)
    goal = torch.empty_like(source)
    copied = 2 * source.nbytes / milliseconds(lambda: goal.copy_(source), device, shapes.repeats) / 1e6
    yield "copy, read and written", {"1 row GB/s": copied}
    for name in FORMATS:
        one = random_packed(name, *shapes.streamed, device, shapes.dtype)
        matrices = [one]
        while sum(matrix.nbytes for matrix in matrices) < shapes.streamed_bytes:
            matrices.append(random_packed(name, *shapes.streamed, device, shapes.dtype))
        found = {}
        for rows in (1, 8, 32):
            x = torch.randn(rows, one.inputs, device=device).to(shapes.dtype)
            ms = milliseconds(partial(_all_of, multiply, x, matrices), device, shapes.repeats)
            found[f"{rows} row{'s' * (rows > 1)} GB/s"] = len(matrices) * one.nbytes / ms / 1e6
        yield name, found | {"1 row, % of a copy": 100 * found["1 row GB/s"] / copied}


def _all_of(multiply: Multiply, x: torch.Tensor, matrices: Sequence[Packed]) -> None:
    for matrix in matrices:
        multiply(x[:], matrix, None)  # another tensor: what one keeps of its rows is made for each product


# Models.


def random_model(config: Mapping[str, Any], device: str, dtype: torch.dtype) -> Any:
    """Make a module of transformers with random weights in Q4_K, and its output in Q6_K, on the device."""
    settings = AutoConfig.for_model(**config)
    with no_init_weights(), torch.device("meta"):
        module = AutoModelForCausalLM.from_config(settings, dtype=dtype)
    module.tie_weights()
    shapes = {name: tuple(tensor.shape) for name, tensor in stored(module).items()}

    def packed(name: str) -> list[Packed]:
        *experts, outputs, inputs = shapes[name]
        kind = "PLAIN" if name.endswith(ROUTERS) else "Q6_K" if outputs == settings.vocab_size else "Q4_K"
        parts = 2 if name.endswith("gate_up_proj") else 1  # gates, and what they multiply
        rows = math.prod(experts) * outputs // parts
        return [random_packed(kind, rows, inputs, device, dtype) for _ in range(parts)]

    replace_matrices(module, dict.fromkeys(matrices_of(module)), packed)
    left = {name: one for name, one in module.state_dict().items() if one.is_meta}
    fill = {name: torch.full(one.shape, 1 - name.endswith("bias"), dtype=dtype) for name, one in left.items()}
    return filled(module, fill).to(device)


def sequence_of(name: str, shapes: Shapes, device: str, sequences: int = 1) -> tuple[CachedSequence, int]:
    """Open a text of a random model with room for several, and return the bytes that its matrices would have in a
    file."""
    module = random_model(shapes.models[name], device, shapes.dtype)
    size = sum({id(one): one.nbytes for one in packed_matrices(module)}.values())
    graphs = None if device.startswith("cuda") else Graphs[Out](capture=None)
    runner = CudaRunner(module, context_length=shapes.context, graphs=graphs, sequences=sequences)
    return runner.open(), size


def model(name: str, shapes: Shapes, device: str) -> Iterator[Row]:
    """Measure a model: memory beside its file's size, forwards, a prompt, plain and drafted decoding."""
    began = time.perf_counter()
    sequence, size = sequence_of(name, shapes, device)
    runner = sequence.runner
    yield "row invariance", {"exact": runner.exact, "ready s": time.perf_counter() - began}
    if device.startswith("cuda"):
        taken = torch.cuda.max_memory_allocated() / 1e6
        yield "memory", {"file MB": size / 1e6, f"MB with {shapes.context} positions": taken}
    sequence.read(random_tokens(shapes.prompt // 10, runner.vocabulary))
    for width, ms in forwards(sequence, shapes.widths, shapes.repeats).items():
        yield f"forward of {width} row{'s' * (width > 1)}", {"ms": ms}
    prompt = random_tokens(shapes.prompt, runner.vocabulary)
    for again in (False, True):  # graphs are recorded at first
        sequence.rollback(0)
        began = time.perf_counter()
        sequence.read(prompt)
        _synchronise(device)
        seconds = time.perf_counter() - began
        yield f"prompt of {len(prompt)} tokens{', again' * again}", {"seconds": seconds}
    engine = LocalEngine(sequence, (), lambda tokens: "")
    yield from decoding(engine, prompt[: shapes.prompt // 10], shapes.reply)


def sixteen_bits(shapes: Shapes, device: str) -> Iterator[Row]:
    """Measure forwards of a 7B in 16 bits, by the library's products and by ours."""
    settings = AutoConfig.for_model(**shapes.models["7B"])
    with torch.device(device):
        module = AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16).eval().requires_grad_(False)
    for name in ("library", "ours"):
        if name == "ours":
            use_our_products(module)
        graphs = None if device.startswith("cuda") else Graphs[Out](capture=None)
        sequence = CudaRunner(module, context_length=shapes.context, graphs=graphs).open()
        sequence.read(random_tokens(shapes.prompt // 10, settings.vocab_size))
        for width, ms in forwards(sequence, shapes.widths, shapes.repeats).items():
            yield f"{name}, forward of {width} row{'s' * (width > 1)}", {"ms": ms}
        sequence.close()


def forwards(sequence: CachedSequence, widths: Iterable[int], repeats: int) -> dict[int, float]:
    """Return median milliseconds of a forward by its rows, behind what the sequence holds."""
    found = {}
    for width in widths:
        times = []
        for _ in range(repeats + 1):  # the first one may have to prepare something
            began = time.perf_counter()
            rows = sequence.forward((sequence.tokens[-1],) * width, range(-1, width - 1), padded=width > 1)
            rows.best(0)  # waits for the device
            times.append((time.perf_counter() - began) * 1e3)
        found[width] = statistics.median(times[1:])
    return found


class KnownReply(Proposer):
    """Propose seven tokens, of which the first is right in a given share of the steps, and the others never."""

    most = 7

    def __init__(self, reply: Sequence[int], share: float) -> None:
        self._reply, self._share = reply, share
        self._at = 0
        self._random = np.random.default_rng(0)

    def begin(self, prompt: Sequence[int]) -> None:
        self._at = 0

    def propose(self, limit: int | None = None) -> DraftTree:
        tokens = list(self._reply[self._at : self._at + self.most])[:limit]
        right = self._random.random() < self._share
        tokens = [token if right and not place else token ^ 1 for place, token in enumerate(tokens)]
        chain = tuple(range(-1, len(tokens) - 1))
        return DraftTree(tuple(tokens), chain, ("known",) * len(tokens), (self._share,) * len(tokens))

    def observe(self, tokens: Sequence[int], top: object = None) -> None:
        self._at += len(tokens)


SHARE = 0.35
"""Tokens that drafts bring in a step, for which drafting must not be slower than plain decoding."""


def decoding(engine: LocalEngine, prompt: Sequence[int], length: int) -> Iterator[Row]:
    """Measure plain decoding, drafts that seldom pay, and our own drafter, which leaves them out if they do not."""
    settings = GenerationSettings(max_new_tokens=length)
    plain = GenerationRequest(prompt, settings, padded=False)
    reply = written(engine, [plain])
    yield "plain decoding", speed(written(engine, [plain]))
    known = GenerationRequest(prompt, settings, KnownReply(reply.tokens, SHARE))
    yield f"7 drafts a step, {1 + SHARE} tokens come", speed(written(engine, [known]))
    drafter = Drafter([], Acceptance(), engine.latency, None, Successors(), settings)
    ours = GenerationRequest(prompt, settings, drafter, payoff=payoff_of_drafting())
    yield "our drafter", speed(written(engine, [ours]))


class Written(NamedTuple):
    """Tokens of replies, steps, and seconds without those that read the prompts."""

    tokens: list[int]
    steps: int
    seconds: float


def written(engine: Engine, requests: Iterable[GenerationRequest]) -> Written:
    """Write replies one after the other."""
    tokens, steps, seconds = list[int](), 0, 0.0
    for request in requests:
        began = time.perf_counter()
        for step in engine.generate(request):
            now = time.perf_counter()
            if step.tokens:
                steps, seconds = steps + 1, seconds + now - began
                tokens += step.tokens
            began = now
    return Written(tokens, steps, seconds)


def speed(found: Written) -> dict[str, Any]:
    """Return tokens a second and tokens per forward."""
    count = len(found.tokens)
    return {"tokens/s": count / max(found.seconds, 1e-9), "T": count / max(found.steps, 1)}


USERS = 4


def users(shapes: Shapes, device: str) -> Iterator[Row]:
    """Measure one reply of the 8B, and several at a time, as many as fit into memory."""
    sequence, _ = sequence_of("8B", shapes, device, USERS)
    most = sequence.runner.most_sequences
    engine = LocalEngine(sequence, (), lambda tokens: "", most)
    settings = GenerationSettings(max_new_tokens=shapes.reply)
    for count in sorted({1, most}):
        requests = [
            GenerationRequest(
                random_tokens(shapes.prompt // 10 + user, engine.runner.vocabulary), settings, user=user
            )
            for user in range(count)
        ]
        for again in (False, True):  # graphs are recorded at first
            engine.clear()
            began = time.perf_counter()
            with ThreadPoolExecutor(count) as pool:
                tokens = sum(pool.map(lambda one: len(written(engine, [one]).tokens), requests))
            seconds = time.perf_counter() - began
            yield f"{count} at a time{', again' * again}", {"tokens/s": tokens / seconds}


PARTS: dict[str, Callable[[Shapes, str], Iterator[Row]]] = {
    "kernels": kernels,
    "bandwidth": bandwidth,
    "8B": partial(model, "8B"),
    "1.5B": partial(model, "1.5B"),
    "7B, 16 bits": sixteen_bits,
    "Qwen3.5 4B": partial(model, "Qwen3.5 4B"),
    "users": users,
    "30B-A3B": partial(model, "30B-A3B"),
}
"""In order of worth."""
