"""From a kernel's text to an address: LLVM's code generator, without passes, and the cache of objects.

Code once loaded stays for as long as the process lives: a worker thread may be anywhere in it, and unloading
would save little. LLVM is entered by one thread at a time.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from functools import cache
from threading import RLock
from typing import Any

from graphdoc.engine.device.llvm.builder import Kernel, Target
from graphdoc.engine.device.llvm.objects import ObjectCache, user_cache
from graphdoc.engine.device.llvm.symbols import missing

_LEVEL = 2
"""The code generator's level: 1 and 2 give the same speed on vector code, 3 costs more and gives no more."""

_TRAILER = '\nattributes #0 = { nounwind "prefer-vector-width"="512" }\n'
"""What every module ends with; kernels refer to it. LLVM may split wide vectors else."""

_HELD: dict[str, RLock] = {}


def _lock() -> RLock:
    """Return the lock around LLVM; a forked child gets a new one: nobody may be left to open the old."""
    return _HELD.setdefault("lock", RLock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_HELD.clear)


@cache
def host_target() -> Target:
    """Return the processor of this machine.

    Raises ImportError or OSError where llvmlite is missing or cannot be loaded, or the system is none that
    kernels and their threads can rely on.
    """
    import llvmlite.binding as llvm

    if os.name != "posix":
        raise OSError("machine code needs a POSIX system")
    has = llvm.get_host_cpu_features()
    vector, registers = 16, 16
    if has.get("avx512f") and has.get("avx512vl") and has.get("avx512bw") and has.get("avx512dq"):
        vector, registers = 64, 32
    elif has.get("avx"):
        vector = 32
    elif has.get("neon"):
        registers = 32
    return Target(llvm.get_host_cpu_name(), has.flatten(), vector, registers)


@cache
def toolchain() -> str:
    """Return what the code depends on besides its text and its target: versions, format, this level."""
    import llvmlite
    import llvmlite.binding as llvm

    version = ".".join(map(str, llvm.llvm_version_info))
    return f"llvm {version}, llvmlite {llvmlite.__version__}, {llvm.get_process_triple()}, level {_LEVEL}"


def symbol(text: str) -> str:
    """Return the name that a kernel of this text is called by in machine code."""
    return f"k{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def key(text: str, target: Target) -> str:
    """Return the name of an object in the cache: all that its bytes follow from."""
    parts = (text, _TRAILER, target.cpu, target.features, toolchain())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def compile_kernel(kernel: Kernel, target: Target) -> int:
    """Return the address of a kernel's machine code.

    Raises RuntimeError when LLVM refuses the text, a fault of its emitter, or the code calls what is missing.
    """
    found = addresses([kernel.text], target)
    if not found:
        raise RuntimeError("the machine code calls routines that this process lacks")
    return found[kernel.text]


def addresses(texts: Iterable[str], target: Target) -> dict[str, int]:
    """Return the address of each text's code, compiling what neither memory nor the cache on disk holds.

    texts: of kernels (:class:`~graphdoc.engine.device.llvm.builder.Kernel`), or of other modules whose one
        public function is called ``@KERNEL``. Those whose code calls routines that this process lacks have
        no address.
    """
    names = {text: symbol(text) for text in texts}
    with _lock():
        code = _code(target)
        new = {name: text for text, name in names.items() if name not in code}
        code.update(_load({name: _object(text, target) for name, text in new.items()}))
        return {text: code[name] for text, name in names.items() if name in code}


def objects(texts: Iterable[str], target: Target) -> dict[str, bytes]:
    """Return the object file of each text by the symbol it defines, for keeping; loads nothing."""
    with _lock():
        return {symbol(text): _object(text, target) for text in dict.fromkeys(texts)}


def load_objects(kept: Mapping[str, bytes], target: Target) -> dict[str, int]:
    """Return the addresses of object files that :func:`objects` returned, by symbol; as :func:`addresses`."""
    with _lock():
        code = _code(target)
        code.update(_load({name: body for name, body in kept.items() if name not in code}))
        return {name: code[name] for name in kept if name in code}


@cache
def _code(target: Target) -> dict[str, int]:
    """Return the addresses of all that this process has loaded, by symbol."""
    return {}


@cache
def _cache() -> ObjectCache:
    return user_cache()


def _object(text: str, target: Target) -> bytes:
    found = _cache().get(key(text, target))
    if found is None:
        found = _compile(text, target)
        _cache().put(key(text, target), found)
    return found


def _compile(text: str, target: Target) -> bytes:
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(text.replace("@KERNEL", f"@{symbol(text)}") + _TRAILER)
    module.verify()
    with module:
        return bytes(_machine(target).emit_object(module))


@cache
def _machine(target: Target) -> Any:
    """Return LLVM's machine to emit objects with, used again and again."""
    llvm = _initialized()
    triple = llvm.Target.from_triple(llvm.get_process_triple())
    return triple.create_target_machine(cpu=target.cpu, features=target.features, opt=_LEVEL, jit=True)


@cache
def _initialized() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _load(code: Mapping[str, bytes]) -> dict[str, int]:
    """Return the addresses of objects by symbol, loaded into one engine that is never freed."""
    code = {name: body for name, body in code.items() if not missing(body)}
    if not code:
        return {}
    llvm = _initialized()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)  # takes both over
    for body in code.values():
        engine.add_object_file(llvm.ObjectFileRef.from_data(body))
    engine.finalize_object()
    found = {name: int(engine.get_function_address(name)) for name in code}
    engine.detach()  # not closed at the end of the process either: workers still run
    return found
