"""A catalogue model as a module of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from hierchat.models.catalogue import Backend, ModelEntry, Quantisation
from hierchat.models.device_memory import dtype_on, require_fit
from hierchat.models.fetch.bring import get
from hierchat.models.fetch.convert import first_line
from hierchat.models.fetch.folder import causal_config, read_folder
from hierchat.models.formats import block_model
from hierchat.models.formats.block_model import Matrix
from hierchat.models.formats.gguf_module import stored
from hierchat.models.load.check import with_backend
from hierchat.models.load.loaded_model import LoadedModel, end_ids, model_key
from hierchat.models.load.tokenizer_files import open_tokenizer, require_bounded
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


def load_torch(
    entry: ModelEntry, device: str, progress: Report = silent, backend: Backend | None = None
) -> LoadedModel:
    """Download the model where needed and load it. `backend` overrides the catalogue's dtype and quantisation. Raises a
    ModelError that says what to do. Free another model first: its memory counts as taken."""
    entry = with_backend(entry, backend)
    folder = get(entry, progress, device)
    facts = read_folder(folder)
    context_length = min(entry.context_length or facts.positions, facts.positions)
    require_fit(entry, facts.size, context_length, device)

    progress(Progress("loading", 0, None, entry.name))
    dtype = getattr(torch, dtype_on(entry.dtype, device))
    require_bounded(folder, plainly=False)
    with _load_errors(entry, folder), transformers_bars(progress, "loading", entry.name):
        tokenizer = open_tokenizer(folder, plainly=False)
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
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
        dtype=str(dtype).removeprefix("torch."),
        quantisation=entry.quantisation,
        backend=backend or (usual if entry.quantisation == "none" else entry.quantisation),
        context_length=context_length,
        model_key=model_key(tokenizer, facts.identity),
        end_ids=end_ids(model.generation_config.eos_token_id, tokenizer),
    )


def _quantisation(kind: Quantisation) -> BitsAndBytesConfig | None:
    if kind == "none":
        return None
    if kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=True,
    )


@contextmanager
def _load_errors(entry: ModelEntry, folder: Path) -> Iterator[None]:
    """Raise what transformers, safetensors and torch raise as ours; the caller's own classes pass."""
    try:
        yield
    except ModelError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise DoesNotFitError(f"Memory ran out while {entry.name} was loading.") from error
    except SafetensorError as error:
        raise BrokenFileError(
            f"The weights in {folder} are broken: {error}. Fetch or copy them again."
        ) from error
    except (OSError, EOFError) as error:
        raise BrokenFileError(f"{entry.name} in {folder} is not whole: {first_line(error)}") from error
    except (ValueError, KeyError, ImportError, NotImplementedError) as error:
        raise UnsupportedError(f"{entry.name} in {folder} cannot be loaded: {first_line(error)}") from error
    except RuntimeError as error:
        if "size mismatch" in str(error) or "mismatched" in str(error):
            raise BrokenFileError(f"The weights in {folder} do not match its config.json.") from error
        raise


# A module of transformers whose matrices stay in the blocks of its file, for a processor.
@dataclass(frozen=True, slots=True)
class BlockModule:
    """A `module` in eval mode, and its `matrices` by name, which engine/torch/block_linear.py puts into it."""

    module: Any
    matrices: Mapping[str, Matrix]


def read_module(folder: Path, name: str) -> BlockModule:
    """Read a folder of converted blocks; errors say `name`. Raises BrokenFileError, UnsupportedError, MemoryError."""
    from transformers.initialization import no_init_weights

    weights = block_model.read_weights(folder / block_model.WEIGHTS_FILE)
    config = causal_config(folder, name)
    with no_init_weights(), torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    module.tie_weights()
    tensors = stored(module)
    if tensors.keys() != weights.matrices.keys() | weights.vectors.keys():
        raise BrokenFileError(
            f"{folder} does not hold the tensors of its config.json. Delete it; it is made anew."
        )
    vectors = {key: torch.tensor(weights.vectors[key]) for key in weights.vectors}
    module.load_state_dict(vectors, strict=False, assign=True)
    for tensor in stored(module).values():
        tensor._is_hf_initialized = True
    for part in module.modules():
        for key, buffer in part._buffers.items():
            if buffer is not None and buffer.is_meta:
                part._buffers[key] = torch.empty_like(buffer, device="cpu")
    module.initialize_weights()  # of buffers that no file holds
    return BlockModule(module.eval().requires_grad_(False), weights.matrices)
