"""Kernels small enough to read, for tests of what runs kernels: one sum of two contiguous float32 views."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.device.llvm.builder import Kernel
from graphdoc.engine.program import Buffer, Kind, Program, Step, View, whole

F32 = np.dtype(np.float32)

ADD = """define void @KERNEL(ptr noalias %args, ptr noalias %dims, i64 %tid, i64 %nt) #0 {
entry:
  %a = load ptr, ptr %args
  %p1 = getelementptr ptr, ptr %args, i64 1
  %b = load ptr, ptr %p1
  %p2 = getelementptr ptr, ptr %args, i64 2
  %y = load ptr, ptr %p2
  %n = load i64, ptr %dims
  %lo0 = mul i64 %n, %tid
  %lo = udiv i64 %lo0, %nt
  %t1 = add i64 %tid, 1
  %hi0 = mul i64 %n, %t1
  %hi = udiv i64 %hi0, %nt
  br label %head
head:
  %i = phi i64 [%lo, %entry], [%i1, %body]
  %c = icmp ult i64 %i, %hi
  br i1 %c, label %body, label %done
body:
  %pa = getelementptr float, ptr %a, i64 %i
  %pb = getelementptr float, ptr %b, i64 %i
  %py = getelementptr float, ptr %y, i64 %i
  %x = load float, ptr %pa
  %z = load float, ptr %pb
  %s = fadd float %x, %z
  store float %s, ptr %py
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}
"""
"""Threads take stretches; the first number of ``dims`` is how many elements there are."""


@dataclass(frozen=True, slots=True)
class Add:
    """outputs[0] = inputs[0] + inputs[1]; threads: how many its kernel takes, 0: it has none."""

    threads: int = 1

    def evaluate(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute with NumPy."""
        np.add(inputs[0], inputs[1], out=outputs[0])


def kernel(step: Step) -> Kernel | None:
    """Return the kernel of an :class:`Add` over contiguous views."""
    if not isinstance(step.spec, Add) or not step.spec.threads:
        return None
    return Kernel(ADD, (step.outputs[0].size,), threads=step.spec.threads)


class Chain:
    """A program under construction: sums of views of ``size`` float32 elements."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.program = Program()

    def view(self, name: str, kind: Kind = Kind.INNER, data: Any = None) -> View:
        """Return the view of a new buffer; inputs and outputs join the program's."""
        view = whole(Buffer(name, F32, self.size, kind, data), (self.size,))
        table = {Kind.INPUT: self.program.inputs, Kind.OUTPUT: self.program.outputs}.get(kind)
        if table is not None:
            table[name] = view
        return view

    def add(self, a: View, b: View, out: View | None = None, threads: int = 1) -> View:
        """Append a step and return what it writes."""
        out = out or self.view(f"v{len(self.program.steps)}")
        self.program.steps.append(Step(Add(threads), (a, b), (out,), (out.buffer.name,)))
        return out
