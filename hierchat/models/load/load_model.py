"""Load a catalogue model: on the CPU engine if possible, without importing torch; else through transformers."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from hierchat.config import GenerationSettings
from hierchat.models import device_memory
from hierchat.models.architectures.families import ROPE_FACTORS
from hierchat.models.architectures.model_config import FULL, slot_size
from hierchat.models.cache import known_sha256_of
from hierchat.models.catalogue import Activations, Backend, ModelEntry, Quantisation
from hierchat.models.fetch.bring import folder_of, get, get_blocks, get_described, gguf_file
from hierchat.models.fetch.convert import causal_config, first_line, read_folder, slot_of
from hierchat.models.formats import block_model
from hierchat.models.formats.gguf_config import gguf_config, special_tokens
from hierchat.models.formats.gguf_families import FAMILIES, IN_BLOCKS, SCORE_BIASES
from hierchat.models.formats.gguf_head import read_head, shards
from hierchat.models.formats.gguf_module import GgufModule, RawMatrix, filled, matrices_of, stored, unpacked
from hierchat.models.load import tokenizer_files
from hierchat.models.load.check import FLOAT_BYTES, by_engine, on_card, require_runnable, with_backend
from hierchat.models.progress import (
    BrokenFileError,
    DoesNotFitError,
    ModelError,
    Progress,
    Report,
    UnsupportedError,
    silent,
    transformers_bars,
)
from hierchat.models.runnable import card_bytes, require_supported


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights and tokenizer of a model. `model` is a BlockModel where the CPU engine computes, a FileModule where a
    GPU keeps a file's blocks, else a transformers module in eval mode. `device` as torch names it.
    `model_key` is a SHA-256 that names the tokens and the weights before quantisation and rounding: history written
    under it may draft for any precision of the same model. `end_ids` are the tokens that end a reply. `note`: why the
    CPU engine does not compute it, or that it was not made to chat. `activations`: what the CPU engine should multiply
    by; it reports what it really does. `file`: GGUF file or folder that a transformers module was read from."""

    name: str
    model: Any
    tokenizer: Any
    device: str
    quantisation: Quantisation
    backend: Backend
    context_length: int
    model_key: str
    end_ids: frozenset[int]
    note: str = ""
    activations: Activations = "int16"
    file: Path | None = None


def model_key(tokenizer: Any, identity: str) -> str:
    """Return a SHA-256 that names a model by its tokens and the identity of its weights."""
    return hashlib.sha256(f"{tokenizer_files.tokens_sha256(tokenizer)}\n{identity}".encode()).hexdigest()


def end_ids(generation: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a reply: those of a generation configuration, and the tokenizer's."""
    several = generation if isinstance(generation, list) else [generation]
    return frozenset(end for end in [*several, tokenizer.eos_token_id] if end is not None)


# Parts of a model's files that a chat needs: template, tokens that end a turn, and the makers' sampling
PLAIN_TEMPLATE = (
    "{{ bos_token or '' }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Template for models without one: the conversation as text to continue."""
NO_TEMPLATE = (
    "{} brings no chat template: it was made to continue texts. It gets the conversation as text, and may go on in "
    "your name."
)
TURN_ENDS = ("<end_of_turn>", "<turn|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|return|>", "<|call|>")
"""Control tokens that end a turn. GGUF files often name only the token that ends a text."""
MESSAGE_END = "<|end|>"
"""Control token that ends a turn, unless a turn has several messages with channels, as gpt-oss' turns have."""
CHANNEL = "<|channel|>"

_PUBLISHED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_IN_GGUF = {"temp": "temperature", "penalty_repeat": "repetition_penalty"}
"""Keys of sampling in generation_config.json, and those that have another name in GGUF files."""


def makers_sampling(entry: ModelEntry) -> GenerationSettings:
    """Return the sampling of an entry; if it has none, the makers' sampling from the model's files on this machine."""
    if "sampling" in entry.model_fields_set:
        return entry.sampling
    with suppress(OSError, ValueError, ModelError):  # loading it will say what is wrong
        file, folder = gguf_file(entry.source), folder_of(entry.source)
        if file := file or (folder and folder / "generation_config.json"):
            return _published(file, file.stat().st_mtime_ns)
    return entry.sampling


@lru_cache(maxsize=64)
def _published(file: Path, changed: int) -> GenerationSettings:
    """Read the sampling that makers published in a file; `changed` is part of the cache's key."""
    said: dict[str, Any]
    if file.suffix == ".json":
        said = json.loads(file.read_text(encoding="utf-8"))
        if not said.get("do_sample"):
            said.pop("temperature", None)
    else:
        names = {name: name for name in _PUBLISHED} | {name: ours for ours, name in _IN_GGUF.items()}
        values = read_head(file).values
        said = {name: values.get(f"general.sampling.{theirs}") for name, theirs in names.items()}
        # Float32 in the file
        said = {name: round(value, 6) if isinstance(value, float) else value for name, value in said.items()}
    return GenerationSettings(**{name: said[name] for name in _PUBLISHED if said.get(name) is not None})


def ready_to_chat(loaded: LoadedModel) -> LoadedModel:
    """Return the model with all tokens that end its turns, and with PLAIN_TEMPLATE and a note if it has no template."""
    tokenizer = loaded.tokenizer
    vocabulary, added = tokenizer.get_vocab(), tokenizer.added_tokens_decoder
    names = TURN_ENDS if CHANNEL in vocabulary else (*TURN_ENDS, MESSAGE_END)
    ends = {vocabulary[token] for token in names if token in vocabulary}
    ends = {token for token in ends if token in added and added[token].special}
    note = loaded.note
    if not tokenizer.chat_template:
        tokenizer.chat_template = PLAIN_TEMPLATE
        note = " ".join(filter(None, [note, NO_TEMPLATE.format(loaded.name)]))
    return replace(loaded, end_ids=loaded.end_ids | ends, note=note)


def load(
    entry: ModelEntry,
    device: str | None = None,
    progress: Report = silent,
    backend: Backend | None = None,
) -> LoadedModel:
    """Fetch the model if needed and load it. `backend`: None for the fastest; "float32" on the CPU is the CPU
    engine's, if the file's weights are unrounded. Raises a ModelError."""
    device = device or device_memory.best_device()
    if backend == "blocks" and not device.startswith("cpu"):
        raise UnsupportedError("The CPU engine runs on the CPU only; leave out the backend to use the GPU.")
    require_runnable(entry, device, backend, progress)
    note = ""
    if by_engine(entry, device, backend):
        try:
            return ready_to_chat(load_blocks(entry, progress, floats=backend == "float32"))
        except UnsupportedError as error:
            if backend == "blocks":
                raise
            note = f"{error} It runs through transformers instead, several times slower."
            progress(Progress("loading", 0, None, note))
    if on_card(entry, device, backend):
        return ready_to_chat(load_on_card(entry, device, progress))
    return ready_to_chat(replace(load_torch(entry, device, progress, backend), note=note))


# A catalogue model in blocks, for the CPU engine.
def load_blocks(entry: ModelEntry, progress: Report = silent, *, floats: bool = False) -> LoadedModel:
    """Fetch and unpack the model if needed, and read it. `floats`: make every weight a float32. Raises a ModelError."""
    folder, identity = get_blocks(entry, progress)
    try:
        return _load_folder(entry, folder, identity, progress, floats=floats)
    except BrokenFileError:  # damaged on the disk since it was made
        shutil.rmtree(folder, ignore_errors=True)
    folder, identity = get_blocks(entry, progress)
    return _load_folder(entry, folder, identity, progress, floats=floats)


def _load_folder(
    entry: ModelEntry, folder: Path, identity: str, progress: Report, *, floats: bool
) -> LoadedModel:
    config = _json(folder / "config.json")
    positions = config.get("max_position_embeddings") or 2048
    context_length = min(entry.context_length or positions, positions)
    require_supported(config)
    file = folder / block_model.MODEL_FILE
    weights, slot = file.stat().st_size - block_model.model_mapped_bytes(file), slot_size(config)
    if floats and entry.size:  # both, for a moment
        weights += FLOAT_BYTES * (entry.size.parameters - entry.size.looked_up)
    needs = device_memory.needs_of_blocks(weights, slot)
    device_memory.require_fit(entry.name, needs, context_length)
    progress(Progress("loading", 0, None, entry.name))
    tokenizer = tokenizer_files.read_tokenizer(folder)
    try:
        model = block_model.read_model(file)
        model = model.as_floats() if floats else model
    except MemoryError as error:
        raise DoesNotFitError(f"Memory ran out while {entry.name} was loading.") from error
    generation = folder / "generation_config.json"
    ends = _json(generation).get("eos_token_id") if generation.exists() else None
    return LoadedModel(
        name=entry.name,
        model=model,
        tokenizer=tokenizer,
        device="cpu",
        quantisation="none",
        backend="float32" if floats else "blocks",
        context_length=context_length,
        model_key=model_key(tokenizer, identity),
        end_ids=end_ids(ends, tokenizer),
        activations=entry.activations,
    )


def _json(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise BrokenFileError(f"{file.name} cannot be read. Remove the model and get it again.") from error


def load_torch(
    entry: ModelEntry, device: str, progress: Report = silent, backend: Backend | None = None
) -> LoadedModel:
    """Download the model if needed and load it with transformers. `backend` overrides dtype and quantisation.
    Raises a ModelError. Free another model first: its memory counts as taken."""
    import torch
    from transformers import AutoModelForCausalLM

    entry = with_backend(entry, backend)
    folder = get(entry, progress, device)
    facts = read_folder(folder)
    context_length = min(entry.context_length or facts.positions, facts.positions)
    needs = device_memory.needs_of(entry, facts.size, device)
    device_memory.require_fit(entry.name, needs, context_length, device=device)

    progress(Progress("loading", 0, None, entry.name))
    dtype = getattr(torch, device_memory.dtype_on(entry.dtype, device))
    tokenizer_files.require_bounded(folder, plainly=False)
    with _load_errors(entry, folder), transformers_bars(progress, "loading", entry.name):
        tokenizer = tokenizer_files.open_tokenizer(folder, plainly=False)
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=causal_config(folder, entry.name),
            dtype=dtype,
            device_map={"": device},
            quantization_config=_quantisation(entry.quantisation),
            output_loading_info=True,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    if lost := sorted(info["missing_keys"]):  # transformers would go on with random weights
        raise BrokenFileError(f"{folder} lacks {len(lost)} of the model's weights, such as {lost[0]}.")
    on_cpu: Backend = "float16" if device.startswith("cpu") else "float32"
    usual: Backend = on_cpu if dtype == torch.float32 else "bfloat16"
    return LoadedModel(
        name=entry.name,
        model=model.eval().requires_grad_(False),
        tokenizer=tokenizer,
        device=str(model.device),
        quantisation=entry.quantisation,
        backend=backend or (usual if entry.quantisation == "none" else entry.quantisation),
        context_length=context_length,
        model_key=model_key(tokenizer, facts.identity),
        end_ids=end_ids(model.generation_config.eos_token_id, tokenizer),
        file=folder,
    )


def _quantisation(kind: Quantisation) -> Any:
    import torch
    from transformers import BitsAndBytesConfig

    if kind == "none":
        return None
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=True,
    )


@contextmanager
def _load_errors(entry: ModelEntry, folder: Path) -> Iterator[None]:
    import torch

    try:
        yield
    except ModelError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise DoesNotFitError(f"Memory ran out while {entry.name} was loading.") from error
    except (OSError, EOFError) as error:
        raise BrokenFileError(f"{entry.name} in {folder} is not whole: {first_line(error)}") from error
    except (ValueError, KeyError, ImportError, NotImplementedError) as error:
        raise UnsupportedError(f"{entry.name} in {folder} cannot be loaded: {first_line(error)}") from error
    except RuntimeError as error:
        if "size mismatch" in str(error) or "mismatched" in str(error):
            raise BrokenFileError(f"The weights in {folder} do not match its config.json.") from error
        raise


@dataclass(frozen=True, slots=True)
class FileModule:
    """Transformers module in eval mode on the processor, and mapped `matrices`, both meant for `device`."""

    module: Any
    matrices: Mapping[str, RawMatrix]
    device: str


def load_on_card(entry: ModelEntry, device: str, progress: Report = silent) -> LoadedModel:
    """Map the weights of a GGUF file of one of IN_BLOCKS for a GPU, which keeps the blocks. Raises a ModelError."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    gguf, folder = get_described(entry, progress, device)
    head = read_head(gguf)
    if head.architecture in FAMILIES:
        config = AutoConfig.for_model(**gguf_config(head), **special_tokens(head))
    else:
        config = causal_config(folder, entry.name)
    positions = getattr(config, "max_position_embeddings", None) or 2048
    context_length = min(entry.context_length or positions, positions)
    needs = device_memory.needs_on_card(card_bytes(head), slot_of(config))
    device_memory.require_fit(entry.name, needs, context_length, device=device)
    progress(Progress("loading", 0, None, entry.name))
    tokenizer = tokenizer_files.read_tokenizer(folder)
    if "long_factor" in (rotations := config.rope_parameters or {}):
        is_long = context_length > rotations["original_max_position_embeddings"]
        chosen = rotations["long_factor" if is_long else "short_factor"]
        # One for all texts: a position's bits depend on no other position
        config.rope_parameters = {**rotations, "long_factor": chosen, "short_factor": chosen}
    dtype = getattr(torch, device_memory.dtype_on(entry.dtype, device))
    with no_init_weights(), torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, dtype=dtype)
    module.tie_weights()
    shapes = {name: tuple(tensor.shape) for name, tensor in stored(module).items()}
    made = GgufModule(gguf, head, config.to_dict() | gguf_config(head), shapes, IN_BLOCKS[head.architecture])
    matrices, vectors = made.in_file(matrices_of(module), progress)
    tensors = {name: torch.tensor(vector) for name, vector in vectors.items()}
    exact = tuple(SCORE_BIASES)  # rounded ones would choose other experts
    filled(module, {name: one if name.endswith(exact) else one.to(dtype) for name, one in tensors.items()})
    for tensor in head.tensors:
        if tensor.name == ROPE_FACTORS:
            frequencies = dict(module.model.rotary_emb.named_buffers())
            whole = f"{FULL}_inv_freq" if f"{FULL}_inv_freq" in frequencies else "inv_freq"
            frequencies[whole] /= torch.from_numpy(unpacked(gguf, tensor))
    generation = _json(folder / "generation_config.json")
    return LoadedModel(
        name=entry.name,
        model=FileModule(module, matrices, device),
        tokenizer=tokenizer,
        device=device,
        quantisation="none",
        backend="blocks",
        context_length=context_length,
        model_key=model_key(tokenizer, f"gguf:{known_sha256_of(shards(gguf))}"),
        end_ids=end_ids(generation.get("eos_token_id"), tokenizer),
        file=gguf,
    )
