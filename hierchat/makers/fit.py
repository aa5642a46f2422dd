"""Fits hierchat/drafting/acceptance_model.npz to recorded replies: python -m hierchat.makers.fit --traces FILE...

Each position of a reply is a lesson: all that the databases know there, and which candidate followed. In the order of
the files the replies become history, and what was asked becomes the user's own text; the seed pack and --corpus are the
statistics. In training, whole slots are left out at random, so that the acceptance model copes with whatever databases
there are.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import Linear, Module
from torch.nn.functional import cross_entropy

from hierchat.bench.measure.traces import Trace, read_traces
from hierchat.corpus.statistics import statistics
from hierchat.drafting.acceptance import SHAPES
from hierchat.drafting.context import Context
from hierchat.drafting.drafter import RECENT_PRIOR, RECENT_RATE, databases, runs_of
from hierchat.drafting.growing.acceptance_model import first_choices, read, read_around
from hierchat.drafting.growing.evidence import look
from hierchat.drafting.growing.grow import TAIL
from hierchat.drafting.growing.layout import (
    CANDIDATES,
    HIDDEN,
    HISTORY,
    INPUTS,
    KNOWN,
    PROMPTS,
    RECENT,
    SLOTS,
    Floats,
    Integers,
    make_places,
)
from hierchat.drafting.source import Source
from hierchat.drafting.successors import TOP, Successors
from hierchat.models.catalogue import read_catalogue
from hierchat.models.load.load_tokenizer import load_tokenizer
from hierchat.runtime.drafters import statistics_sources

BATCH = 256
PASSES = 20
LEARNING_RATE = 4e-3
LEFT_OUT = 0.15
"""Share of lessons in which a slot, other than the context's, knows nothing."""
DECAY = 1e-3


class Lessons(NamedTuple):
    """One row per position."""

    inputs: Floats
    """[n, CANDIDATES, SLOTS * INPUTS]"""
    around: Floats
    """[n, SLOTS * KNOWN]"""
    right: Integers
    """[n]: the candidate that followed; CANDIDATES: none of them."""


def lessons(traces: Sequence[Trace], statistics: Sequence[Source]) -> Lessons:
    """All positions of all replies, in order."""
    rows = list(_lessons(traces, statistics))
    return Lessons(*(np.array(column) for column in zip(*rows, strict=True)))


def _lessons(traces: Sequence[Trace], statistics: Sequence[Source]) -> Iterator[tuple[Any, Any, int]]:
    history, prompts, successors = Source(HISTORY), Source(PROMPTS), Successors()
    firsts = np.empty(SLOTS, np.int32)
    for trace in traces:
        text = [*trace.prompt, *trace.reply]
        context = Context(trace.prompt)
        recent = np.full(SLOTS, RECENT_PRIOR, np.float32)
        places = None
        for place, token in enumerate(trace.reply):
            known = databases(runs_of([history, prompts, *statistics]), context, successors)
            if places is None:
                places = make_places(len(known.runs))
            places.known[0, :, RECENT] = recent
            tail = context.tokens[-TAIL:]
            look(known, places, 0, -1, tail, tail.size)
            count = int(places.candidates[0])
            inputs = np.zeros((CANDIDATES, SLOTS * INPUTS), np.float32)
            for i in range(count):
                read(places.seen[0, i], places.known[0], inputs[i])
            around = np.empty(SLOTS * KNOWN, np.float32)
            read_around(places.known[0], around)
            found = np.flatnonzero(places.tokens[0, :count] == token)
            yield inputs, around, int(found[0]) if found.size else CANDIDATES
            first_choices(places, 0, firsts)
            named = firsts >= 0
            recent[named] += RECENT_RATE * ((firsts[named] == token) - recent[named])
            if trace.top.shape[1] >= TOP:
                at = len(trace.prompt) + place
                successors.update(text[at - 2 : at], trace.top[place : place + 1, :TOP])
            context.append([token])
        history.add(trace.reply)
        prompts.add(trace.prompt)


class Net(Module):
    """What growing.acceptance_model computes, for training."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = Linear(SLOTS * INPUTS, HIDDEN)
        self.surroundings = Linear(SLOTS * KNOWN, HIDDEN, bias=False)
        self.score = Linear(HIDDEN + SLOTS * INPUTS, 1)
        self.none_inputs = Linear(SLOTS * KNOWN, HIDDEN)
        self.none = Linear(HIDDEN, 1)

    def forward(self, inputs: torch.Tensor, around: torch.Tensor) -> torch.Tensor:
        """Logits [n, CANDIDATES + 1], the last one that of "none of them"."""
        hidden = torch.relu(self.inputs(inputs) + self.surroundings(around)[:, None])
        scores = self.score(torch.cat([hidden, inputs], -1))[..., 0]
        scores = scores.masked_fill((inputs == 0).all(-1), -1e9)
        return torch.cat([scores, self.none(torch.relu(self.none_inputs(around)))], 1)

    def arrays(self) -> dict[str, Floats]:
        """As a AcceptanceModel has them."""
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


def train(taught: Lessons, passes: int = PASSES, seed: int = 0) -> Net:
    torch.manual_seed(seed)
    net = Net()
    inputs, around, right = (torch.from_numpy(part) for part in taught)
    steps = passes * -(-len(right) // BATCH)
    optimiser = torch.optim.AdamW(net.parameters(), LEARNING_RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2 * LEARNING_RATE, total_steps=steps)
    for _ in range(passes):
        for batch in torch.randperm(len(right)).split(BATCH):
            loss = _loss(net, *_thinned(inputs[batch], around[batch], right[batch]))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return net


def _thinned(
    inputs: torch.Tensor, around: torch.Tensor, right: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """With slots left out; who is named by none of the others is no candidate any more."""
    kept = (torch.rand(len(right), SLOTS) > LEFT_OUT).float()
    kept[:, 0] = 1.0
    inputs = inputs * kept.repeat_interleave(INPUTS, 1)[:, None]
    around = around * kept.repeat_interleave(KNOWN, 1)
    gone = (inputs == 0).all(-1)
    lost = gone.gather(1, right.clamp(max=CANDIDATES - 1)[:, None])[:, 0] & (right < CANDIDATES)
    return inputs, around, right.masked_fill(lost, CANDIDATES)


def _loss(net: Net, inputs: torch.Tensor, around: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return cross_entropy(net(inputs, around), right)


def loss(net: Net, shown: Lessons) -> float:
    """Nats per position."""
    with torch.no_grad():
        parts = [torch.from_numpy(part).split(4096) for part in shown]
        losses = [float(_loss(net, *batch)) * len(batch[2]) for batch in zip(*parts, strict=True)]
    return sum(losses) / len(shown.right)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hierchat.makers.fit", description=__doc__)
    parser.add_argument("--traces", type=Path, nargs="+", required=True, help="from bench record")
    parser.add_argument("--test", type=Path, nargs="*", default=[], help="traces to report the loss on")
    parser.add_argument("--model", help="whose seed pack and tokenizer to use")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    catalogue = read_catalogue()
    entry = catalogue.entry(args.model or catalogue.default)
    texts = statistics_sources(statistics(entry, load_tokenizer(entry), args.corpus, stored=False))
    taught = [lessons(read_traces(path), texts) for path in args.traces]
    net = train(Lessons(*(np.concatenate(parts) for parts in zip(*taught, strict=True))))
    for path, shown in zip(args.traces, taught, strict=True):
        print(f"{path}: {len(shown.right)} lessons, {loss(net, shown):.4f} nats after fitting to them")
    for path in args.test:
        shown = lessons(read_traces(path), texts)
        print(f"{path}: {len(shown.right)} positions, {loss(net, shown):.4f} nats")
    np.savez(args.out, **net.arrays())  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
