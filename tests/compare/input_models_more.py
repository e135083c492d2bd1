"""More small models: architectures whose sizes or values come from far away."""

import numpy as np
import onnx

from tests.compare.input_models import build, model


@model
def grouped_query_attention() -> onnx.ModelProto:
    """The lengths that the fused attention takes are counted from the mask and its shape."""
    return build(
        "int64[batch_size, sequence_length] input_ids,"
        "int64[batch_size, total_sequence_length] attention_mask,"
        "float[batch_size, 2, past_sequence_length, 8] past_key_values_0_key,"
        "float[batch_size, 2, past_sequence_length, 8] past_key_values_0_value",
        "float[b, s, 32] y, float[b, 2, t, 8] present_0_key, float[b, 2, t, 8] present_0_value",
        """
        e = Gather (w, input_ids)
        q = MatMul (e, wq)
        k = MatMul (e, wk)
        v = MatMul (e, wv)
        axes = Constant <value = int64[1] {1}> ()
        one = Constant <value = int64 {1}> ()
        counted = ReduceSum <keepdims = 0> (attention_mask, axes)
        last = Sub (counted, one)
        last32 = Cast <to = 6> (last)
        shape = Shape (attention_mask)
        total = Gather (shape, one)
        total32 = Cast <to = 6> (total)
        y, present_0_key, present_0_value = com.microsoft.GroupQueryAttention
            <num_heads = 4, kv_num_heads = 2>
            (q, k, v, past_key_values_0_key, past_key_values_0_value, last32, total32)
        """,
        {"w": (100, 16), "wq": (16, 32), "wk": (16, 16), "wv": (16, 16)},
    )


@model
def speech_encoder() -> onnx.ModelProto:
    """Positions are added behind a stride of 2: only 3000 frames fit, one frame would be stretched."""
    return build(
        "float[batch, feature_size, encoder_sequence_length] input_features",
        "float[batch, t, 16] y",
        """
        a = Conv <kernel_shape = [3], pads = [1, 1]> (input_features, w1)
        g = Relu (a)
        b = Conv <kernel_shape = [3], pads = [1, 1], strides = [2]> (g, w2)
        t = Transpose <perm = [0, 2, 1]> (b)
        y = Add (t, positions)
        """,
        {"w1": (16, 80, 3), "w2": (16, 16, 3), "positions": (1500, 16)},
    )


@model
def patches_with_positions() -> onnx.ModelProto:
    """All four sizes are open; the table of positions has 196 rows."""
    return build(
        "float[batch, num_channels, height, width] pixel_values",
        "float[batch, n, 8] y",
        """
        c = Conv <kernel_shape = [16, 16], strides = [16, 16]> (pixel_values, w)
        s = Shape <start = 0, end = 2> (c)
        rest = Constant <value = int64[1] {-1}> ()
        target = Concat <axis = 0> (s, rest)
        r = Reshape (c, target)
        t = Transpose <perm = [0, 2, 1]> (r)
        y = Add (t, positions)
        """,
        {"w": (8, 3, 16, 16), "positions": (196, 8)},
    )


@model
def video_classifier() -> onnx.ModelProto:
    """Five axes: pictures in a row."""
    return build(
        "float[B, 3, T, H, W] clip",
        "float[B, 4, a, b, c] y",
        "y = Conv <kernel_shape = [3, 7, 7], strides = [2, 4, 4]> (clip, w)",
        {"w": (4, 3, 3, 7, 7)},
    )


@model
def two_towers() -> onnx.ModelProto:
    """Vectors alone: one of each would give a single number."""
    return build(
        "float[u, 32] user, float[i, 32] item",
        "float[u, i] y",
        "t = Transpose <perm = [1, 0]> (item)\n y = MatMul (user, t)",
    )


@model
def folded_frames() -> onnx.ModelProto:
    """Nothing has a size; frames are folded into rows of 160."""
    return build(
        "float[?, ?, ?] feats",
        "float[a, b] y",
        "s = Constant <value = int64[2] {-1, 160}> ()\n r = Reshape (feats, s)\n y = MatMul (r, w)",
        {"w": (160, 2)},
    )


@model
def sinusoidal_positions() -> onnx.ModelProto:
    """Tokens come time first; a table of positions is cut to their number."""
    return build(
        "int64[S, N] src",
        "float[S, N, 8] y",
        """
        e = Gather (w, src)
        s = Shape (src)
        zero = Constant <value = int64[1] {0}> ()
        one = Constant <value = int64[1] {1}> ()
        n = Slice (s, zero, one)
        p = Slice (positions, zero, n, zero)
        y = Add (e, p)
        """,
        {"w": (50, 8), "positions": np.ones((40, 1, 8), "f")},
    )


@model
def integer_division() -> onnx.ModelProto:
    """No divisor may be 0."""
    return build("int64[n] a, int64[n] b", "int64[n] y", "y = Div (a, b)")


@model
def quantised_picture() -> onnx.ModelProto:
    """The picture comes as uint8 into a quantised convolution."""
    rng = np.random.default_rng(0)
    weights = {
        "xs": np.float32(0.02),
        "xz": np.uint8(0),
        "w": rng.integers(-90, 90, (4, 3, 3, 3)).astype(np.int8),
        "ws": np.float32(0.01),
        "wz": np.int8(0),
        "ys": np.float32(0.05),
        "yz": np.uint8(10),
    }
    body = "y = QLinearConv <kernel_shape = [3, 3]> (x, xs, xz, w, ws, wz, ys, yz)"
    return build("uint8[1, 3, h, w] x", "uint8[1, 4, a, b] y", body, weights)


@model
def bidirectional_batch_first() -> onnx.ModelProto:
    """The layer's time axis is the input's second; its states come from one input."""
    return build(
        "float[batch, T, F] x, float[2, batch, 6] h_in",
        "float[T, batch, 12] y",
        """
        t = Transpose <perm = [1, 0, 2]> (x)
        yy, h, c = LSTM <hidden_size = 6, direction = "bidirectional"> (t, w, r, b, , h_in, h_in)
        tr = Transpose <perm = [0, 2, 1, 3]> (yy)
        s = Constant <value = int64[3] {0, 0, -1}> ()
        y = Reshape (tr, s)
        """,
        {"w": (2, 24, 40), "r": (2, 24, 6), "b": (2, 48)},
    )
