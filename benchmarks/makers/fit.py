"""Fits assets/acceptance_model.npz to recorded replies: python -m benchmarks.makers.fit --traces FILE...

lessons.py has what is learned from. In training, whole slots are left out at random, so that the acceptance model copes
with whatever databases there are.

First the part that greedy replies are drafted by, from greedy replies; --keep FILE takes it from there. Then, on top of
it, what is added where tokens are sampled: each position of --sampled is a lesson for made-up settings and noise
(also in lessons.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch.nn import Linear, Module, Parameter
from torch.nn.functional import cross_entropy

from benchmarks.makers.lessons import Chance, Lessons, ModelStatistics
from hierchat.drafting.acceptance import SAMPLING_SHAPES, SHAPES
from hierchat.drafting.growing.kernel_arrays import CANDIDATES, HIDDEN, INPUTS, KNOWN, SLOTS, Floats

BATCH = 256
PASSES = 20
LEARNING_RATE = 4e-3
LEFT_OUT = 0.15
"""Share of lessons in which a slot, other than the context's, knows nothing."""
DECAY = 1e-3
DRAWS, SAMPLED_PASSES = 3, 6


class Net(Module):
    """Compute in torch the chances that growing.grow computes, for training."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = Linear(SLOTS * INPUTS, HIDDEN)
        self.surroundings = Linear(SLOTS * KNOWN, HIDDEN, bias=False)
        self.score = Linear(HIDDEN + SLOTS * INPUTS, 1)
        self.none_inputs = Linear(SLOTS * KNOWN, HIDDEN)
        self.none = Linear(HIDDEN, 1)

    def forward(self, lessons: Batch) -> torch.Tensor:
        """Compute logits [n, CANDIDATES + 1], the last one that of "none of them"."""
        read, aside = self.units(lessons)
        return _logits(lessons, self.score(read)[..., 0], self.none(aside))

    def units(self, lessons: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the inputs of the two scores: of each candidate, and of "none of them"."""
        hidden = torch.relu(self.inputs(lessons.inputs) + self.surroundings(lessons.around)[:, None])
        return torch.cat([hidden, lessons.inputs], -1), torch.relu(self.none_inputs(lessons.around))

    @classmethod
    def of(cls, arrays: Mapping[str, Floats]) -> Self:
        """Make a net of the arrays that `arrays` returned."""
        made = cls()
        tensors = {name: torch.from_numpy(arrays[name]) for name in SHAPES}
        with torch.no_grad():
            made.inputs.weight[:], made.inputs.bias[:] = tensors["inputs"].T, tensors["bias"]
            made.surroundings.weight[:] = tensors["surroundings"].T
            made.none_inputs.weight[:], made.none_inputs.bias[:] = (
                tensors["none_inputs"].T,
                tensors["none_bias"],
            )
            for layer, weights in ((made.score, tensors["score"]), (made.none, tensors["none"])):
                layer.weight[0], layer.bias[0] = weights[:-1], weights[-1]
        return made

    def arrays(self) -> dict[str, Floats]:
        """Return the weights as an AcceptanceModel has them."""
        found = {
            "inputs": self.inputs.weight.T,
            "surroundings": self.surroundings.weight.T,
            "bias": self.inputs.bias,
            "none_inputs": self.none_inputs.weight.T,
            "none_bias": self.none_inputs.bias,
            "score": torch.cat([self.score.weight[0], self.score.bias]),
            "none": torch.cat([self.none.weight[0], self.none.bias]),
        }
        arrays = {name: np.ascontiguousarray(value.detach().numpy()) for name, value in found.items()}
        assert all(arrays[name].shape == shape for name, shape in SHAPES.items())
        return arrays


class SampledNet(Module):
    """Compute the part of the scores that is added where replies are sampled; the rest stays as it was fitted."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net.requires_grad_(False)
        self.heat, self.swing, self.none_heat = (
            Parameter(torch.zeros(shape)) for shape in SAMPLING_SHAPES.values()
        )
        with torch.no_grad():
            self.swing[0, -1] = 0.5

    def forward(self, lessons: Batch) -> torch.Tensor:
        read, aside = self.net.units(lessons)
        score, none = self.net.score(read)[..., 0], self.net.none(aside)
        worth = torch.relu(_by_warmth(read, lessons.warm, self.swing))
        score = score + _by_warmth(read, lessons.warm, self.heat) + worth * lessons.noise
        none = none + _by_warmth(aside[:, None], lessons.warm, self.none_heat)
        return _logits(lessons, score, none)

    def arrays(self) -> dict[str, Floats]:
        """Return the weights as they lie in the file beside those of Net."""
        return {name: getattr(self, name).detach().numpy() for name in SAMPLING_SHAPES}


def _by_warmth(read: torch.Tensor, warm: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weigh `read` [n, m, k] by weights [SAMPLING_FEATURES, k + 1], of which the last is a constant: [n, m]."""
    mixed = warm @ weights
    return (read @ mixed[:, :-1, None])[..., 0] + mixed[:, -1:]


def _logits(lessons: Batch, scores: torch.Tensor, none: torch.Tensor) -> torch.Tensor:
    return torch.cat([scores.masked_fill((lessons.inputs == 0).all(-1), -1e9), none], 1)


N = TypeVar("N", Net, SampledNet)


def train(net: N, taught: Lessons, passes: int = PASSES, seed: int = 0) -> N:
    torch.manual_seed(seed)
    steps = passes * -(-len(taught.right) // BATCH)
    optimiser = torch.optim.AdamW(
        [part for part in net.parameters() if part.requires_grad], LEARNING_RATE, weight_decay=DECAY
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2 * LEARNING_RATE, total_steps=steps)
    for _ in range(passes):
        for rows in torch.randperm(len(taught.right)).split(BATCH):
            loss = _loss(net, _thinned(_batch(taught, rows.numpy())))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return net


class Batch(NamedTuple):
    """Hold some lessons as tensors."""

    inputs: torch.Tensor
    around: torch.Tensor
    right: torch.Tensor
    noise: torch.Tensor
    warm: torch.Tensor


def _batch(lessons: Lessons, rows: Any) -> Batch:
    found = Batch(*(torch.from_numpy(part[rows]) for part in lessons))
    return found._replace(inputs=found.inputs.float())


def _thinned(lessons: Batch) -> Batch:
    """Leave out slots at random; a token that none of the others names is no candidate any more."""
    right = lessons.right
    kept = (torch.rand(len(right), SLOTS) > LEFT_OUT).float()
    kept[:, 0] = 1.0
    inputs = lessons.inputs * kept.repeat_interleave(INPUTS, 1)[:, None]
    around = lessons.around * kept.repeat_interleave(KNOWN, 1)
    gone = (inputs == 0).all(-1)
    lost = gone.gather(1, right.clamp(max=CANDIDATES - 1)[:, None])[:, 0] & (right < CANDIDATES)
    return lessons._replace(inputs=inputs, around=around, right=right.masked_fill(lost, CANDIDATES))


def _loss(net: Module, lessons: Batch) -> torch.Tensor:
    return cross_entropy(net(lessons), lessons.right)


def loss(net: Module, shown: Lessons) -> float:
    """Return the loss of a batch in nats per position."""
    total, count = 0.0, len(shown.right)
    with torch.no_grad():
        for start in range(0, count, 4096):
            batch = _batch(shown, slice(start, start + 4096))
            total += float(_loss(net, batch)) * len(batch.right)
    return total / count


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.makers.fit", description=__doc__)
    parser.add_argument(
        "--traces",
        type=Path,
        nargs="+",
        required=True,
        help="from benchmarks record, of one model or several",
    )
    parser.add_argument(
        "--sampled", type=Path, nargs="+", help="others for what is added where replies are sampled"
    )
    parser.add_argument("--test", type=Path, nargs="*", default=[], help="traces to report the loss on")
    parser.add_argument("--keep", type=Path, help="a fit whose greedy part stays")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--draws", type=int, default=DRAWS, help="settings and noise for each position")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model_statistics = ModelStatistics(args.corpus)
    torch.manual_seed(0)
    if args.keep:
        with np.load(args.keep) as file:
            net = Net.of(dict(file))
    else:
        net = train(Net(), model_statistics.lessons(args.traces))
        for path in args.test:
            print(f"{path}: greedy {loss(net, model_statistics.lessons([path])):.4f} nats")
    generator = np.random.default_rng(0)
    chances = [Chance(generator) for _ in range(args.draws)]
    taught = model_statistics.lessons(args.sampled or args.traces, chances)
    sampled = train(SampledNet(net), taught, SAMPLED_PASSES)
    for path in args.test:
        shown = model_statistics.lessons([path], chances[:1])
        print(f"{path}: {len(shown.right)} positions, sampled {loss(sampled, shown):.4f} nats")
    np.savez(args.out, **net.arrays(), **sampled.arrays())  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
