"""A tiny random Llama with its own tokenizer, as a folder, as a GGUF and on a hub, and a cache of each test's own."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hierchat.models.catalogue import Folder, ModelEntry, ModelSource
from hierchat.models.load import load_model, tokenizer_files
from tests.gguf_files.writer import finish
from tests.testing.fake_hub import FakeHub

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def tiny_tokenizer(extra: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """Byte level: three control tokens, one token per byte, then `extra`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet, *extra])}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        chat_template=TEMPLATE,
    )


def tiny_config(**changed: Any) -> LlamaConfig:
    shape = {"vocab_size": 272, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "tie_word_embeddings": True}
    return LlamaConfig(**{**shape, **heads, **tokens, **changed})


def save_tiny(folder: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    LlamaForCausalLM(tiny_config()).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def _tiny_master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def tiny_folder(_tiny_master: Path, tmp_path: Path) -> Path:
    """A copy that the test may damage."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    for file in _tiny_master.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture
def entry_of() -> Callable[..., ModelEntry]:
    """An entry for a local folder."""

    def make(folder: Path, **fields: Any) -> ModelEntry:
        return ModelEntry(**{"name": "tiny", "source": ModelSource(folder=Folder(path=folder)), **fields})

    return make


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has an empty cache and no configuration."""
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HIERCHAT_CONFIG", str(tmp_path / "config"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def trusted_tokenizers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizers are not tried in a process of their own, which takes seconds, but where that is tested."""
    if "hostile" not in request.node.nodeid:
        for module in (tokenizer_files, load_model):
            monkeypatch.setattr(module, "require_bounded", lambda folder, *, plainly: None)


@pytest.fixture
def hub_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, bytes]], FakeHub]]:
    """Serve a repository with these files."""
    with ExitStack() as stack:

        def serve(files: dict[str, bytes]) -> FakeHub:
            hub = stack.enter_context(FakeHub(files))
            threading.Thread(target=hub.serve_forever, daemon=True).start()
            stack.callback(hub.shutdown)
            stack.callback(hub.answering.set)
            monkeypatch.setenv("HF_ENDPOINT", hub.url)
            return hub

        yield serve


@pytest.fixture
def hub(hub_of: Callable[[dict[str, bytes]], FakeHub], tiny_folder: Path) -> FakeHub:
    return hub_of({file.name: file.read_bytes() for file in tiny_folder.iterdir()})


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of this shape as llama.cpp writes it: blocks in Q8_0, norms in float32."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.Q8_0.gguf"
    config, tokenizer = tiny_config(), tiny_tokenizer(extra=("ab",))
    writer = gguf.GGUFWriter(path, "llama")
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    tokens += [f"<pad{i}>" for i in range(config.vocab_size - len(tokens))]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    size, inner, keys = config.hidden_size, config.intermediate_size, config.head_dim * 2
    said = {
        "block_count": config.num_hidden_layers, "context_length": config.max_position_embeddings,
        "embedding_length": size, "feed_forward_length": inner, "head_count": config.num_attention_heads,
        "head_count_kv": config.num_key_value_heads, "rope_dimension_count": config.head_dim,
        "rope_freq_base": 10_000.0, "layer_norm_rms_eps": 1e-5, "vocab_size": config.vocab_size,
        "tokenizer_model": "gpt2", "tokenizer_pre": "smollm", "token_list": tokens, "token_merges": ["a b"],
        "token_types": [control if token in SPECIAL else normal for token in tokens],
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "unk_token_id": 0,
    }  # fmt: skip
    for name, value in said.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(0)

    def block(name: str, rows: int, columns: int) -> None:
        values = random.normal(0, 0.05, (rows, columns)).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)

    block("token_embd.weight", config.vocab_size, size)
    writer.add_tensor("output_norm.weight", np.ones(size, np.float32))
    for i in range(config.num_hidden_layers):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(size, np.float32))
        writer.add_tensor(f"blk.{i}.ffn_norm.weight", np.ones(size, np.float32))
        shapes = {"attn_q": (size, size), "attn_k": (keys, size), "attn_v": (keys, size)}
        shapes |= {"attn_output": (size, size), "ffn_gate": (inner, size), "ffn_up": (inner, size)}
        for name, (rows, columns) in {**shapes, "ffn_down": (size, inner)}.items():
            block(f"blk.{i}.{name}.weight", rows, columns)
    finish(writer)
    return path
