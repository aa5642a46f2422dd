"""A GGUF file cut into several, as gguf's own writer cuts it."""

from __future__ import annotations

from pathlib import Path

import gguf


def cut(whole: Path, folder: Path, tensors: int, name: str = "tiny.Q8_0") -> list[Path]:
    """The files, of at most so many tensors each."""
    folder.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(whole)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", architecture, split_max_tensors=tensors)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind, *inner = field.types
            writer.add_key_value(key, field.contents(), kind, inner[-1] if inner else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("*.gguf"))
