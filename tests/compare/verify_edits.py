"""Edits of small models, wrong ones and right ones, for the tests of verification.

An edit is two graphs in ONNX's text form. Weights come from ``WEIGHTS``, by the names that the text reads.
"""

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

Array = np.ndarray[Any, Any]


def noise(name: str, *shape: int) -> Array:
    """Return normal values that depend on the name only."""
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)


BN_SCALE, BN_BIAS, BN_MEAN = (noise(name, 4) for name in ("scale", "bias", "mean"))
BN_VAR = np.abs(noise("var", 4)) + np.float32(0.5)
BN_FACTOR = BN_SCALE / np.sqrt(BN_VAR + np.float32(1e-5))
CONV = noise("conv", 4, 3, 3, 3)

WEIGHTS: dict[str, Array] = {
    "w": noise("w", 8, 4),
    "w_more": noise("w", 8, 4) * np.float32(1.001),
    "w_one": noise("w", 8, 4) * np.where(np.arange(32).reshape(8, 4) == 13, np.float32(1.01), np.float32(1)),
    "wt": np.ascontiguousarray(noise("w", 8, 4).T),
    "b": noise("b", 4),
    "b8": noise("b8", 8),
    "depth": noise("depth", 4, 1, 1, 1),
    "full": np.repeat(noise("depth", 4, 1, 1, 1), 4, axis=1),
    "square": noise("square", 8, 8),
    "square2": noise("square2", 8, 8),
    "square12": (noise("square", 8, 8).astype(np.float64) @ noise("square2", 8, 8)).astype(np.float32),
    "conv": CONV,
    "conv_bias": noise("conv_bias", 4),
    "conv_folded": CONV * BN_FACTOR[:, None, None, None],
    "conv_folded_wrong": CONV * (BN_SCALE / BN_VAR)[:, None, None, None],
    "bias_folded": (noise("conv_bias", 4) - BN_MEAN) * BN_FACTOR + BN_BIAS,
    "bias_folded_wrong": noise("conv_bias", 4) * BN_FACTOR + BN_BIAS,
    "bias_unscaled": (noise("conv_bias", 4) - BN_MEAN) + BN_BIAS,
    "scale": BN_SCALE,
    "bias": BN_BIAS,
    "mean": BN_MEAN,
    "var": BN_VAR,
    "table": noise("table", 10, 4),
    "rows": np.array([0, 2], np.int64),
    "rows_back": np.array([0, -1], np.int64),
    "half": np.float32(0.5),
    "two": np.float32(2),
    "three": np.float32(3),
    "zero": np.float32(0),
    "minus_zero": np.float32(-0.0),
    "one": np.float32(1),
    "six": np.float32(6),
    "six_and": np.float32(6.5),
    "large": np.float32(1e30),
    "itwo": np.int64(2),
    "ithree": np.int64(3),
    "tiny": np.float32(1e-5),
    "h2": np.float16(2),
    "hhalf": np.float16(0.5),
    "s1_8": np.array([1, 8], np.int64),
    "s0_8": np.array([0, 8], np.int64),
    "sm1_8": np.array([-1, 8], np.int64),
    "sm1": np.array([-1], np.int64),
    "s2_4": np.array([2, 4], np.int64),
    "s4_2": np.array([4, 2], np.int64),
    "ax0": np.array([0], np.int64),
    "ax1": np.array([1], np.int64),
    "from1": np.array([1], np.int64),
    "to3": np.array([3], np.int64),
    "to4": np.array([4], np.int64),
    "trips3": np.int64(3),
    "trips4": np.int64(4),
    "yes": np.bool_(True),
    "ratio": np.float32(0.5),
    "q_scale": np.float32(0.05),
    "q_zero": np.uint8(128),
    "q_zero_off": np.uint8(127),
    "k1": np.array([1], np.int64),
    "k2": np.array([2], np.int64),
    "pads": np.array([0, 1, 0, 1], np.int64),
    "pads_left": np.array([0, 2, 0, 0], np.int64),
    "ax123": np.array([1, 2, 3], np.int64),
    "first": np.int64(0),
    "no": np.bool_(False),
    "no_rows": np.array([[False]]),
    "shift": np.uint8(1),
    "ones8": np.ones(8, np.float32),
    "third": np.float32(1 / 3),
    "tenth": np.float64(0.1),
}


@dataclass(frozen=True)
class Case:
    """One edit. io: ``inputs => outputs`` of both graphs. after_io: where the edit changes them.

    exact: the edit claims to change no bit. shown: words that must be said of a wrong edit.
    defaults: inputs that have the weight of their name as default.
    """

    name: str
    io: str
    before: str
    after: str
    after_io: str = ""
    exact: bool = False
    opset: int = 17
    shown: str = ""
    defaults: tuple[str, ...] = ()

    @property
    def original(self) -> onnx.ModelProto:
        """The model before the edit."""
        return self._build(self.io, self.before)

    @property
    def edited(self) -> onnx.ModelProto:
        """The model after it."""
        return self._build(self.after_io or self.io, self.after)

    def _build(self, io: str, body: str) -> onnx.ModelProto:
        inputs, outputs = io.split("=>")
        versions = f'<ir_version: 8, opset_import: ["" : {self.opset}, "com.example" : 1]>'
        model = parser.parse_model(f"{versions} g ({inputs}) => ({outputs}) {{ {body} }}")
        given = {value.name for value in model.graph.input} - set(self.defaults)
        wanted = (_reads(model.graph) | set(self.defaults)) - given
        stored = sorted(wanted & WEIGHTS.keys())
        model.graph.initializer.extend(numpy_helper.from_array(np.asarray(WEIGHTS[n]), n) for n in stored)
        return model


def _reads(graph: onnx.GraphProto) -> set[str]:
    """Return every name that a graph and its subgraphs read."""
    found = {output.name for output in graph.output}
    for node in graph.node:
        found.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= _reads(attribute.g)
    return found


SAME = "float[N,8] x => float[N,8] y"
VEC = "float[N,8] x => float[N,4] y"
CUT = "float[N,8] x => float[N,A] y"
WHOLE = "int64[N] x => int64[N] y"
TWO = "float[N,8] x => float[N,8] y, float[N,8] z"
HALF = "float16[N,8] x => float16[N,8] y"
PICTURE = "float[N,3,H,W] x => float[N,4,A,B] y"

CONV_BN = "c = Conv<pads=[1,1,1,1]>(x, conv, conv_bias) y = BatchNormalization(c, scale, bias, mean, var)"
QDQ = "q = QuantizeLinear(x, q_scale, {0}) y = DequantizeLinear(q, q_scale, {0})"
BRANCHES = """m = ReduceMax<keepdims=0>(x) cond = Greater(m, half)
    y = If(cond) <then_branch = t () => (float[N,8] a) {{ a = {0}(x) }},
                  else_branch = e () => (float[N,8] b) {{ b = {1}(x) }}>"""
LOOP = """y = Loop({0}, yes, x) <body = l (int64 i, bool c, float[N,8] s) => (bool d, float[N,8] r)
    {{ d = Identity(c) r = Mul(s, half) }}>"""
FILL = "s = Shape(x) y = Expand({0}, s)"

WEIGHTS_WRONG = (
    Case("weight scaled by 1.001", VEC, "y = MatMul(x, w)", "y = MatMul(x, w_more)"),
    Case("one element of a weight", VEC, "y = MatMul(x, w)", "y = MatMul(x, w_one)"),
    Case("weight not transposed", SAME, "y = MatMul(x, square)", "y = Gemm<transB=1>(x, square)"),
    Case("bias dropped", VEC, "m = MatMul(x, w) y = Add(m, b)", "y = MatMul(x, w)"),
    Case("order of a product", SAME, "m = MatMul(x, square) y = MatMul(m, square2)",
         "m = MatMul(x, square2) y = MatMul(m, square)"),
    Case("root forgotten in a norm", PICTURE, CONV_BN,
         "y = Conv<pads=[1,1,1,1]>(x, conv_folded_wrong, bias_folded)"),
    Case("mean forgotten", PICTURE, CONV_BN, "y = Conv<pads=[1,1,1,1]>(x, conv_folded, bias_folded_wrong)"),
    Case("bias not scaled", PICTURE, CONV_BN, "y = Conv<pads=[1,1,1,1]>(x, conv_folded, bias_unscaled)"),
    Case("sum moved over padding", PICTURE, "a = Add(x, half) y = Conv<pads=[1,1,1,1]>(a, conv)",
         "s = ReduceSum<keepdims=0>(conv, ax123) u = Mul(s, half) y = Conv<pads=[1,1,1,1]>(x, conv, u)"),
    Case("zero point", SAME, QDQ.format("q_zero"), QDQ.format("q_zero_off")),
    Case("quantisation dropped", SAME, QDQ.format("q_zero"), "y = Identity(x)"),
    Case("input with a default folded", "float[N,8] x, float[8] b8 => float[N,8] y", "y = Add(x, b8)",
         "c = Constant<value = float[8] {1,1,1,1,1,1,1,1}>() t = Mul(b8, zero) y = Add(x, c)",
         defaults=("b8",)),
    Case("default folded where it is not overridden", "float[N,8] x, float[8] ones8 => float[N,8] y",
         "y = Mul(x, ones8)", "y = Identity(x)", defaults=("ones8",)),
)  # fmt: skip

ATTRIBUTES_WRONG = (
    Case("axis of softmax", SAME, "y = Softmax<axis=-1>(x)", "y = Softmax<axis=0>(x)"),
    Case("permutation", "float[N,3,3] x => float[A,B,C] y", "y = Transpose<perm=[0,2,1]>(x)",
         "y = Identity(x)"),
    Case("order of concat", TWO.replace("y, float[N,8] z", "u"), "n = Neg(x) u = Concat<axis=0>(x, n)",
         "n = Neg(x) u = Concat<axis=0>(n, x)"),
    Case("epsilon", SAME, "y = LayerNormalization<epsilon=1e-5>(x, b8)",
         "y = LayerNormalization<epsilon=1e-6>(x, b8)"),
    Case("mean over another axis", "float[N,8,8] x => float[N,8] y",
         "y = ReduceMean<axes=[1], keepdims=0>(x)", "y = ReduceMean<axes=[2], keepdims=0>(x)"),
    Case("gelu by tanh", SAME, "y = Gelu(x)", 'y = Gelu<approximate="tanh">(x)', opset=20),
    Case("smallest for largest", SAME.replace("N,8] y", "N,2] y"), "y, i = TopK(x, k2)",
         "y, i = TopK<largest=0>(x, k2)"),
    Case("last of equals", "float[N,8] x => int64[N,1] y", "y = ArgMax<axis=1>(x)",
         "y = ArgMax<axis=1, select_last_index=1>(x)"),
    Case("padding on one side", CUT, "y = Pad(x, pads)", "y = Pad(x, pads_left)"),
    Case("slice off by one", CUT, "y = Slice(x, from1, to4, ax1)", "y = Slice(x, from1, to3, ax1)"),
    Case("gathered rows", "float[3,N] x => float[2,N] y", "y = Gather(x, rows)",
         "y = Slice(x, ax0, k2, ax0)"),
    Case("padding counted in an average", "float[N,3,H,W] x => float[N,3,A,B] y",
         "y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(x)",
         "y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(x)"),
    Case("groups of a convolution", "float[N,4,H,W] x => float[N,4,H,W] y",
         "y = Conv<group=4>(x, depth)", "y = Conv(x, full)"),
    Case("running sum without the last", SAME, "y = CumSum(x, first)", "y = CumSum<exclusive=1>(x, first)"),
    Case("wrong branch", SAME, BRANCHES.format("Neg", "Abs"), BRANCHES.format("Abs", "Neg")),
    Case("a branch taken for always", SAME, BRANCHES.format("Neg", "Abs"), "y = Neg(x)"),
    Case("trips of a loop", SAME, LOOP.format("trips3"), LOOP.format("trips4")),
    Case("outputs swapped", TWO, "y = Neg(x) z = Abs(x)", "z = Neg(x) y = Abs(x)"),
)  # fmt: skip

NUMBERS_WRONG = (
    Case("minus zero lost", SAME, "y = Neg(x)", "n = Neg(x) y = Add(n, zero)", exact=True),
    Case("minus zero kept", SAME, "y = Add(x, zero)", "y = Identity(x)", exact=True),
    Case("division by a reciprocal", SAME, "y = Div(x, three)", "y = Mul(x, third)", exact=True),
    Case("float16 in between", SAME, "h = Cast<to=10>(x) y = Cast<to=1>(h)", "y = Identity(x)"),
    Case("integers in between", SAME, "i = Cast<to=7>(x) y = Cast<to=1>(i)", "y = Identity(x)"),
    Case("float32 between integers", WHOLE, "f = Cast<to=1>(x) y = Cast<to=7>(f)", "y = Identity(x)"),
    Case("int32 between integers", WHOLE, "f = Cast<to=6>(x) y = Cast<to=7>(f)", "y = Identity(x)"),
    Case("NaN stopped by relu", SAME, "y = Relu(x)", "g = Greater(x, zero) y = Where(g, x, zero)"),
    Case("NaN stopped by max", SAME, "y = Max(x, half)", "g = Greater(x, half) y = Where(g, x, half)"),
    Case("x - x is not 0", SAME, "d = Sub(x, x) y = Add(d, one)", FILL.format("one")),
    Case("0 * x is not 0", SAME, "y = Mul(x, zero)", FILL.format("zero")),
    Case("x / x is not 1", SAME, "y = Div(x, x)", FILL.format("one")),
    Case("whole division by multiplication", WHOLE, "y = Div(x, itwo)",
         "f = Cast<to=1>(x) g = Mul(f, half) y = Cast<to=7>(g)"),
    Case("division cancelled", WHOLE, "d = Div(x, ithree) y = Mul(d, ithree)", "y = Identity(x)"),
    Case("overflow cancelled", WHOLE, "d = Mul(x, ithree) y = Div(d, ithree)", "y = Identity(x)"),
    Case("sum in a wider dtype", "int32[N] x => int64[N] y", "a = Add(x, x) y = Cast<to=7>(a)",
         "c = Cast<to=7>(x) y = Add(c, c)"),
    Case("bytes that wrap around", "uint8[N] x => int32[N] y", "a = Add(x, x) y = Cast<to=6>(a)",
         "c = Cast<to=6>(x) y = Add(c, c)"),
    Case("halves rounded up", SAME, "m = Mul(x, half) y = Round(m)",
         "m = Mul(x, half) a = Add(m, half) y = Floor(a)"),
    Case("sign of a remainder", WHOLE, "y = Mod(x, ithree)", "y = Mod<fmod=1>(x, ithree)"),
    Case("lower bound dropped", SAME, "y = Clip(x, zero, six)", "y = Min(x, six)"),
    Case("upper bound changed", SAME, "y = Clip(x, zero, six)", "y = Clip(x, zero, six_and)"),
    Case("a bound that only large values reach", SAME, "y = Min(x, large)", "y = Identity(x)"),
    Case("overflow of half precision", HALF, "a = Mul(x, x) c = Mul(a, a) y = Sqrt(c)", "y = Mul(x, x)"),
    Case("squares in half precision", "float16[N,8] x => float16[N,1] y",
         "f = Cast<to=1>(x) q = Mul(f, f) m = ReduceMean<axes=[-1]>(q) r = Sqrt(m) y = Cast<to=10>(r)",
         "q = Mul(x, x) m = ReduceMean<axes=[-1]>(q) y = Sqrt(m)"),
    Case("index from the back", "int64[N] i => float[N,4] y", "y = Gather(table, i)",
         "m = Abs(i) y = Gather(table, m)"),
    Case("power of a negative number", SAME, "y = Pow(x, three)", "a = Abs(x) y = Pow(a, three)"),
    Case("infinities of opposite sign", SAME, "m = MatMul(x, square) y = MatMul(m, square2)",
         "y = MatMul(x, square12)"),
    Case("root of a square", SAME, "q = Mul(x, x) y = Sqrt(q)", "y = Identity(x)"),
)  # fmt: skip

SIZES_WRONG = (
    Case("batch of 1 in a reshape", SAME, "y = Reshape(x, sm1_8)", "y = Reshape(x, s1_8)"),
    Case("sum over one row", "float[N,8] x => float[1,8] y", "y = ReduceSum<keepdims=1>(x, ax0)",
         "y = Slice(x, ax0, ax1, ax0)"),
    Case("a size taken for 1", SAME, "s = Shape<end=1>(x) f = Cast<to=1>(s) y = Mul(x, f)",
         "y = Identity(x)"),
    Case("squeezed too far", "float[N,1,8] x => float[A,B] y", "y = Squeeze(x, ax1)", "y = Squeeze(x)"),
    Case("an empty batch refused", SAME, "y = Identity(x)", "f = Gather(x, first) y = Where(no_rows, f, x)"),
)  # fmt: skip

INTERFACE_WRONG = (
    Case("outputs in another order", TWO, "y = Neg(x) z = Abs(x)", "y = Neg(x) z = Abs(x)",
         after_io="float[N,8] x => float[N,8] z, float[N,8] y", shown="another order"),
    Case("output renamed", SAME, "y = Neg(x)", "z = Neg(x)", after_io="float[N,8] x => float[N,8] z",
         shown="output 'y' is gone"),
    Case("input dropped", "float[N,8] x, float u => float[N,8] y", "y = Neg(x)", "y = Neg(x)",
         after_io=SAME, shown="input 'u' is gone"),
    Case("symbol renamed", SAME, "y = Neg(x)", "y = Neg(x)", after_io="float[M,8] x => float[M,8] y",
         shown="was declared [N, 8] and is declared [M, 8]"),
    Case("size fixed unasked", SAME, "y = Neg(x)", "y = Neg(x)", after_io="float[1,8] x => float[1,8] y",
         shown="is declared [1, 8]"),
    Case("dtype of an input", SAME, "y = Neg(x)", "c = Cast<to=1>(x) y = Neg(c)",
         after_io="double[N,8] x => float[N,8] y", shown="input 'x' was FLOAT"),
    Case("random numbers folded", SAME, "r = RandomNormal<shape=[8]>() y = Add(x, r)", "y = Add(x, b8)",
         shown="is random"),
    Case("dropout in training dropped", SAME, "y = Dropout(x, half, yes)", "y = Identity(x)",
         shown="is random"),
)  # fmt: skip

WRONG = (*WEIGHTS_WRONG, *ATTRIBUTES_WRONG, *NUMBERS_WRONG, *SIZES_WRONG, *INTERFACE_WRONG)

RIGHT = (
    Case("nothing", SAME, "y = Neg(x)", "y = Neg(x)", exact=True),
    Case("identity removed", SAME, "i = Identity(x) y = Neg(i)", "y = Neg(x)", exact=True),
    Case("dropout that drops nothing", SAME, "d = Dropout(x, half) y = Neg(d)", "y = Neg(x)", exact=True),
    Case("constants folded", SAME, "c = Add(b8, ones8) y = Mul(x, c)",
         "c = Add(ones8, b8) y = Mul(x, c)", exact=True),
    Case("transposes cancelled", "float[N,3,5] x => float[N,3,5] y",
         "t = Transpose<perm=[0,2,1]>(x) r = Relu(t) y = Transpose<perm=[0,2,1]>(r)", "y = Relu(x)",
         exact=True),
    Case("batch norm in a convolution", PICTURE, CONV_BN,
         "y = Conv<pads=[1,1,1,1]>(x, conv_folded, bias_folded)"),
    Case("gemm for product and sum", VEC, "m = MatMul(x, w) y = Add(m, b)", "y = Gemm(x, w, b)"),
    Case("gemm with the other layout", VEC, "y = MatMul(x, w)", "y = Gemm<transB=1>(x, wt)"),
    Case("division by a reciprocal", SAME, "y = Div(x, three)", "y = Mul(x, third)"),
    Case("lossless casts", HALF, "f = Cast<to=1>(x) y = Cast<to=10>(f)", "y = Identity(x)", exact=True),
    Case("softmax from its parts", SAME,
         "m = ReduceMax<axes=[-1]>(x) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, ax1) y = Div(e, s)",
         "y = Softmax<axis=-1>(x)"),
    Case("layer norm from its parts", SAME,
         "m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) "
         "a = Add(v, tiny) r = Sqrt(a) n = Div(d, r) y = Mul(n, b8)",
         "y = LayerNormalization<epsilon=1e-5>(x, b8)"),
    Case("reshape that keeps the batch", SAME, "s = Shape(x) y = Reshape(x, s)", "y = Reshape(x, sm1_8)"),
    Case("dead nodes", SAME, "d = Exp(x) y = Neg(x)", "y = Neg(x)", exact=True),
    Case("a loop unrolled", SAME, LOOP.format("trips3"),
         "a = Mul(x, half) b2 = Mul(a, half) y = Mul(b2, half)", exact=True),
    Case("random numbers left alone", TWO,
         "r = RandomNormal<shape=[8]>() y = Add(x, r) i = Identity(x) z = Neg(i)",
         "r = RandomNormal<shape=[8]>() y = Add(x, r) z = Neg(x)"),
    Case("strings", "string[N] x => string[N] y", "i = Identity(x) y = Identity(i)", "y = Identity(x)",
         exact=True),
    Case("sequences", "float[N,8] x => seq(float[N,8]) y", "n = Neg(x) y = SequenceConstruct(x, n)",
         "n = Neg(x) a = Identity(x) y = SequenceConstruct(a, n)", exact=True),
    Case("double precision", "double[N,8] x => double[N,8] y", "a = Mul(x, tenth) y = Add(a, x)",
         "a = Mul(tenth, x) y = Add(x, a)"),
    Case("an output that states more", "float[N,8] x => float[N,?] y", "y = Neg(x)", "y = Neg(x)",
         after_io=SAME, exact=True),
)  # fmt: skip
