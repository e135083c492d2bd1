"""com.microsoft.nchwc (version 1): convolution and pooling over channels in blocks.

ONNX Runtime's optimiser writes these for the CPU at hand. A blocked tensor has the shape (N, C, H, W) of the
plain one, C rounded up to whole blocks, but its memory runs (N, C / b, H, W, b). The same holds for
weights. Element-wise operators and Concat between them are ordinary ones and work on the blocked memory.

The block size b stands nowhere in the file. It follows from the channels where these are no multiple of the
larger size; elsewhere it is the one that ONNX Runtime takes on this machine (see :func:`block_of`).
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from graphdoc.engine.errors import ModelError
from graphdoc.engine.ops import dims
from graphdoc.engine.ops.ms_fused import channels_first, channels_last, fused_conv
from graphdoc.engine.ops.pool import average_pool, global_average_pool, global_max_pool, max_pool
from graphdoc.engine.ops.resize import resize
from graphdoc.engine.ops.shapes import with_dims
from graphdoc.engine.ops.table import Array, Call, Dim, TensorType, op
from graphdoc.engine.ops.window import infer_sizes

DOMAIN = "com.microsoft.nchwc"
SIZES = (16, 8)
"""Block sizes of ONNX Runtime: 16 with AVX-512, 8 with AVX2."""


# ---- the block size ------------------------------------------------------------------------------------


@functools.cache
def _host_block() -> int:
    """Return the block size of ONNX Runtime on this machine."""
    try:
        from llvmlite import binding
    except ImportError:
        return SIZES[1]
    return SIZES[0] if binding.get_host_cpu_features().get("avx512f") else SIZES[1]


def _rounded_up(channels: int, block: int) -> int:
    return -(-channels // block) * block


def _evidence(graph: ir.Graph) -> Iterator[tuple[int, int]]:
    """Yield (channels, how many they are in blocks) of the graph's nodes; where only one is known, twice."""
    for node in graph:
        if node.domain != DOMAIN:
            continue
        if node.op_type == "Conv":
            made = _outputs_of(node)
            if made is not None:
                yield made, made
        elif node.op_type == "ReorderOutput" and (source := node.inputs[0]) is not None:
            made = _outputs_of(source.producer())
            if made is not None:
                yield node.attributes["channels"].as_int(), made


def _outputs_of(node: ir.Node | None) -> int | None:
    """Return how many channels a blocked convolution makes, None for another node."""
    if node is None or node.domain != DOMAIN or node.op_type != "Conv":
        return None
    weights = node.inputs[1]
    return None if weights is None or weights.const_value is None else weights.const_value.shape.numpy()[0]


def block_of(node: ir.Node) -> dict[str, int]:
    """Return the block size of the graph that a node stands in, as the argument ``block``.

    Raises ModelError when no size fits all its convolutions.
    """
    graph = node.graph
    if not isinstance(graph, ir.Graph):
        return {"block": _host_block()}
    known = graph.meta.get("graphdoc.nchwc")
    if known is None:
        known = graph.meta["graphdoc.nchwc"] = _block_of(graph)
    return {"block": known}


def _block_of(graph: ir.Graph) -> int:
    found = set(_evidence(graph))
    fitting = [b for b in SIZES if all(_rounded_up(channels, b) == blocked for channels, blocked in found)]
    if not fitting:
        raise ModelError(
            f"no block of {' or '.join(map(str, SIZES))} channels fits all nodes of {DOMAIN}",
            where=f"graph '{graph.name}'",
            next_step="optimise the model anew, or compare the one it was made from",
        )
    return _host_block() if _host_block() in fitting else fitting[0]


# ---- layouts -------------------------------------------------------------------------------------------


def blocked(x: Array, block: int) -> Array:
    """Return x (N, C, H, W), C a multiple of the block, in blocked memory."""
    n, c, h, w = x.shape
    return x.reshape(n, c // block, block, h, w).transpose(0, 1, 3, 4, 2).reshape(x.shape)


def plain(x: Array, block: int) -> Array:
    """Return x (N, C, H, W) from blocked memory in plain order. Raises ValueError for a part of a block."""
    n, c, h, w = x.shape
    if c % block:
        raise ValueError(f"{c} channels are not in blocks of {block}: the model was made for another CPU")
    return x.reshape(n, c // block, h, w, block).transpose(0, 1, 4, 2, 3).reshape(x.shape)


def _plain_weights(W: Array, block: int, *, inputs: bool) -> Array:
    """Return weights (M, I, kh, kw) in plain order; ``inputs``: their input channels are in blocks too."""
    m, i, h, w = W.shape
    if m % block:
        raise ValueError(f"{m} filters are not in blocks of {block}: the model was made for another CPU")
    if not inputs:
        return W.reshape(m // block, i, h, w, block).transpose(0, 4, 1, 2, 3).reshape(W.shape)
    parts = W.reshape(m // block, i // block, h, w, block, block)
    return parts.transpose(0, 5, 1, 4, 2, 3).reshape(W.shape)


# ---- between the layouts -------------------------------------------------------------------------------


def _infer_reorder_input(
    call: Call, X: TensorType, *, channels_last: int = 0, block: int | None = None
) -> TensorType:
    if X.shape is None:
        return TensorType(X.dtype)
    n, *inner = X.shape
    *sizes, channels = inner if channels_last else (*inner[1:], inner[0])
    return TensorType(X.dtype, (n, _blocked_dim(channels, block), *sizes))


def _blocked_dim(channels: Dim, block: int | None) -> Dim:
    if not isinstance(channels, int):
        return None
    if block is not None:
        return _rounded_up(channels, block)
    return channels if channels % SIZES[0] == 0 else None


@op("ReorderInput", 1, domain=DOMAIN, infer=_infer_reorder_input, around=block_of)
def reorder_input(call: Call, X: Array, *, channels_last: int = 0, block: int) -> Array:
    """X (N, C, H, W), or (N, H, W, C), in blocks; missing channels are 0. com.microsoft.nchwc version 1."""
    x = channels_first(X) if channels_last else X
    missing = -x.shape[1] % block
    if missing:
        x = call.xp.concatenate([x, call.xp.zeros((x.shape[0], missing, *x.shape[2:]), x.dtype)], axis=1)
    return blocked(x, block)


def _infer_reorder_output(
    call: Call, X: TensorType, *, channels: int, channels_last: int = 0, block: int | None = None
) -> TensorType:
    if X.shape is None:
        return TensorType(X.dtype)
    n, _, *sizes = X.shape
    return TensorType(X.dtype, (n, *sizes, channels) if channels_last else (n, channels, *sizes))


@op("ReorderOutput", 1, domain=DOMAIN, infer=_infer_reorder_output, around=block_of)
def reorder_output(call: Call, X: Array, *, channels: int, channels_last: int = 0, block: int) -> Array:
    """The first channels of a blocked X as (N, channels, H, W), or (N, H, W, channels).

    com.microsoft.nchwc version 1.
    """
    x = plain(X, block)[:, :channels]
    return call.xp.ascontiguousarray(_last(x) if channels_last else x)


_last = channels_last


# ---- operators -----------------------------------------------------------------------------------------


def _infer_conv(
    call: Call,
    X: TensorType,
    W: TensorType,
    *rest: TensorType | None,
    block: int | None = None,
    **options: Any,
) -> TensorType:
    if X.shape is None or W.shape is None:
        return TensorType(X.dtype)
    options.pop("kernel_shape", None)
    return TensorType(X.dtype, (X.shape[0], W.shape[0], *infer_sizes(X.shape[2:], W.shape[2:], **options)))


@op("Conv", 1, domain=DOMAIN, infer=_infer_conv, around=block_of)
def nchwc_conv(
    call: Call,
    X: Array,
    W: Array,
    B: Array | None = None,
    Sum: Array | None = None,
    *,
    block: int,
    group: int = 1,
    **attributes: Any,
) -> Array:
    """FusedConv with blocked W, Sum and result, com.microsoft.nchwc version 1.

    X: blocked, or plain where it has fewer channels than a block and there is one group. Depthwise weights
    have their filters alone in blocks.
    """
    direct = group == 1 and X.shape[1] < block
    x = X if direct else plain(X, block)
    w = _plain_weights(W, block, inputs=not direct and W.shape[1] > 1)
    z = None if Sum is None else plain(Sum, block)
    return blocked(fused_conv(call, x, w, B, z, group=group, **attributes), block)


def _infer_pool(
    call: Call, X: TensorType, *, kernel_shape: Sequence[int], block: int | None = None, **options: Any
) -> TensorType:
    if X.shape is None:
        return TensorType(X.dtype)
    return TensorType(X.dtype, (*X.shape[:2], *infer_sizes(X.shape[2:], kernel_shape, **options)))


@op("MaxPool", 1, domain=DOMAIN, infer=_infer_pool, around=block_of)
def nchwc_max_pool(call: Call, X: Array, *, block: int, **attributes: Any) -> Array:
    """MaxPool of a blocked X without indices, com.microsoft.nchwc version 1."""
    return blocked(max_pool(Call(call.xp, call.version), plain(X, block), **attributes)[0], block)


@op("AveragePool", 1, domain=DOMAIN, infer=_infer_pool, around=block_of)
def nchwc_average_pool(call: Call, X: Array, *, block: int, **attributes: Any) -> Array:
    """AveragePool of a blocked X, com.microsoft.nchwc version 1."""
    return blocked(average_pool(call, plain(X, block), **attributes), block)


def _infer_global(call: Call, X: TensorType, **attributes: Any) -> TensorType:
    return TensorType(X.dtype, with_dims(X.shape, {2: 1, 3: 1}))


@op("GlobalMaxPool", 1, domain=DOMAIN, infer=_infer_global, around=block_of)
def nchwc_global_max_pool(call: Call, X: Array, *, block: int) -> Array:
    """GlobalMaxPool of a blocked X, com.microsoft.nchwc version 1."""
    return blocked(global_max_pool(call, plain(X, block)), block)


@op("GlobalAveragePool", 1, domain=DOMAIN, infer=_infer_global, around=block_of)
def nchwc_global_average_pool(call: Call, X: Array, *, block: int) -> Array:
    """GlobalAveragePool of a blocked X, com.microsoft.nchwc version 1."""
    return blocked(global_average_pool(call, plain(X, block)), block)


def _infer_upsample(call: Call, X: TensorType, *, scales: Sequence[int], **attributes: Any) -> TensorType:
    if X.shape is None:
        return TensorType(X.dtype)
    return TensorType(X.dtype, tuple(map(dims.multiply, X.shape, scales)))


@op("Upsample", 1, domain=DOMAIN, infer=_infer_upsample, around=block_of)
def nchwc_upsample(
    call: Call,
    X: Array,
    *,
    block: int,
    scales: Sequence[int],
    mode: str = "nearest",
    coordinate_transformation_mode: str = "asymmetric",
) -> Array:
    """A blocked X enlarged by whole factors, nearest or linear, com.microsoft.nchwc version 1."""
    factors = call.xp.asarray([float(factor) for factor in scales], "float32")
    settings: Mapping[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": coordinate_transformation_mode,
        "nearest_mode": "floor",
    }
    return blocked(resize(call, plain(X, block), None, factors, None, **settings), block)
