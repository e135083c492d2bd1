"""Small models for the comparison's tests, in ONNX's text form."""

import numpy as np
import onnx
from onnx import parser


def model(text: str) -> onnx.ModelProto:
    """Parse and check a model."""
    result = parser.parse_model(text)
    onnx.checker.check_model(result)
    return result


def weights(proto: onnx.ModelProto, **arrays: np.ndarray) -> onnx.ModelProto:
    """Add initializers."""
    for name, array in arrays.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def mlp(seed: int = 0, *, opset: int = 17) -> onnx.ModelProto:
    """x → MatMul, Add, Relu, MatMul, Softmax."""
    rng = np.random.default_rng(seed)
    proto = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : {opset}]>
        mlp (float[N, 16] x) => (float[N, 8] y) {{
            h = MatMul(x, w1)
            hb = Add(h, b1)
            r = Relu(hb)
            z = MatMul(r, w2)
            y = Softmax <axis = -1> (z)
        }}""")
    return weights(
        proto,
        w1=rng.standard_normal((16, 32)).astype(np.float32),
        b1=rng.standard_normal(32).astype(np.float32),
        w2=rng.standard_normal((32, 8)).astype(np.float32),
    )


def convolutions(seed: int = 0) -> onnx.ModelProto:
    """A small residual block with batch normalisation and pooling."""
    rng = np.random.default_rng(seed)
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        block (float[1, 3, 16, 16] x) => (float[1, 5] y) {
            c1 = Conv <pads = [1, 1, 1, 1]> (x, k1)
            n1 = BatchNormalization <epsilon = 1e-5> (c1, gamma, beta, mean, var)
            r1 = Relu(n1)
            c2 = Conv <pads = [1, 1, 1, 1]> (r1, k2)
            s = Add(c2, r1)
            p = GlobalAveragePool(s)
            f = Flatten(p)
            y = Gemm <transB = 1> (f, wf, bf)
        }""")
    f32 = np.float32
    return weights(
        proto,
        k1=rng.standard_normal((8, 3, 3, 3)).astype(f32),
        k2=(rng.standard_normal((8, 8, 3, 3)) / 8).astype(f32),
        gamma=rng.uniform(0.5, 1.5, 8).astype(f32),
        beta=rng.standard_normal(8).astype(f32),
        mean=rng.standard_normal(8).astype(f32),
        var=rng.uniform(0.5, 2, 8).astype(f32),
        wf=rng.standard_normal((5, 8)).astype(f32),
        bf=rng.standard_normal(5).astype(f32),
    )


def attention(seed: int = 0) -> onnx.ModelProto:
    """One attention block over token ids, layer normalisation, and a vocabulary projection."""
    rng = np.random.default_rng(seed)
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        attention (int64[B, S] ids) => (float[B, S, 40] logits) {
            e = Gather(table, ids)
            q = MatMul(e, wq)
            k = MatMul(e, wk)
            v = MatMul(e, wv)
            kt = Transpose <perm = [0, 2, 1]> (k)
            s = MatMul(q, kt)
            scaled = Mul(s, scale)
            a = Softmax <axis = -1> (scaled)
            o = MatMul(a, v)
            r = Add(o, e)
            n = LayerNormalization <axis = -1, epsilon = 1e-5> (r, gamma, beta)
            logits = MatMul(n, head)
        }""")
    f32 = np.float32
    return weights(
        proto,
        table=rng.standard_normal((40, 24)).astype(f32),
        wq=(rng.standard_normal((24, 24)) / 5).astype(f32),
        wk=(rng.standard_normal((24, 24)) / 5).astype(f32),
        wv=(rng.standard_normal((24, 24)) / 5).astype(f32),
        scale=np.float32(0.2).reshape(()),
        gamma=rng.uniform(0.5, 1.5, 24).astype(f32),
        beta=rng.standard_normal(24).astype(f32),
        head=rng.standard_normal((24, 40)).astype(f32),
    )


def recurrent(seed: int = 0) -> onnx.ModelProto:
    """A bidirectional LSTM and a GRU."""
    rng = np.random.default_rng(seed)
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        recurrent (float[T, 2, 6] x) => (float[T, 2, 5] y) {
            l, lh, lc = LSTM <hidden_size = 4, direction = "bidirectional"> (x, w, r, b)
            t = Transpose <perm = [0, 2, 1, 3]> (l)
            f = Reshape(t, shape)
            g, gh = GRU <hidden_size = 5> (f, gw, gr)
            y = Squeeze(g, one)
        }""")
    f32 = np.float32
    return weights(
        proto,
        w=rng.standard_normal((2, 16, 6)).astype(f32),
        r=rng.standard_normal((2, 16, 4)).astype(f32),
        b=rng.standard_normal((2, 32)).astype(f32),
        gw=rng.standard_normal((1, 15, 8)).astype(f32),
        gr=rng.standard_normal((1, 15, 5)).astype(f32),
        shape=np.array([0, 2, -1]),
        one=np.array([1]),
    )


def quantised(seed: int = 0) -> onnx.ModelProto:
    """Quantise, dequantise, multiply by dequantised int8 weights."""
    rng = np.random.default_rng(seed)
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 19]>
        quantised (float[N, 16] x) => (float[N, 8] y) {
            q = QuantizeLinear(x, sx, zx)
            d = DequantizeLinear(q, sx, zx)
            w = DequantizeLinear(wq, sw, zw)
            m = MatMul(d, w)
            y = Sigmoid(m)
        }""")
    return weights(
        proto,
        sx=np.float32(0.03).reshape(()),
        zx=np.uint8(128).reshape(()),
        wq=rng.integers(-127, 127, (16, 8)).astype(np.int8),
        sw=np.float32(0.01).reshape(()),
        zw=np.int8(0).reshape(()),
    )


NESTED = """
    <ir_version: 8, opset_import: ["" : 17]>
    nested (float[2] x, int64 n, bool flag) => (float[2] y, float[K, 2] s) {
        two = Constant <value = float {2}> ()
        base = Mul(x, two)
        y, s = Loop(n, , base) <body = step (int64 i, bool go, float[2] a)
            => (bool on, float[2] next, float[2] row) {
            on = Identity(go)
            next = If(flag)
                <then_branch = grow () => (float[2] up) { inner = Add(a, base)  up = Mul(inner, two) },
                 else_branch = shrink () => (float[2] down) { inner = Sub(a, base)  down = Neg(inner) }>
            row = Sub(next, x)
        }>
    }"""
"""An If inside a Loop; the branches capture values two levels up and use one name twice."""

SCAN = """
    <ir_version: 8, opset_import: ["" : 17]>
    running (float[2] start, float[T, 2] x) => (float[2] last, float[T, 2] sums) {
        last, sums = Scan <num_scan_inputs = 1, body = step (float[2] a, float[2] e)
            => (float[2] b, float[2] out) {
            b = Add(a, e)
            half = Mul(b, h)
            out = Relu(half)
        }> (start, x)
    }"""


def nested() -> onnx.ModelProto:
    """See NESTED."""
    return model(NESTED)


def scan() -> onnx.ModelProto:
    """See SCAN."""
    return weights(parser.parse_model(SCAN), h=np.float32(0.5).reshape(()))
