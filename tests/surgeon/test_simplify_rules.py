"""Every rule where it applies and where it must not; outputs are held against ONNX Runtime's each time."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphdoc.surgeon.rules import all_rules
from graphdoc.surgeon.rules.passes import PASSES
from tests.surgeon import build
from tests.surgeon.simplify_check import check, parse

MATCHES: dict[str, list[tuple[str, list[str], int]]] = {
    "add-zero": [
        ("g (int64[N,3] x) => (int64[N,3] y) <int64 z = {0}> { y = Add(x, z) }", ["Identity"], 18),
        (
            "g (float[N,3] x) => (float[N,3] y) <float z = {-0.0}> { a = Add(z, x) y = Relu(a) }",
            ["Relu"],
            18,
        ),
        (
            (
                "g (float[N,3] x, float[3,4] w) => (float[N,4] y) <float[4] z = {0,0,0,0}> "
                "{ a = MatMul(x, w) b = Add(a, z) y = Relu(b) }"
            ),
            ["MatMul", "Relu"],
            18,
        ),
    ],
    "subtract-zero": [
        ("g (float[N] x) => (float[N] y) <float z = {0}> { a = Sub(x, z) y = Relu(a) }", ["Relu"], 18)
    ],
    "multiply-one": [
        (
            "g (float[N,2] x) => (float[N,2] y) <float[1,2] z = {1,1}> { a = Mul(z, x) y = Exp(a) }",
            ["Exp"],
            18,
        )
    ],
    "divide-one": [
        (
            "g (int32[N] x) => (int32[N] y) <int32 z = {1}> { a = Div(x, z) b = Pow(a, z) y = Neg(b) }",
            ["Neg"],
            18,
        )
    ],
    "logical-neutral": [
        (
            (
                "g (bool[N] x) => (bool[N] y) <bool t = {1}, bool f = {0}> "
                "{ a = And(x, t) b = Or(f, a) y = Not(b) }"
            ),
            ["Not"],
            18,
        )
    ],
    "constant-condition": [
        (
            (
                "g (float[N,2] x, float[N,2] z) => (float[N,2] y) <bool[2] c = {1,1}> "
                "{ a = Where(c, x, z) y = Relu(a) }"
            ),
            ["Relu"],
            18,
        )
    ],
    "unbounded-clip": [("g (float[N] x) => (float[N] y) { a = Clip(x) y = Relu(a) }", ["Relu"], 18)],
    "noop-reshape": [
        (
            "g (float[N,3] x) => (float[N,3] y) <int64[2] s = {0,-1}> { a = Reshape(x, s) y = Relu(a) }",
            ["Relu"],
            18,
        ),
        (
            (
                "g (float[2,3] x) => (float[2,3] y) <int64[2] s = {2,3}, int64[2] o = {1,1}> "
                "{ a = Expand(x, s) b = Tile(a, o) c = Flatten(b) y = Relu(c) }"
            ),
            ["Relu"],
            18,
        ),
    ],
    "noop-transpose": [
        ("g (float[N,M] x) => (float[N,M] y) { a = Transpose <perm=[0,1]> (x) y = Relu(a) }", ["Relu"], 18)
    ],
    "noop-cast": [("g (float[N] x) => (float[N] y) { a = Cast <to=1> (x) y = Relu(a) }", ["Relu"], 18)],
    "noop-slice": [
        (
            (
                "g (float[N,4] x) => (float[N,4] y) <int64[1] b = {0}, int64[1] e = {9223372036854775807}> "
                "{ a = Slice(x, b, e, b) y = Relu(a) }"
            ),
            ["Relu"],
            18,
        )
    ],
    "noop-pad": [
        ("g (float[N] x) => (float[N] y) <int64[2] p = {0,0}> { a = Pad(x, p) y = Relu(a) }", ["Relu"], 18)
    ],
    "noop-resize": [
        (
            (
                "g (float[N,1,2,2] x) => (float[N,1,2,2] y) <float[4] s = {1,1,1,1}> "
                '{ a = Resize <mode="linear"> (x, , s) y = Relu(a) }'
            ),
            ["Relu"],
            18,
        )
    ],
    "single-input": [
        (
            (
                "g (float[N,4] x) => (float[N,4] y) "
                "{ a = Concat <axis=0> (x) b = Sum(a) c = Max(b) y = Relu(c) }"
            ),
            ["Relu"],
            18,
        )
    ],
    "noop-reduce": [
        (
            "g (float[N,1] x) => (float[N,1] y) <int64[1] a = {1}> { b = ReduceSum(x, a) y = Relu(b) }",
            ["Relu"],
            18,
        )
    ],
    "noop-pool": [
        (
            "g (float[N,1,3,3] x) => (float[N,1,3,3] y) { a = MaxPool <kernel_shape=[1,1]> (x) y = Relu(a) }",
            ["Relu"],
            18,
        )
    ],
    "identity": [("g (float[N] x) => (float[N] y) { a = Identity(x) y = Relu(a) }", ["Relu"], 18)],
    "inference-dropout": [("g (float[N] x) => (float[N] y) { a = Dropout(x) y = Relu(a) }", ["Relu"], 18)],
    "empty-concat": [
        (
            "g (float[N,2] x, float[0,2] e) => (float[M,2] y) { a = Concat <axis=0> (x, e) y = Relu(a) }",
            ["Relu"],
            18,
        )
    ],
    "constant-reshape-target": [
        (
            (
                "g (float[N,6,4] x) => (float[N,2,12] y) "
                "<int64 z = {0}, int64[1] a = {0}, int64[2] r = {2,12}> "
                "{ s = Shape(x) n = Gather(s, z) u = Unsqueeze(n, a) t = Concat <axis=0> (u, r) "
                "y = Reshape(x, t) }"
            ),
            ["Reshape"],
            18,
        )
    ],
    "transpose-transpose": [
        (
            (
                "g (float[N,2,3] x) => (float[N,2,3] y) "
                "{ a = Transpose <perm=[2,0,1]> (x) b = Transpose <perm=[1,2,0]> (a) y = Relu(b) }"
            ),
            ["Relu"],
            18,
        ),
        (
            (
                "g (float[N,2,3] x) => (float[2,3,N] y) "
                "{ a = Transpose <perm=[2,0,1]> (x) y = Transpose <perm=[2,0,1]> (a) }"
            ),
            ["Transpose"],
            18,
        ),
    ],
    "transpose-reshape": [
        (
            (
                "g (float[N,1,6] x) => (float[1,N,2,3] y) <int64[4] s = {1,-1,2,3}> "
                "{ a = Transpose <perm=[1,0,2]> (x) y = Reshape(a, s) }"
            ),
            ["Reshape"],
            18,
        )
    ],
    "reshape-back": [
        (
            (
                "g (float[N,6] x) => (float[N,6] y) <int64[1] a = {1}> "
                "{ b = Unsqueeze(x, a) c = Squeeze(b, a) y = Relu(c) }"
            ),
            ["Relu"],
            18,
        )
    ],
    "reshape-reshape": [
        (
            (
                "g (float[N,6] x) => (float[N,2,3] y) <int64[3] s = {-1,3,2}, int64[3] t = {0,2,3}> "
                "{ a = Reshape(x, s) y = Reshape(a, t) }"
            ),
            ["Reshape"],
            18,
        )
    ],
    "cast-cast": [
        (
            "g (float16[N] x) => (float16[N] y) { a = Cast <to=1> (x) b = Cast <to=10> (a) y = Relu(b) }",
            ["Relu"],
            18,
        ),
        ("g (int8[N] x) => (int64[N] y) { a = Cast <to=6> (x) y = Cast <to=7> (a) }", ["Cast"], 18),
    ],
    "slice-slice": [
        (
            (
                "g (float[N,8] x) => (float[A,B] y) <int64[1] o = {0}, int64[1] i = {1}, int64[1] e = {7}, "
                "int64[1] s = {-1}, int64[1] f = {-9}> "
                "{ a = Slice(x, i, e, i) y = Slice(a, e, f, i, s) }"
            ),
            ["Slice"],
            18,
        )
    ],
    "concat-concat": [
        (
            (
                "g (float[N,2] x, float[N,1] z) => (float[N,5] y) "
                "{ a = Concat <axis=1> (x, z) y = Concat <axis=-1> (a, x) }"
            ),
            ["Concat"],
            18,
        )
    ],
    "self-inverse": [
        ("g (bool[N] x, bool[N] z) => (bool[N] y) { a = Not(x) b = Not(a) y = And(b, z) }", ["And"], 18)
    ],
    "idempotent": [("g (float[N] x) => (float[N] y) { a = Relu(x) y = Relu(a) }", ["Relu"], 18)],
    "transposed-operand": [
        (
            (
                "g (float[3,N] x, float[3,2] w, float[2] b) => (float[N,2] y) "
                "{ a = Transpose(x) y = Gemm(a, w, b) }"
            ),
            ["Gemm"],
            18,
        )
    ],
    "dead-nodes": [("g (float[N] x) => (float[N] y) { a = Exp(x) b = Log(a) y = Relu(x) }", ["Relu"], 18)],
    "fold-constants": [
        ("g (float[N] x) => (float[N] y) <float a = {2}> { b = Sqrt(a) y = Mul(x, b) }", ["Mul"], 18)
    ],
    "fold-shapes": [
        (
            "g (float[N,3] x) => (int64 y, int64[2] z) <int64 i = {1}> { z = Shape(x) y = Gather(z, i) }",
            ["Shape"],
            18,
        )
    ],
    "constant-nodes": [
        (
            "g (float[N] x) => (float[N] y) { c = Constant <value_float = 3.5> () y = Mul(x, c) }",
            ["Mul"],
            18,
        )
    ],
    "matmul-add": [
        (
            "g (float[N,3] x, float[3,4] w, float[4] b) => (float[N,4] y) { a = MatMul(x, w) y = Add(b, a) }",
            ["Gemm"],
            18,
        )
    ],
    "common-subexpressions": [
        ("g (float[N] x) => (float[N] y) { a = Exp(x) b = Exp(x) y = Mul(a, b) }", ["Exp", "Mul"], 18)
    ],
    "duplicate-initializers": [
        (
            (
                "g (float[N] x) => (float[N] y) <float[1] a = {2}, float[1] b = {2}> "
                "{ c = Mul(x, a) y = Max(c, b) }"
            ),
            ["Mul", "Max"],
            18,
        )
    ],
    "unused-initializers": [
        ("g (float[N] x) => (float[N] y) <float[1] a = {2}> { y = Relu(x) }", ["Relu"], 18)
    ],
}
"""Rule → models that it changes, the operators left, the opset."""

ELSEWHERE = {
    "fuse-batchnorm",
    "fuse-pad",
    "fuse-scale",
    "fuse-shift",
    "unused-outputs",
    "constant-if",
    "impossible-branch",
    "single-trip",
    "unroll-loops",
    "loop-invariants",
    "loop-dead-values",
    "unused-branch-outputs",
    "unused-functions",
    "zero-state",
    "merge-parallel-matmul",
}
"""Rules whose models are below, in test_simplify_parallel.py or in test_simplify_control.py."""

ROUNDED = {"matmul-add", "transposed-operand", "add-zero", "constant-condition"}
"""Rules that may change the order of sums, or the sign of a zero (Where of ONNX Runtime)."""

REFUSALS: list[tuple[str, str, str, list[str]]] = [
    (
        "add-zero",
        "turns -0.0 into 0.0",
        "g (float[N] x) => (float[N] y) <float z = {0}> { a = Add(x, z) y = Reciprocal(a) }",
        ["Add", "Reciprocal"],
    ),
    (
        "subtract-zero",
        "turns -0.0 into 0.0",
        "g (float[N] x) => (float[N] y) <float z = {-0.0}> { a = Sub(x, z) y = Reciprocal(a) }",
        ["Sub", "Reciprocal"],
    ),
    (
        "constant-reshape-target",
        "more than one size",
        "g (float[N,M] x, float[A,B] z) => (float[P,Q] y) { s = Shape(z) y = Reshape(x, s) }",
        ["Shape", "Reshape"],
    ),
    (
        "cast-cast",
        "loses values",
        "g (float[N] x) => (float[N] y) { a = Cast <to=6> (x) y = Cast <to=1> (a) }",
        ["Cast", "Cast"],
    ),
    (
        "cast-cast",
        "wraps",
        "g (int8[N] x) => (uint8[N] y) { a = Cast <to=1> (x) y = Cast <to=2> (a) }",
        ["Cast", "Cast"],
    ),
    (
        "slice-slice",
        "whose size is not known",
        (
            "g (float[N,8] x) => (float[A,8] y) <int64[1] o = {0}, int64[1] i = {1}, int64[1] e = {-1}> "
            "{ a = Slice(x, i, e, o) y = Slice(a, i, e, o) }"
        ),
        ["Slice", "Slice"],
    ),
    (
        "matmul-add",
        "wider than the product",
        "g (float[3,3] x, float[3,1] w, float[1,4] b) => (float[3,4] y) { a = MatMul(x, w) y = Add(a, b) }",
        ["MatMul", "Add"],
    ),
    (
        "matmul-add",
        "not known to be matrices",
        "g (float[N,2,3] x, float[3,4] w, float[4] b) => (float[N,2,4] y) { a = MatMul(x, w) y = Add(a, b) }",
        ["MatMul", "Add"],
    ),
    (
        "matmul-add",
        "something else reads",
        (
            "g (float[N,3] x, float[3,4] w, float[4] b) => (float[N,4] y, float[N,4] a) "
            "{ a = MatMul(x, w) y = Add(a, b) }"
        ),
        ["MatMul", "Add"],
    ),
    (
        "fold-constants",
        "random operators",
        (
            "g (float[N] x) => (float[N] y, float[2] r) <float[2] z = {0,0}> "
            "{ r = RandomNormalLike(z) y = Relu(x) }"
        ),
        ["RandomNormalLike", "Relu"],
    ),
    (
        "fold-constants",
        "stay quantized",
        (
            "g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {1,2,3,4}, float s = {0.5}> "
            "{ d = DequantizeLinear(w, s) y = MatMul(x, d) }"
        ),
        ["DequantizeLinear", "MatMul"],
    ),
    (
        "fold-constants",
        "does not fit into int32",
        "g (int32[N] x) => (int32[N] y) <float[1] f = {1e20}> { i = Cast <to=6> (f) y = Add(x, i) }",
        ["Cast", "Add"],
    ),
    (
        "fold-constants",
        "divided by zero",
        (
            "g (int32[N] x, bool[N] c) => (int32[N] y) <int32[1] f = {1}, int32[1] z = {0}> "
            "{ i = Div(f, z) y = Where(c, x, i) }"
        ),
        ["Div", "Where"],
    ),
    (
        "fold-constants",
        "folding would add",
        (
            "g (float[512,512] x) => (float[512,512] y) <int64[2] s = {512,512}> "
            "{ c = ConstantOfShape(s) y = Add(x, c) }"
        ),
        ["ConstantOfShape", "Add"],
    ),
]
"""Rule, words of its reason, model, the operators that stay."""


def test_every_rule_is_tested() -> None:
    """No rule without a model."""
    rules = {item.name for item in (*all_rules(), *PASSES) if item.group not in ("assemble",)}

    assert rules == set(MATCHES) | ELSEWHERE


@pytest.mark.parametrize(
    ("name", "body", "ops", "opset"), [(name, *case) for name, cases in MATCHES.items() for case in cases]
)
def test_matches(name: str, body: str, ops: list[str], opset: int) -> None:
    """The rule changes the model, the operators expected are left, the outputs are the same."""
    rest = {"sizes": [{"N": 2, "M": 3}, {"N": 5, "M": 4}]}
    result = check(parse(body, opset), exact=name not in ROUNDED, **rest)

    assert name in result.rules()
    assert result.ops == ops


@pytest.mark.parametrize(("name", "words", "body", "ops"), REFUSALS)
def test_refuses(name: str, words: str, body: str, ops: list[str]) -> None:
    """The rule leaves the model alone and says why."""
    sizes = [{"N": 2, "M": 6, "A": 4, "B": 3}, {"N": 3, "M": 2, "A": 1, "B": 6}]
    feeds = [] if "random" in words or "divided" in words or "fit" in words else None
    result = check(parse(body), sizes=sizes, feeds=feeds)

    assert any(words in reason for reason in result.reasons(name)), result.report.kept
    assert result.ops == ops


@pytest.mark.parametrize(
    "body",
    [
        "g (float[N] x) => (float[N] y) <float z = {0}> { y = Mul(x, z) }",
        "g (float[N,1] x) => (float[N,3] y) <float[1,3] z = {0,0,0}> { y = Sub(x, z) }",
        "g (float[N,1] x) => (float[N,3] y) <float[1,3] z = {1,1,1}> { y = Mul(x, z) }",
        "g (float[N] x) => (float[N] y) <float z = {-1}> { y = Div(x, z) }",
        "g (float[N] x) => (float[N] y) <float m = {0}> { y = Clip(x, m) }",
        "g (float[N,M] x) => (float[M,N] y) { y = Transpose <perm=[1,0]> (x) }",
        (
            "g (float[N,4] x) => (float[N,2] y) <int64[1] b = {2}, int64[1] e = {99}, int64[1] a = {1}> "
            "{ y = Slice(x, b, e, a) }"
        ),
        (
            "g (float[N,4] x) => (float[N,4] y) <int64[1] b = {-1}, int64[1] e = {-99}, int64[1] a = {1}> "
            "{ y = Slice(x, b, e, a, b) }"
        ),
        "g (float[N] x) => (float[M] y) <int64[2] p = {0,1}> { y = Pad(x, p) }",
        "g (float[N,3] x) => (float[N,3] y) <int64[1] a = {1}> { s = ReduceSum(x, a) y = Sub(x, s) }",
        "g (float[N,1,3,3] x) => (float[N,1,2,2] y) { y = MaxPool <kernel_shape=[1,1], strides=[2,2]> (x) }",
    ],
)
def test_near_identities_stay(body: str) -> None:
    """What looks like an identity and is none stays."""
    proto = parse(body)
    result = check(
        proto, sizes=[{"N": 2, "M": 3}, {"N": 4, "M": 5}] if "Transpose" in body else [{"N": 4, "M": 5}]
    )

    assert result.ops == [node.op_type for node in proto.graph.node]


def _weights(rng: Any, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def test_unused_optional_outputs_are_left_out() -> None:
    """Places of outputs stay, names of unused optional ones go."""
    proto = build.model(
        [helper.make_node("MaxPool", ["x"], ["y", "where"], kernel_shape=[2, 2])],
        inputs=[build.value("x", ["N", 1, 4, 4])],
        outputs=[build.value("y", ["N", 1, 3, 3])],
    )
    result = check(proto)

    assert "unused-outputs" in result.rules()
    assert [name for name in result.proto.graph.node[0].output if name] == ["y"]


@pytest.mark.parametrize(
    ("fill", "left"), [(0.0, ["LSTM"]), (1.0, ["Shape", "Gather", "ConstantOfShape", "LSTM"])]
)
def test_zero_state(fill: float, left: list[str]) -> None:
    """A state of zeros is left out whatever the batch; one of ones stays."""
    rng = np.random.default_rng(3)
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [fill])
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "places"], ["n"]),
        helper.make_node("Concat", ["one", "n", "four"], ["size"], axis=0),
        helper.make_node("ConstantOfShape", ["size"], ["h"], value=value),
        helper.make_node("LSTM", ["x", "w", "r", "", "", "h", "h"], ["", "y"], hidden_size=4),
    ]
    numbers = {"places": [1], "one": [1], "four": [4]}
    proto = build.model(
        nodes,
        inputs=[build.value("x", ["T", "N", 3])],
        outputs=[build.value("y", [1, "N", 4])],
        weights=[
            *(numpy_helper.from_array(np.array(v, np.int64), k) for k, v in numbers.items()),
            build.weight("w", _weights(rng, 1, 16, 3)),
            build.weight("r", _weights(rng, 1, 16, 4)),
        ],
    )
    result = check(proto, sizes=[{"T": 2, "N": 3}, {"T": 1, "N": 1}])

    assert [op for op in result.ops if op != "Concat"] == left
