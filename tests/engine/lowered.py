"""One-node models on level 1, beside level 0: the same values, and no node left to the host."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from graphdoc.engine.fuse import fuse
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.level1 import Compiled
from graphdoc.engine.parts import HostNode, Segment, Stage
from tests.engine import single

EPS = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1.2e-7, "float64": 2.3e-16}
"""Spacing of floats at 1."""


ODD = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -2.5, 1e-40, 100.0, -100.0])
"""No number, infinities, zeros of both signs, and numbers small and large."""


def noise(*shape: int, seed: int = 0, dtype: Any = np.float32, scale: float = 1.0) -> Any:
    """Return seeded normal numbers."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def whole_numbers(*shape: int, seed: int = 0, dtype: Any = np.int64, low: int = 0, high: int = 100) -> Any:
    """Return seeded integers."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def ints(*numbers: int) -> Any:
    """Return an int64 vector."""
    return np.array(numbers, dtype=np.int64)


def fixed(proto: onnx.ModelProto, feeds: Mapping[str, Any], names: Sequence[str]) -> onnx.ModelProto:
    """Return the model with some inputs as initializers."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    kept = [i for i in result.graph.input if i.name not in names]
    del result.graph.input[:]
    result.graph.input.extend(kept)
    result.graph.initializer.extend(numpy_helper.from_array(np.asarray(feeds[n]), n) for n in names)
    return result


def stages(compiled: Compiled) -> list[Stage]:
    return compiled.stages()


def segments(compiled: Compiled) -> list[Segment]:
    """Return the programs made so far."""
    return [p for s in compiled.stages() for p in s.parts if isinstance(p, Segment)]


def hosts(compiled: Compiled) -> list[str]:
    """Return the operators of the nodes that level 0 runs."""
    parts = [p for s in compiled.stages() for p in s.parts]
    return [p.node.node.op_type for p in parts if isinstance(p, HostNode)]


def specs(compiled: Compiled) -> list[str]:
    """Return the names of the specifications of all steps, in order."""
    return [type(step.spec).__name__ for s in segments(compiled) for step in s.program.steps]


def assert_same(ours: Any, theirs: Any, units: float = 16) -> None:
    """Assert that two values agree up to some units in the last place of the largest element."""
    if not isinstance(theirs, np.ndarray):
        assert ours == theirs
        return
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    name = theirs.dtype.name
    if name not in EPS:
        np.testing.assert_array_equal(ours, theirs)
        return
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    finite = np.abs(b[np.isfinite(b)])
    allowed = units * EPS[name] * max(1e-30, finite.max(initial=0.0))
    np.testing.assert_allclose(a, b, rtol=0, atol=allowed, equal_nan=True)


def check(
    op: str, *inputs: Any, const: Sequence[int] = (), host: bool = False, units: float = 16, **options: Any
) -> Compiled:
    """Run a node on level 1, as it is and fused, and hold it against level 0; return the compiled model.

    const: positions of inputs that are weights. host: whether level 0 must run it.
    """
    proto, feeds = single.model(op, *inputs, **options)
    names = [f"x{k}" for k in const]
    proto = fixed(proto, feeds, names)
    fed = {name: value for name, value in feeds.items() if name not in names}
    model = ir.from_proto(proto)
    want = Interpreter(model).run(fed)
    compiled = Compiled(model)
    found = compiled.run(fed)
    again = Compiled(model, passes=(fuse,)).run(fed)
    for name, value in want.items():
        assert_same(found[name], value, units)
        assert_same(again[name], value, units)
    assert bool(hosts(compiled)) is host, compiled.stages()[0].notes
    return compiled
