"""Sizes of memory as people write them, and a bound on what the process may take."""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from graphdoc.compare.environment import memory_available
from graphdoc.engine.errors import UsageError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


LEAST = 2**20
"""Models run once per group of layers that fits; with less, that is once per layer."""


def parse_size(text: str | None) -> int | None:
    """Return bytes: "2GiB", "500MB", "1e9"; None for None. Raises UsageError."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([kmg]i?)?b?\s*", text.lower())
    size = float(found[1]) * _UNITS[found[2] or ""] if found else 0
    if not 1 <= size < 2**60:
        raise UsageError(f"not a size: '{text}'", where="--memory", next_step="write --memory 2GiB")
    if size < LEAST:
        raise UsageError(
            f"too little memory to work with: '{text}'",
            where="--memory",
            next_step="write --memory 1MiB or more",
        )
    return int(size)


def keep_freed_memory() -> None:
    """Let glibc's allocator hand freed memory out again, in all threads, in place of giving it back.

    A comparison frees and asks for megabytes thousands of times; each time the system maps and clears the
    pages anew, which took 0.3 s of 3 (210,000 page faults against 150,000). For a process that ends
    afterwards. Does nothing where the C library is another one.
    """
    if sys.platform != "linux":
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _MALLOPT.values():
            mallopt(parameter, value)


_MALLOPT = {
    "M_TRIM_THRESHOLD": (-1, 2**31 - 1),
    "M_TOP_PAD": (-2, 64 * 2**20),
    "M_MMAP_THRESHOLD": (-3, 2**25),
    "M_ARENA_MAX": (-8, 1),
}
"""Numbers of glibc's malloc.h, and what they are set to, in bytes (32 MiB is the most that every
version takes); one arena serves all threads."""


SPARED = 16
"""The part of the free memory, one of so many, that is left to others."""


@contextmanager
def bounded_memory(runners: Iterable[str] = ()) -> Iterator[None]:
    """Let the system refuse what the machine cannot hold, on Linux; the old limit holds again afterwards.

    Without a limit Linux promises memory that it does not have, and ends the process, or another one, once it
    is used. With it a too large tensor is an error that names the layer. Runners on a card (``ort:cuda``) run
    without it: drivers map more than they take.
    """
    if sys.platform != "linux" or any(":" in runner for runner in runners):
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    free = memory_available()
    wanted = _used() + free - free // SPARED
    bounds = [bound for bound in (soft, hard, wanted) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _used() -> int:
    """Return the bytes that count towards the limit already."""
    with open("/proc/self/status", encoding="utf-8") as status:  # noqa: PTH123 - a file of the system
        found = re.search(r"^VmData:\s*(\d+) kB", status.read(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
