"""A tiny random Llama with a trained byte-level tokenizer, behind the real engine and slot."""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hierchat.drafting.draft_cost import LatencyCurve
from hierchat.engine.local import LocalEngine
from hierchat.engine.sampling.grammar import Grammars
from hierchat.engine.verification import ArrayRows
from hierchat.models.catalogue import Catalogue, Folder, ModelEntry, ModelSource
from hierchat.models.progress import Report
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import PromptBuilder
from hierchat.runtime.served_model import ServedModel

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END = SPECIAL.index("<|im_end|>")
CONTEXT = 512
SYSTEM = "You help."
CORPUS = [
    "user system assistant You help. What is the longest river of this country, and where does it end?",
    "Write a short list of the things that we need for the weekend, and sort it by weight.",
    "Thank you, that is what I wanted to know. Now tell me the same thing once more, but shorter.",
]


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE, some hundred tokens, with a ChatML template."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=340, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return for_chats(raw)


def for_chats(raw: Tokenizer) -> PreTrainedTokenizerFast:
    """Give a tokenizer its control tokens, and a ChatML template."""
    raw.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        chat_template=TEMPLATE,
    )


def model(seed: int = 0, **changed: Any) -> Any:
    # Here, for these take seconds, and programs over a scripted engine need none of them
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)  # as conftest.py does where torch is there before a test
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": len(tokenizer()),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT}
    tokens = {"bos_token_id": 1, "eos_token_id": END, "pad_token_id": END, "tie_word_embeddings": False}
    config = LlamaConfig(**{**sizes, **heads, **tokens, "initializer_range": 0.2, **changed})
    return LlamaForCausalLM(config).eval()


class Steady(LatencyCurve):
    """Costs of which nothing is learned, so that drafts do not depend on what else the machine does."""

    def note(self, width: int, context: int, ms: float) -> None:
        pass


@cache
def row_quantum(seed: int) -> int:
    """Find the rows to which segments are padded, once: the same weights pass the same self-test each time."""
    found = runner(seed)
    assert found.exact
    return found.quantum


def runner(seed: int = 0, **how: Any) -> Any:
    from hierchat.engine.torch.torch_runner import TorchRunner

    return TorchRunner(model(seed), context_length=CONTEXT, **how)


def served(name: str = "tiny", seed: int = 0, *, ends: bool = True) -> ServedModel:
    """Ready to answer. `ends`: whether its replies can end by themselves."""
    target = runner(seed, quantum=row_quantum(seed)).open()
    grammars = Grammars(tokenizer(), {END}, target.vocabulary)
    engine = LocalEngine(target, {END} if ends else (), tokenizer().decode, grammars=grammars)
    engine.latency = Steady()
    return ServedModel(name, f"key of {name}", engine, PromptBuilder(tokenizer(), CONTEXT, SYSTEM))


def catalogue(*names: str) -> Catalogue:
    entries = {
        name: ModelEntry(name=name, source=ModelSource(folder=Folder(path=Path(name)))) for name in names
    }
    return Catalogue(models=entries, default=names[0])


def load(name: str, report: Report) -> ServedModel:
    return served(name)


def settle(slot: ModelSlot) -> ModelSlot:
    """Wait until it is ready or has failed."""
    while slot.status.phase not in ("ready", "failed"):
        time.sleep(0.005)
    return slot


def ready_slot(load: Callable[[str, Report], ServedModel] = load) -> ModelSlot:
    slot = ModelSlot(catalogue("tiny"), load=load)
    slot.start("tiny")
    return settle(slot)


def let_width_matter(sequence: Any) -> None:
    """Change the logits of each forward of more than 8 rows."""
    forward = sequence.forward

    def wider(tokens: Any, parents: Any, *, padded: bool = True) -> Any:
        rows = np.array(forward(tokens, parents, padded=padded))
        return ArrayRows(rows + np.float32(3) * np.sin(np.arange(rows.shape[1])) if len(tokens) > 8 else rows)

    sequence.forward = wider


def spy(target: Any, name: str, before: Callable[..., None]) -> None:
    """Call `before` with the arguments of each call of the target's method."""
    method = getattr(target, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        return method(*args, **kwargs)

    setattr(target, name, wrapped)
