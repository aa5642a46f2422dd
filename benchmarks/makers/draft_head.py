"""Train a draft head on a GPU, from replies that the model writes to the prompts of this project: a thousand at once.

`python -m benchmarks.makers.draft_head FOLDER OUT`; FOLDER as transformers saves a model, with its tokenizer.
At home `hierchat head train` does the same from what the model wrote to its user, on whatever there is."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from hierchat.chat.prompts import Script, scripts
from hierchat.models.formats.head_files import KNOWN, HeadCard, to_bytes
from hierchat.runtime.head_training import LATER, HeadModule, layer_config, most_written

AT_ONCE = 2048
"""Replies that are written at once."""
PROMPT_TOKENS = 160
"""Tokens of a prompt, at most; longer ones are left out."""
REPLY_TOKENS = 256
"""Tokens of a reply, at most."""
HEATS = (0.0, 0.7, 1.0)
"""Temperatures of the replies to a prompt."""
CONTEXT = 48
"""Tokens of the prompt that the head reads before a reply."""
BATCH = 48
"""Replies of a step of training."""
AHEAD = 4
"""Places ahead that it learns to draft."""
HELD_OUT = 192
"""Prompts whose replies it never sees."""
SOFT = 0.5
"""Share of the loss that compares with the target's probabilities; the rest with its choice."""
MATRIX_RATE, RATE = 2e-3, 1e-3
"""Rates of learning: of matrices, by Muon (Jordan et al., 2024), and of the rest, by AdamW."""
LOOP = 32
"""Tokens of a period, at most, that makes a text a loop."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply and what it answers, as tokens."""

    prompt: list[int]
    tokens: list[int]
    script: Script

    @property
    def piece(self) -> list[int]:
        """Return what the head learns from: the end of the prompt and the reply."""
        return self.prompt[-CONTEXT:] + self.tokens


def prompt_of(tokenizer: Any, turns: Sequence[str]) -> list[int]:
    """Return the prompt of a conversation: questions and replies in turn."""
    said = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(turns)]
    return list(
        tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=True)["input_ids"]
    )


@torch.inference_mode()
def write(
    model: Any, prompts: Sequence[Sequence[int]], heats: Sequence[float], ends: Sequence[int]
) -> list[list[int]]:
    """Let the model answer prompts, each at its temperature. A reply ends with a token of `ends`, or is cut off."""
    device, longest = model.device, max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros(len(prompts), longest, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    ids, mask = ids.to(device), mask.to(device)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    heat = torch.tensor(heats, device=device)[:, None]
    ending = torch.tensor(list(ends), device=device)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    cache, written = DynamicCache(config=model.config), list[torch.Tensor]()
    for step in range(REPLY_TOKENS):
        found = model(
            input_ids=ids, attention_mask=mask, position_ids=places, past_key_values=cache, logits_to_keep=1
        )
        rows = found.logits[:, -1].float()
        noise = -torch.empty_like(rows).exponential_().log_()
        chosen = torch.where(heat > 0, rows / heat.clamp(min=0.01) + noise, rows).argmax(-1)
        written.append(chosen)
        done |= torch.isin(chosen, ending)
        if step % 32 == 31 and float(done.float().mean()) > 0.97:
            break
        ids, places = chosen[:, None], places[:, -1:] + 1
        mask = torch.cat([mask, torch.ones_like(ids)], 1)
    rows_of = torch.stack(written, 1).cpu().numpy()
    return [whole(row, ends) for row in rows_of]


def whole(row: NDArray[np.int64], ends: Sequence[int]) -> list[int]:
    """Cut what was written at its end, or where a loop has gone round twice."""
    stop = np.flatnonzero(np.isin(row, list(ends)))
    row = row[: stop[0] + 1] if len(stop) else row
    for period in range(1, LOOP + 1):
        same = row[period:] == row[:-period]
        differs = np.flatnonzero(~same)
        begin = differs[-1] + 1 if len(differs) else 0
        if len(same) - begin >= max(2 * period, 24):
            return [int(token) for token in row[: begin + 2 * period]]
    return [int(token) for token in row]


def replies(
    model: Any, tokenizer: Any, asked_of: Sequence[Script], ends: Sequence[int], seconds: float, seed: int
) -> Iterator[list[Reply]]:
    """Yield batches of replies for so many seconds: to first questions at several temperatures, and to what follows."""
    found = random.Random(seed).sample(asked_of, len(asked_of))
    first = [(script, script.turns[:1], heat) for heat in HEATS for script in found]
    random.Random(seed + 1).shuffle(first)
    later, began = list[tuple[Script, tuple[str, ...], float]](), time.monotonic()
    while (first or later) and time.monotonic() - began < seconds:
        taken, later = later[:AT_ONCE], later[AT_ONCE:]
        while first and len(taken) < AT_ONCE:
            taken.append(first.pop())
        asked = [(prompt_of(tokenizer, turns), script, turns, heat) for script, turns, heat in taken]
        asked = [one for one in asked if len(one[0]) <= PROMPT_TOKENS + (len(one[2]) - 1) * REPLY_TOKENS]
        texts = write(model, [one[0] for one in asked], [one[3] for one in asked], ends)
        made = list[Reply]()
        for (prompt, script, turns, heat), text in zip(asked, texts, strict=True):
            made.append(Reply(prompt, text, script))
            if len(turns) == 1 < len(script.turns) and len(text) < REPLY_TOKENS:
                said = tokenizer.decode(text, skip_special_tokens=True)
                later.append((script, (*turns, said, script.turns[1]), heat))
        yield made


class Training:
    """Train a head for a model of transformers from replies. `outputs`: tokens that the head knows."""

    def __init__(
        self, model: Any, pieces: Sequence[list[int]], outputs: int, inner: int | None, muon: bool, seed: int
    ) -> None:
        torch.manual_seed(seed)
        self.model, self.device = model, model.device
        self.pieces, self.random = list(pieces), random.Random(seed)
        self.known = most_written(pieces, outputs)
        self.config = layer_config(model)
        if inner:
            self.config["intermediate_size"] = inner
        self.output = model.get_output_embeddings().weight.detach()
        self.module = HeadModule(self.config, len(self.known)).to(self.device)
        self.module.out.copy_(self.output[torch.from_numpy(self.known).to(self.device)].float())
        self.numbers = torch.full((len(self.output),), -100, device=self.device)
        self.numbers[torch.from_numpy(self.known).to(self.device)] = torch.arange(
            len(self.known), device=self.device
        )
        matrices = [one for one in self.module.parameters() if muon and one.ndim == 2]
        others = [one for one in self.module.parameters() if not muon or one.ndim != 2]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(others, lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
        ]
        if matrices:
            self.optimizers.append(
                torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
            )
        self.base = [group["lr"] for one in self.optimizers for group in one.param_groups]
        self.seen = 0

    def batch(self, pieces: Sequence[list[int]]) -> tuple[torch.Tensor, ...]:
        """Return tokens [pieces, n], whether each is one, and the target's normed states and choices there."""
        longest = max(map(len, pieces))
        tokens = torch.zeros(len(pieces), longest, dtype=torch.long)
        there = torch.zeros(len(pieces), longest, dtype=torch.bool)
        for row, piece in enumerate(pieces):
            tokens[row, : len(piece)], there[row, : len(piece)] = torch.tensor(piece), True
        tokens, there = tokens.to(self.device), there.to(self.device)
        with torch.inference_mode():
            states = self.model.base_model(input_ids=tokens).last_hidden_state
            chosen = torch.cat([(part @ self.output.T).argmax(-1) for part in states.split(4)])
        return tokens, there, states.clone(), chosen.clone()

    def places(self, tokens: torch.Tensor, states: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield each place ahead and the head's logits [pieces, n - place, known]."""
        embedded = self.model.get_input_embeddings()(tokens).detach().float()
        before = functional.pad(states.float(), (0, 0, 1, 0))[:, :-1]
        with torch.autocast(self.device.type, torch.bfloat16):
            for place, (_, logits) in enumerate(self.module(embedded, before, AHEAD)):
                yield place, logits

    def step(self, share: float) -> float:
        """Take a step when a share of the time has passed; return the loss."""
        pieces = self.random.choices(self.pieces, k=BATCH)
        self.seen += sum(map(len, pieces))
        tokens, there, states, chosen = self.batch(pieces)
        labels = torch.where(there, self.numbers[chosen], -100)
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16):
            wanted = torch.softmax((states @ self.module.out.T.to(states.dtype)).float(), -1)
        total, weight = torch.zeros((), device=self.device), 1.0
        for place, logits in self.places(tokens, states):
            some = labels[:, place:] >= 0
            found = torch.log_softmax(logits[some].float(), -1)
            hard = -found.gather(1, labels[:, place:][some][:, None]).mean()
            soft = -(wanted[:, place:][some] * found).sum(-1).mean()
            total = total + weight * (SOFT * soft + (1 - SOFT) * hard)
            weight *= LATER
        rate = min(share / 0.03 + 0.05, 1.0) * max(1.0 - share, 0.01)
        groups = [group for one in self.optimizers for group in one.param_groups]
        for group, base in zip(groups, self.base, strict=True):
            group["lr"] = base * rate
        for one in self.optimizers:
            one.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        for one in self.optimizers:
            one.step()
        return float(total.detach())

    @torch.no_grad()
    def accuracy(self, pieces: Sequence[list[int]]) -> tuple[float, ...]:
        """Return how often the head is right at each place ahead where all before were, over what the target wrote."""
        right, seen = torch.zeros(AHEAD), torch.zeros(AHEAD)
        for begin in range(0, len(pieces), BATCH):
            tokens, there, states, chosen = self.batch(pieces[begin : begin + BATCH])
            there[:, : CONTEXT - 1] = False
            follows = functional.pad(tokens[:, 1:] == chosen[:, :-1], (0, 1))
            going = there.clone()
            for place, logits in self.places(tokens, states):
                count = logits.shape[1]
                going = going[:, :count] & there[:, place:]
                hit = logits.argmax(-1) == self.numbers[chosen[:, place:]]
                seen[place] += going.sum().cpu()
                right[place] += (going & hit).sum().cpu()
                going = going & hit & follows[:, place : place + count]
        return tuple(round(float(one), 3) for one in right / seen.clamp(min=1))

    def to_bytes(self, card: HeadCard) -> bytes:
        """Return the head as it stands, as a small file."""
        return to_bytes(card, self.config, {**self.module.tensors(), KNOWN: self.known}, small=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, help="file of the head; what was written goes beside it, as .npz")
    parser.add_argument("--target", default="", help="model_key of the model as hierchat loads it")
    parser.add_argument("--writing", type=float, default=2.0, help="minutes of writing")
    parser.add_argument("--minutes", type=float, default=4.0, help="minutes of training")
    parser.add_argument("--outputs", type=int, default=8192, help="tokens that the head knows")
    parser.add_argument("--inner", type=int, help="width of its layer's inner part; the target's by default")
    parser.add_argument("--optimizer", choices=("muon", "adamw"), default="muon", help="of the matrices")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    tokenizer = AutoTokenizer.from_pretrained(chosen.folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = (
        AutoModelForCausalLM.from_pretrained(
            chosen.folder, dtype=torch.bfloat16 if device == "cuda" else torch.float32
        )
        .to(device)
        .eval()
    )
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    made, all_scripts = list[Reply](), scripts()
    say(f"{len(all_scripts):,} conversations to be had")
    for batch in replies(model, tokenizer, all_scripts, ends, chosen.writing * 60, chosen.seed):
        made += batch
        say(f"{len(made):,} replies, {sum(len(one.tokens) for one in made):,} tokens")
    held = {one.key for one in all_scripts[:HELD_OUT]}
    apart = [one.piece for one in made if one.script.key in held]
    training = Training(
        model,
        [one.piece for one in made if one.script.key not in held and len(one.tokens) > 3],
        chosen.outputs, chosen.inner, chosen.optimizer == "muon", chosen.seed,
    )  # fmt: skip
    lengths = np.array([len(one.tokens) for one in made], np.int32)
    np.savez_compressed(
        chosen.out.with_suffix(".npz"), tokens=np.concatenate([one.tokens for one in made]), lengths=lengths
    )
    training_began = time.monotonic()
    steps, loss = 0, 0.0
    while (passed := (time.monotonic() - training_began) / 60) < chosen.minutes:
        loss = training.step(passed / chosen.minutes)
        steps += 1
        if steps % 250 == 0:
            say(f"{steps} steps, {training.seen:,} tokens, loss {loss:.3f}, {training.accuracy(apart)}")
    accuracy = training.accuracy(apart)
    card = HeadCard(
        target=chosen.target, model=chosen.folder.name, tokens=training.seen, minutes=round(passed, 2),
        accuracy=accuracy,
    )  # fmt: skip
    chosen.out.write_bytes(training.to_bytes(card))
    say(f"{steps} steps, {training.seen:,} tokens, loss {loss:.3f}, right {accuracy}: {chosen.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
