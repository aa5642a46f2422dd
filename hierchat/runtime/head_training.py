"""Train a draft head at home: from the target's own states over texts, on whatever computes the target here.

States are made as they are needed and held rounded to 8 bits, at most HELD bytes of them; nothing of a text is written
down. The head learns to go on from its own states, as it will when it drafts (training-time test of EAGLE-3, Li et al.,
2025, arXiv 2503.01840). It writes by the target's own output, of which the tokens that texts have most are kept."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from hierchat.drafting.suffix_index import BREAK
from hierchat.engine.cpu.forward import cores
from hierchat.engine.runner import CachedSequence
from hierchat.models.formats import head_files
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.progress import BrokenFileError, Progress, Report, silent
from hierchat.runtime.served_model import ServedModel
from hierchat.store import Store
from hierchat.store.history import Mark, TextKind
from hierchat.store.replies import TOKEN
from hierchat.texts.corpora import SEED_NAME

WINDOW = 128
"""Tokens of a piece of text."""
FORWARD = 32
"""Tokens of it that the target reads at once: so long somebody may wait who wants the model."""
BATCH = 8
"""Pieces of a step of training."""
VOCABULARY = 8192
"""Tokens that a head knows: those that the texts have most."""
AHEAD = 3
"""Places ahead that it learns to draft."""
LATER = 0.8
"""Weight of a place against the one before it."""
REUSED = 3
"""Steps of training for a batch of states that is made."""
HELD = 512 * 2**20
"""Bytes of states in memory, at most; the oldest go first."""
HELD_OUT = 48
"""Pieces of text that it never sees, to tell how good it is."""
SHORTEST = 16
"""Tokens of a piece, at least."""
SAVE_SECONDS = 300.0
FEWEST = 20_000
"""Tokens of text below which no training begins."""
RATE = 1e-3
WARM_UP = 0.03
"""Part of the time in which the rate of learning rises."""
THETA = 10_000.0
"""Base of rotary positions."""


class TooFewTexts(ValueError):
    """There is not enough text to train a draft head on."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of text with what the target made of it: `labels` are its own choices behind each token, `states` int8
    [tokens, hidden] the hidden states, to be multiplied by `scales` [tokens]."""

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    states: NDArray[np.int8]
    scales: NDArray[np.float32]


class Interrupted(Exception):
    """Training does not go on: somebody wants the model."""


GoesOn = Callable[[], bool]
"""Tells, before anything that takes long, whether training goes on."""


def look(sequence: CachedSequence, text: Sequence[int], goes_on: GoesOn = lambda: True) -> Piece:
    """Let the target read a piece of text, and keep its choices and hidden states. Raises Interrupted, and ValueError
    where its runner brings no states."""
    sequence.rollback(0)
    labels, rounded, scales = list[int](), list[NDArray[np.int8]](), list[NDArray[np.float32]]()
    for begin in range(0, len(text), FORWARD):
        if not goes_on():
            raise Interrupted
        part = tuple(text[begin : begin + FORWARD])
        rows = sequence.forward(part, tuple(range(-1, len(part) - 1)), padded=False)
        states = rows.hidden(range(len(part)))
        if states is None:
            raise ValueError(
                "What computes this model here brings no hidden states, so no head can be trained."
            )
        labels += [int(rows[node].argmax()) for node in range(len(part))]
        scales.append(np.abs(states).max(1) / np.float32(127.0) + np.float32(1e-12))
        rounded.append(np.rint(states / scales[-1][:, None]).astype(np.int8))
        sequence.commit(range(len(part)))
    return Piece(np.array(text, np.int64), np.array(labels), np.concatenate(rounded), np.concatenate(scales))


def texts_of(store: Store, user_id: int, served: ServedModel) -> list[list[int]]:
    """Return what the model wrote that may train a user's head: to the user, while idle, and the texts that ship."""
    texts = [one.tokens for one in served.statistics if one.name == SEED_NAME]
    found = [
        part[part != BREAK].tolist() for one in texts for part in np.split(one, np.flatnonzero(one == BREAK))
    ]
    kinds: tuple[TextKind, TextKind] = ("written", "self")
    for kind in kinds:
        own, _ = store.history.texts(user_id, served.model_key, kind, Mark())
        found += [np.frombuffer(ids, TOKEN).tolist() for _, ids in own]
    return found


def pieces_of(texts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """Cut texts into pieces of at most WINDOW tokens."""
    cut = [text[begin : begin + WINDOW] for text in texts for begin in range(0, len(text), WINDOW)]
    return [piece for piece in cut if len(piece) >= SHORTEST]


def most_written(pieces: Iterable[Sequence[int]], count: int = VOCABULARY) -> NDArray[np.int64]:
    """Return the tokens that texts have most, in order of their numbers."""
    counts = Counter(token for piece in pieces for token in piece)
    return np.array(sorted(token for token, _ in counts.most_common(count)), np.int64)


class HeadModule(torch.nn.Module):
    """Compute a draft head: one decoder layer over a token's embedding joined with the state before it."""

    def __init__(self, config: dict[str, Any], outputs: int) -> None:
        super().__init__()
        size, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.kv_heads, self.head_dim = config["num_key_value_heads"], config["head_dim"]
        inner, wide, narrow = (
            config["intermediate_size"], self.heads * self.head_dim, self.kv_heads * self.head_dim,
        )  # fmt: skip
        self.epsilon = config["rms_norm_eps"]

        def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(rows, columns) * (scale / columns**0.5))

        def norm() -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.ones(size))

        self.fc = torch.nn.Parameter(torch.cat([torch.eye(size) * 0.3, torch.eye(size)], dim=1))
        self.enorm, self.hnorm, self.norm, self.before, self.between = (norm() for _ in range(5))
        self.q, self.k, self.v = matrix(wide, size), matrix(narrow, size), matrix(narrow, size)
        self.o, self.down = matrix(size, wide, 0.1), matrix(size, inner, 0.1)
        self.gate, self.up = matrix(inner, size), matrix(inner, size)
        self.out = torch.nn.Buffer(torch.zeros(outputs, size))  # the target's own, which stays as it is

    NAMES: ClassVar[dict[str, str]] = {
        "fc": head_files.FC, "enorm": head_files.EMBEDDING_NORM, "hnorm": head_files.HIDDEN_NORM,
        "norm": "model.norm.weight",
        "before": "model.layers.0.input_layernorm.weight",
        "between": "model.layers.0.post_attention_layernorm.weight",
        **{name: f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkvo"},
        **{name: f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
    }  # fmt: skip
    """transformers' names of the parameters."""

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return the parameters as float16 by transformers' names."""
        return {
            self.NAMES[name]: one.detach().half().numpy(force=True) for name, one in self.named_parameters()
        }

    def normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.epsilon)

    def forward(
        self, embedded: torch.Tensor, states: torch.Tensor, ahead: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield for each place ahead the normed states [pieces, tokens, hidden] and logits. `embedded` and `states`
        [pieces, tokens, hidden]: of each token its embedding, and the target's state before it.

        The place `n` ahead begins at a token, goes on over the n tokens behind it with states of its own, and sees the
        target's states no further than where it began."""
        batch, length, _ = embedded.shape
        embedded = self.normed(embedded, self.enorm)
        causal = torch.ones(length, length, dtype=torch.bool, device=states.device).tril()
        keys, values = list[torch.Tensor](), list[torch.Tensor]()
        for place in range(ahead):
            joined = torch.cat(
                [embedded[:, place:], self.normed(states, self.hnorm)[:, : length - place]], -1
            )
            x = joined @ self.fc.T
            y = self.normed(x, self.before)
            count = x.shape[1]
            turn = rotation(torch.arange(place, place + count, device=x.device), self.head_dim)
            q = rotated((y @ self.q.T).view(batch, count, self.heads, -1).transpose(1, 2), turn)
            k = rotated((y @ self.k.T).view(batch, count, self.kv_heads, -1).transpose(1, 2), turn)
            v = (y @ self.v.T).view(batch, count, self.kv_heads, -1).transpose(1, 2)
            several = self.heads // self.kv_heads
            keys.append(k.repeat_interleave(several, 1))
            values.append(v.repeat_interleave(several, 1))
            scores = q @ keys[0][:, :, :count].transpose(2, 3)
            scores = scores.masked_fill(~causal[:count, :count], float("-inf"))
            own = [(q * key[:, :, :count]).sum(-1, keepdim=True) for key in keys[1:]]
            weights = torch.softmax(torch.cat([scores, *own], -1) * self.head_dim**-0.5, -1)
            seen = weights[..., :count] @ values[0][:, :, :count]
            for number, value in enumerate(values[1:]):
                seen = seen + weights[..., count + number, None] * value[:, :, :count]
            x = x + seen.transpose(1, 2).reshape(batch, count, -1) @ self.o.T
            y = self.normed(x, self.between)
            x = x + (functional.silu(y @ self.gate.T) * (y @ self.up.T)) @ self.down.T
            states = self.normed(x, self.norm)
            yield states, states @ self.out.T


def rotation(positions: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines [positions, size] of rotary positions in half-split layout."""
    angles = positions[:, None] / THETA ** (torch.arange(0, size, 2, device=positions.device) / size)
    return torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()


def rotated(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turn [..., positions, size] by rotary positions."""
    first, second = x.chunk(2, -1)
    return x * turn[0] + torch.cat([-second, first], -1) * turn[1]


class HeadTraining:
    """Train a head for a model over texts, tokens of each. `begun`: a head to go on with, if it is of this model;
    `user`: whose sequences the target reads with."""

    def __init__(
        self,
        served: ServedModel,
        texts: Sequence[Sequence[int]],
        begun: bytes | None = None,
        user: int | None = None,
        seed: int = 0,
    ) -> None:
        """Cut the texts, choose the vocabulary and what is held out. Raises TooFewTexts."""
        self._engine, self._user = served.local, user
        # A BlockModel, or transformers' module
        self._loaded: Any = getattr(served.local.runner, "model", None)
        self._random = random.Random(seed)
        torch.manual_seed(seed)
        pieces = pieces_of(texts)
        self._random.shuffle(pieces)
        if (tokens := sum(map(len, pieces))) < FEWEST:
            raise TooFewTexts(
                f"There are {tokens:,} tokens of text to train a draft head on, and at least {FEWEST:,} are needed."
            )
        self._held_out, self._pieces = pieces[:HELD_OUT], pieces[HELD_OUT:]
        self._device = torch.device(getattr(self._loaded, "device", "cpu"))
        self.card = head_files.HeadCard(target=served.model_key, model=served.name)
        self.known = most_written(pieces)
        self.config = layer_config(self._loaded)
        self.module = self._begun(begun)
        self._fresh = cycle(self._pieces)
        self._optimizer = torch.optim.AdamW(
            self.module.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01
        )
        self._held: list[Piece] = []
        # Tokens that it does not know have a number that torch leaves out of a loss
        self._numbers = np.full(served.local.runner.vocabulary, -100, np.int64)
        self._numbers[self.known] = np.arange(len(self.known))

    def _begun(self, begun: bytes | None) -> HeadModule:
        """Return the head to go on with, or a new one where there is none that fits."""
        card, module = head_files.card_of(begun) if begun else None, HeadModule(self.config, len(self.known))
        if begun and card and card.target == self.card.target:
            with suppress(BrokenFileError, LookupError, RuntimeError):  # damaged, or of another form
                kept = head_files.tensors_of(begun)
                fitting = HeadModule(self.config, len(kept[head_files.KNOWN]))
                state = {
                    name: torch.tensor(kept[theirs]).float() for name, theirs in HeadModule.NAMES.items()
                }
                fitting.load_state_dict(state, strict=False)
                if all(tensor.isfinite().all() for tensor in state.values()):
                    self.card, self.known, module = card, kept[head_files.KNOWN], fitting
        module.out.copy_(torch.from_numpy(_output_rows(self._loaded, self.known)))
        return module.to(self._device)

    def run(
        self,
        minutes: float,
        keep: Callable[[bytes], object] = lambda head: None,
        report: Report = silent,
        goes_on: GoesOn = lambda: True,
    ) -> None:
        """Train for so many minutes, or as long as it goes on; `keep` gets the head every SAVE_SECONDS. `report` gets
        seconds, done and in all.

        A core is left to others: torch's threads wait for each other busily, which on a busy machine takes longer."""
        torch.set_num_threads(max(cores() - 1, 1))
        began, seconds, before = time.monotonic(), minutes * 60, self.card.minutes
        saved = began
        with suppress(Interrupted):
            while (passed := time.monotonic() - began) < seconds and goes_on():
                share = passed / seconds
                rate = RATE * min(share / WARM_UP + 0.1, 1.0) * max(1.0 - share, 0.02)
                loss = self.round(rate, goes_on)
                passed = min(time.monotonic() - began, seconds)
                self.card = self.card.model_copy(update={"minutes": round(before + passed / 60, 2)})
                said = f"{self.card.tokens:,} tokens, loss {loss:.2f}"
                report(Progress("training", int(passed), int(seconds), said))
                if time.monotonic() - saved > SAVE_SECONDS:
                    keep(self.to_bytes())
                    saved = time.monotonic()

    def judge(self, goes_on: GoesOn = lambda: True) -> head_files.HeadCard:
        """Measure how good the head is, as far as it goes on, and return its card."""
        with suppress(Interrupted):
            self.card = self.card.model_copy(update={"accuracy": self.accuracy(goes_on)})
        return self.card

    def round(self, rate: float, goes_on: GoesOn = lambda: True) -> float:
        """Have the target read a batch of pieces, and take REUSED steps over those that are held. Return the loss.
        Raises Interrupted."""
        fresh = self._looked_at([next(self._fresh) for _ in range(BATCH)], goes_on)
        most = HELD // (WINDOW * self.config["hidden_size"])
        self._held = [*self._held, *fresh][-most:]
        self._optimizer.param_groups[0]["lr"] = rate
        # One by one on a processor, which takes as long: somebody may want it
        at_once = 1 if self._device.type == "cpu" else BATCH
        for _ in range(REUSED):
            chosen, total = self._random.choices(self._held, k=BATCH), 0.0
            self._optimizer.zero_grad()
            for begin in range(0, BATCH, at_once):
                if not goes_on():
                    raise Interrupted
                loss = self._loss(chosen[begin : begin + at_once]) * (at_once / BATCH)
                loss.backward()
                total += float(loss.detach())
            self._optimizer.step()
        tokens = self.card.tokens + sum(len(piece.tokens) for piece in fresh)
        self.card = self.card.model_copy(update={"tokens": tokens})
        return total

    def _looked_at(self, texts: Sequence[Sequence[int]], goes_on: GoesOn) -> list[Piece]:
        with self._engine.lend(self._user) as sequence:
            return [look(sequence, text, goes_on) for text in texts]

    def to_bytes(self) -> bytes:
        """Return the head as it stands."""
        return head_files.to_bytes(
            self.card, self.config, {**self.module.tensors(), head_files.KNOWN: self.known}
        )

    @torch.no_grad()
    def accuracy(self, goes_on: GoesOn = lambda: True) -> tuple[float, ...]:
        """Return the share of held-out places whose token the head has right: each place ahead, where all before it
        were right. Raises Interrupted."""
        right, seen = np.zeros(AHEAD), np.zeros(AHEAD)
        for piece in self._looked_at(self._held_out, goes_on):
            tokens, labels, embedded, states = self._batch([piece])
            going = np.ones(len(piece.tokens), bool)
            for place, (_, logits) in enumerate(self.module(embedded, states, AHEAD)):
                count = logits.shape[1]
                going = going[:count]
                hit = (logits[0].argmax(-1) == labels[0, place : place + count]).cpu().numpy()
                seen[place] += going.sum()
                right[place] += (going & hit).sum()
                # The next place follows the text: only where that is what the target itself would have written
                written = self._numbers[tokens[0, place + 1 : place + 1 + count]]
                follows = np.zeros(count, bool)
                follows[: len(written)] = written == labels[0, place : place + len(written)].cpu().numpy()
                going = going & hit & follows
        return tuple(round(float(one), 3) for one in right / np.maximum(seen, 1))

    def _batch(
        self, pieces: Sequence[Piece]
    ) -> tuple[NDArray[np.int64], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return tokens [pieces, n], labels by the head's outputs, embeddings, and the states before each token."""
        longest, size = max(len(piece.tokens) for piece in pieces), self.config["hidden_size"]
        tokens = np.zeros((len(pieces), longest), np.int64)
        labels = np.full((len(pieces), longest), -100, np.int64)
        states = np.zeros((len(pieces), longest, size), np.float32)
        for row, piece in enumerate(pieces):
            count = len(piece.tokens)
            tokens[row, :count] = piece.tokens
            labels[row, :count] = self._numbers[piece.labels]
            states[row, 1:count] = (piece.states * piece.scales[:, None])[: count - 1]
        embedded = _embeddings(self._loaded, tokens.reshape(-1)).reshape(states.shape)
        device = self._device
        return (
            tokens,
            torch.from_numpy(labels).to(device),
            torch.from_numpy(embedded).to(device),
            torch.from_numpy(states).to(device),
        )

    def _loss(self, pieces: Sequence[Piece]) -> torch.Tensor:
        _, labels, embedded, states = self._batch(pieces)
        total, weight = torch.zeros((), device=self._device), 1.0
        for place, (_, logits) in enumerate(self.module(embedded, states, AHEAD)):
            wanted = labels[:, place : place + logits.shape[1]]
            some = wanted.reshape(-1) >= 0
            found = functional.cross_entropy(
                logits.reshape(-1, logits.shape[-1])[some], wanted.reshape(-1)[some]
            )
            total = total + weight * found
            weight *= LATER
        return total


def bytes_to_train(loaded: Any) -> int:
    """Return the bytes of memory that training a head takes at most: weights, gradients, two moments, and states."""
    with torch.device("meta"):
        module = HeadModule(layer_config(loaded), VOCABULARY)
    return HELD + 16 * sum(one.numel() for one in module.state_dict().values())


def layer_config(loaded: Any) -> dict[str, Any]:
    """Return config.json of a Llama layer of the target's shape."""
    said: dict[str, Any] = loaded.config if isinstance(loaded, BlockModel) else loaded.config.to_dict()
    heads = said["num_attention_heads"]
    return {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": said["hidden_size"],
        "intermediate_size": said["intermediate_size"],
        "num_attention_heads": heads,
        "num_key_value_heads": said.get("num_key_value_heads") or heads,
        "head_dim": said.get("head_dim") or said["hidden_size"] // heads,
        "rms_norm_eps": said.get("rms_norm_eps") or 1e-5,
        "rope_theta": THETA,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }


def _embeddings(loaded: Any, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    if isinstance(loaded, BlockModel):
        return loaded.embedding.floats(tokens)
    weights = loaded.get_input_embeddings().weight
    return np.asarray(weights[torch.from_numpy(tokens).to(weights.device)].float().numpy(force=True))


def _output_rows(loaded: Any, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    if isinstance(loaded, BlockModel):
        return loaded.head.floats(tokens)
    weights = loaded.get_output_embeddings().weight
    return np.asarray(weights[torch.from_numpy(tokens).to(weights.device)].float().numpy(force=True))
