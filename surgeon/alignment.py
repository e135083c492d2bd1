"""What an alignment of two graphs holds; made by surgeon/align.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class ValuePair:
    """Two values that should hold the same content up to rounding.

    a_name, b_name: tap names (engine/scope.py). confidence: 1 when both are computed alike from equal inputs.
    form: "same"; "layout": axes stand in another order, or the elements in another shape; "codes": one side
    holds quantised codes, which must be scaled first.
    """

    a: ir.Value
    b: ir.Value
    a_name: str
    b_name: str
    confidence: float
    form: str = "same"


@dataclass(frozen=True, slots=True)
class NodePair:
    """Two nodes that do the same work; their outputs need not be a ValuePair, when others finish it.

    a_scope, b_scope: the graphs they lie in. a_parameters, b_parameters: how they work: attributes with
    defaults filled in, and constant inputs that other opsets have as attributes (tensors as digests).
    """

    a: ir.Node
    b: ir.Node
    confidence: float
    a_scope: str = ""
    b_scope: str = ""
    a_parameters: Mapping[str, Any] = field(default_factory=dict)
    b_parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WeightPair:
    """Two constants that the same inputs of paired nodes read, or that have equal content."""

    a: ir.Value
    b: ir.Value
    a_name: str
    b_name: str


@dataclass(frozen=True, slots=True)
class Alone:
    """A node that only one side has.

    scope: of its graph. constant: it depends on no input, so the other side may have folded it. into: the
    node of the other side that makes the next paired value after it.
    """

    node: ir.Node
    scope: str
    constant: bool
    into: ir.Node | None


@dataclass(frozen=True, slots=True)
class Alignment:
    """What stands for what, each list in execution order of A, or of B for what only B has.

    only_a_weights, only_b_weights: constants with their names; those that act as attributes are left out.
    through_a, through_b: a value that Identity, Cast or quantisation hands on → the value that came in.
    """

    values: tuple[ValuePair, ...]
    nodes: tuple[NodePair, ...]
    weights: tuple[WeightPair, ...]
    only_a: tuple[Alone, ...]
    only_b: tuple[Alone, ...]
    only_a_weights: tuple[tuple[ir.Value, str], ...] = ()
    only_b_weights: tuple[tuple[ir.Value, str], ...] = ()
    through_a: Mapping[ir.Value, ir.Value] = field(default_factory=dict)
    through_b: Mapping[ir.Value, ir.Value] = field(default_factory=dict)

    def names(self, least: float = 0.0) -> dict[str, str]:
        """Return tap name of A → tap name of B for pairs of at least this confidence."""
        return {pair.a_name: pair.b_name for pair in self.values if pair.confidence >= least}
