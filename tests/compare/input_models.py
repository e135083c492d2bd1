"""Small models of the kinds people bring, each with an oddity that thoughtless inputs trip over."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

DOMAINS = ("com.microsoft", "ai.onnx.ml")


def build(
    inputs: str,
    outputs: str,
    body: str,
    weights: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    dims: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """Return a model from ONNX text.

    weights: name → shape (drawn) or array. dims: symbol in the text → symbol in the model, for symbols that
    the text format cannot spell.
    """
    imports = ", ".join(f'"{domain}": 1' for domain in DOMAINS)
    text = f'<ir_version: 8, opset_import: ["": {opset}, {imports}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(7)
    for name, given in (weights or {}).items():
        drawn = isinstance(given, tuple)
        array = (rng.standard_normal(given) / max(given[0], 4)).astype("f") if drawn else np.asarray(given)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in (dims or {}):
                dim.dim_param = dims[dim.dim_param]
    return model


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {}


def model(function: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    """Collect a builder under its name."""
    MODELS[function.__name__] = function
    return function


# ---- text ---------------------------------------------------------------------------------------------


@model
def decoder_with_cache() -> onnx.ModelProto:
    """The mask covers cache and tokens, its symbol is a formula; positions index a table of 40."""
    return build(
        "int64[batch, seq] input_ids, int64[batch, total] attention_mask, int64[batch, seq] position_ids,"
        "float[batch, 2, past, 8] past_key_values_0_key, float[batch, 2, past, 8] past_key_values_0_value",
        "float[batch, seq, 16] y, float[batch, 2, t2, 8] present_0_key",
        """
        e = Gather (w, input_ids)
        p = Gather (wp, position_ids)
        x = Add (e, p)
        s = Constant <value = int64[4] {0, -1, 2, 8}> ()
        r = Reshape (x, s)
        q = Transpose <perm = [0, 2, 1, 3]> (r)
        present_0_key = Concat <axis = 2> (past_key_values_0_key, q)
        v = Concat <axis = 2> (past_key_values_0_value, q)
        kt = Transpose <perm = [0, 1, 3, 2]> (present_0_key)
        a = MatMul (q, kt)
        m = Cast <to = 1> (attention_mask)
        axes = Constant <value = int64[2] {1, 2}> ()
        m4 = Unsqueeze (m, axes)
        one = Constant <value = float {1.0}> ()
        low = Constant <value = float {-10000.0}> ()
        inv = Sub (one, m4)
        bias = Mul (inv, low)
        b = Add (a, bias)
        soft = Softmax <axis = -1> (b)
        o = MatMul (soft, v)
        ot = Transpose <perm = [0, 2, 1, 3]> (o)
        s2 = Constant <value = int64[3] {0, -1, 16}> ()
        y = Reshape (ot, s2)
        """,
        {"w": (120, 16), "wp": (40, 16)},
        dims={"total": "past_sequence_length + sequence_length", "past": "past_sequence_length"}
        | {"seq": "sequence_length"},
    )


@model
def cross_attention_decoder() -> onnx.ModelProto:
    """The encoder's length has a symbol of its own; its features must be as many as the weight's rows."""
    return build(
        "int64[batch, decoder_sequence_length] decoder_input_ids,"
        "float[batch, encoder_sequence_length, hidden] encoder_hidden_states,"
        "int64[batch, encoder_sequence_length] encoder_attention_mask",
        "float[batch, decoder_sequence_length, 16] y",
        """
        q = Gather (w, decoder_input_ids)
        k = MatMul (encoder_hidden_states, wk)
        kt = Transpose <perm = [0, 2, 1]> (k)
        a = MatMul (q, kt)
        zero = Constant <value = int64 {0}> ()
        off = Equal (encoder_attention_mask, zero)
        axes = Constant <value = int64[1] {1}> ()
        off3 = Unsqueeze (off, axes)
        low = Constant <value = float {-10000.0}> ()
        b = Where (off3, low, a)
        p = Softmax <axis = -1> (b)
        y = MatMul (p, k)
        """,
        {"w": (50, 16), "wk": (24, 16)},
    )


@model
def padding_mask_true_leaves_out() -> onnx.ModelProto:
    """True means left out: ones everywhere would make every output NaN."""
    return build(
        "int64[N, L] tokens, bool[N, L] key_padding_mask",
        "float[N, L, 8] y",
        """
        e = Gather (w, tokens)
        et = Transpose <perm = [0, 2, 1]> (e)
        a = MatMul (e, et)
        axes = Constant <value = int64[1] {1}> ()
        m = Unsqueeze (key_padding_mask, axes)
        b = Where (m, low, a)
        p = Softmax <axis = -1> (b)
        y = MatMul (p, e)
        """,
        {"w": (30, 8), "low": np.float32(-np.inf)},
    )


@model
def fields_with_offsets() -> onnx.ModelProto:
    """Each column has its own stretch of one table: the largest offset bounds the ids."""
    return build(
        "int64[rows, 3] fields",
        "float[rows, 1] y",
        """
        shifted = Add (fields, offsets)
        e = Gather (w, shifted)
        s = Constant <value = int64[2] {-1, 12}> ()
        flat = Reshape (e, s)
        y = MatMul (flat, v)
        """,
        {"w": (60, 4), "v": (12, 1), "offsets": np.array([0, 10, 30], dtype=np.int64)},
    )


@model
def graph_network() -> onnx.ModelProto:
    """The table is itself an input: edges must point at nodes that exist."""
    return build(
        "float[nodes, features] x, int64[2, edges] edge_index",
        "float[nodes, 6] y",
        """
        zero = Constant <value = int64 {0}> ()
        one = Constant <value = int64 {1}> ()
        source = Gather <axis = 0> (edge_index, zero)
        target = Gather <axis = 0> (edge_index, one)
        h = MatMul (x, w)
        messages = Gather <axis = 0> (h, source)
        minus = Constant <value = int64[1] {-1}> ()
        at = Unsqueeze (target, minus)
        y = ScatterND <reduction = "add"> (h, at, messages)
        """,
        {"w": (10, 6)},
        opset=16,
    )


@model
def packed_recurrent_layer() -> onnx.ModelProto:
    """Lengths must not exceed the time axis, which comes first; the states' batch is that of the tokens."""
    return build(
        "int64[time, batch] tokens, int32[batch] lengths, float[1, b2, 5] h0, float[1, b3, 5] c0",
        "float[time, 1, batch, 5] y",
        "e = Gather (w, tokens)\n y, h, c = LSTM <hidden_size = 5> (e, wi, wr, bias, lengths, h0, c0)",
        {"w": (30, 4), "wi": (1, 20, 4), "wr": (1, 20, 5), "bias": (1, 40)},
    )


@model
def microsoft_embedding() -> onnx.ModelProto:
    """A fused embedding: words, segments and mask in one operator outside ONNX."""
    return build(
        "int32[batch, seq] a, int32[batch, seq] b, int32[batch, seq] c",
        "float[batch, seq, 8] y",
        "y, m = com.microsoft.EmbedLayerNormalization (a, b, w, p, s, gamma, beta, c)",
        {"w": (70, 8), "p": (40, 8), "s": (2, 8), "gamma": np.ones(8, "f"), "beta": np.zeros(8, "f")},
    )


@model
def speech_synthesis() -> onnx.ModelProto:
    """Lengths follow the text, the speaker indexes a table, and one scale multiplies noise."""
    return build(
        "int64[batch, text] x, int64[batch] x_lengths, float[3] scales, int64[batch] sid",
        "float[batch, text, 4] y, bool[batch, text] mask",
        """
        e = Gather (w, x)
        g = Gather (speakers, sid)
        axes = Constant <value = int64[1] {1}> ()
        g3 = Unsqueeze (g, axes)
        h = Add (e, g3)
        zero = Constant <value = int64 {0}> ()
        one = Constant <value = int64 {1}> ()
        noise_scale = Gather (scales, zero)
        length_scale = Gather (scales, one)
        noise = RandomNormalLike (h)
        n = Mul (noise, noise_scale)
        scaled = Mul (h, length_scale)
        y = Add (scaled, n)
        shape = Shape (x)
        count = Gather (shape, one)
        steps = Range (zero, count, one)
        limits = Unsqueeze (x_lengths, axes)
        mask = Less (steps, limits)
        """,
        {"w": (40, 4), "speakers": (3, 4)},
    )


# ---- pictures -----------------------------------------------------------------------------------------


@model
def text_line_recogniser() -> onnx.ModelProto:
    """Four halvings must leave a height of 1: only pictures 16 to 31 high pass."""
    return build(
        "float[N, 3, H, W] x",
        "float[N, t, 5] y",
        """
        a = Conv <strides = [4, 2], kernel_shape = [4, 2]> (x, w1)
        b = Relu (a)
        c = Conv <strides = [8, 2], kernel_shape = [8, 2]> (b, w2)
        axes = Constant <value = int64[1] {2}> ()
        s = Squeeze (c, axes)
        t = Transpose <perm = [0, 2, 1]> (s)
        y = MatMul (t, v)
        """,
        {"w1": (8, 3, 4, 2), "w2": (6, 8, 8, 2), "v": (6, 5)},
    )


@model
def pyramid_detector() -> onnx.ModelProto:
    """Down and up again with a shortcut: height and width must be multiples of 8."""
    down = "\n".join(
        f"d{i} = Conv <strides = [2, 2], kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d{i - 1}, w{i})"
        for i in (1, 2, 3)
    )
    return build(
        "uint8[batch, height, width, 3] image",
        "float[batch, c, h, w] y",
        f"""
        f = Cast <to = 1> (image)
        k = Constant <value = float {{255.0}}> ()
        n = Div (f, k)
        d0 = Transpose <perm = [0, 3, 1, 2]> (n)
        {down}
        up = Constant <value = float[4] {{1.0, 1.0, 8.0, 8.0}}> ()
        u = Resize <mode = "nearest"> (d3, , up)
        y = Concat <axis = 1> (d0, u)
        """,
        {"w1": (4, 3, 3, 3), "w2": (4, 4, 3, 3), "w3": (4, 4, 3, 3)},
    )


@model
def windowed_attention() -> onnx.ModelProto:
    """Pictures are cut into windows of 7 by a Reshape."""
    return build(
        "float[1, 3, side, side] pixels",
        "float[a, 7, b, 7, 4] y",
        """
        c = Conv <strides = [4, 4], kernel_shape = [4, 4]> (pixels, w)
        t = Transpose <perm = [0, 2, 3, 1]> (c)
        s = Shape (t)
        one = Constant <value = int64[1] {1}> ()
        two = Constant <value = int64[1] {2}> ()
        seven = Constant <value = int64[1] {7}> ()
        four = Constant <value = int64[1] {4}> ()
        zero = Constant <value = int64 {0}> ()
        h = Gather (s, one)
        v = Gather (s, two)
        hw = Div (h, seven)
        vw = Div (v, seven)
        target = Concat <axis = 0> (hw, seven, vw, seven, four)
        y = Reshape (t, target)
        """,
        {"w": (4, 3, 4, 4)},
    )


@model
def latent_denoiser() -> onnx.ModelProto:
    """Latents of 4 channels, a timestep, and text states of as many features as the weight has rows."""
    return build(
        "float[batch, 4, height, width] sample, int64[steps] timestep,"
        "float[batch, sequence, dim] encoder_hidden_states",
        "float[batch, 4, height, width] y",
        """
        c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (sample, w)
        t = Cast <to = 1> (timestep)
        k = Constant <value = float {0.001}> ()
        ts = Mul (t, k)
        st = Sin (ts)
        m = MatMul (encoder_hidden_states, v)
        mean = ReduceMean <axes = [1, 2], keepdims = 0> (m)
        a = Add (c, st)
        b = Add (a, mean)
        y = Identity (b)
        """,
        {"w": (4, 4, 3, 3), "v": (12, 1)},
    )


@model
def prompted_segmenter() -> onnx.ModelProto:
    """The size of the result is an input; points and their labels come in any number."""
    return build(
        "float[1, 8, 16, 16] embeddings, float[1, points, 2] point_coords, float[1, points] point_labels,"
        "float[2] orig_im_size",
        "float[1, 1, h, w] masks",
        """
        c = Conv <kernel_shape = [1, 1]> (embeddings, w)
        p = ReduceMean <axes = [1, 2], keepdims = 0> (point_coords)
        l = ReduceMean <axes = [1], keepdims = 0> (point_labels)
        s = Add (p, l)
        d = Add (c, s)
        size = Cast <to = 7> (orig_im_size)
        head = Constant <value = int64[2] {1, 1}> ()
        sizes = Concat <axis = 0> (head, size)
        masks = Resize <mode = "linear"> (d, , , sizes)
        """,
        {"w": (1, 8, 1, 1)},
    )


@model
def boxes_and_suppression() -> onnx.ModelProto:
    """Thresholds and counts are inputs of the suppression."""
    return build(
        "float[1, boxes, 4] boxes, float[1, 2, boxes] scores,"
        "int64[1] max_boxes, float[1] iou, float[1] least",
        "int64[n, 3] y",
        "y = NonMaxSuppression (boxes, scores, max_boxes, iou, least)",
    )


# ---- sound and series ---------------------------------------------------------------------------------


@model
def raw_audio_frontend() -> onnx.ModelProto:
    """Strided windows of 400 samples and a pooling: anything short gives nothing."""
    return build(
        "float[A, B] x",
        "float[A, 4, t] y",
        """
        axes = Constant <value = int64[1] {1}> ()
        u = Unsqueeze (x, axes)
        c = Conv <strides = [160], kernel_shape = [400]> (u, w)
        y = MaxPool <kernel_shape = [8], strides = [8]> (c)
        """,
        {"w": (4, 1, 400)},
    )


@model
def rate_switch() -> onnx.ModelProto:
    """A branch per sampling rate; each takes frames of one length only."""
    branch = "t_{0} () => (float[?, 2] r_{0}) {{ r_{0} = MatMul (pcm, w{0}) }}"
    return build(
        "float[batch, chunk] pcm, int64 sr, float[1, batch, 3] state",
        "float[batch, 2] y, float[1, batch, 3] next",
        f"""
        k = Constant <value = int64 {{16000}}> ()
        wide = Equal (sr, k)
        y = If (wide) <then_branch = {branch.format(16)}, else_branch = {branch.format(8)}>
        next = Identity (state)
        """,
        {"w16": (512, 2), "w8": (256, 2)},
    )


@model
def wave_network() -> onnx.ModelProto:
    """Down and up in one dimension: the length must be a multiple of 16."""
    return build(
        "float[B, 1, samples] mix",
        "float[B, 5, t] y",
        """
        d = Conv <strides = [16], kernel_shape = [16]> (mix, w)
        u = ConvTranspose <strides = [16], kernel_shape = [16]> (d, wt)
        y = Concat <axis = 1> (mix, u)
        """,
        {"w": (4, 1, 16), "wt": (4, 4, 16)},
    )


@model
def series_forecast() -> onnx.ModelProto:
    """The window is fixed by a weight that stands behind a Transpose."""
    return build(
        "float[batch, window, variables] history",
        "float[batch, horizon, variables] y",
        """
        t = Transpose <perm = [0, 2, 1]> (history)
        p = MatMul (t, w)
        y = Transpose <perm = [0, 2, 1]> (p)
        """,
        {"w": (96, 24)},
    )


@model
def half_precision_features() -> onnx.ModelProto:
    """float16, frames before features, with lengths in int64."""
    return build(
        "float16[batch, frames, 80] speech_features, int64[batch] speech_lengths",
        "float16[batch, frames, 4] y, int64[batch] z",
        "y = MatMul (speech_features, w)\n z = Identity (speech_lengths)",
        {"w": np.full((80, 4), 0.01, np.float16)},
    )


# ---- tables -------------------------------------------------------------------------------------------


@model
def string_columns() -> onnx.ModelProto:
    """Two columns of one input, each with its own categories; an unknown one would be all zeros."""
    return build(
        "string[rows, 2] records",
        "float[rows, 5] y",
        """
        zero = Constant <value = int64[1] {0}> ()
        one = Constant <value = int64[1] {1}> ()
        a = Gather <axis = 1> (records, zero)
        b = Gather <axis = 1> (records, one)
        ea = ai.onnx.ml.OneHotEncoder <cats_strings = ["red", "green"], zeros = 0> (a)
        eb = ai.onnx.ml.OneHotEncoder <cats_strings = ["s", "m", "l"], zeros = 0> (b)
        s2 = Constant <value = int64[2] {-1, 2}> ()
        s3 = Constant <value = int64[2] {-1, 3}> ()
        fa = Reshape (ea, s2)
        fb = Reshape (eb, s3)
        y = Concat <axis = 1> (fa, fb)
        """,
    )


@model
def scaled_columns() -> onnx.ModelProto:
    """Three inputs side by side; their scaler knows where each lies."""
    return build(
        "float[rows, 1] age, float[rows, 1] height, int64[rows, 1] shop",
        "float[rows, 3] y",
        """
        shopf = Cast <to = 1> (shop)
        all = Concat <axis = 1> (age, height, shopf)
        y = ai.onnx.ml.Scaler <offset = [40.0, 170.0, 5.0], scale = [0.1, 0.05, 1.0]> (all)
        """,
    )


@model
def tree_with_open_width() -> onnx.ModelProto:
    """Neither rows nor columns have a size; the trees read columns 0 to 6."""
    return build(
        "float[rows, columns] X",
        "float[rows, 1] y",
        """
        y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1, nodes_treeids = [0, 0, 0],
            nodes_nodeids = [0, 1, 2], nodes_featureids = [6, 0, 0], nodes_values = [250.0, 0.0, 0.0],
            nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids = [1, 0, 0],
            nodes_falsenodeids = [2, 0, 0], target_treeids = [0, 0], target_nodeids = [1, 2],
            target_ids = [0, 0], target_weights = [1.0, 2.0]> (X)
        """,
    )


# ---- control flow -------------------------------------------------------------------------------------


@model
def greedy_loop() -> onnx.ModelProto:
    """A scripted loop runs as often as an input says."""
    return build(
        "int64[1] start, int64 max_len",
        "int64[n, 1] y",
        """
        go = Constant <value = bool {1}> ()
        last, y = Loop (max_len, go, start) <body = step (int64 i, bool c, int64[1] t)
            => (bool c2, int64[1] t2, int64[1] out) {
            e = Gather (w, t)
            s = MatMul (e, v)
            t2 = ArgMax <axis = 1, keepdims = 0> (s)
            out = Identity (t2)
            c2 = Identity (c)
        }>
        """,
        {"w": (20, 6), "v": (6, 20)},
    )


@model
def merged_decoder() -> onnx.ModelProto:
    """A switch chooses between two decoders that share their inputs."""
    return build(
        "int64[batch, seq] ids, bool[1] use_cache_branch, float[batch, 1, past, 4] past",
        "float[batch, t, 4] y",
        """
        e = Gather (w, ids)
        y = If (use_cache_branch) <then_branch = with () => (float[?, ?, 4] r1) {
            axes1 = Constant <value = int64[1] {1}> ()
            p = Squeeze (past, axes1)
            r1 = Concat <axis = 1> (p, e)
        }, else_branch = without () => (float[?, ?, 4] r2) { r2 = Identity (e) }>
        """,
        {"w": (20, 4)},
    )


@model
def decoder_with_cross_cache() -> onnx.ModelProto:
    """One cache grows with the tokens, the other is as long as the encoder's mask, under other symbols."""
    attend = """
        k{0}t = Transpose <perm = [0, 1, 3, 2]> ({1})
        a{0} = MatMul (q, k{0}t)
        b{0} = Add (a{0}, {2})
        p{0} = Softmax <axis = -1> (b{0})
        o{0} = MatMul (p{0}, {1})
    """
    return build(
        "int64[batch, s] input_ids, int64[batch, e] encoder_attention_mask,"
        "float16[batch, 2, p, 4] past_key_values_0_decoder_key,"
        "float16[batch, 2, f, 4] past_key_values_0_encoder_key",
        "float16[batch, 2, s, 4] y, float16[batch, 2, t, 4] present_0_decoder_key",
        """
        e = Gather (w, input_ids)
        axes = Constant <value = int64[1] {1}> ()
        q = Unsqueeze (e, axes)
        two = Constant <value = int64[4] {1, 2, 1, 1}> ()
        mask = Cast <to = 10> (encoder_attention_mask)
        m = Sub (mask, one)
        axes2 = Constant <value = int64[2] {1, 2}> ()
        m4 = Unsqueeze (m, axes2)
        q2 = Tile (q, two)
        present_0_decoder_key = Concat <axis = 2> (past_key_values_0_decoder_key, q2)
        """
        + attend.format(1, "present_0_decoder_key", "none")
        + attend.format(2, "past_key_values_0_encoder_key", "m4")
        + "y = Add (o1, o2)",
        {"w": np.eye(30, 4, dtype=np.float16), "one": np.float16(1), "none": np.float16(0)},
        dims={"p": "past_decoder_sequence_length", "f": "encoder_sequence_length_out"}
        | {"e": "encoder_sequence_length", "s": "decoder_sequence_length"},
    )


@model
def pitch_with_bounds() -> onnx.ModelProto:
    """Two numbers bound a scale: outside of it everything is masked."""
    return build(
        "float[1, samples] audio, float fmin, float fmax",
        "float[1, 6, t] y",
        """
        axes = Constant <value = int64[1] {1}> ()
        u = Unsqueeze (audio, axes)
        c = Conv <strides = [256], kernel_shape = [1024]> (u, w)
        above = GreaterOrEqual (bins, fmin)
        below = LessOrEqual (bins, fmax)
        inside = And (above, below)
        m = Where (inside, c, low)
        y = Softmax <axis = 1> (m)
        """,
        {"w": (6, 1, 1024), "low": np.float32(-np.inf)}
        | {"bins": np.array([50, 100, 200, 400, 800, 1600], "f").reshape(1, 6, 1)},
    )
