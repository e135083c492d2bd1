"""One native function runs a table of steps: no Python between them.

Steps are cut into *shares*, numbered in order; threads take the next one that may start, so that a thread
which the system does not run for a while holds up nobody. A *unit* is one step that several threads can
share, or a run of steps of one share each. It may start once so many shares are finished as stand before the
last unit that it has to wait for. A thread takes a share only when it may start: those of even number take a
unit's shares from the front, the others from the back. What a thread has written is then most often read by
itself, and need not come from another core's cache.

The function reads a context of i64 words::

    0 steps     address of the records      4 fixups   address of the fixups
    1 units     address of the units        5 count    how many
    2 args      address of thread 0's args  6 bases    address of the callers' arrays (PyObject *)
    3 stride    bytes to the next thread's  7 times    address of a word per step for when it starts, or 0
    8 next      number of the run, how many of the unit's shares were taken from its front (12 bits), and how
                many shares are taken in all (24 bits), on a cache line of its own
    16 finished how many shares are, likewise
    24 pool, 25 this function, 26 threads, 27 how many shares there are

a *record* per step, 3 words: function, byte position of its args, dims; a *unit*, 5 words: first step, how
many steps, first share, how many shares, how many shares must be finished; and a *fixup* for every argument
that lies in a caller's array, 3 words: byte position of the argument, byte position in ``bases``, bytes to
add to where the array's data starts. All other arguments are known when the program is loaded. Each thread
has args of its own, for its own scratch.

A thread that comes late may hold the address of a context whose run is over. It sees that by the number of
the run in ``next``, and touches nothing else; so contexts are kept for good, and used again.
"""

import ctypes
import sys
import time
from functools import cache
from typing import Any

import numpy as np

from graphdoc.engine.device.llvm.builder import Kernel, Target
from graphdoc.engine.device.llvm.compiler import compile_kernel
from graphdoc.engine.device.llvm.pool import waiting

WORDS, RECORD, UNIT, FIXUP = 32, 3, 5, 3
"""Words of a context, a record, a unit, a fixup."""

WIDEST = 4095
"""Shares that a unit may have: as many as the bits of ``next`` count."""

TIMES, POOL, WORK, THREADS, SHARES = 7, 24, 25, 26, 27
"""Words of a context that are set on their own."""

CLOCK = getattr(time, "CLOCK_MONOTONIC", 1)
"""The clock of the stamps, in nanoseconds."""

DATA = object.__basicsize__
"""Bytes from a NumPy array's object to its pointer to the data, the first field of its C structure."""

_STEPS = """
declare i32 @clock_gettime(i32, ptr)
define void @KERNEL(ptr %ctx, i64 %me, i64 %run) {{
entry:
  %steps = load ptr, ptr %ctx
  %c1 = getelementptr i64, ptr %ctx, i64 1
  %units = load ptr, ptr %c1
  %c2 = getelementptr i64, ptr %ctx, i64 2
  %args0 = load ptr, ptr %c2
  %c3 = getelementptr i64, ptr %ctx, i64 3
  %stride = load i64, ptr %c3
  %c4 = getelementptr i64, ptr %ctx, i64 4
  %fixups = load ptr, ptr %c4
  %c5 = getelementptr i64, ptr %ctx, i64 5
  %fixes = load i64, ptr %c5
  %c6 = getelementptr i64, ptr %ctx, i64 6
  %bases = load ptr, ptr %c6
  %c7 = getelementptr i64, ptr %ctx, i64 7
  %times = load ptr, ptr %c7
  %next = getelementptr i64, ptr %ctx, i64 8
  %finished = getelementptr i64, ptr %ctx, i64 16
  %c27 = getelementptr i64, ptr %ctx, i64 27
  %shares = load i64, ptr %c27
  %skip = mul i64 %me, %stride
  %args = getelementptr i8, ptr %args0, i64 %skip
  %timed = icmp ne ptr %times, null
  %parity = and i64 %me, 1
  %odd = icmp ne i64 %parity, 0
  %forward = sub i64 1, %parity
  br label %look
look:
  %unit = phi i64 [0, %entry], [%at, %again], [%at, %give], [%at, %claim], [%at, %did]
  %todo = phi i64 [%fixes, %entry], [%todo, %again], [%todo, %give], [%todo, %claim], [0, %did]
  %spins = phi i64 [0, %entry], [%spins1, %again], [0, %give], [%spins, %claim], [0, %did]
  %word = load atomic i64, ptr %next acquire, align 8
  %number = lshr i64 %word, 36
  %ours = icmp eq i64 %number, %run
  br i1 %ours, label %left, label %out
left:
  %share = and i64 %word, 16777215
  %more = icmp ult i64 %share, %shares
  br i1 %more, label %find, label %out
find:
  %at = phi i64 [%unit, %left], [%at1, %pass]
  %ui = mul i64 %at, {unit}
  %u0 = getelementptr i64, ptr %units, i64 %ui
  %u2 = getelementptr i64, ptr %u0, i64 2
  %first = load i64, ptr %u2
  %u3 = getelementptr i64, ptr %u0, i64 3
  %width = load i64, ptr %u3
  %end = add i64 %first, %width
  %here = icmp ult i64 %share, %end
  br i1 %here, label %check, label %pass
pass:
  %at1 = add i64 %at, 1
  br label %find
check:
  %u4 = getelementptr i64, ptr %u0, i64 4
  %wait = load i64, ptr %u4
  %need = select i1 %timed, i64 %first, i64 %wait
  %done = load atomic i64, ptr %finished acquire, align 8
  %may = icmp uge i64 %done, %need
  %lastshare = sub i64 %width, 1
  br i1 %may, label %claim, label %again
again:
  {pause}
  %spins1 = add i64 %spins, 1
  %spin = icmp ult i64 %spins1, 200
  br i1 %spin, label %look, label %give
give:
  %y = call i32 @sched_yield()
  br label %look
claim:
  %taken = sub i64 %share, %first
  %moved = lshr i64 %word, 24
  %front = and i64 %moved, 4095
  %back = sub i64 %taken, %front
  %fromback = sub i64 %lastshare, %back
  %tid = select i1 %odd, i64 %fromback, i64 %front
  %final = icmp eq i64 %taken, %lastshare
  %front1 = add i64 %front, %forward
  %front2 = select i1 %final, i64 0, i64 %front1
  %runbits = shl i64 %number, 36
  %frontbits = shl i64 %front2, 24
  %share1 = add i64 %share, 1
  %high = or i64 %runbits, %frontbits
  %word1 = or i64 %high, %share1
  %swap = cmpxchg ptr %next, i64 %word, i64 %word1 acq_rel acquire
  %mine = extractvalue {{i64, i1}} %swap, 1
  br i1 %mine, label %fix, label %look
fix:
  %i = phi i64 [0, %claim], [%i1, %mend]
  %unset = icmp ult i64 %i, %todo
  br i1 %unset, label %mend, label %begin
mend:
  %fi = mul i64 %i, {fixup}
  %f0 = getelementptr i64, ptr %fixups, i64 %fi
  %f1 = getelementptr i64, ptr %f0, i64 1
  %f2 = getelementptr i64, ptr %f0, i64 2
  %place0 = load i64, ptr %f0
  %which = load i64, ptr %f1
  %add = load i64, ptr %f2
  %bp = getelementptr i8, ptr %bases, i64 %which
  %object = load ptr, ptr %bp
  %field = getelementptr i8, ptr %object, i64 {data}
  %memory = load ptr, ptr %field
  %element = getelementptr i8, ptr %memory, i64 %add
  %slot = getelementptr i8, ptr %args, i64 %place0
  store ptr %element, ptr %slot
  %i1 = add i64 %i, 1
  br label %fix
begin:
  %leads = icmp eq i64 %taken, 0
  %stamps = and i1 %timed, %leads
  %from = load i64, ptr %u0
  %u1 = getelementptr i64, ptr %u0, i64 1
  %count = load i64, ptr %u1
  %to = add i64 %from, %count
  br label %step
step:
  %s = phi i64 [%from, %begin], [%s1, %work]
  %unfinished = icmp ult i64 %s, %to
  br i1 %unfinished, label %ready, label %did
ready:
  br i1 %stamps, label %stamp, label %work
stamp:
  call void @KERNEL.stamp(ptr %times, i64 %s)
  br label %work
work:
  %si = mul i64 %s, {record}
  %r0 = getelementptr i64, ptr %steps, i64 %si
  %r1 = getelementptr i64, ptr %r0, i64 1
  %r2 = getelementptr i64, ptr %r0, i64 2
  %function = load ptr, ptr %r0
  %place = load i64, ptr %r1
  %dims = load ptr, ptr %r2
  %own = getelementptr i8, ptr %args, i64 %place
  call void %function(ptr %own, ptr %dims, i64 %tid, i64 %width)
  %s1 = add i64 %s, 1
  br label %step
did:
  %was = atomicrmw add ptr %finished, i64 1 acq_rel
  br label %look
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
    """Return the address of ``void (context, thread, run)``, which takes shares until none is left.

    Raises OSError where this Python's NumPy arrays are not laid out as the function expects.
    """
    _check_layout()
    body = _STEPS.replace("{fixup}", str(FIXUP)).replace("{record}", str(RECORD)).replace("{unit}", str(UNIT))
    body = body.replace("{data}", str(DATA)).replace("{clock}", str(CLOCK))
    text = waiting("declare i32 @sched_yield()\n{declared}\n" + body, target)
    return compile_kernel(Kernel(text, ()), target)


def _check_layout() -> None:
    """Make sure that an array's pointer to its data stands where the native code looks for it."""
    probe: Any = np.zeros(3, np.int64)
    if sys.implementation.name == "cpython":
        field = ctypes.c_void_p.from_address(id(probe) + DATA)
        if field.value == probe.ctypes.data:
            return
    raise OSError("NumPy's arrays are laid out unlike CPython's")
