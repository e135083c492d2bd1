"""What a result was made on: CPU, Python and library versions. No time, no path, no host name."""

import os
import platform
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "onnx",
    "onnx-ir",
    "onnxruntime",
    "numpy",
    "ml_dtypes",
    "llvmlite",
    "cupy-cuda12x",
    "cupy-cuda13x",
)

_FEATURES = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "VNNI",
    "avx_vnni": "AVX-VNNI",
    "avx512_bf16": "bf16",
    "amx_tile": "AMX",
    "asimd": "NEON",
    "asimdhp": "fp16",
}
"""Linux's names of CPU features → how people call them."""


def package_version(name: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@cache
def cpu() -> str:
    """Return the CPU in words: model, usable cores, vector features."""
    text = _read("/proc/cpuinfo")
    model = _field(text, "model name") or platform.processor() or platform.machine()
    flags = set((_field(text, "flags") or _field(text, "Features") or "").split())
    words = [word for flag, word in _FEATURES.items() if flag in flags]
    count = cores()
    return ", ".join([model, f"{count} core" + ("" if count == 1 else "s"), *words])


def _read(name: str) -> str:
    """Return the text of a file of the system, "" where there is none."""
    try:
        return Path(name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _field(text: str, name: str) -> str | None:
    found = re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else None


def cores() -> int:
    """Return how many CPU cores this process may use."""

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def memory_available() -> int:
    """Return bytes of memory that can be used now: what the machine has left, or less where a control group
    (a container) is given less; 4 GiB where the system does not tell."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return min(int(found[1]) * 1024 if found else 4 << 30, *_group_limits())


_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Limit and use of the control group, versions 2 and 1, as a container sees them."""


def _group_limits() -> Iterator[int]:
    yield 1 << 62
    for limit, used in _GROUPS:
        numbers = _read(limit).strip(), _read(used).strip()
        if all(number.isdigit() for number in numbers):
            yield max(1 << 20, int(numbers[0]) - int(numbers[1]))


def resident() -> int:
    """Return bytes of memory that the process holds now; 0 where the system does not tell."""
    found = re.search(r"^VmRSS:\s*(\d+) kB", _read("/proc/self/status"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def load() -> float:
    """Return how many processes wanted to run in the last minute; 0.0 where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def environment() -> dict[str, str]:
    """Return name → text for a report's provenance."""
    from graphdoc import __version__

    versions = {name: package_version(name) for name in PACKAGES}
    return {
        "machine": f"{platform.machine()}, {cpu()}",
        "python": platform.python_version(),
        "graphdoc": __version__,
        **{name: text for name, text in versions.items() if text},
    }
