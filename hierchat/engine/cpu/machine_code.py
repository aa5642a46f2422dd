"""Compile product kernels to machine code, a block type at a time, when a model first needs it, and keep it on disk."""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from hierchat.engine.cpu.dot import build, takes_int8
from hierchat.engine.cpu.llvm import kernel
from hierchat.engine.cpu.unpacking import ISAS, Isa
from hierchat.jit import INSTRUCTIONS
from hierchat.models.cache import write_whole
from hierchat.models.catalogue import Activations
from hierchat.models.formats.layouts import LAYOUTS

_PLAINLY = {"vnni": "+fast-dpwssd"}
"""Or LLVM would take one instruction apart into two, for a latency that is hidden here."""

_LOCK = threading.Lock()
_ADDRESSES: dict[tuple[str, str, bool], int] = {}
_ENGINES: list[Any] = []
"""Own the code: it stays for as long as the process lives."""
_WITHOUT = {"avx512": ("avx512vnni", "avxvnni"), "avxvnni": ("avx512",), "avx2": ("avx512", "avxvnni")}
"""Features that begin so are left out, where an instruction set is chosen that has less than the processor."""


def product_address(name: str, isa: Isa = ISAS[INSTRUCTIONS], activations: Activations = "int16") -> int:
    """Return the address of a block type's product function (dot.build), compiled at most once per machine."""
    with _LOCK:
        key = (name, str(isa), takes_int8(name, isa, activations))
        if key not in _ADDRESSES:
            _ADDRESSES[key] = _loaded(_code(name, isa, activations))
        return _ADDRESSES[key]


def target_machine(isa: Isa, cpu: str | None = None, triple: str | None = None) -> llvm.TargetMachine:
    """Return LLVM's target for this processor with no more than `isa` has; or, to look at the code, for another one."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if triple:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple or llvm.get_process_triple())
    features = _PLAINLY.get(isa.pairs, "") if cpu else _features(isa)
    return target.create_target_machine(
        cpu=cpu or _processor(isa), features=features, opt=2, reloc="pic", codemodel="jitdefault"
    )


def compiled(module: ir.Module, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """Return the module, parsed, verified and optimised by LLVM."""
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    found = llvm.parse_assembly(str(module))
    found.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = False
    options.loop_vectorization = False
    options.slp_vectorization = False
    llvm.create_pass_builder(machine, options).getModulePassManager().run(
        found, llvm.create_pass_builder(machine, options)
    )
    return found


def _processor(isa: Isa) -> str:
    return "" if isa.name == "generic" else str(llvm.get_host_cpu_name())


def _features(isa: Isa) -> str:
    if isa.name == "generic":
        return ""
    features = llvm.get_host_cpu_features()
    for name in features:
        if name.startswith(_WITHOUT.get(isa.name, ())):
            features[name] = False
    found = [str(features.flatten()), _PLAINLY.get(isa.pairs, "")]
    return ",".join(filter(None, found))


def _file(name: str, isa: Isa, activations: Activations) -> Path:
    parts = [llvmlite.__version__, str(isa), str(LAYOUTS[name]), _processor(isa), _features(isa)]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    form = "-int8" if takes_int8(name, isa, activations) else ""
    return kernel.folder / f"product-{name}-{isa.name}{form}-{digest}.o"


def _code(name: str, isa: Isa, activations: Activations) -> bytes:
    """Return a kernel's object file from disk, or compile it."""
    file = _file(name, isa, activations)
    with suppress(OSError):
        kept = file.read_bytes()
        if hashlib.sha256(kept[32:]).digest() == kept[:32]:
            return kept[32:]
    machine = target_machine(isa)
    code = bytes(machine.emit_object(compiled(build(name, isa, activations), machine)))
    with suppress(OSError):  # then the next start compiles again
        write_whole(file, hashlib.sha256(code).digest() + code)
    return code


def _loaded(code: bytes) -> int:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _ENGINES.append(engine)
    return int(engine.get_function_address("product"))
