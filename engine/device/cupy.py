"""CuPy as the array namespace of level 0. No other file imports it."""

from importlib import import_module
from typing import Any

from graphdoc.engine.errors import RunnerError

_INSTALL = 'pip install "onnx-graphdoc[cuda12]", or [cuda13], to suit the driver that nvidia-smi shows'


def namespace() -> Any:
    """Return the module ``cupy``, ready to compute.

    Raises RunnerError where CuPy is not installed, or finds no card or no driver that suits it.
    """
    try:
        cupy = import_module("cupy")
    except ImportError as error:
        missing = "CuPy is not installed" if error.name == "cupy" else f"CuPy does not load: {error}"
        raise _refusal(missing, _INSTALL) from error
    try:
        cards = int(cupy.cuda.runtime.getDeviceCount())
        if cards:
            cupy.zeros(1)  # the first allocation shows whether driver and library suit each other
    except Exception as error:  # CuPy has a class of errors for each library it calls
        raise _refusal(f"CuPy cannot use a card: {error}", "graphdoc env, and nvidia-smi") from error
    if not cards:
        raise _refusal("CuPy finds no CUDA card", "use --test engine, which runs on the CPU")
    return cupy


def version() -> str:
    """Return CuPy's version and the card's name."""
    cupy = namespace()
    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"]
    return f"CuPy {cupy.__version__} on {name.decode() if isinstance(name, bytes) else name}"


def _refusal(text: str, next_step: str) -> RunnerError:
    return RunnerError(
        f"the engine's CUDA device is not available: {text}", where="engine:cuda", next_step=next_step
    )
