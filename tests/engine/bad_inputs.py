"""Spoils the inputs of the official one-node cases: other ranks, sizes, dtypes, nothing at all.

As a script it prints what level 0 says of each operator, worst first::

    python tests/engine/bad_inputs.py                 all operators
    python tests/engine/bad_inputs.py Conv MaxPool    some
    python tests/engine/bad_inputs.py --accepted      also what level 0 takes and ONNX Runtime refuses
"""

import argparse
import collections
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from graphdoc.engine.errors import GraphdocError
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.misfit import VAGUE
from tests.engine import suite

RAW = re.compile(
    r"could not be broadcast|could not broadcast|matmul: |cannot reshape array|attempt to get|not aligned"
    r"|out of bounds for axis|has no attribute|not subscriptable|zero-size array|NoneType|all the input array"
    r"|input operand|ufunc|axes don't match|length-1|not iterable|unpack|truth value|einstein|same_kind"
)
"""What array libraries say of themselves, which tells nobody which input of which operator is wrong."""


@dataclass(frozen=True)
class Spoiled:
    """A one-node model whose input ``name`` was changed: how, and all feeds."""

    op: str
    how: str
    name: str
    model: onnx.ModelProto
    feeds: dict[str, Any]


def spoiled(case: suite.Case) -> Iterator[Spoiled]:
    """Yield a case with one input changed at a time; nothing where it is not one node on tensors."""
    node = case.model.graph.node
    if len(node) != 1 or any(a.HasField("g") for a in node[0].attribute):
        return
    feeds = suite.feeds(case, case.data[0][0])
    model = _open(case.model)
    for name, value in feeds.items():
        if isinstance(value, np.ndarray):
            for how, other in _others(value):
                yield Spoiled(node[0].op_type, how, name, model, {**feeds, name: other})


def _open(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inputs and outputs of any shape."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.value_info[:]
    for info in (*result.graph.input, *result.graph.output):
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    return result


def _others(x: np.ndarray[Any, Any]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    yield "a further axis", x[None]
    yield "an axis less", x[0] if x.ndim and len(x) else x.reshape(-1)
    for axis in range(x.ndim):
        yield f"axis {axis} one longer", np.concatenate([x, x.take([-1], axis)], axis) if x.size else x
        yield f"axis {axis} one shorter", x.take(range(max(0, x.shape[axis] - 1)), axis)
        yield f"axis {axis} empty", x.take(range(0), axis)
    yield "a vector of nothing", np.zeros(0, x.dtype)
    if x.dtype.kind in "iu" and x.size:
        yield "a large number", np.full_like(x, 99)
        yield "a negative number", np.full(x.shape, -99).astype(x.dtype)
    other = np.int64 if x.dtype.kind == "f" else np.float32
    with np.errstate(all="ignore"):
        yield "another dtype", np.zeros(x.shape, other) if x.dtype == object else x.astype(other)


def told(each: Spoiled) -> str:
    """Return what level 0 says, "" where it computes something."""
    try:
        Interpreter(ir.from_proto(each.model)).run(each.feeds)
    except GraphdocError as error:
        return f"{error.cause}  ({error.where})"
    return ""


def raw(text: str) -> bool:
    """Whether a message speaks of arrays, not of the operator."""
    return bool(RAW.search(text))


def main() -> None:
    """Print counts and, per operator, each distinct raw message once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--all", action="store_true", help="print every distinct message")
    parser.add_argument("--accepted", action="store_true", help="compare with what ONNX Runtime refuses")
    asked = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    seen: set[str] = set()
    for case in suite.load():
        if asked.operators and not case.operators & set(asked.operators):
            continue
        for each in spoiled(case):
            text = told(each)
            kind = "raw" if raw(text) else "vague" if VAGUE in text else "told" if text else "computed"
            counts[kind] += 1
            line = f"{each.op}: {each.name} {each.how}: {text}"
            key = re.sub(r"\d+|'[^']*'", "#", f"{each.op} {text.partition('  (')[0]}")
            if (kind in ("raw", "vague") or (asked.all and text)) and key not in seen:
                seen.add(key)
                print(f"{kind} {line}")
            if asked.accepted and not text and (why := _refused(each)) and (each.op, why[:60]) not in seen:
                seen.add((each.op, why[:60]))
                shapes = ", ".join(
                    f"{k} {v.dtype}{list(v.shape)}" for k, v in each.feeds.items() if hasattr(v, "dtype")
                )
                print(f"ACCEPTED {each.op}: {each.name} {each.how}: {shapes}: {why}")
    print(dict(counts))


def _refused(each: Spoiled) -> str:
    """Return why ONNX Runtime refuses, "" when it does not."""
    from tests.engine.random_oracle import RefusedError, on_ort

    try:
        on_ort(each.model, each.feeds)
    except RefusedError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
