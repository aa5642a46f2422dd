"""Fits hierchat/drafting/acceptance_model.npz to recorded replies: python -m hierchat.makers.fit --traces FILE...

Each position of a reply is a lesson: all that the databases know there, and which candidate followed. In the order of
the files the replies become history, and what was asked becomes the user's own text; the seed pack and --corpus are the
statistics. In training, whole slots are left out at random, so that the acceptance model copes with whatever databases
there are.

First the part that greedy replies are drafted by; --keep FILE takes it from there. Then, on top of it, what is added
where tokens are sampled: each position is a lesson for made-up settings and noise (sampled_lessons.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch.nn import Linear, Module, Parameter
from torch.nn.functional import cross_entropy

from hierchat.bench.measure.traces import Trace, read_traces
from hierchat.corpus.statistics import statistics
from hierchat.drafting.acceptance import SAMPLED_SHAPES, SHAPES, WARMTH
from hierchat.drafting.context import Context
from hierchat.drafting.drafter import RECENT_PRIOR, RECENT_RATE, databases, runs_of
from hierchat.drafting.growing.acceptance_model import first_choices, read, read_around
from hierchat.drafting.growing.dice import gumbel
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
    Places,
    make_places,
)
from hierchat.drafting.source import Source
from hierchat.drafting.successors import TOP, Successors
from hierchat.makers.sampled_lessons import Chance
from hierchat.models.catalogue import read_catalogue
from hierchat.models.load.load_tokenizer import load_tokenizer
from hierchat.runtime.drafters import statistics_sources

BATCH = 256
PASSES = 20
LEARNING_RATE = 4e-3
LEFT_OUT = 0.15
"""Share of lessons in which a slot, other than the context's, knows nothing."""
DECAY = 1e-3
DRAWS, SAMPLED_PASSES = 3, 6
GREEDY = np.zeros(WARMTH, np.float32)


class Lessons(NamedTuple):
    """One row per position; the inputs as float16, for there are many."""

    inputs: Floats
    """[n, CANDIDATES, SLOTS * INPUTS]"""
    around: Floats
    """[n, SLOTS * KNOWN]"""
    right: Integers
    """[n]: the candidate that followed; CANDIDATES: none of them."""
    noise: Floats
    """[n, CANDIDATES]: the noise of each candidate, and"""
    warm: Floats
    """[n, WARMTH]: the settings by which it was chosen; zeros for greedy decoding"""


def lessons(traces: Sequence[Trace], statistics: Sequence[Source], chances: Sequence[Chance] = ()) -> Lessons:
    """All positions of all replies, in order, with the tokens that followed; or, of each position, what follows by
    each of `chances`."""
    rows = list(_lessons(traces, statistics, chances))
    return Lessons(*(np.array(column) for column in zip(*rows, strict=True)))


def _lessons(
    traces: Sequence[Trace], statistics: Sequence[Source], chances: Sequence[Chance]
) -> Iterator[tuple[Any, Any, int, Any, Any]]:
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
            for chance in chances or (None,):
                places.keys[0] = chance.draw() if chance else 0
                look(known, places, 0, -1, tail, tail.size)
                followed = chance.winner(trace.top[place], trace.chances[place]) if chance else token
                yield lesson_of(places, followed, chance.warm if chance else GREEDY)
            if chances:
                places.keys[0] = 0
                look(known, places, 0, -1, tail, tail.size)
            first_choices(places, 0, firsts)
            named = firsts >= 0
            recent[named] += RECENT_RATE * ((firsts[named] == token) - recent[named])
            if trace.top.shape[1] >= TOP:
                at = len(trace.prompt) + place
                successors.update(text[at - 2 : at], trace.top[place : place + 1, :TOP])
            context.append([token])
        history.add(trace.reply)
        prompts.add(trace.prompt)


def lesson_of(places: Places, token: int, warm: Floats) -> tuple[Any, Any, int, Any, Any]:
    """What the acceptance model reads of row 0, behind which `token` followed."""
    count = int(places.candidates[0])
    inputs = np.zeros((CANDIDATES, SLOTS * INPUTS), np.float32)
    noise = np.zeros(CANDIDATES, np.float32)
    for i in range(count):
        read(places.seen[0, i], places.known[0], inputs[i])
        if places.keys[0]:
            noise[i] = gumbel(places.keys[0], places.tokens[0, i])
    around = np.empty(SLOTS * KNOWN, np.float32)
    read_around(places.known[0], around)
    found = np.flatnonzero(places.tokens[0, :count] == token)
    right = int(found[0]) if found.size else CANDIDATES
    return inputs.astype(np.float16), around, right, noise, warm


class Net(Module):
    """What growing.acceptance_model computes, for training."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = Linear(SLOTS * INPUTS, HIDDEN)
        self.surroundings = Linear(SLOTS * KNOWN, HIDDEN, bias=False)
        self.score = Linear(HIDDEN + SLOTS * INPUTS, 1)
        self.none_inputs = Linear(SLOTS * KNOWN, HIDDEN)
        self.none = Linear(HIDDEN, 1)

    def forward(self, lessons: Batch) -> torch.Tensor:
        """Logits [n, CANDIDATES + 1], the last one that of "none of them"."""
        read, aside = self.units(lessons)
        return _logits(lessons, self.score(read)[..., 0], self.none(aside))

    def units(self, lessons: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """What the scores of candidates and that of "none of them" are made of."""
        hidden = torch.relu(self.inputs(lessons.inputs) + self.surroundings(lessons.around)[:, None])
        return torch.cat([hidden, lessons.inputs], -1), torch.relu(self.none_inputs(lessons.around))

    @classmethod
    def of(cls, arrays: Mapping[str, Floats]) -> Self:
        """From what `arrays` gave."""
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


class SampledNet(Module):
    """What is added where replies are sampled; the rest stays as it was fitted."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net.requires_grad_(False)
        self.heat, self.swing, self.none_heat = (
            Parameter(torch.zeros(shape)) for shape in SAMPLED_SHAPES.values()
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
        """As they lie beside those of Net."""
        return {name: getattr(self, name).detach().numpy() for name in SAMPLED_SHAPES}


def _by_warmth(read: torch.Tensor, warm: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Of `read` [n, m, k], by weights [WARMTH, k + 1] of which the last is a constant: [n, m]."""
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
    """Some lessons."""

    inputs: torch.Tensor
    around: torch.Tensor
    right: torch.Tensor
    noise: torch.Tensor
    warm: torch.Tensor


def _batch(lessons: Lessons, rows: Any) -> Batch:
    found = Batch(*(torch.from_numpy(part[rows]) for part in lessons))
    return found._replace(inputs=found.inputs.float())


def _thinned(lessons: Batch) -> Batch:
    """With slots left out; who is named by none of the others is no candidate any more."""
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
    """Nats per position."""
    total, count = 0.0, len(shown.right)
    with torch.no_grad():
        for start in range(0, count, 4096):
            batch = _batch(shown, slice(start, start + 4096))
            total += float(_loss(net, batch)) * len(batch.right)
    return total / count


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hierchat.makers.fit", description=__doc__)
    parser.add_argument("--traces", type=Path, nargs="+", required=True, help="from bench record")
    parser.add_argument("--test", type=Path, nargs="*", default=[], help="traces to report the loss on")
    parser.add_argument("--keep", type=Path, help="a fit whose greedy part stays")
    parser.add_argument("--model", help="whose seed pack and tokenizer to use")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--draws", type=int, default=DRAWS, help="settings and noise for each position")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    catalogue = read_catalogue()
    entry = catalogue.entry(args.model or catalogue.default)
    texts = statistics_sources(statistics(entry, load_tokenizer(entry), args.corpus, stored=False))
    if args.keep:
        with np.load(args.keep) as file:
            net = Net.of(dict(file))
    else:
        net = train(Net(), _all(args.traces, texts))
        for path in args.test:
            print(f"{path}: greedy {loss(net, lessons(read_traces(path), texts)):.4f} nats")
    generator = np.random.default_rng(0)
    chances = [Chance(generator) for _ in range(args.draws)]
    sampled = train(SampledNet(net), _all(args.traces, texts, chances), SAMPLED_PASSES)
    for path in args.test:
        shown = lessons(read_traces(path), texts, chances[:1])
        print(f"{path}: {len(shown.right)} positions, sampled {loss(sampled, shown):.4f} nats")
    np.savez(args.out, **net.arrays(), **sampled.arrays())  # type: ignore[arg-type]


def _all(paths: Sequence[Path], texts: Sequence[Source], chances: Sequence[Chance] = ()) -> Lessons:
    taught = [lessons(read_traces(path), texts, chances) for path in paths]
    return Lessons(*(np.concatenate(parts) for parts in zip(*taught, strict=True)))


if __name__ == "__main__":
    main()
