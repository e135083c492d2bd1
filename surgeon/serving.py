"""Who runs an operator: graphdoc's engine, ONNX Runtime."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import onnx_ir as ir

from graphdoc.engine.device.placement import ON_HOST
from graphdoc.engine.functions import FUNCTION_BODY, fallback, static_body
from graphdoc.engine.ops.table import canonical_domain, find
from graphdoc.surgeon.schemas import signature

TABLE = "ops table"
KERNEL = "kernel"
MISSING = "missing"
UNKNOWN = ""
"""ONNX Runtime is not installed, or does not tell."""


def engine_serves(node: ir.Node, opsets: Mapping[str, int], *, function: bool) -> str:
    """Return what runs a node on the engine: ops table, function body, onnx.reference or missing.

    function: the model itself defines the operator.
    """
    domain = canonical_domain(node.domain)
    version = opsets.get(domain, 1)
    if function:
        return FUNCTION_BODY
    if find(domain, node.op_type, version) is not None:
        return TABLE
    if static_body(domain, node.op_type, version) is not None:
        return FUNCTION_BODY
    plain = {name: item for name, item in node.attributes.items() if not item.is_ref()}
    try:
        served = fallback(node, opsets, plain, _never)
    except (NotImplementedError, RuntimeError):  # attributes that onnx_ir cannot write
        return MISSING
    return MISSING if served is None else served[1]


def cuda_serves(engine: str, domain: str, name: str) -> str:
    """Return what runs an operator on a card, from what runs it on the engine: CuPy, the host, missing.

    Values of dtypes that CuPy lacks (strings, float8, 4-bit) are worked on by the host all the same.
    """
    if engine == MISSING:
        return MISSING
    on_card = engine in (TABLE, FUNCTION_BODY) and (canonical_domain(domain), name) not in ON_HOST
    return "CuPy" if on_card else "host"


def _never(model: ir.Model) -> Any:
    raise AssertionError("nothing is run to find out who serves an operator")


def ort_serves(domain: str, name: str, version: int, *, function: bool) -> str:
    """Return what runs an operator on ONNX Runtime's CPU: kernel, function body, missing; "" if unknown."""
    kernels = _kernels()
    if not kernels:
        return UNKNOWN
    if function:
        return FUNCTION_BODY
    domain = canonical_domain(domain)
    if (domain, name) == ("", "Constant"):
        return KERNEL  # read as an initializer
    schema = signature(domain, name, version)
    since = schema.since if schema else version
    ranges = kernels.get((domain, name), ())
    if any(low <= since <= high for low, high in ranges):
        return KERNEL
    return FUNCTION_BODY if schema is not None and schema.body else MISSING


@cache
def _kernels() -> Mapping[tuple[str, str], tuple[tuple[int, int], ...]]:
    """Return the version ranges of the CPU kernels in the installed ONNX Runtime; empty without one."""
    try:
        from onnxruntime.capi import onnxruntime_pybind11_state as runtime

        definitions = runtime.get_all_opkernel_def()
    except (ImportError, AttributeError):
        return {}
    found: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for item in definitions:
        if item.provider == "CPUExecutionProvider":
            found.setdefault((canonical_domain(item.domain), item.op_name), set()).add(
                tuple(item.version_range)
            )
    return {key: tuple(sorted(ranges)) for key, ranges in found.items()}
