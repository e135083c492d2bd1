"""For each rule of graphdoc lint: a model that it objects to, and one that it lets pass."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from graphdoc.surgeon.model import open_source
from graphdoc.surgeon.stripping import strip
from tests.surgeon import build

Make = Callable[[], onnx.ModelProto]
FAULTY: dict[str, Make] = {}
SOUND: dict[str, Make] = {}


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Return a node; inputs and outputs are separated by blanks, "-" is an omitted one."""
    names = [["" if name == "-" else name for name in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op, *names, name=attributes.pop("name", outputs.split()[0]), **attributes)


def pair(rule: str, faulty: Make, sound: Make) -> None:
    """Register the two models of a rule."""
    FAULTY[rule], SOUND[rule] = faulty, sound


def changed(make: Make, change: Callable[[onnx.ModelProto], object]) -> Make:
    """Return a maker of a model with one change."""

    def made() -> onnx.ModelProto:
        proto = make()
        change(proto)
        return proto

    return made


def of(*nodes: onnx.NodeProto, **options: Any) -> Make:
    """Return a maker of a model of the given nodes."""
    return lambda: build.model(nodes, **options)


relu = of(node("Relu", "x", "y"))


def imports(domain: str, version: int) -> Callable[[onnx.ModelProto], object]:
    """Return a change that imports an opset."""
    return lambda proto: proto.opset_import.add(domain=domain, version=version)


pair("external-data", lambda: build.external("gone.bin"), build.add)
pair("no-ir-version", changed(relu, lambda p: p.ClearField("ir_version")), relu)
pair("opset-twice", changed(relu, imports("ai.onnx", 18)), changed(relu, imports("ai.onnx.ml", 3)))
pair(
    "opset-unused",
    changed(relu, imports("com.acme", 1)),
    changed(of(node("Odd", "x", "y", domain="com.acme")), imports("com.acme", 1)),
)


def function(name: str) -> onnx.ModelProto:
    """Return a model that calls a function of its own."""
    body = helper.make_function(
        "own", "F", ["p"], ["q"], [node("Relu", "p", "q")], [helper.make_opsetid("", 18)]
    )
    proto = build.model([node(name, "x", "y", domain="own")], functions=[body])
    proto.opset_import.add(domain="own", version=1)
    return proto


pair("unknown-domain", lambda: function("G"), lambda: function("F"))
pair("unknown-operator", of(node("Reluu", "x", "y")), of(node("Relu", "x", "y")))
scattered = [build.value("x"), build.value("i", (1,), 7), build.value("u", (1,))]
pair(
    "deprecated-operator",
    of(node("Scatter", "x i u", "y"), inputs=scattered),
    of(node("ScatterElements", "x i u", "y"), inputs=scattered),
)
pair("unknown-attribute", of(node("Relu", "x", "y", alpha=0.5)), of(node("LeakyRelu", "x", "y", alpha=0.5)))
pair(
    "duplicate-attribute",
    changed(
        of(node("LeakyRelu", "x", "y", alpha=0.5)),
        lambda p: p.graph.node[0].attribute.append(p.graph.node[0].attribute[0]),
    ),
    of(node("LeakyRelu", "x", "y", alpha=0.5)),
)
chain = of(node("Abs", "x", "a"), node("Relu", "a", "y"))
pair("unsorted-nodes", of(node("Relu", "a", "y"), node("Abs", "x", "a")), chain)
pair("unused-initializer", of(node("Relu", "x", "y"), weights=[build.weight("w", [1, 2])]), build.add)
two = [build.value("x"), build.value("z")]
pair("unused-input", of(node("Relu", "x", "y"), inputs=two), of(node("Add", "x z", "y"), inputs=two))
pair(
    "unused-node",
    of(node("Relu", "x", "y"), node("Abs", "x", "a"), node("Neg", "a", "b")),
    chain,
)
overridable = changed(build.add, lambda p: p.graph.input.append(build.value("w")))
old = changed(overridable, lambda p: setattr(p, "ir_version", 3))
pair("overridable-initializer", overridable, old)
pair("trailing-empty-input", of(node("Clip", "x - -", "y")), of(node("Clip", "x", "y")))
pair(
    "output-not-computed",
    of(node("Relu", "x", "y"), outputs=[build.value("y"), build.value("x")]),
    of(node("Identity", "x", "y")),
)

# Names

pair(
    "duplicate-node-name",
    of(node("Abs", "x", "a", name="n"), node("Relu", "a", "y", name="n")),
    of(node("Abs", "x", "a", name="n"), node("Relu", "a", "y", name="m")),
)
pair("missing-node-name", of(node("Relu", "x", "y", name="")), relu)


def branch(inner: str) -> onnx.ModelProto:
    """Return an If whose branches compute a value of the given name."""
    body = helper.make_graph([node("Relu", "x", inner)], "b", [], [build.value(inner)])
    nodes = [
        node("Abs", "x", "a"),
        node("If", "c", "i", then_branch=body, else_branch=body),
        node("Add", "a i", "y"),
    ]
    return build.model(nodes, inputs=[build.value("x"), build.value("c", (), TensorProto.BOOL)])


pair("shadowed-name", lambda: branch("a"), lambda: branch("b"))
pair("duplicate-output", of(node("Relu", "x", "y"), outputs=[build.value("y")] * 2), relu)
pair(
    "initializer-name",
    changed(build.add, lambda p: p.graph.initializer.append(build.weight("w", [3, 4]))),
    build.add,
)
pair(
    "stale-value-info",
    changed(relu, lambda p: p.graph.value_info.append(build.value("gone"))),
    changed(
        of(node("Abs", "x", "a"), node("Relu", "a", "y")),
        lambda p: p.graph.value_info.append(build.value("a")),
    ),
)
pair(
    "hidden-characters",
    of(node("Abs", "x", "a\u202eb"), node("Relu", "a\u202eb", "y")),
    of(node("Abs", "x", "Grüße/層:0"), node("Relu", "Grüße/層:0", "y")),
)
pair(
    "path-in-text",
    changed(relu, lambda p: setattr(p.graph.node[0], "doc_string", "File /home/user/net.py(3): forward")),
    changed(relu, lambda p: setattr(p.graph.node[0], "doc_string", "net.py(3): forward, see /docs and a/b")),
)

# Types

pair("untyped-input", changed(relu, lambda p: p.graph.input[0].ClearField("type")), relu)


def shaped(*shape: int | str | None) -> Make:
    """Return a maker of y = Relu(x) for x of the given shape."""
    return of(node("Relu", "x", "y"), inputs=[build.value("x", shape)], outputs=[build.value("y", None)])


pair("negative-dim", shaped(-1, 2), shaped(1, 2))
pair("unnamed-dim", shaped(None, 2), shaped("n", 2))
integers = [build.value("y", (2,), TensorProto.INT64)]
pair("type-contradicts", of(node("Relu", "x", "y"), outputs=integers), relu)
pair(
    "shape-contradicts",
    of(node("Relu", "x", "y"), outputs=[build.value("y", (3,))]),
    of(node("Relu", "x", "y"), outputs=[build.value("y", ("any",))]),
)
both = [node("Abs", "x", "y"), node("Abs", "z", "q")]
several = {"inputs": [build.value("x", (2,)), build.value("z", (3,))]}
pair(
    "symbol-contradicts",
    of(*both, outputs=[build.value("y", ("n",)), build.value("q", ("n",))], **several),
    of(*both, outputs=[build.value("y", ("n",)), build.value("q", ("m",))], **several),
)

# Weights

pair("nan-weight", lambda: build.add([1, np.nan]), build.add)
pair("stripped-weight", lambda: strip(open_source(build.add()))[0], build.add)
pair("inf-weight", lambda: build.add([1, -np.inf]), lambda: build.add([1, -1e4]))
pair("fp16-overflow", lambda: build.add([1, 7e4]), lambda: build.add([1, 65504]))


def half(*values: float) -> Make:
    """Return a maker of y = x + w in fp16."""
    x, y = (build.value(name, (2,), TensorProto.FLOAT16) for name in "xy")
    weight = build.weight("w", np.array(values, np.float16))
    return of(node("Add", "x w", "y"), weights=[weight], inputs=[x], outputs=[y])


pair("fp16-subnormal", half(1e-6, 2e-6), half(1e-6, 1.0))


def twins(second: float) -> Make:
    """Return a maker of a model with two weights of 2048 floats."""
    big = np.zeros(2048, np.float32)
    other = big.copy()
    other[7] = second
    return of(
        node("Add", "x v", "a"),
        node("Add", "a w", "y"),
        weights=[build.weight("v", big), build.weight("w", other)],
        inputs=[build.value("x", (2048,))],
        outputs=[build.value("y", (2048,))],
    )


pair("duplicate-weights", twins(0), twins(1))

# Numerics


def batchnorm(variance: float, epsilon: float = 1e-5) -> Make:
    """Return a maker of a BatchNormalization over one channel."""
    shape = (1, 1, 2)
    return of(
        node("BatchNormalization", "x s b m v", "y", epsilon=epsilon),
        weights=[
            build.weight(name, [value]) for name, value in (("s", 1), ("b", 0), ("m", 0), ("v", variance))
        ],
        inputs=[build.value("x", shape)],
        outputs=[build.value("y", shape)],
    )


pair("batchnorm-variance", batchnorm(-0.5), batchnorm(0.0))


def quantised(scale: float, inputs: str = "x s z", **attributes: Any) -> Make:
    """Return a maker of a QuantizeLinear and DequantizeLinear pair."""
    weights = [build.weight("s", np.array(scale, np.float32)), build.weight("z", np.array(0, np.uint8))]
    return of(
        node("QuantizeLinear", inputs, "q", **attributes),
        node("DequantizeLinear", "q s z" if "z" in inputs else "q s", "y"),
        weights=weights[: len(inputs) // 2],
        opset=21,
    )


pair("quant-scale", quantised(0.0), quantised(0.1))
pair("quant-zero-point", quantised(0.1, "x s"), quantised(0.1))


def casts(middle: int, last: int, first: int = TensorProto.FLOAT) -> Make:
    """Return a maker of two Casts in a row."""
    return of(
        node("Cast", "x", "a", to=middle),
        node("Cast", "a", "y", to=last),
        inputs=[build.value("x", (2,), first)],
        outputs=[build.value("y", (2,), last)],
    )


pair(
    "lossy-cast",
    casts(TensorProto.FLOAT16, TensorProto.FLOAT),
    casts(TensorProto.DOUBLE, TensorProto.FLOAT),
)


def clip(low: float, high: float) -> Make:
    """Return a maker of a Clip."""
    bounds = [build.weight(name, np.array(bound, np.float32)) for name, bound in (("l", low), ("h", high))]
    return of(node("Clip", "x l h", "y"), weights=bounds)


pair("empty-clip", clip(6, 0), clip(0, 6))
