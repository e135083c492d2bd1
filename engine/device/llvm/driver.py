"""One native function runs a table of steps: no Python between them.

It reads a context of i64 words::

    0 steps     address of the records      4 fixups   address of the fixups
    1 count     how many                    5 count    how many
    2 args      address of thread 0's args  6 bases    address of the callers' arrays (PyObject *)
    3 stride    bytes to the next thread's  7 times    address of count + 1 doubles' worth of words, or 0
    8 meet      where threads count themselves at barriers, on a cache line of its own
    16 pool, 17 this function, 18 threads: what pool.share reads

a *record* per step, 8 words: function, byte position of its args, dims, first thread, how many threads,
whether a barrier goes before it; and a *fixup* for every argument that lies in a caller's array, 3 words:
byte position of the argument, byte position in ``bases``, bytes to add to where the array's data starts. All
other arguments are known when the program is loaded. Each thread has args of its own, for its own scratch.
"""

import ctypes
import sys
import time
from functools import cache
from typing import Any

import numpy as np

from graphdoc.engine.device.llvm.builder import Kernel, Target
from graphdoc.engine.device.llvm.compiler import compile_kernel
from graphdoc.engine.device.llvm.pool import WAIT, waiting

WORDS, RECORD, FIXUP = 24, 8, 3
"""Words of a context, a record, a fixup."""

TIMES, POOL, WORK, THREADS = 7, 16, 17, 18
"""Words of a context that are set on their own."""

DATA = object.__basicsize__
"""Bytes from a NumPy array's object to its pointer to the data, the first field of its C structure."""

_STEPS = """
declare i32 @clock_gettime(i32, ptr)
define void @KERNEL(ptr %ctx, i64 %tid, i64 %nt) {{
entry:
  %steps = load ptr, ptr %ctx
  %c1 = getelementptr i64, ptr %ctx, i64 1
  %count = load i64, ptr %c1
  %c2 = getelementptr i64, ptr %ctx, i64 2
  %args0 = load ptr, ptr %c2
  %c3 = getelementptr i64, ptr %ctx, i64 3
  %stride = load i64, ptr %c3
  %c4 = getelementptr i64, ptr %ctx, i64 4
  %fixups = load ptr, ptr %c4
  %c5 = getelementptr i64, ptr %ctx, i64 5
  %fixed = load i64, ptr %c5
  %c6 = getelementptr i64, ptr %ctx, i64 6
  %bases = load ptr, ptr %c6
  %c7 = getelementptr i64, ptr %ctx, i64 7
  %times = load ptr, ptr %c7
  %meet = getelementptr i64, ptr %ctx, i64 8
  %skip = mul i64 %tid, %stride
  %args = getelementptr i8, ptr %args0, i64 %skip
  %timed = icmp ne ptr %times, null
  %alone = icmp eq i64 %nt, 1
  %leader = icmp eq i64 %tid, 0
  %stamps = and i1 %timed, %leader
  br label %fix
fix:
  %i = phi i64 [0, %entry], [%i1, %mend]
  %more = icmp ult i64 %i, %fixed
  br i1 %more, label %mend, label %next
mend:
  %fi = mul i64 %i, {fixup}
  %f0 = getelementptr i64, ptr %fixups, i64 %fi
  %f1 = getelementptr i64, ptr %f0, i64 1
  %f2 = getelementptr i64, ptr %f0, i64 2
  %at = load i64, ptr %f0
  %which = load i64, ptr %f1
  %add = load i64, ptr %f2
  %bp = getelementptr i8, ptr %bases, i64 %which
  %object = load ptr, ptr %bp
  %field = getelementptr i8, ptr %object, i64 {data}
  %memory = load ptr, ptr %field
  %first = getelementptr i8, ptr %memory, i64 %add
  %slot = getelementptr i8, ptr %args, i64 %at
  store ptr %first, ptr %slot
  %i1 = add i64 %i, 1
  br label %fix
next:
  %s = phi i64 [0, %fix], [%s1, %after]
  %left = icmp ult i64 %s, %count
  br i1 %left, label %step, label %end
step:
  %si = mul i64 %s, {record}
  %r0 = getelementptr i64, ptr %steps, i64 %si
  %r1 = getelementptr i64, ptr %r0, i64 1
  %r2 = getelementptr i64, ptr %r0, i64 2
  %r3 = getelementptr i64, ptr %r0, i64 3
  %r4 = getelementptr i64, ptr %r0, i64 4
  %r5 = getelementptr i64, ptr %r0, i64 5
  %function = load ptr, ptr %r0
  %place = load i64, ptr %r1
  %dims = load ptr, ptr %r2
  %start = load i64, ptr %r3
  %wide = load i64, ptr %r4
  %barred = load i64, ptr %r5
  %b = icmp ne i64 %barred, 0
  %b1 = or i1 %b, %timed
  br i1 %b1, label %bar, label %ready
bar:
  call void @KERNEL.barrier(ptr %meet, i64 %nt)
  br label %ready
ready:
  br i1 %stamps, label %stamp, label %go
stamp:
  call void @KERNEL.stamp(ptr %times, i64 %s)
  br label %go
go:
  %rank0 = sub i64 %tid, %start
  %rank = select i1 %alone, i64 0, i64 %rank0
  %width = select i1 %alone, i64 1, i64 %wide
  %in = icmp ult i64 %rank, %width
  br i1 %in, label %work, label %after
work:
  %mine = getelementptr i8, ptr %args, i64 %place
  call void %function(ptr %mine, ptr %dims, i64 %rank, i64 %width)
  br label %after
after:
  %s1 = add i64 %s, 1
  br label %next
end:
  br i1 %timed, label %last, label %out
last:
  call void @KERNEL.barrier(ptr %meet, i64 %nt)
  br i1 %leader, label %final, label %out
final:
  call void @KERNEL.stamp(ptr %times, i64 %count)
  br label %out
out:
  ret void
}}
define internal void @KERNEL.barrier(ptr %meet, i64 %nt) {{
entry:
  %many = icmp ugt i64 %nt, 1
  br i1 %many, label %join, label %out
join:
  %o = atomicrmw add ptr %meet, i64 1 seq_cst
  %k = udiv i64 %o, %nt
  %k1 = add i64 %k, 1
  %target = mul i64 %k1, %nt
  call void @KERNEL.until(ptr %meet, i64 %target)
  br label %out
out:
  ret void
}}
define internal void @KERNEL.stamp(ptr %times, i64 %s) {{
entry:
  %now = alloca [2 x i64], align 8
  %r = call i32 @clock_gettime(i32 {clock}, ptr %now)
  %seconds = load i64, ptr %now
  %p = getelementptr i64, ptr %now, i64 1
  %nano = load i64, ptr %p
  %whole = mul i64 %seconds, 1000000000
  %t = add i64 %whole, %nano
  %slot = getelementptr i64, ptr %times, i64 %s
  store i64 %t, ptr %slot
  ret void
}}
"""


@cache
def steps_function(target: Target) -> int:
    """Return the address of ``void (context, tid, nt)``, which runs a context's steps.

    Raises OSError where this Python's NumPy arrays are not laid out as the function expects.
    """
    _check_layout()
    clock = getattr(time, "CLOCK_MONOTONIC", 1)
    body = _STEPS.replace("{fixup}", str(FIXUP)).replace("{record}", str(RECORD))
    body = body.replace("{data}", str(DATA)).replace("{clock}", str(clock))
    text = waiting(WAIT + body, target)
    return compile_kernel(Kernel(text, ()), target)


def _check_layout() -> None:
    """Make sure that an array's pointer to its data stands where the native code looks for it."""
    probe: Any = np.zeros(3, np.int64)
    if sys.implementation.name == "cpython":
        field = ctypes.c_void_p.from_address(id(probe) + DATA)
        if field.value == probe.ctypes.data:
            return
    raise OSError("NumPy's arrays are laid out unlike CPython's")
