"""Rules about the values of weights."""

import hashlib
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.lint import Fault, Severity, rule
from graphdoc.surgeon.stubs import stubs
from graphdoc.surgeon.subject import Subject
from graphdoc.surgeon.weights import Held

_ERROR, _WARNING, _REMARK = Severity.ERROR, Severity.WARNING, Severity.REMARK
_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)
_FP16_NORMAL = 2.0**-14

DUPLICATE_BYTES = 4096
"""Equal weights of at least this size are worth a remark."""


def _name(held: Held) -> str:
    return f"{held.scope}{held.name}"


@rule(
    "nan-weight",
    _ERROR,
    harm="every result that depends on it is NaN",
    mend="find where training or conversion made it; export again",
)
def nan_weight(subject: Subject) -> Iterator[Fault]:
    """A weight that holds NaN."""
    for held, found in subject.ranges:
        if found.nan:
            yield Fault(_name(held), f"{found.nan} of {found.size} values are NaN")


@rule(
    "stripped-weight",
    _WARNING,
    harm="runtimes read zeros in its place",
    mend="graphdoc weights restore MODEL --weights BEFORE -o OUT",
)
def stripped_weight(subject: Subject) -> Iterator[Fault]:
    """A weight that was taken out so that the graph can be shared."""
    found = [name for name, _, _ in stubs(subject.model)]
    if found:
        more = f", and so was what {len(found) - 1} others hold" if len(found) > 1 else ""
        yield Fault(found[0], f"what it holds was stripped{more}")


@rule(
    "inf-weight",
    _WARNING,
    harm="Inf − Inf and 0 × Inf are NaN; a mask of −Inf makes softmax of a full row NaN",
    mend="use a large finite number, such as −1e4 for masks",
)
def inf_weight(subject: Subject) -> Iterator[Fault]:
    """A weight that holds infinity; in fp16 mostly a number that did not fit."""
    for held, found in subject.ranges:
        if found.inf:
            narrow = held.tensor.dtype == ir.DataType.FLOAT16
            why = "; fp16 ends at 65 504" if narrow else ""
            yield Fault(_name(held), f"{found.inf} of {found.size} values are infinite{why}")


@rule(
    "fp16-overflow",
    _REMARK,
    harm="converted to fp16 these become infinity",
    mend="keep the layer in fp32 when converting",
)
def fp16_overflow(subject: Subject) -> Iterator[Fault]:
    """A wider weight that fp16 cannot hold."""
    for held, found in subject.ranges:
        if found.fp16_over and held.tensor.dtype in _WIDE:
            yield Fault(_name(held), f"{found.fp16_over} of {found.size} values exceed 65 504")


@rule(
    "fp16-subnormal",
    _REMARK,
    harm="such values have lost digits, and some devices flush them to 0",
    mend="scale the weight, or keep it in fp32",
)
def fp16_subnormal(subject: Subject) -> Iterator[Fault]:
    """An fp16 weight all of whose non-zero values are subnormal."""
    for held, found in subject.ranges:
        if held.tensor.dtype != ir.DataType.FLOAT16 or not found.absmax:
            continue
        if found.absmax < _FP16_NORMAL:
            yield Fault(_name(held), f"largest magnitude {found.absmax:.1e} is below fp16's normal 6.1e-5")


@rule(
    "duplicate-weights",
    _REMARK,
    harm="the file holds the same bytes more than once",
    mend="let the nodes share one initializer",
)
def duplicate_weights(subject: Subject) -> Iterator[Fault]:
    """Large weights that are equal."""
    groups: dict[tuple[int, tuple[int, ...]], list[Held]] = {}
    for held in subject.tensors:
        if held.tensor.dtype != ir.DataType.STRING and held.tensor.nbytes >= DUPLICATE_BYTES:
            key = (int(held.tensor.dtype), tuple(int(d) for d in held.tensor.shape.numpy()))
            groups.setdefault(key, []).append(held)
    for same in groups.values():
        if len(same) > 1:
            yield from _equal(same)


def _equal(group: list[Held]) -> Iterator[Fault]:
    found: dict[str, list[Held]] = {}
    for held in group:
        try:
            data = np.ascontiguousarray(held.tensor.numpy())
        except ModelError:
            continue
        found.setdefault(hashlib.sha256(data.tobytes()).hexdigest(), []).append(held)
    for same in found.values():
        if len(same) > 1:
            wasted = same[0].tensor.nbytes * (len(same) - 1)
            others = ", ".join(_name(held) for held in same[1:4])
            more = f" and {len(same) - 4} more" if len(same) > 4 else ""
            yield Fault(_name(same[0]), f"equals {others}{more}: {wasted} bytes too many")
