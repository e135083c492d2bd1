"""``graphdoc env``."""

import platform
import sys
from collections.abc import Iterator

import click

from graphdoc import __version__
from graphdoc.commands.common import unicode_wanted

Row = tuple[str, str, str]


@click.command("env")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def command(json_: bool) -> int:
    """Show what graphdoc finds on this machine: CPU, GPU, runners, versions, caches."""
    rows = list(_rows())
    if json_:
        import json

        click.echo(
            json.dumps({name: {"found": text, "state": state} for name, text, state in rows}, indent=2)
        )
        return 0
    from graphdoc.reports.words import ASCII_SYMBOLS

    unicode = unicode_wanted()
    click.echo(f"graphdoc {__version__}, Python {platform.python_version()}\n")
    width = max(len(text) for _, text, _ in rows)
    width = min(width, 52) if sys.stdout.isatty() else width
    for name, text, state in rows:
        symbol, _, words = state.partition(" ")
        click.echo(f"  {name:<9} {text:<{width}}  {symbol if unicode else ASCII_SYMBOLS[symbol]} {words}")
    return 0


def _rows() -> Iterator[Row]:
    from graphdoc.compare.environment import cpu, package_version

    llvmlite = package_version("llvmlite")
    yield "cpu", cpu(), "✓ native code" if llvmlite else "✓ NumPy"
    yield "gpu", *_gpu()
    ort, state = _ort()
    yield "ort", ort, state
    for name in ("onnx", "onnx-ir", "numpy"):
        yield name, package_version(name) or "not installed", "✓ usable"
    yield "llvmlite", llvmlite or "not installed", "✓ usable" if llvmlite else "– NumPy measures"
    yield "cupy", *_cupy()
    yield "runners", ", ".join(_runners(ort=state.startswith("✓"))), "✓ usable"
    yield "cache", *_cache()


def _gpu() -> tuple[str, str]:
    """Return the NVIDIA driver's version, which tells of a card without asking it."""
    from pathlib import Path

    path = Path("/proc/driver/nvidia/version")
    if not path.exists():
        return "none found", "– skipped"
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[0][:60], "✓ engine:cuda"


def _cupy() -> tuple[str, str]:
    from graphdoc.compare.environment import package_version
    from graphdoc.engine.device import cupy
    from graphdoc.engine.errors import RunnerError

    version = package_version("cupy-cuda12x") or package_version("cupy-cuda13x")
    if version is None:
        return "not installed", '– pip install "onnx-graphdoc[cuda12]" for engine:cuda'
    try:
        cupy.namespace()
    except RunnerError as error:
        return version, f"✗ {str(error).partition(': ')[2].splitlines()[0][:60]}"
    return version, "✓ engine:cuda"


def _ort() -> tuple[str, str]:
    try:
        import onnxruntime

        providers = ", ".join(onnxruntime.get_available_providers())
    except ModuleNotFoundError:
        return "not installed", "✗ pip install onnxruntime"
    except (ImportError, OSError, AttributeError) as error:
        return f"cannot be used: {str(error).splitlines()[0][:60]}", "✗ reinstall onnxruntime"
    return f"{onnxruntime.__version__}  {providers}", "✓ usable"


def _runners(*, ort: bool) -> Iterator[str]:
    """Yield the runners that open here."""
    from graphdoc.compare.runner import runner_names

    for name in runner_names():
        if name not in ("engine:cuda", "ort:cuda", "ort:tensorrt") and (ort or name != "ort"):
            yield name


def _cache() -> tuple[str, str]:
    import os

    from graphdoc.engine.cache import cache_folder

    folder = cache_folder()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0
    parent = next(p for p in (folder, *folder.parents) if p.exists())
    state = "✓ writable" if os.access(parent, os.W_OK) else "✗ not writable"
    return f"{size / 1e6:.1f} MB of downloaded models", state
