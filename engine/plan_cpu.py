"""The part of a plan for a processor: programs prepared for it, where memory lies, and machine code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphdoc.engine.device.llvm.builder import Kernel
from graphdoc.engine.device.protocol import Executable
from graphdoc.engine.memory import MemoryPlan, lifetimes
from graphdoc.engine.plan_codec import Decoder, Encoder
from graphdoc.engine.program import Program


@dataclass(frozen=True, slots=True)
class Prepared:
    """A program as a processor runs it. kernels: their text is the symbol of their code; None: the host's."""

    program: Program
    kernels: tuple[Kernel | None, ...]
    memory: MemoryPlan


@dataclass(frozen=True, slots=True)
class CpuPart:
    """Code for one kind of processor. objects: the bytes of object files by the symbol each defines."""

    cpu: str
    features: str
    toolchain: str
    entries: tuple[Prepared, ...]
    objects: Mapping[str, Any]

    @classmethod
    def build(cls, programs: Sequence[Program], timing_cache: str | None = None) -> "CpuPart":
        """Return the part for this machine; timing_cache: where measured tactics are kept."""
        from graphdoc.engine.device.cpu import kernels, prepared
        from graphdoc.engine.device.llvm.compiler import host_target, objects, symbol, toolchain
        from graphdoc.engine.device.llvm.laid import Laid
        from graphdoc.engine.memory import plan
        from graphdoc.engine.tune import Timings, tuned_kernels

        target = host_target()
        timings = None if timing_cache is None else Timings.load(timing_cache)
        entries = []
        laid = Laid()
        texts: dict[str, None] = {}
        for program in programs:
            ready = prepared(program, target, laid)
            found = kernels(ready, target) if timings is None else tuned_kernels(ready, target, timings)
            texts.update({k.text: None for k in found if k is not None})
            named = (None if k is None else _renamed(k, symbol(k.text)) for k in found)
            entries.append(Prepared(ready, tuple(named), plan(ready)))
        if timings is not None and timing_cache is not None and timings.measured:
            timings.save(timing_cache)
        return cls(target.cpu, target.features, toolchain(), tuple(entries), objects(texts, target))

    def misfit(self) -> str:
        """Return why the part does not run here, in a line; empty: it does."""
        try:
            from graphdoc.engine.device.llvm.compiler import host_target, toolchain

            target, here = host_target(), toolchain()
        except (ImportError, OSError) as error:
            return f"the plan's machine code was left aside: llvmlite does not load ({error})"
        needs, has = _enabled(self.features), _enabled(target.features)
        if not needs <= has:
            missing = ", ".join(sorted(needs - has)[:3])
            why = f"made for {self.cpu}, this {target.cpu} lacks {missing}"
            return f"the plan's machine code was left aside: {why}"
        if self.toolchain != here:
            return f"the plan's machine code was left aside: made by {self.toolchain}, here is {here}"
        return ""

    def load(self, number: int, threads: int | None) -> Executable:
        """Return an entry ready to run."""
        from graphdoc.engine.device.cpu import CpuDevice, CpuExecutable
        from graphdoc.engine.device.llvm.compiler import load_objects

        device = CpuDevice(threads)
        entry = self.entries[number]
        wanted = {k.text for k in entry.kernels if k is not None}
        code = load_objects({name: bytes(self.objects[name]) for name in sorted(wanted)}, device.target)
        return CpuExecutable(
            entry.program, entry.kernels, device.target, device.threads, code=code, memory=entry.memory
        )

    def load_code(self) -> None:
        """Load all of the part's kernels, for other programs that have some of them."""
        from graphdoc.engine.device.llvm.compiler import host_target, load_objects

        load_objects({name: bytes(body) for name, body in self.objects.items()}, host_target())

    def encoded(self, encoder: Encoder) -> dict[str, Any]:
        """Return the part as plain data."""
        return {
            "device": "cpu",
            "cpu": self.cpu,
            "features": self.features,
            "toolchain": self.toolchain,
            "objects": [
                [name, encoder.store.add(bytes(body))] for name, body in sorted(self.objects.items())
            ],
            "entries": [
                {
                    "program": encoder.program(entry.program),
                    "kernels": [_row(k) for k in entry.kernels],
                    "offsets": [[encoder.buffer(b), at] for b, at in entry.memory.offsets.items()],
                    "sizes": [entry.memory.size, entry.memory.naive],
                }
                for entry in self.entries
            ],
        }

    @classmethod
    def decoded(cls, row: Mapping[str, Any], decoder: Decoder, blobs: Sequence[Any]) -> "CpuPart":
        """Return what :meth:`encoded` wrote; raises ValueError and the like of wrong data."""
        objects = {str(name): blobs[number] for name, number in row["objects"]}
        entries = tuple(_prepared(data, decoder) for data in row["entries"])
        for entry in entries:
            if any(k is not None and k.text not in objects for k in entry.kernels):
                raise ValueError("a kernel without code")
        return cls(row["cpu"], row["features"], row["toolchain"], entries, objects)


def _renamed(kernel: Kernel, text: str) -> Kernel:
    return Kernel(text, kernel.dims, kernel.scratch, kernel.threads, kernel.status)


def _row(kernel: Kernel | None) -> list[Any] | None:
    if kernel is None:
        return None
    return [kernel.text, list(kernel.dims), kernel.scratch, kernel.threads, kernel.status]


def _prepared(data: Mapping[str, Any], decoder: Decoder) -> Prepared:
    program = decoder.program(data["program"])
    kernels = tuple(
        None if row is None else Kernel(row[0], tuple(row[1]), row[2], row[3], row[4])
        for row in data["kernels"]
    )
    if len(kernels) != len(program.steps):
        raise ValueError("another number of kernels than steps")
    offsets = {decoder.buffers[number]: at for number, at in data["offsets"]}
    size, naive = data["sizes"]
    for buffer in lifetimes(program):
        at = offsets[buffer]
        if at < 0 or at + buffer.nbytes > size:
            raise ValueError("a buffer outside the arena")
    return Prepared(program, kernels, MemoryPlan(offsets, size, naive))


def _enabled(features: str) -> set[str]:
    return {name[1:] for name in features.split(",") if name.startswith("+")}
