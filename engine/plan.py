"""A plan: a model built once, to be loaded in milliseconds and run.

It holds one program per choice of input shapes, portable: any device can load it. Beside them may lie parts
for one device: the programs as prepared for it (weights packed, memory placed) and their machine code. A part
that does not fit the machine is left aside with a reason, and the portable programs are prepared anew.

A plan of several choices holds the graph too, unless it is to be fixed: shapes between the smallest and the
largest get a program when they first come, and others are refused.

A plan must be a program from end to end. A model with nodes that run on level 0 (strings, sequences, random
numbers, shapes that follow from contents) is refused: half of it would have to be kept as ONNX, and whoever
loads a plan counts on its time and its memory.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import RLock
from typing import IO, Any

import numpy as np

from graphdoc.engine.device.protocol import Device, Executable
from graphdoc.engine.errors import InputError, ModelError
from graphdoc.engine.plan_codec import Decoder, Encoder, Store
from graphdoc.engine.plan_cpu import CpuPart
from graphdoc.engine.plan_file import packed, read
from graphdoc.engine.plan_graph import Graph, Span, decoded, encoded, spans, spelled, within
from graphdoc.engine.program import Buffer, Program

Types = Mapping[str, tuple[Any, tuple[int, ...]]]
"""Dtype and shape by input name."""

_KEPT = 32
"""Programs kept of those made for shapes between."""


@dataclass(slots=True)
class Entry:
    """A program for one choice of input shapes.

    inputs: every input of the model; the program reads some of them. outputs: the model's, in order: the
        program's output of each.
    """

    inputs: dict[str, tuple[Any, tuple[int, ...]]]
    outputs: dict[str, str]
    program: Program

    def shapes(self) -> str:
        """Return the input shapes as the command line spells them."""
        return " ".join(
            f"{name}={'x'.join(map(str, shape)) or '()'}" for name, (_, shape) in self.inputs.items()
        )


@dataclass(slots=True)
class Plan:
    """Programs, and parts for devices.

    weights: the buffers that hold an initializer of the model just as it is, by its name; see :meth:`refit`.
    threads: how many to run with unless told; None: one per processor.
    made_by: the version that built it. graph: what programs for other shapes are made from, if any.
    notes: why parts were left aside.
    """

    entries: list[Entry]
    parts: list[CpuPart] = field(default_factory=list)
    weights: dict[str, list[Buffer]] = field(default_factory=dict)
    threads: int | None = None
    made_by: str = ""
    graph: Graph | None = None
    notes: list[str] = field(default_factory=list)
    _loaded: dict[tuple[int, int | None], Executable] = field(default_factory=dict)
    _made: OrderedDict[Any, tuple[Entry, Executable]] = field(default_factory=OrderedDict)
    _devices: dict[int | None, Device] = field(default_factory=dict)
    _lock: Any = field(default_factory=RLock)

    def run(self, feeds: Mapping[str, Any], threads: int | None = None) -> dict[str, Any]:
        """Return the outputs by name. feeds: every input, as NumPy arrays.

        Raises InputError for inputs that no program of the plan is for, RunnerError as the steps do.
        """
        number = self.entry_for(feeds)
        if number is None:
            entry, executable = self._between(feeds, threads or self.threads)
        else:
            entry, executable = self.entries[number], self.executable(number, threads)
        results = executable.run([feeds[name] for name in entry.program.inputs])
        found = dict(zip(entry.program.outputs, results, strict=True))
        return {name: found[key] for name, key in entry.outputs.items()}

    def entry_for(self, feeds: Mapping[str, Any]) -> int | None:
        """Return the number of the entry for these inputs, None where one is made when they come.

        Raises InputError for inputs that the plan does not serve.
        """
        for number, entry in enumerate(self.entries):
            if len(feeds) == len(entry.inputs) and all(
                name in feeds and (feeds[name].dtype, feeds[name].shape) == known
                for name, known in entry.inputs.items()
            ):
                return number
        served = self.spans
        if (
            served
            and feeds.keys() == served.keys()
            and all(within(served[name], array.dtype, array.shape) for name, array in feeds.items())
        ):
            return None
        given = " ".join(f"{name}={_spelled(value)}" for name, value in feeds.items())
        held = "; ".join(entry.shapes() for entry in self.entries[:4])
        more = " and more" if len(self.entries) > 4 else ""
        raise InputError(
            f"the plan has no program for {given}",
            where=f"it serves {spelled(served)}" if served else f"it has {held}{more}",
            next_step="graphdoc build MODEL -o PLAN --shape …, or --profile … with a smallest and a largest",
        )

    @property
    def spans(self) -> dict[str, Span]:
        """What the plan serves besides its entries, by input; empty: nothing."""
        return {} if self.graph is None else spans([entry.inputs for entry in self.entries])

    def _between(self, feeds: Mapping[str, Any], threads: int | None) -> tuple[Entry, Executable]:
        """Return the program for shapes that none was built for, made when they first come.

        Of these programs those not used for longest go.
        """
        key = threads, tuple((name, feeds[name].shape) for name in self.entries[0].inputs)
        with self._lock:
            if key not in self._made:
                assert self.graph is not None  # noqa: S101  spans are empty without it
                entry = self.graph.entry(feeds)
                self._made[key] = entry, self._device(threads).load(entry.program)
                while len(self._made) > _KEPT:
                    self._made.popitem(last=False)
            self._made.move_to_end(key)
            return self._made[key]

    def _device(self, threads: int | None) -> Device:
        """Return the device for programs that are prepared anew, with the plan's kernels where they fit."""
        if threads not in self._devices:
            for part in self.parts:
                if self._fits(part):
                    part.load_code()
            self._devices[threads] = default_device(threads)
        return self._devices[threads]

    def executable(self, number: int, threads: int | None = None) -> Executable:
        """Return an entry ready to run: from the part that fits this machine, or prepared anew."""
        threads = threads or self.threads
        key = number, threads
        if key not in self._loaded:
            with self._lock:
                if key not in self._loaded:
                    self._loaded[key] = self._load(number, threads)
        return self._loaded[key]

    def _load(self, number: int, threads: int | None) -> Executable:
        for part in self.parts:
            if self._fits(part):
                return part.load(number, threads)
        return self._device(threads).load(self.entries[number].program)

    def _fits(self, part: CpuPart) -> bool:
        """Return whether a part runs here; note why it does not."""
        reason = part.misfit()
        if reason and reason not in self.notes:
            self.notes.append(reason)
        return not reason

    def compile(self, timing_cache: str | None = None) -> None:
        """Add the part for this machine's processor, in place of any other.

        timing_cache: a file of measured tactics, read, added to and written; None: take each step's first.

        Raises ImportError or OSError where llvmlite is missing, InputError for a file that is no cache.
        """
        self.parts = [CpuPart.build([entry.program for entry in self.entries], timing_cache)]
        self._loaded.clear()
        self._made.clear()

    # ---- files ------------------------------------------------------------------------------------

    def write(self, file: IO[bytes]) -> None:
        """Write the plan; equal plans give equal bytes."""
        file.writelines(self._packed())

    def save(self, path: "str | Path") -> None:
        """Write a plan file; it is there whole or not at all."""
        target = Path(path)
        part = target.with_name(f".{target.name[:100]}.part")
        try:
            with part.open("wb") as file:
                self.write(file)
            part.replace(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def _packed(self) -> list[Any]:
        store = Store()
        names = {buffer: name for name, buffers in self.weights.items() for buffer in buffers}
        encoder = Encoder(store, names)
        entries = [
            {
                "inputs": [[name, dtype.name, list(shape)] for name, (dtype, shape) in e.inputs.items()],
                "outputs": [list(pair) for pair in e.outputs.items()],
                "program": encoder.program(e.program),
            }
            for e in self.entries
        ]
        parts = [part.encoded(encoder) for part in self.parts]
        weights = [[name, [encoder.buffer(b) for b in buffers]] for name, buffers in self.weights.items()]
        content = {
            "entries": entries,
            "parts": parts,
            "weights": weights,
            "threads": self.threads,
            "made_by": self.made_by,
            "graph": None if self.graph is None else encoded(self.graph, store, self.weights),
            "tables": encoder.tables(),
        }
        return packed(content, store.blobs)

    @classmethod
    def load(cls, path: "str | Path") -> "Plan":
        """Read a plan file. Constants stay in the file, mapped into memory.

        A plan's parts are machine code: load plans from those only whose programs you would run.

        Raises ModelError for a file that is no plan of this format, or damaged anywhere.
        """
        content, blobs = read(path)
        try:
            return cls._decoded(content, blobs)
        except (
            KeyError,
            ValueError,
            TypeError,
            AttributeError,
            IndexError,
            ImportError,
            OverflowError,
        ) as error:
            raise ModelError("the plan is damaged: its tables make no sense", where=str(path)) from error

    @classmethod
    def _decoded(cls, content: Mapping[str, Any], blobs: Sequence[Any]) -> "Plan":
        decoder = Decoder(content["tables"], blobs)
        entries = [_entry(row, decoder) for row in content["entries"]]
        parts = [CpuPart.decoded(row, decoder, blobs) for row in content["parts"]]
        weights = {name: [decoder.buffers[k] for k in numbers] for name, numbers in content["weights"]}
        graph = None if content["graph"] is None else decoded(content["graph"], blobs)
        return cls(entries, parts, weights, content["threads"], content["made_by"], graph)

    # ---- weights ----------------------------------------------------------------------------------

    def refit(self, weights: Mapping[str, Any]) -> "Plan":
        """Return the plan with other contents of some weights, of the same dtype and shape as before.

        Its part for this machine is made anew, from the code that is there: nothing is compiled.

        Raises InputError for a name that is no weight, or whose value became part of something else while
        the model was optimised, and for arrays that do not fit.
        """
        changed: dict[Buffer, Buffer] = {}
        for name, array in weights.items():
            for buffer in self.weights.get(name, ()):
                changed[buffer] = replace(buffer, data=_fitted(name, array, buffer))
            if name not in self.weights:
                raise self._unknown(name)
        entries = [replace(entry, program=_exchanged(entry.program, changed)) for entry in self.entries]
        kept = {n: [changed.get(b, b) for b in buffers] for n, buffers in self.weights.items()}
        graph = None if self.graph is None else self.graph.refitted(weights)
        plan = Plan(entries, [], kept, self.threads, self.made_by, graph)
        if self.parts and not self.parts[0].misfit():
            plan.compile()
        return plan

    def _unknown(self, name: str) -> InputError:
        known = ", ".join(list(self.weights)[:5]) or "none"
        return InputError(
            f"'{name}' is no weight that can be exchanged: it is not in the model, or was folded into others",
            where=f"weights that can: {known}{' …' if len(self.weights) > 5 else ''}",
            next_step="graphdoc build with the new model",
        )


def _entry(row: Mapping[str, Any], decoder: Decoder) -> Entry:
    inputs = {str(name): (np.dtype(dtype), tuple(map(int, shape))) for name, dtype, shape in row["inputs"]}
    program = decoder.program(row["program"])
    outputs = {str(name): str(key) for name, key in row["outputs"]}
    for name, view in program.inputs.items():
        if inputs[name] != (view.dtype, view.shape):
            raise ValueError("a program whose input is not the model's")
    if not set(outputs.values()) <= set(program.outputs):
        raise ValueError("an output that the program lacks")
    return Entry(inputs, outputs, program)


def _spelled(value: Any) -> str:
    shape = "x".join(map(str, getattr(value, "shape", ("?",)))) or "()"
    return f"{shape} ({getattr(value, 'dtype', type(value).__name__)})"


def _fitted(name: str, array: Any, buffer: Buffer) -> Any:
    if array.dtype != buffer.dtype or array.size != buffer.size:
        raise InputError(
            f"'{name}' is {array.dtype} of {array.size} elements, in the plan {buffer.dtype} of {buffer.size}"
        )
    return np.ascontiguousarray(array).reshape(-1)


def _exchanged(program: Program, changed: Mapping[Buffer, Buffer]) -> Program:
    """Return the program with buffers exchanged wherever a step reads them."""
    steps = [
        replace(
            step,
            inputs=tuple(
                replace(v, buffer=changed[v.buffer]) if v.buffer in changed else v for v in step.inputs
            ),
        )
        for step in program.steps
    ]
    return replace(program, steps=steps)


def default_device(threads: int | None) -> Device:
    """Return the processor's device, NumPy where llvmlite is missing."""
    try:
        from graphdoc.engine.device.cpu import CpuDevice

        return CpuDevice(threads)
    except (ImportError, OSError):
        from graphdoc.engine.device.numpy import NumpyDevice

        return NumpyDevice()


def build(
    model: Any,
    choices: Sequence[Types],
    *,
    refit: bool = False,
    compiled: bool = True,
    fixed: bool = False,
) -> Plan:
    """Return the plan of a model, with one program per choice of input types.

    model: an onnx_ir.Model. refit: find out which weights can be exchanged later; takes a second round.
    compiled: add the part for this machine's processor, where llvmlite is installed. fixed: serve these
    choices alone; without that, shapes between several choices too.

    Raises ModelError where part of the model would run on level 0, naming the node.
    """
    from graphdoc import __version__
    from graphdoc.engine.plan_build import entry, prepared
    from graphdoc.engine.plan_weights import exchangeable

    ready = prepared(model)
    entries = [entry(ready, dict(types)) for types in choices]
    weights = exchangeable(model, choices, entries) if refit else {}
    graph = None if fixed or not spans(choices) else Graph.of(model)
    plan = Plan(entries, weights=weights, made_by=__version__, graph=graph)
    if compiled:
        with suppress(ImportError, OSError):
            plan.compile()
    return plan
