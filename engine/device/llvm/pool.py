"""Worker threads of this process, in machine code: they wait for work without Python and share it out.

Starting a run costs a worker that still spins a third of a microsecond. Waiting spins for a bounded time;
then a worker sleeps on a condition variable, and who waits for a share that another has taken gives up its
time slice again and again, since the other may need this very processor. One pool serves the process: a
caller who finds it busy does all shares alone, which gives the same bits.

The pool's first word is the number of the current run, and below it the number of threads that take part, so
that a worker sees both at once. Nobody waits for a worker that has taken no share: it may come late.
"""

import ctypes
import os
from functools import cache
from threading import Lock
from typing import Any

import numpy as np

from graphdoc.engine.device.llvm.builder import Kernel, Target
from graphdoc.engine.device.llvm.compiler import compile_kernel
from graphdoc.engine.memory import aligned

MAX_THREADS = 256

_PAUSES = {"x86_64": "call void @llvm.x86.sse2.pause()", "aarch64": "call void @llvm.aarch64.hint(i32 1)"}
_DECLARED = {
    "x86_64": "declare void @llvm.x86.sse2.pause()",
    "aarch64": "declare void @llvm.aarch64.hint(i32)",
}

WAIT = """
declare i32 @sched_yield()
{declared}
define internal void @KERNEL.until(ptr %p, i64 %target) {{
entry:
  br label %look
look:
  %n = phi i64 [0, %entry], [%n1, %again], [0, %give]
  %d = load atomic i64, ptr %p acquire, align 8
  %there = icmp uge i64 %d, %target
  br i1 %there, label %out, label %again
again:
  {pause}
  %n1 = add i64 %n, 1
  %spin = icmp ult i64 %n1, 200
  br i1 %spin, label %look, label %give
give:
  %r = call i32 @sched_yield()
  br label %look
out:
  ret void
}}
"""
"""Wait until a counter has reached a number."""

_WORKER = """
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
{declared}
define ptr @KERNEL(ptr %self) {{
entry:
  %pool = load ptr, ptr %self
  %p1 = getelementptr i64, ptr %self, i64 1
  %tid = load i64, ptr %p1
  %p2 = getelementptr i64, ptr %self, i64 2
  %started = load i64, ptr %p2
  %asleep = getelementptr i8, ptr %pool, i64 128
  %job = getelementptr i8, ptr %pool, i64 192
  %job1 = getelementptr i8, ptr %pool, i64 200
  %mutex = getelementptr i8, ptr %pool, i64 256
  %cond = getelementptr i8, ptr %pool, i64 384
  br label %top
top:
  %last = phi i64 [%started, %entry], [%g, %take], [%g, %work]
  br label %spin
spin:
  %n = phi i64 [0, %top], [%n1, %idle], [0, %woken]
  %g = load atomic i64, ptr %pool seq_cst, align 8
  %same = icmp eq i64 %g, %last
  br i1 %same, label %idle, label %take
idle:
  {pause}
  %n1 = add i64 %n, 1
  %on = icmp ult i64 %n1, 8000
  br i1 %on, label %spin, label %nap
nap:
  %l = call i32 @pthread_mutex_lock(ptr %mutex)
  %a = atomicrmw add ptr %asleep, i64 1 seq_cst
  br label %sleep
sleep:
  %g2 = load atomic i64, ptr %pool seq_cst, align 8
  %still = icmp eq i64 %g2, %last
  br i1 %still, label %wait, label %woken
wait:
  %w = call i32 @pthread_cond_wait(ptr %cond, ptr %mutex)
  br label %sleep
woken:
  %s = atomicrmw sub ptr %asleep, i64 1 seq_cst
  %u = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %spin
take:
  %nt = and i64 %g, 65535
  %part = icmp ult i64 %tid, %nt
  br i1 %part, label %work, label %top
work:
  %f = load ptr, ptr %job
  %ctx = load atomic ptr, ptr %job1 acquire, align 8
  %run0 = lshr i64 %g, 16
  %run = and i64 %run0, 1099511627775
  call void %f(ptr %ctx, i64 %tid, i64 %run)
  br label %top
}}
"""

_SHARE = """
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_broadcast(ptr)
define void @KERNEL(ptr %ctx) {{
entry:
  %w24 = getelementptr i64, ptr %ctx, i64 24
  %pool = load ptr, ptr %w24
  %w25 = getelementptr i64, ptr %ctx, i64 25
  %f = load ptr, ptr %w25
  %w26 = getelementptr i64, ptr %ctx, i64 26
  %nt = load i64, ptr %w26
  %w27 = getelementptr i64, ptr %ctx, i64 27
  %shares = load i64, ptr %w27
  %next = getelementptr i64, ptr %ctx, i64 8
  %finished = getelementptr i64, ptr %ctx, i64 16
  store atomic i64 0, ptr %finished seq_cst, align 8
  %many = icmp ugt i64 %nt, 1
  br i1 %many, label %try, label %alone
try:
  %busy = getelementptr i8, ptr %pool, i64 512
  %swap = cmpxchg ptr %busy, i64 0, i64 1 seq_cst seq_cst
  %mine = extractvalue {{i64, i1}} %swap, 1
  br i1 %mine, label %together, label %alone
alone:
  store atomic i64 0, ptr %next seq_cst, align 8
  call void %f(ptr %ctx, i64 0, i64 0)
  ret void
together:
  %asleep = getelementptr i8, ptr %pool, i64 128
  %job = getelementptr i8, ptr %pool, i64 192
  %job1 = getelementptr i8, ptr %pool, i64 200
  %g = load atomic i64, ptr %pool seq_cst, align 8
  %number = lshr i64 %g, 16
  %following = add i64 %number, 1
  %wrapped = and i64 %following, 268435455
  %fresh = icmp eq i64 %wrapped, 0
  %run = select i1 %fresh, i64 1, i64 %wrapped
  %start = shl i64 %run, 36
  store atomic i64 %start, ptr %next seq_cst, align 8
  store ptr %f, ptr %job
  store atomic ptr %ctx, ptr %job1 seq_cst, align 8
  %high = shl i64 %run, 16
  %go = or i64 %high, %nt
  store atomic i64 %go, ptr %pool seq_cst, align 8
  %z = load atomic i64, ptr %asleep seq_cst, align 8
  %sleepers = icmp ugt i64 %z, 0
  br i1 %sleepers, label %wake, label %run0
wake:
  %mutex = getelementptr i8, ptr %pool, i64 256
  %cond = getelementptr i8, ptr %pool, i64 384
  %l = call i32 @pthread_mutex_lock(ptr %mutex)
  %b = call i32 @pthread_cond_broadcast(ptr %cond)
  %u = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %run0
run0:
  call void %f(ptr %ctx, i64 0, i64 %run)
  call void @KERNEL.until(ptr %finished, i64 %shares)
  store atomic i64 0, ptr %busy seq_cst, align 8
  ret void
}}
"""


def waiting(text: str, target: Target) -> str:
    """Return a module's text with the pause of this processor put in; doubled braces become single."""
    kind = _processor(target)
    return text.format(pause=_PAUSES.get(kind, ""), declared=_DECLARED.get(kind, ""))


@cache
def _processor(target: Target) -> str:
    import llvmlite.binding as llvm

    name = str(llvm.get_process_triple()).partition("-")[0]
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(name, name)


@cache
def share(target: Target) -> Any:
    """Return the function that takes a context, starts its run on every thread, and returns at its end.

    What it reads of a context, the driver says. One argument alone: ctypes takes a microsecond for three.
    """
    text = waiting(WAIT + _SHARE, target)
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(compile_kernel(Kernel(text, ()), target))


class Pool:
    """The workers of this process. ``address`` goes to :func:`share`, with at most ``threads`` threads."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._state = lasting(aligned(576))
        self._state[:] = 0
        self._workers: list[Any] = []
        self._lock = Lock()
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self.address = int(self._state.ctypes.data)
        for name, at in (("pthread_mutex_init", 256), ("pthread_cond_init", 384)):
            getattr(self._libc, name)(ctypes.c_void_p(self.address + at), None)

    @property
    def threads(self) -> int:
        """Return how many threads can take part, the caller's included."""
        return 1 + len(self._workers)

    def grow(self, threads: int) -> int:
        """Start workers until ``threads`` take part; return how many can, fewer where the system refuses."""
        with self._lock:
            while self.threads < min(threads, MAX_THREADS) and self._start():
                pass
            return min(self.threads, threads)

    def _start(self) -> bool:
        text = waiting(_WORKER, self._target)
        entry = compile_kernel(Kernel(text, ()), self._target)
        me = lasting(np.array([self.address, self.threads, 0, 0], np.int64))
        me[2] = self._state[:8].view(np.int64)[0]
        base = int(me.ctypes.data)
        failed = self._libc.pthread_create(
            ctypes.c_void_p(base + 24), None, ctypes.c_void_p(entry), ctypes.c_void_p(base)
        )
        if not failed:
            self._workers.append(me)
        return not failed


def lasting(memory: Any) -> Any:
    """Return an array whose memory is never freed, not even at the end: workers look at it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    return memory


_POOLS: dict[Target, Pool] = {}
_ABANDONED: list[Any] = []


def pool(target: Target) -> Pool:
    """Return the pool of this process, made at first need.

    Raises OSError or AttributeError where the system has no POSIX threads.
    """
    found = _POOLS.get(target)
    return found if found is not None else _POOLS.setdefault(target, Pool(target))


def _forget() -> None:
    """In a forked child no worker runs; it starts a pool of its own."""
    _ABANDONED.append(dict(_POOLS))
    _POOLS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
