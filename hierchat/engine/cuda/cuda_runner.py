"""Run transformers' own modules on CUDA over static pages of slots, replayed as CUDA graphs.

Graphs are recorded per number of rows and length of the view, whatever texts the rows belong to. Attention takes every
row alone (row_attention.py); what else a forward does - cuBLAS, bitsandbytes, sums of norms - is chosen by the number
of rows, so that a row gets the same bits in any two forwards over equally many. The self-test finds out whether that
holds for multiples of 16 rows; otherwise every forward is over exactly as many, the prompt's as well, and a wider
segment is computed part by part."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hierchat.engine.cuda.graphs import Graphs, capture
from hierchat.engine.cuda.mtp_layer import JoinedStates
from hierchat.engine.cuda.row_attention import (
    DEPTH,
    NAME,
    PAGE,
    PROMPT,
    SegmentText,
    StaticSegment,
    StaticSlots,
    slot_shapes,
)
from hierchat.engine.pages import PagedSequence, Pages, texts_that_fit
from hierchat.engine.runner import CachedSequence, Runner, Segment, TooManySequences
from hierchat.engine.selftest import BORDER, SelfTestResult, cache_key, invariant, remembered
from hierchat.engine.torch.running_states import RunningStates, StateMarks
from hierchat.engine.torch.states import by_path, keeps_states, put_into, state_bytes
from hierchat.engine.torch.torch_runner import KeptStates, forward, gpu, precision
from hierchat.engine.verification import Rows

REGIMES = ((16, PROMPT), (16, DEPTH), (32, 32), (16, 16))
"""(quantum, widest): forwards over multiples of `quantum` rows up to `widest`; the first that passes is taken."""
FIRST_VIEW = 512
"""Views are this long or a power of two times as long."""

Out: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Logits [rows, vocabulary], likeliest tokens [rows] (-1: no numbers), hidden states [rows, size]; of a prompt
states."""


class CudaRunner(Runner):
    """Runs a causal language model of transformers by the Runner contract, for the models in models/runnable.py.
    Has pages of slots at fixed addresses for up to `sequences` texts, as many as fit into memory. `key` names the
    weights, for the self-test's result."""

    shares_forward = answers_later = True

    def __init__(
        self,
        model: Any,
        *,
        context_length: int | None = None,
        key: str | None = None,
        sequences: int = 1,
        regime: tuple[int, int] | None = None,
        graphs: Graphs[Out] | None = None,
    ) -> None:
        """Take a `regime`: one of REGIMES that is known to be exact; None to let the self-test find it."""
        config = model.config.get_text_config(decoder=True)
        self.context_length: int = context_length or config.max_position_embeddings
        self.model = model
        self.device: torch.device = model.device
        self.vocabulary: int = config.vocab_size
        self.backend = precision(model)
        model.set_attn_implementation(NAME)
        self._graphs = graphs or Graphs(capture=capture if self.device.type == "cuda" else None)
        self._segments: dict[int, StaticSegment] = {}
        embedding = model.get_input_embeddings()
        self._joined = embedding if isinstance(embedding, JoinedStates) else None
        # Behind the context there is room for a segment, and for the self-test of a short context.
        self._text_pages = -(-(self.context_length + PROMPT) // PAGE)
        shapes = slot_shapes(model)
        page = StaticSlots(shapes, 1, model.dtype, torch.device("meta")).held.values()
        text = self._text_pages * sum(one.nbytes for one in page) + state_bytes(model)
        self.most_sequences = texts_that_fit(sequences, text, str(self.device))
        pages = 1 + self.most_sequences * self._text_pages
        self.slots = StaticSlots(shapes, pages, model.dtype, self.device)
        self.pages = Pages(pages, PAGE)
        self.pages.take()  # page 0, which padding fills
        self.numbers = list(reversed(range(self.most_sequences)))
        """Numbers of the sequences that may still be opened."""
        self.states: RunningStates | None = None
        self.keeps_states = any(keeps_states(config))
        if self.keeps_states:
            by_path(model)
            self.states = put_into(self.slots, keeps_states(config), self.most_sequences)
        self._result: ForwardResult | None = None
        self._flying = False
        self._pinned = torch.empty(0, dtype=torch.int32)
        self._kept = KeptStates(model)
        self.quantum, self.widest = regime or REGIMES[0]
        if regime is None:
            proof = remembered(
                key and cache_key(key, f"{self.backend} graphs", gpu(self.device)), self._prove
            )
            self.quantum, self.widest, self.exact = proof.quantum, proof.widest or DEPTH, proof.exact
            # A piece of a prompt may not be divided between forwards where states are
            self.shares_forward = self.exact and (self.widest >= DEPTH or not self.keeps_states)
            sequence = self.open()
            sequence.read([0])
            sequence.forward([0], [-1])  # so that the first reply finds its graphs
            sequence.close()
        self.chunk = max(self.widest, DEPTH)

    def open(self) -> CudaSequence:
        if not self.numbers:
            raise TooManySequences(f"All slots are taken: the runner holds {self.most_sequences} sequences.")
        return CudaSequence(self, self.numbers.pop())

    def forward(self, segments: Sequence[Segment], *, padded: bool = True) -> list[Rows]:
        """Return while the device still computes. padded=False: fastest, possibly other bits."""
        # First come segments whose logits are wanted, then those whose hidden states are.
        numbers, found = range(len(segments)), [Rows()] * len(segments)
        order = sorted(numbers, key=lambda at: (not segments[at].logits, not segments[at].hidden))
        expected = sorted(self._result.asked, key=str) if self._result else ()
        out = self.run([segments[at] for at in order], padded=padded)
        result = self._result = ForwardResult(self, out, self._graphs.recorded, expected)
        first = 0
        for at in order:
            count = len(segments[at].tokens)
            if segments[at].logits or segments[at].hidden:
                found[at] = DeviceRows(result, first, count)
            first += count
        return found

    @torch.inference_mode()
    def run(self, segments: Sequence[Segment], *, padded: bool = True) -> Out:
        """Compute one forward over segments, or several over parts if they are too wide: logits of the segments that
        want them, which come first; hidden states of these and of those that want them, which come next."""
        if self._result:
            self._result.expire()
        texts = [self._text(one) for one in segments]
        scored = sum(len(one.tokens) for one in segments if one.logits)
        wanted = sum(len(one.tokens) for one in segments if one.logits or one.hidden)
        rows, most = sum(len(one.tokens) for one in segments), self.widest if padded else DEPTH
        parts: list[Out] = []
        for begin in range(0, rows, most):
            count = min(most, rows - begin)
            quantum = self.quantum if count <= DEPTH else DEPTH  # few widths, each of which is a graph
            width = -(-count // quantum) * quantum if padded else count
            if width not in self._segments:
                shape = self.most_sequences, self._text_pages, self._joined.hidden if self._joined else 0
                self._segments[width] = StaticSegment(width, self.device, *shape)
            segment = self._segments[width]
            self.land()
            last = segment.fill(texts, begin)
            segment.view = max(FIRST_VIEW, 1 << last.bit_length())
            self._flying = True
            logits = begin < scored
            found, best, hidden = self._graphs.run(
                (width, segment.view, logits), partial(self._compute, segment, logits)
            )
            with_logits, with_states = (min(count, max(end - begin, 0)) for end in (scored, wanted))
            part = found[:with_logits], best[:with_logits], hidden[:with_states]
            if rows > most:  # the next part's graph may use the same memory
                part = part[0].clone(), part[1].clone(), part[2].clone()
            parts.append(part)
        if len(parts) == 1:
            return parts[0]
        found, best, hidden = (torch.cat(each) for each in zip(*parts, strict=True))
        return found, best, hidden

    def _text(self, segment: Segment) -> SegmentText:
        """Make room for a segment. Raises ValueError if it is nothing that can be computed."""
        sequence, tokens = cast(CudaSequence, segment.sequence), segment.tokens
        sequence.catch_up()
        start, room = len(sequence.tokens), self._text_pages * PAGE
        # A device would only stop working
        if not tokens or start + len(tokens) > room:
            raise ValueError(f"Behind {start} positions there is no room for {len(tokens)} more.")
        if not 0 <= min(tokens) <= max(tokens) < self.vocabulary:
            raise ValueError(f"A token is none of the model's {self.vocabulary}.")
        sequence.segment = tokens
        sequence.make_room(start, start + len(tokens))
        if sequence.marks:
            sequence.marks.note(start, len(tokens), reading=not segment.logits)
        pages, number = sequence.pages, sequence.number
        reading, states = not segment.logits, segment.embeddings
        return SegmentText(tokens, segment.parents, start, pages, number, reading, states)

    def _compute(self, segment: StaticSegment, logits: bool) -> Out:
        self.slots.writing = segment.slots
        if self._joined:
            self._joined.states = segment.states
        if self.states:
            self.states.begin(segment)
        model = self.model if logits else self.model.base_model
        found = forward(model, segment.ids, segment.positions, self.slots, segment)
        if not logits:
            hidden = found.last_hidden_state[0]
            return hidden.new_empty(0, self.vocabulary), hidden.new_empty(0, dtype=torch.long), hidden
        rows = found.logits[0]
        best = rows.argmax(-1)
        finite = rows.gather(1, best[:, None])[:, 0].isfinite()
        return rows, torch.where(finite, best, -1), self._kept.read[0]

    def land(self) -> None:
        """Wait for the forward under way, so that its inputs may be overwritten."""
        if self._flying and self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        self._flying = False

    @torch.inference_mode()
    def fetch_rows(self, numbers: torch.Tensor) -> NDArray[np.int32]:
        """Copy int32 numbers through page-locked memory, ten times as fast. Valid until the next call."""
        if self._pinned.numel() < numbers.numel():
            on_device = self.device.type == "cuda"
            self._pinned = torch.empty(numbers.numel(), dtype=torch.int32, pin_memory=on_device)
        rows = self._pinned[: numbers.numel()].view(numbers.shape)
        rows.copy_(numbers)
        self._flying = False
        return rows.numpy()

    @torch.inference_mode()
    def top(self, logits: torch.Tensor, count: int) -> torch.Tensor:
        """Find the likeliest tokens of each row on the device, in order: int32 [rows, count]. A value and its token
        form one number, because topk does not order equals."""
        rows = logits.float()
        values = rows.view(torch.int32)
        values = torch.where(rows == 0, 0, values ^ (values >> 31 & 0x7FFFFFFF)).long()
        keys = values << 32 | torch.arange(self.vocabulary - 1, -1, -1, device=rows.device)
        found = torch.full((len(rows), count), -1, dtype=torch.int32, device=rows.device)
        best = keys.topk(min(count, self.vocabulary), dim=1).values
        found[:, : best.shape[1]] = self.vocabulary - 1 - (best & 0xFFFFFFFF)
        return found

    def _prove(self) -> SelfTestResult:
        border = FIRST_VIEW if self.context_length > FIRST_VIEW else BORDER
        sequence = self.open()
        try:
            for self.quantum, self.widest in REGIMES:
                if invariant(sequence, quantum=self.quantum, border=border):
                    return SelfTestResult(exact=True, quantum=self.quantum, widest=self.widest)
                self._graphs.clear()
        finally:
            sequence.close()
        return SelfTestResult(exact=False, quantum=REGIMES[0][0], widest=REGIMES[0][1])


class ForwardResult:
    """Results of one forward on a device. The first call of `fetch` waits for the forward, and copies all kinds of
    values that the last forward was asked for, of all rows. Valid until `expire`, at the runner's next forward."""

    def __init__(
        self, runner: CudaRunner, out: Out, recorded: bool = False, expected: Collection[str | int] = ()
    ) -> None:
        """Take `expected`: the kinds of values of which the rows before were asked, a number for so many likeliest."""
        self.recorded = recorded
        self.asked: set[str | int] = set()
        self._runner, self._expected = runner, expected
        self._logits, self._likeliest, self._hidden = out
        self.vocabulary = self._logits.shape[1]
        self.fetched: dict[str | int, NDArray[np.int32]] = {}
        """[rows, n] by kind."""
        self._expired = False

    def expire(self) -> None:
        """Refuse to be read from now on: the memory behind the rows is used again."""
        self._expired = True

    @torch.inference_mode()
    def fetch(self, kind: str | int) -> NDArray[np.int32]:
        """Return values of a kind, [rows, n]; the bits of floats. Raises RuntimeError if they have expired."""
        self.asked.add(kind)
        if self._expired and (kind not in self.fetched or kind == "logits"):
            raise RuntimeError("These rows are of an earlier forward; copy what is needed for longer.")
        if kind not in self.fetched:
            kinds = [kind, *(one for one in self._expected if one != kind)] if not self.fetched else [kind]
            numbers = [self._numbers(one) for one in kinds]
            joined = torch.cat([one.flatten() for one in numbers]) if len(numbers) > 1 else numbers[0]
            flat = (joined.cpu().numpy() if self.fetched else self._runner.fetch_rows(joined)).reshape(-1)
            parts = np.split(flat, np.cumsum([one.numel() for one in numbers])[:-1])
            for one, shaped, part in zip(kinds, numbers, parts, strict=True):
                rows = part.reshape(shaped.shape)
                self.fetched[one] = rows if one == "logits" else rows.copy()
        return self.fetched[kind]

    def _numbers(self, kind: str | int) -> torch.Tensor:
        if isinstance(kind, int):
            return self._runner.top(self._logits, kind)
        if kind == "best":
            return self._likeliest[:, None].to(torch.int32)
        if kind.startswith("candidates"):
            rows, places = self._logits.float(), self._runner.top(self._logits, int(kind.split()[1]))
            parts = rows.gather(1, places.long()), rows.logsumexp(1, keepdim=True)
            return torch.cat([places, *(part.view(torch.int32) for part in parts)], 1)
        return (self._logits if kind == "logits" else self._hidden).float().contiguous().view(torch.int32)


class DeviceRows(Rows):
    """Hold the rows of one segment. They begin at row `first` of the forward. `best` copies only a few bytes."""

    def __init__(self, result: ForwardResult, first: int, count: int) -> None:
        self.recorded = result.recorded
        self._result, self._first, self._count = result, first, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, node: int) -> NDArray[np.float32]:
        return self._result.fetch("logits")[self._first + node].view(np.float32)

    def best(self, node: int) -> int:
        return int(self._result.fetch("best")[self._first + node, 0])

    def hidden(self, nodes: Sequence[int]) -> NDArray[np.float32]:
        return self._of("hidden", nodes).view(np.float32)

    def likeliest(self, nodes: Sequence[int], count: int) -> NDArray[np.int32]:
        if count not in self._result.fetched and "logits" in self._result.fetched:
            self._result.asked.add(count)
            return super().likeliest(nodes, count)
        return self._of(count, nodes)

    def candidates(self, node: int, count: int) -> tuple[NDArray[np.int32], NDArray[np.float32], float]:
        found = self._result.fetch(f"candidates {min(count, self._result.vocabulary)}")[self._first + node]
        numbers = found.view(np.float32)
        return found[: len(found) // 2], numbers[len(found) // 2 : -1], float(numbers[-1])

    def wait(self, *, best: bool) -> None:
        self.best(0) if best else self[0]

    def _of(self, kind: str | int, nodes: Sequence[int]) -> NDArray[np.int32]:
        return self._result.fetch(kind)[[self._first + node for node in nodes]]


class CudaSequence(PagedSequence):
    """Hold one text of a CudaRunner. `number`: its place among the runner's running states, if any."""

    runner: CudaRunner
    segment: Sequence[int] = ()
    """Tokens of its last segment."""

    def __init__(self, runner: CudaRunner, number: int) -> None:
        super().__init__(runner, runner.pages)
        self.number = number
        self.marks = StateMarks(runner.states, number) if runner.states else None
        self._behind = 0
        """Tokens at the end whose states are to be read again."""

    def read(self, tokens: Sequence[int], hidden: bool = False) -> NDArray[np.float32] | None:
        widest, states = self.runner.widest, list[NDArray[np.float32]]()
        for begin in range(0, len(tokens), widest):
            part = list(tokens[begin : begin + widest])
            chain = range(-1, len(part) - 1)
            out = self.runner.run([Segment(self, part, chain, logits=False, hidden=hidden)])
            self.commit(range(len(part)))
            if hidden:
                states.append(out[2].float().cpu().numpy().copy())
        self.runner.land()
        return np.concatenate(states) if states else None

    def forward(self, tokens: Sequence[int], parents: Sequence[int], *, padded: bool = True) -> Rows:
        return self.runner.forward([Segment(self, tokens, parents)], padded=padded)[0]

    @torch.inference_mode()
    def commit(self, nodes: Sequence[int]) -> None:
        places = range(len(nodes))
        if list(nodes) != list(places):
            behind = torch.tensor([*nodes, *places]) + len(self.tokens)
            slots = torch.tensor(self.pages)[behind // PAGE] * PAGE + behind % PAGE
            given, taken = slots.to(self.runner.device).split(len(nodes))
            for held in self.runner.slots.held.values():
                held.index_copy_(4, taken, held.index_select(4, given))
        if self.marks:
            self.marks.commit(nodes)
        self.tokens.extend(self.segment[node] for node in nodes)

    def rollback(self, length: int) -> None:
        if self.marks and length < len(self.tokens) - self._behind:
            self._behind = length - self.marks.rollback(length)
        else:
            self._behind = max(self._behind - (len(self.tokens) - length), 0)
        super().rollback(length)

    def catch_up(self) -> None:
        """Read tokens again whose states were taken back further than the text."""
        if self._behind:
            tail = self.tokens[-self._behind :]
            del self.tokens[-self._behind :]
            self._behind = 0
            self.read(tail)

    def wipe(self) -> None:
        super().wipe()
        if self.runner.states:
            self.runner.states.wipe()

    def adopt(self, other: CachedSequence, tokens: Sequence[int]) -> bool:
        """Hold pages of `other`, a sequence of the same runner, as far as they are full."""
        if not isinstance(other, CudaSequence) or other.runner is not self.runner or self.marks:
            return False
        start, end = len(self.tokens), len(self.tokens) + len(tokens)
        with self.runner.pages.lock:  # before it is written to or gives pages back, it waits
            if other.tokens[:end] != [*self.tokens, *tokens]:
                return False
            end = self._share(other, start, end)
        self.tokens.extend(tokens[: end - start])
        return True

    @torch.inference_mode()
    def copy_page(self, source: int, goal: int, count: int) -> None:
        for pages in self._pages():
            pages[..., goal, :count, :] = pages[..., source, :count, :]

    @torch.inference_mode()
    def wipe_page(self, page: int, first: int = 0) -> None:
        for pages in self._pages():
            pages[..., page, first:, :] = 0

    def _pages(self) -> list[torch.Tensor]:
        return [held.unflatten(4, (-1, PAGE)) for held in self.runner.slots.held.values()]

    def close(self) -> None:
        self.rollback(0)
        self.runner.numbers.append(self.number)
